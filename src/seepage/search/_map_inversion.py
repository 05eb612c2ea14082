"""Find the inputs that made an inner layer read what it is known to have read.

An attack that recovers what a layer inside the network read has left the batch behind: each input
is then searched for by itself, through the layers up to there alone, with first derivatives only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Domain, Rng, Task, require_continuous
from seepage.core._checkpoint import checkpoints
from seepage.core._device import plain_convolutions, precision, tuning
from seepage.core._digest import content, digest
from seepage.core._progress import spanning, staged
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, require_at_least
from seepage.numerics._schedules import CosineDecay
from seepage.probing._hooks import read_layers
from seepage.search._map_decoder import Decoder, scale_to_unit
from seepage.search._optimisers import Adam
from seepage.search._runner import Runner

# Total variation at the first step, and at the last, as shares of the relative misfit.
_SMOOTH, _FREE = 3e-3, 1e-5
# How far all steps together can lead, and the smallest and largest of them.
_REACH, _STEP_SIZES = 20.0, (0.005, 0.1)
# Spread of the noise that a search without a decoder starts from.
_NOISE = 0.1
# Numbers of inputs searched for together: so many fill a GPU.
_TOGETHER = 2**23


@dataclass(frozen=True, eq=False)
class KnownMap:
    """What one layer read, for each of several people.

    Args:
        layer: Name of the layer, as in `network.named_modules()`.
        values: Its input, `(N, ...)`, one row for each person.
        scaled: Whether the values are known; otherwise only up to a positive factor for each
            person.
    """

    layer: str
    values: Tensor
    scaled: bool = True

    def __post_init__(self) -> None:
        if self.values.ndim < 2 or not bool(self.values.isfinite().all()):
            raise InvalidValue(
                f"expected finite values (N, ...) of {self.layer!r}, got shape "
                f"{tuple(self.values.shape)}"
            )

    def misfit(self, read: Tensor) -> Tensor:
        """How far inputs are from what was read, `(N,)`: squared, as a share of its length.

        Of values up to a factor the directions are compared.
        """
        ours, known = read.flatten(1), self.values.flatten(1)
        if not self.scaled:
            ours, known = scale_to_unit(ours), scale_to_unit(known)
        length = known.square().sum(1)
        return (ours - known).square().sum(1) / length.clamp_min(torch.finfo(known.dtype).tiny)


def invert_maps(
    task: Task,
    maps: Sequence[KnownMap],
    *,
    decoder: Decoder | None,
    steps: int,
    rng: Rng,
    training: bool = False,
    together: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Find the inputs whose feature maps these are, `(N, *shape)`, normalised for the network.

    The decoder makes a first guess at once. Then Adam follows the misfit of all maps, with a total
    variation that fades: a strong one finds the coarse picture, a weak one leaves the details. When
    time is over, the guess at that moment is returned. Inside `core.checkpoint.checkpointing` an
    interrupted search continues where it stopped.

    Args:
        task: The network.
        maps: What one or several of its layers read, with the same people in the same order.
        decoder: Learns a first guess from public data; None starts from noise.
        steps: Steps of the search; 0 returns the first guess.
        rng: All randomness.
        training: The network normalised by the batch: all guesses together are its batch.
        together: A further loss of all guesses `(N, *shape)`, which are then searched together.

    Raises:
        NotApplicable: Inputs are tokens.

    Example:
        >>> from seepage.core import rng
        >>> from seepage.zoo import lenet
        >>> task = lenet()
        >>> truth = task.domain.normalise(torch.rand(1, 3, 32, 32, generator=rng(0).generator()))
        >>> known = KnownMap("conv2", read_layers(task, ["conv2"], truth)["conv2"])
        >>> found = invert_maps(task, [known], decoder=None, steps=40, rng=rng(1))
        >>> bool(known.misfit(read_layers(task, ["conv2"], found)["conv2"]) < 0.01)
        True

    References:
        Mahendran and Vedaldi, 2015 (mahendran2015understanding), the search; Dosovitskiy and Brox,
        2016 (dosovitskiy2016inverting), the decoder
    """
    require_continuous(task)
    require_key(rng)
    require_at_least(0, steps=steps)
    task = task.upcast().in_mode("train" if training else "eval")
    maps = _check_maps(task, maps)
    with precision("tf32"), tuning(True), plain_convolutions():
        start = _first_guess(task, maps, decoder, training=training, rng=rng)
        if steps == 0:
            return start
        whole = training or together is not None
        size = len(start) if whole else max(1, _TOGETHER // start[0].numel())
        parts = [range(i, min(i + size, len(start))) for i in range(0, len(start), size)]
        with staged("inverting feature maps"), spanning((steps + 1) * len(parts)):
            found = [
                _Inversion(
                    task,
                    [KnownMap(m.layer, m.values[part.start : part.stop], m.scaled) for m in maps],
                    steps,
                    together,
                ).run(start[part.start : part.stop])
                for part in parts
            ]
    return torch.cat(found)


def _check_maps(task: Task, maps: Sequence[KnownMap]) -> list[KnownMap]:
    """Move maps to the network, or say what does not fit."""
    if not maps:
        raise InvalidValue("expected at least one feature map, got none")
    people = {len(known.values) for known in maps}
    if len(people) > 1 or 0 in people:
        raise InvalidValue(
            f"expected the same people in all feature maps, got {sorted(people)} of them"
        )
    layers = [known.layer for known in maps]
    if len(set(layers)) < len(layers):
        raise InvalidValue(f"expected each layer once, got {', '.join(layers)}")
    blank = task.reference.new_zeros(2, *task.domain.shape)
    with torch.no_grad():
        read = read_layers(task, layers, blank)
    for known in maps:
        wanted, came = tuple(read[known.layer].shape[1:]), tuple(known.values.shape[1:])
        if wanted != came:
            raise InvalidValue(
                f"the layer {known.layer!r} of {task.name} reads {wanted} of each person, got "
                f"{came}"
            )
    return [KnownMap(m.layer, m.values.detach().to(task.reference), m.scaled) for m in maps]


def _first_guess(
    task: Task, maps: Sequence[KnownMap], decoder: Decoder | None, *, training: bool, rng: Rng
) -> Tensor:
    people = len(maps[0].values)
    if decoder is None:
        noise = rng.fork("start").normal((people, *task.domain.shape), like=task.reference)
        return _project(task.domain, _NOISE * noise)
    scaled = {known.layer: known.scaled for known in maps}
    learned = decoder.learn(task, scaled, group=max(2, people) if training else None)
    return learned({known.layer: known.values for known in maps})


def _project(domain: Domain, normalised: Tensor) -> Tensor:
    return domain.normalise(domain.project(domain.denormalise(normalised)))


@dataclass(frozen=True, eq=False)
class _Inversion:
    """The search for some people together, each of them a row."""

    task: Task
    maps: Sequence[KnownMap]
    steps: int
    together: Callable[[Tensor], Tensor] | None

    def run(self, start: Tensor) -> Tensor:
        smallest, largest = _STEP_SIZES
        step_size = min(max(_REACH / self.steps, smallest), largest)
        runner = Runner(
            evaluate=self._evaluate,
            optimiser=Adam(step_size=step_size, sign="none"),
            schedule=CosineDecay(),
            steps=self.steps,
            project=self._project_rows,
            fuse=False,
        )
        name = self._fingerprint(start) if checkpoints() else ""
        return runner.run(start.flatten(1), name=name).points.reshape(start.shape)

    def _evaluate(self, points: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            guess = points.detach().reshape(-1, *self.task.domain.shape).requires_grad_()
            read = read_layers(self.task, [known.layer for known in self.maps], guess)
            misfits = [known.misfit(read[known.layer]) for known in self.maps]
            fade = _SMOOTH * (_FREE / _SMOOTH) ** (step / self.steps)
            values = torch.stack(misfits).mean(0) + fade * _roughness(guess)
            total = values.sum()
            if self.together is not None:
                total = total + self.together(guess)
            (gradients,) = torch.autograd.grad(total, guess)
        return values.detach(), gradients.flatten(1)

    def _project_rows(self, points: Tensor) -> Tensor:
        shaped = points.reshape(-1, *self.task.domain.shape)
        return _project(self.task.domain, shaped).flatten(1)

    def _fingerprint(self, start: Tensor) -> str:
        known = [part for m in self.maps for part in (m.layer, str(m.scaled), m.values)]
        more = content(self.together)
        task = (self.task.digest, self.task.mode, repr(self.task.domain))
        return digest("inversion", *task, *known, str(self.steps), start, *more)


def _roughness(inputs: Tensor) -> Tensor:
    """Mean absolute difference of neighbours along each axis, `(N,)`."""
    rough = inputs.new_zeros(len(inputs))
    for axis in range(2, inputs.ndim):
        if inputs.shape[axis] > 1:
            rough = rough + inputs.diff(dim=axis).abs().flatten(1).mean(1)
    return rough
