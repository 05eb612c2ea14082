"""A decoder from what a layer read to the input, learned on public data."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import vmap

from seepage.core import Domain, Rng, Task
from seepage.core._checkpoint import checkpoints
from seepage.core._digest import digest
from seepage.core._progress import report, staged, time_left
from seepage.core.errors import InvalidValue, NotApplicable, require_at_least
from seepage.data._public_data import PublicData, make_up
from seepage.numerics._schedules import OneCycle
from seepage.probing._hooks import read_layers
from seepage.search._map_network import MapNetwork
from seepage.search._runner import REPORT_EVERY

# Fewer public inputs than this teach a decoder nothing that holds for others.
_FEWEST = 64
# Inputs that are made up if there are none.
_MADE_UP = 2_000
# Inputs that it sees in all, each of them at most so many times.
_SEEN_ON_GPU, _SEEN_ON_CPU, _MOST_EPOCHS = 320_000, 24_000, 200
# Inputs of one step: on a CPU, small ones learn more in the same time.
_BATCH_ON_GPU, _BATCH_ON_CPU = 128, 32
# Numbers of inputs that a batch holds at most.
_BATCH_NUMBERS = 2**22
_LEARNING_RATE = 2e-3
# Share of the time that is left which learning may take.
_SHARE = 0.6
# Images are shifted by up to this share of their sides.
_SHIFT = 1 / 8
# Public inputs that are decoded together.
_DECODED = 256


@dataclass(frozen=True)
class Decoder:
    """Learns to make inputs of what layers read, from public inputs that it lets the network read.

    It is learned once for a network and kept in memory; inside `core.checkpoint.checkpointing` it
    is stored in the folder, too, and an interrupted learning continues where it stopped.

    Args:
        public: Public inputs, 64 or more; None makes some up, of which a decoder learns less.
        epochs: Passes over the public inputs; None for as many as a network of this size is worth
            on its device.
        width: Channels of the widest layers at most; maps with few channels need fewer.

    Example:
        >>> Decoder().made_up
        True
    """

    public: PublicData | None = None
    epochs: int | None = None
    width: int = 256

    def __post_init__(self) -> None:
        require_at_least(1, epochs=self.epochs, width=self.width)
        if self.public is not None and len(self.public.inputs) < _FEWEST:
            raise InvalidValue(
                f"expected at least {_FEWEST} public inputs to learn a decoder from, got "
                f"{len(self.public.inputs)}; without any it learns from made-up ones"
            )

    @property
    def made_up(self) -> bool:
        """Whether it learns from inputs that nobody has."""
        return self.public is None or self.public.made_up

    def learn(
        self, task: Task, layers: Mapping[str, bool], *, group: int | None = None
    ) -> LearnedDecoder:
        """Learn for a network, or find what was learned.

        Args:
            task: The network, in the mode in which it read.
            layers: Names of layers, and whether the scale of what each one read is known.
            group: How many inputs a batch holds if the network normalises by the batch.

        Raises:
            NotApplicable: Inputs cannot be made up, or are of a kind that cannot be decoded.
        """
        public = self.public or make_up(task.domain, _MADE_UP, rng=Rng(0).fork("decoder"))
        task.domain.check(public.inputs)
        epochs = self.epochs or _count_epochs(task, len(public.inputs))
        known = (task.digest, task.mode, repr(task.domain), public.digest, repr(dict(layers)))
        name = digest("decoder", *known, str((group, epochs, self.width)))
        if held := _learned(name):
            return held[0]
        lesson = _Lesson(task, tuple(layers.items()), public.inputs, group, epochs, name)
        learned = lesson.learn(self.width, made_up=public.made_up)
        if not learned.cut:
            _learned(name).append(learned)
        return learned


def _count_epochs(task: Task, inputs: int) -> int:
    seen = _SEEN_ON_GPU if task.reference.is_cuda else _SEEN_ON_CPU
    return min(max(seen // inputs, 1), _MOST_EPOCHS)


@dataclass(frozen=True, eq=False)
class LearnedDecoder:
    """A decoder for one network.

    Args:
        network: Makes normalised inputs of maps.
        layers: Names of the layers, and whether the scale of what each one read is known.
        domain: The space of the inputs.
        explained: Share of the variance of public inputs that it explains where it was not
            learned; below 0 it is worse than the mean input.
        made_up: Whether it was learned from inputs that nobody has.
        cut: Whether time was over before it had learned all.
    """

    network: nn.Module
    layers: tuple[tuple[str, bool], ...]
    domain: Domain
    explained: float
    made_up: bool = False
    cut: bool = False

    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """Decode what layers read, by name; the result is normalised for the network."""
        maps = [v if s else scale_to_unit(v) for v, s in ((values[n], s) for n, s in self.layers)]
        with torch.no_grad():
            parts = zip(*(torch.split(m, _DECODED) for m in maps), strict=True)
            guess = torch.cat([self.network(part) for part in parts])
        inputs: Tensor = self.domain.project(self.domain.denormalise(guess))
        return self.domain.normalise(inputs)


@lru_cache(maxsize=16)
def _learned(name: str) -> list[LearnedDecoder]:
    """What was learned under a name in this process: one decoder, or none."""
    return []


def scale_to_unit(values: Tensor) -> Tensor:
    """Scale what was read of each person to a root mean square of one."""
    mean = values.flatten(1).square().mean(1).clamp_min(torch.finfo(values.dtype).tiny)
    return values / mean.sqrt().reshape(-1, *(1,) * (values.ndim - 1))


@dataclass(frozen=True, eq=False)
class _Lesson:
    """Learning one decoder.

    Args:
        task: The network.
        layers: Names of the layers, and whether the scale of what each one read is known.
        inputs: Public inputs, in natural units.
        group: How many inputs the network normalises together; None for each by itself.
        epochs: Passes over the inputs.
        name: What decides the result, as a hash.
    """

    task: Task
    layers: tuple[tuple[str, bool], ...]
    inputs: Tensor
    group: int | None
    epochs: int
    name: str

    def learn(self, width: int, *, made_up: bool) -> LearnedDecoder:
        """Learn on nine tenths of the public inputs, and judge on the others."""
        domain, reference = self.task.domain, self.task.reference
        order = self._key("split").permutation(len(self.inputs))
        held_out = order[: max(_FEWEST // 4, len(order) // 10, self.group or 1)]
        shapes = [tuple(m.shape[1:]) for m in self._read(self._take(held_out)[: self.group or 2])]
        with torch.device("meta"):
            network = MapNetwork(shapes, domain.shape, width=width)
        network.to_empty(device=reference.device)
        self._draw_weights(network)
        stored, finished = checkpoints(), f"decoder-{self.name}"
        kept = stored.load(finished) if stored else None
        if kept is not None:
            explained, *weights = kept
            _restore(list(network.state_dict().values()), weights)
            return LearnedDecoder(network.eval(), self.layers, domain, float(explained), made_up)
        with staged("learning a decoder"):
            whole = self._train(network, order[len(held_out) :])
        learned = LearnedDecoder(network.eval(), self.layers, domain, 0.0, made_up, not whole)
        learned = replace(learned, explained=self._judge(learned, held_out))
        if stored and whole:
            explained = torch.tensor(learned.explained, dtype=torch.float64)
            stored.save(finished, [explained, *network.state_dict().values()])
            stored.discard(self.name)
        return learned

    def _train(self, network: nn.Module, seen: Tensor) -> bool:
        """Train as long as there is time; return whether all steps were taken."""
        optimiser = torch.optim.AdamW(network.parameters())
        size = self._batch_size(len(seen))
        each = len(seen) // size
        steps, schedule = self.epochs * each, OneCycle()
        first, stored = self._resume(network, optimiser), checkpoints()
        began, allowed = time.perf_counter(), _SHARE * time_left()
        device = self.task.reference.device
        half = torch.autocast(device.type, torch.bfloat16, device.type == "cuda")
        network.train()
        for step in range(first, steps):
            # Short of time it takes fewer steps, and its learning rate falls as fast.
            spent = (time.perf_counter() - began) / allowed
            progress = max(step / steps, spent)
            if progress >= 1:
                return False
            for group in optimiser.param_groups:
                group["lr"] = _LEARNING_RATE * schedule(int(progress * steps), steps)
            order = self._key("order", step // each).permutation(len(seen))
            chosen = seen[order[(step % each) * size :][:size]]
            inputs = self._augment(self._take(chosen), step)
            with half:
                guess = network(self._read(inputs))
            loss = (guess.float() - inputs.float()).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % REPORT_EVERY == 0 or step + 1 == steps:
                # Out of time it has learned something all the same.
                with suppress(NotApplicable):
                    report(step + 1, steps, loss.item())
            if stored and (step + 1) % stored.every == 0 and step + 1 < steps:
                done = torch.tensor(step + 1)
                stored.save(self.name, [done, *_state(network, optimiser)])
        return True

    def _read(self, inputs: Tensor) -> list[Tensor]:
        """What the layers read of normalised inputs, as the decoder sees it."""
        names = [name for name, _ in self.layers]

        def read(some: Tensor) -> tuple[Tensor, ...]:
            return tuple(read_layers(self.task, names, some)[name] for name in names)

        with torch.no_grad():
            if self.group is None:
                maps = read(inputs)
            else:
                groups = inputs.reshape(-1, self.group, *inputs.shape[1:])
                maps = tuple(m.flatten(0, 1) for m in vmap(read)(groups))
        scaled = [scale for _, scale in self.layers]
        return [m if s else scale_to_unit(m) for m, s in zip(maps, scaled, strict=True)]

    def _take(self, chosen: Tensor) -> Tensor:
        """Public inputs, normalised, where the network is; whole groups of them."""
        if self.group is not None:
            chosen = chosen[: len(chosen) // self.group * self.group]
        return self.task.domain.normalise(self.task.move_inputs(self.inputs[chosen]))

    def _batch_size(self, inputs: int) -> int:
        most = max(1, _BATCH_NUMBERS // math.prod(self.task.domain.shape))
        wanted = _BATCH_ON_GPU if self.task.reference.is_cuda else _BATCH_ON_CPU
        size = max(min(wanted, most, inputs // 8), 4, self.group or 1)
        return size if self.group is None else size // self.group * self.group

    def _augment(self, inputs: Tensor, step: int) -> Tensor:
        """Mirror half of the images if they are in colour, and shift all of them."""
        domain, key = self.task.domain, self._key("augment", step)
        if not (domain.pictorial and len(domain.shape) == 3):
            return inputs
        if domain.shape[0] == 3:
            mirrored = key.uniform((len(inputs),), like=inputs) < 0.5
            inputs = torch.where(mirrored[:, None, None, None], inputs.flip(-1), inputs)
        most = torch.tensor([int(_SHIFT * side) for side in domain.shape[1:]])
        moved = (key.fork("shift").uniform((2,)) * (2 * most + 1)).int() - most
        return inputs.roll(moved.tolist(), (-2, -1))

    def _judge(self, learned: LearnedDecoder, held_out: Tensor) -> float:
        """The share of the variance of held-out inputs that a decoder explains."""
        inputs = self._take(held_out)
        names = [name for name, _ in self.layers]
        guess = learned(dict(zip(names, self._read(inputs), strict=True)))
        left = (guess - inputs).square().mean()
        return 1 - float(left / (inputs - inputs.mean(0)).square().mean().clamp_min(1e-30))

    def _draw_weights(self, network: nn.Module) -> None:
        """Draw weights of variance one over the number of inputs; the rest does nothing yet."""
        key = self._key("weights")
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.fill_(1.0 if name.endswith("running_var") else 0.0)
            for name, weight in network.named_parameters():
                if weight.ndim > 1:
                    drawn = key.fork(name).normal(weight.shape, like=weight)
                    weight.copy_(drawn / math.sqrt(weight[0].numel()))
                else:
                    weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)

    def _resume(self, network: nn.Module, optimiser: torch.optim.AdamW) -> int:
        """Load the checkpoint, if there is one; return how many steps were taken."""
        for weight in network.parameters():
            optimiser.state[weight] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        stored = checkpoints()
        kept = stored.load(self.name) if stored else None
        if kept is None:
            return 0
        _restore(_state(network, optimiser), kept[1:])
        return int(kept[0])

    def _key(self, *names: str | int) -> Rng:
        return Rng(0).fork("decoder", self.name, *names)


def _state(network: nn.Module, optimiser: torch.optim.AdamW) -> list[Tensor]:
    """All tensors needed to go on learning."""
    moments = [tensor for p in network.parameters() for tensor in optimiser.state[p].values()]
    return [*network.state_dict().values(), *moments]


def _restore(tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for mine, kept in zip(tensors, saved, strict=True):
            mine.copy_(kept)
