"""Set convolutions to the identity, so that the classifier reads the input itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor, nn

from seepage.attacks.malicious_server.passed_inputs import ReadPassed, carried
from seepage.attacks.malicious_server.planting import passive_attack
from seepage.core import ActiveAttack, Attack, Observation, Reconstruction, Rng, Task
from seepage.core.errors import NotApplicable
from seepage.probing.first_layer import calls, noise

Convolution = nn.Conv1d | nn.Conv2d
Normalisation = nn.modules.batchnorm._BatchNorm

# Fewer places than this, and what arrives is not a picture.
RECOGNISABLE = 16


@dataclass(frozen=True, kw_only=True)
class IdentityConvolutions:
    """Sets every convolution to the identity, so that a fully connected layer reads the input.

    Each output channel passes on one tap of one input channel: first the centres, then, where
    there are more channels and a stride, the pixels that the stride would skip. Batch
    normalisation is undone, and biases lift the input above the zero of a ReLU. What arrives at
    the first fully connected layer follows from its gradient in closed form, and so does the
    input: at full resolution where strides leave room for it, at a lower one elsewhere.

    For one person, and for chains of layers; batch normalisation must be run with the broadcast
    statistics. The planted network classifies nothing.

    Args:
        attack: What attacks the update; the default reads what was passed on.

    References:
        Geiping et al., 2020, Sec. 5.4 and Proposition 1 (geiping2020inverting)
    """

    attack: Attack = field(default_factory=ReadPassed)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network with other weights in its convolutions; nothing is random."""
        model = copy.deepcopy(task.model)
        layers = _in_order(task)
        modules = [model.get_submodule(name) for name in layers]
        convolutions = [m for m in modules if isinstance(m, nn.Conv1d | nn.Conv2d)]
        if not convolutions:
            raise NotApplicable(
                f"{task.name} has no convolution to set to the identity; plant a first layer"
            )
        reach = math.prod(convolution.stride[0] for convolution in convolutions)
        with torch.no_grad():
            for number, convolution in enumerate(convolutions):
                _pass_on(convolution, spread=reach if number == 0 else 1)
            for module in modules:
                if isinstance(module, Normalisation):
                    _undo(module)
            _lift(modules, task)
        planted = replace(task, model=model, name=f"{task.name} with identity convolutions")
        places = carried(planted).places
        if places < RECOGNISABLE:
            raise NotApplicable(
                f"{task.name} would pass on only {places} places of the input, since it pools "
                "away the others; plant another way"
            )
        return planted

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack the update as it is."""
        return self.attack(observation, rng=rng)


def _in_order(task: Task) -> list[str]:
    kinds = (nn.Conv1d, nn.Conv2d, Normalisation)
    return list(dict.fromkeys(name for name, _ in calls(task, kinds, noise(task))))


def _pass_on(convolution: Convolution, *, spread: int) -> None:
    """One tap of one input channel for each output channel; a bias of zero."""
    if convolution.groups != 1:
        raise NotApplicable("expected convolutions over all channels, got one in groups")
    convolution.weight.zero_()
    if convolution.bias is not None:
        convolution.bias.zero_()
    inputs = range(convolution.in_channels)
    chosen = product(_taps(convolution, spread), inputs)
    for output, (tap, channel) in zip(range(convolution.out_channels), chosen, strict=False):
        convolution.weight[(output, channel, *tap)] = 1.0


def _taps(convolution: Convolution, spread: int) -> Iterator[tuple[int, ...]]:
    """The centre, then what a stride would skip, then the others from the outside in.

    A first layer spreads its taps over all that later strides will skip, as evenly as it can.
    """
    axes = list(zip(convolution.kernel_size, convolution.stride, strict=True))
    skipped = product(*(_offsets(kernel, stride, spread) for kernel, stride in axes))
    every = product(*(range(kernel) for kernel, _ in axes))
    middle = [kernel // 2 for kernel, _ in axes]
    outside_in = sorted(every, key=lambda tap: -math.dist(tap, middle))
    yield from _distinct([*skipped, *outside_in])


def _offsets(kernel: int, stride: int, spread: int) -> list[int]:
    step = max(spread // stride, 1)
    wide = [kernel // 2 + step * number for number in range(stride)]
    near = [kernel // 2 + number for number in range(stride)]
    return [tap for tap in (wide if wide[-1] < kernel else near) if tap < kernel]


def _distinct(taps: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    yield from dict.fromkeys(taps)


def _undo(normalisation: Normalisation) -> None:
    """Make batch normalisation with running statistics the identity."""
    mean, variance = normalisation.running_mean, normalisation.running_var
    if mean is None or variance is None or normalisation.weight is None:
        raise NotApplicable("expected batch normalisation with running statistics and weights")
    normalisation.weight.copy_((variance + normalisation.eps).sqrt())
    normalisation.bias.copy_(mean)


def _lift(modules: list[nn.Module], task: Task) -> None:
    """Add to the first bias what lifts the darkest input to zero, so that no ReLU hides it."""
    biased = (m for m in modules if isinstance(m.bias, Tensor))
    first = next(biased, None)
    if first is not None and isinstance(first.bias, Tensor):
        reference = next(iter(task.parameters.values()))
        darkest = torch.full((1, *task.domain.shape), task.domain.bounds[0]).to(reference)
        first.bias -= task.domain.normalise(darkest).min()


def identity_convolutions(*, attack: Attack | None = None) -> ActiveAttack:
    """Convolutions set to the identity, so that the input arrives at the classifier unchanged.

    Args:
        attack: What attacks the update; if not given, what was passed on is read in closed form.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    return IdentityConvolutions(attack=passive_attack(attack, ReadPassed()))
