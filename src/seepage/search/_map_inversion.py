"""Find the inputs that made an inner layer read what it is known to have read.

An attack that recovers what a layer inside the network read has left the batch behind: each input
is then searched for by itself, through the layers up to there alone, with first derivatives only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core import Rng, Task, require_continuous
from seepage.core._checkpoint import checkpoints
from seepage.core._device import plain_convolutions, precision, tuning
from seepage.core._digest import content, digest
from seepage.core._progress import limited, spanning, staged, time_left
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, require_at_least
from seepage.numerics._schedules import CosineDecay
from seepage.probing._hooks import read_layers
from seepage.search._decoder_training import scale_to_unit
from seepage.search._map_decoder import Decoder, LearnedDecoder
from seepage.search._optimisers import Adam
from seepage.search._runner import Runner

# Total variation at the first step, and at the last, as shares of the relative misfit.
_SMOOTH, _FREE = 3e-3, 1e-5
# How far all steps in the inputs can lead together, and the smallest and largest of them.
_REACH, _STEP_SIZES = 60.0, (0.01, 0.1)
# Share of the steps that fit the decoder to the maps, and their size.
_FITTED, _FIT_SIZE = 0.23, 1e-4
# A decoder that explains less of other inputs than this is not fitted: many inputs have such maps.
_EXPLAINS = 0.8
# Another contrast explains the maps as well if it leaves no more than so many times the misfit.
_AS_GOOD = 1.5
# Inputs that a decoder sees normalised together, at most.
_LARGEST_GROUP = 16
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

    The decoder makes a first guess at once. If it has learned enough, its weights are then fitted
    to the maps, by which it goes on making plausible inputs. Then the inputs themselves move. Both
    follow the misfit of all maps, by Adam, with a total variation that fades: a strong one finds
    the coarse picture, a weak one leaves the details.

    When time is over, the guess at that moment is returned. Inside
    `core.checkpoint.checkpointing` an interrupted search continues where it stopped.

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
        learned = None
        if decoder is not None:
            scaled = {known.layer: known.scaled for known in maps}
            group = _round_group(len(maps[0].values)) if training else None
            learned = decoder.learn(task, scaled, group=group)
        people = len(maps[0].values)
        size = people if training or together else max(1, _TOGETHER // math.prod(task.domain.shape))
        parts = [slice(i, i + size) for i in range(0, people, size)]
        searches = [
            _Inversion(
                task,
                [KnownMap(known.layer, known.values[part], known.scaled) for known in maps],
                steps,
                together,
                learned,
                rng.fork(number),
            )
            for number, part in enumerate(parts)
        ]
        with staged("inverting feature maps"), spanning((steps + 2) * len(parts)):
            return torch.cat([search.run() for search in searches])


def _round_group(people: int) -> int:
    """A batch size to learn with: statistics of more people are alike, so decoders are shared.

    Example:
        >>> [_round_group(people) for people in (1, 3, 8, 24)]
        [2, 4, 8, 16]
    """
    return min(_LARGEST_GROUP, max(2, 1 << (people - 1).bit_length()))


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


@dataclass(frozen=True, eq=False)
class _Inversion:
    """The search for some people together."""

    task: Task
    maps: Sequence[KnownMap]
    steps: int
    together: Callable[[Tensor], Tensor] | None
    learned: LearnedDecoder | None
    rng: Rng

    def run(self) -> Tensor:
        """Decode, fit the decoder to the maps, and then move the inputs."""
        people = len(self.maps[0].values)
        if self.learned is None:
            shape = (people, *self.task.domain.shape)
            start = self._project(_NOISE * self.rng.normal(shape, like=self.task.reference))
            return self._move(start, self.steps)
        values = {known.layer: known.values for known in self.maps}
        fitting = round(_FITTED * self.steps) if self.learned.explained > _EXPLAINS else 0
        if fitting:
            with limited(_FITTED * time_left() if time_left() < math.inf else None):
                start = self._fit(self.learned, values, fitting)
        else:
            start = self.learned(values)
        found = self._move(start, self.steps - fitting)
        return (
            self._restore_contrast(found, self.learned(values))
            if self.task.mixes_examples
            else found
        )

    def _restore_contrast(self, found: Tensor, first: Tensor) -> Tensor:
        """Give the whole batch the contrast of its first guess, where the maps do not show it.

        Normalisation by the batch undoes a factor of all inputs, so a search drifts along it.
        """
        axes = tuple(range(2, found.ndim))
        ours, wanted = (x - x.mean((0, *axes), keepdim=True) for x in (found, first))
        factor = (ours * wanted).sum() / wanted.square().sum()
        rescaled = self._project(found / factor)
        before, after = (self._misfit(guess) for guess in (found, rescaled))
        return rescaled if bool(after <= _AS_GOOD * before) else found

    def _misfit(self, guess: Tensor) -> Tensor:
        """How far what the layers read of everybody is from the maps."""
        with torch.no_grad():
            read = read_layers(self.task, [known.layer for known in self.maps], guess)
            return torch.stack([m.misfit(read[m.layer]).sum() for m in self.maps]).sum()

    def _fit(self, learned: LearnedDecoder, values: Mapping[str, Tensor], steps: int) -> Tensor:
        """Fit the decoder's weights to these maps: what it makes stays like what it has learned."""
        weights = learned.weights

        def decode(points: Tensor) -> Tensor:
            return learned.decode(values, points[0])

        runner = self._runner(decode, weights[None], steps, _FIT_SIZE)
        found = runner.run(weights[None], name=self._name("fit", steps)).points
        with torch.no_grad():
            return decode(found)

    def _move(self, start: Tensor, steps: int) -> Tensor:
        """Move the inputs themselves, each of them a row."""
        if steps == 0:
            return start
        smallest, largest = _STEP_SIZES
        step_size = min(max(_REACH / steps, smallest), largest)

        def shape(points: Tensor) -> Tensor:
            return points.reshape(start.shape)

        runner = self._runner(shape, start.flatten(1), steps, step_size)
        runner.project = lambda points: self._project(shape(points)).flatten(1)
        return shape(runner.run(start.flatten(1), name=self._name("move", steps)).points)

    def _runner(
        self, make: Callable[[Tensor], Tensor], points: Tensor, steps: int, step_size: float
    ) -> Runner:
        def evaluate(points: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                points = points.detach().requires_grad_()
                values = self._objective(make(points), step / steps)
                (gradients,) = torch.autograd.grad(values.sum(), points)
            # Several people may depend on the same numbers.
            values = values.detach().reshape(len(points), -1).sum(1)
            return values, gradients

        return Runner(
            evaluate=evaluate,
            optimiser=Adam(step_size=step_size, sign="none"),
            schedule=CosineDecay(),
            steps=steps,
            fuse=False,
        )

    def _objective(self, guess: Tensor, progress: Tensor) -> Tensor:
        """What is minimised for each person, `(N,)`."""
        read = read_layers(self.task, [known.layer for known in self.maps], guess)
        misfits = [known.misfit(read[known.layer]) for known in self.maps]
        fade = _SMOOTH * (_FREE / _SMOOTH) ** progress
        values = torch.stack(misfits).mean(0) + fade * _roughness(guess)
        if self.together is not None:
            values = values + self.together(guess) / len(guess)
        return values

    def _project(self, normalised: Tensor) -> Tensor:
        domain = self.task.domain
        return domain.normalise(domain.project(domain.denormalise(normalised)))

    def _name(self, stage: str, steps: int) -> str:
        """Name a stage of the search, if checkpoints are kept, by all that decides its result."""
        if checkpoints() is None:
            return ""
        known = [part for m in self.maps for part in (m.layer, str(m.scaled), m.values)]
        learned = () if self.learned is None else (self.learned.weights,)
        task = (self.task.digest, self.task.mode, repr(self.task.domain))
        given = (stage, str(steps), self.rng.digest, *content(self.together))
        return digest(*task, *known, *learned, *given)


def _roughness(inputs: Tensor) -> Tensor:
    """Mean absolute difference of neighbours along each axis, `(N,)`."""
    rough = inputs.new_zeros(len(inputs))
    for axis in range(2, inputs.ndim):
        if inputs.shape[axis] > 1:
            rough = rough + inputs.diff(dim=axis).abs().flatten(1).mean(1)
    return rough
