"""Set convolutions to the identity, so that the classifier reads the input itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor, nn

from seepage.attacks.linear_systems._analytic_fc import features
from seepage.attacks.malicious_server._planting import fill_holes, require_passive
from seepage.core import (
    ActiveAttack,
    Attack,
    AttackWrapper,
    BaseAttack,
    Observation,
    Reconstruction,
    Rng,
    Task,
)
from seepage.core._usable_update import require_continuous
from seepage.core.errors import NotApplicable
from seepage.probing._first_layer import draw_noise, list_calls

Convolution = nn.Conv1d | nn.Conv2d
Normalisation = nn.modules.batchnorm._BatchNorm

_LEVELS = 33
# Relative to the range of all features; a smaller response to black and white is rounding.
_SILENT = 1e-4
# Relative to the range of an input; a feature with a larger error mixes several entries.
_EXACT = 1e-2
# With fewer entries than this, what arrives is not a picture.
_RECOGNISABLE = 16


@dataclass(frozen=True, eq=False)
class _PassedEntries:
    """Features before the first fully connected layer that each carry one entry of the input.

    Args:
        layer: Name of the fully connected layer.
        alive: Indices of these features, `(n,)`.
        responses: Of each to blank inputs from darkest to lightest, `(n, levels)`, rising.
        index: The entry of the input that each carries, `(n, axes)`.
    """

    layer: str
    alive: Tensor
    responses: Tensor
    index: Tensor

    @property
    def places(self) -> int:
        """Number of different entries of the input that arrive."""
        return len(set(map(tuple, self.index.tolist())))


def _find_passed_entries(task: Task) -> _PassedEntries:
    """Find which entries of the input arrive at the first fully connected layer, and where.

    Raises:
        NotApplicable: There is no such layer, or it does not read one vector per example.
    """
    shape = tuple(task.domain.shape)
    levels = torch.linspace(0, 1, _LEVELS, dtype=torch.float64)
    blank = levels.reshape(-1, *(1 for _ in shape)).expand(-1, *shape)
    layer, responses = _read_first_layer(task, blank)
    responses = responses.T.contiguous()
    range_ = responses[:, -1] - responses[:, 0]
    alive = range_ > _SILENT * range_.abs().max()
    responses = responses[alive].cummax(1).values
    index = torch.stack(
        [_locate_features(task, axis, alive, responses) for axis in range(len(shape))], 1
    )
    # On noise, a feature that pools nothing has the value of the entry at its place.
    shares = Rng(0).fork("carried").uniform(shape).double()
    said = _invert_responses(responses, _read_first_layer(task, shares[None])[1][0][alive])
    single = (said - shares.to(said)[tuple(index.T)]).abs() < _EXACT
    return _PassedEntries(layer, alive.nonzero()[single, 0], responses[single], index[single])


def _locate_features(task: Task, axis: int, alive: Tensor, responses: Tensor) -> Tensor:
    """The position along an axis that each feature comes from, found by ramps."""
    shape = tuple(task.domain.shape)
    ramp = torch.linspace(0, 1, shape[axis], dtype=torch.float64)
    ramp = ramp.reshape(*(-1 if a == axis else 1 for a in range(len(shape)))).expand(shape)
    _, shown = _read_first_layer(task, torch.stack([ramp, 1 - ramp]))
    up, down = (_invert_responses(responses, one[alive]) for one in shown)
    return ((up + 1 - down) / 2 * (shape[axis] - 1)).round().long()


def _read_first_layer(task: Task, shares: Tensor) -> tuple[str, Tensor]:
    """The first fully connected layer and what it reads of inputs given as shares of the range."""
    low, high = task.domain.bounds
    double = task.in_mode("eval").to(dtype=torch.float64)
    normalised = double.domain.normalise((low + (high - low) * shares).to(double.reference))
    read = list_calls(double, nn.Linear, normalised)
    if not read or read[0][1].ndim != 2:
        raise NotApplicable(f"expected {task.name} to have a fully connected layer, got none")
    return read[0]


def _invert_responses(responses: Tensor, read: Tensor) -> Tensor:
    """The share of the range at which each feature responds with the value read."""
    read = read.to(responses).unsqueeze(1)
    above = torch.searchsorted(responses, read).clamp(1, responses.shape[1] - 1)
    low, high = responses.gather(1, above - 1), responses.gather(1, above)
    within = ((read - low) / (high - low).clamp_min(1e-300)).clamp(0, 1)
    return ((above - 1 + within) / (responses.shape[1] - 1)).squeeze(1)


@dataclass(frozen=True)
class ReadPassed(BaseAttack):
    """Reads the input of one example behind layers that pass it on entry by entry.

    The server shows its own inputs to the network: blank ones of every brightness give the response
    of each feature, which is inverted, and ramps along each axis give its place. Entries that no
    feature carries are filled in from their neighbours.

    References:
        Geiping et al., 2020, Proposition 1 (geiping2020inverting)
    """

    one_input = True

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        task = observation.task
        require_continuous(task)
        passed = _find_passed_entries(task)
        read = features(observation, layer=passed.layer)
        low, high = task.domain.bounds
        values = low + (high - low) * _invert_responses(passed.responses, read[passed.alive])
        filled = fill_holes(tuple(task.domain.shape), passed.index, values)
        return Reconstruction(filled[None].to(read), observation.labels)


@dataclass(frozen=True, kw_only=True)
class IdentityConvolutions(AttackWrapper):
    """Sets every convolution to the identity, so that a fully connected layer reads the input.

    Each output channel passes on one tap of one input channel: first the centres, then, if there
    are more channels and a stride, the pixels that the stride would skip. Batch normalisation is
    undone, and biases lift the input above the zero of a ReLU. The input of the first fully
    connected layer follows from its gradient in closed form, and with it the network's input: at
    full resolution where strides leave room for it, at a lower one elsewhere.

    For one example, and for chains of layers; batch normalisation must run with the broadcast
    statistics. The planted network classifies nothing.
    """

    attack: Attack = field(default_factory=ReadPassed)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Set the convolutions to the identity; nothing is random."""
        model = copy.deepcopy(task.model)
        kinds = (nn.Conv1d, nn.Conv2d, Normalisation)
        names = dict.fromkeys(name for name, _ in list_calls(task, kinds, draw_noise(task)))
        modules = [model.get_submodule(name) for name in names]
        convolutions = [m for m in modules if isinstance(m, nn.Conv1d | nn.Conv2d)]
        if not convolutions:
            raise NotApplicable(
                f"{task.name} has no convolution to set to the identity; plant a first layer"
            )
        reach = math.prod(convolution.stride[0] for convolution in convolutions)
        with torch.no_grad():
            for number, convolution in enumerate(convolutions):
                _set_to_identity(convolution, spread=reach if number == 0 else 1)
            for module in modules:
                if isinstance(module, Normalisation):
                    _undo_normalisation(module)
            _lift_inputs(modules, task)
        planted = replace(task, model=model, name=f"{task.name} with identity convolutions")
        places = _find_passed_entries(planted).places
        if places < _RECOGNISABLE:
            raise NotApplicable(
                f"{task.name} would pass on only {places} entries of the input, since it pools "
                "away the others; plant another way"
            )
        return planted


def _set_to_identity(convolution: Convolution, *, spread: int) -> None:
    """Let each output channel read one tap of one input channel; set the bias to zero."""
    if convolution.groups != 1:
        raise NotApplicable("expected convolutions over all channels, got one in groups")
    convolution.weight.zero_()
    if convolution.bias is not None:
        convolution.bias.zero_()
    chosen = product(_order_taps(convolution, spread), range(convolution.in_channels))
    for output, (tap, channel) in zip(range(convolution.out_channels), chosen, strict=False):
        convolution.weight[(output, channel, *tap)] = 1.0


def _order_taps(convolution: Convolution, spread: int) -> Iterator[tuple[int, ...]]:
    """The centre, then what a stride would skip, then the others from the outside in.

    A first layer spreads its taps over all that later strides will skip, as evenly as it can.
    """
    axes = list(zip(convolution.kernel_size, convolution.stride, strict=True))
    skipped = product(*(_offsets(kernel, stride, spread) for kernel, stride in axes))
    every = product(*(range(kernel) for kernel, _ in axes))
    middle = [kernel // 2 for kernel, _ in axes]
    outside_in = sorted(every, key=lambda tap: -math.dist(tap, middle))
    yield from dict.fromkeys([*skipped, *outside_in])


def _offsets(kernel: int, stride: int, spread: int) -> list[int]:
    step = max(spread // stride, 1)
    wide = [kernel // 2 + step * number for number in range(stride)]
    near = [kernel // 2 + number for number in range(stride)]
    return [tap for tap in (wide if wide[-1] < kernel else near) if tap < kernel]


def _undo_normalisation(normalisation: Normalisation) -> None:
    """Make batch normalisation with running statistics the identity."""
    mean, variance = normalisation.running_mean, normalisation.running_var
    if mean is None or variance is None or normalisation.weight is None:
        raise NotApplicable("expected batch normalisation with running statistics and weights")
    normalisation.weight.copy_((variance + normalisation.eps).sqrt())
    normalisation.bias.copy_(mean)


def _lift_inputs(modules: list[nn.Module], task: Task) -> None:
    """Add to the first bias what lifts the darkest input to zero, so that no ReLU hides it."""
    bias = next((m.bias for m in modules if isinstance(m.bias, Tensor)), None)
    if bias is not None:
        darkest = torch.full((1, *task.domain.shape), task.domain.bounds[0])
        bias -= task.domain.normalise(task.move_inputs(darkest)).min()


def identity_convolutions(*, attack: Attack | None = None) -> ActiveAttack:
    """Set convolutions to the identity, so that the input arrives at the classifier unchanged.

    Args:
        attack: What attacks the update; if not given, what was passed on is read in closed form.

    References:
        Geiping et al., 2020, Sec. 5.4 and Proposition 1 (geiping2020inverting)
    """
    return IdentityConvolutions(attack=require_passive(attack or ReadPassed()))
