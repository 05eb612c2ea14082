"""How a decoder learns: a network reads public inputs, and the decoder makes them again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core._checkpoint import checkpoints
from seepage.core._progress import report, staged, time_left
from seepage.core._task import batchnorm_layers
from seepage.core.errors import NotApplicable
from seepage.numerics._schedules import OneCycle
from seepage.probing._hooks import read_layers
from seepage.search._map_network import MapNetwork
from seepage.search._runner import REPORT_EVERY, beside_stream, no_collection
from seepage.search.fast._captured_step import first_line

log = logging.getLogger("seepage.engine")

# Public inputs that are held out at least.
_HELD_OUT = 16
# Inputs of one step: on a CPU, small ones learn more in the same time.
_BATCH_ON_GPU, _BATCH_ON_CPU = 128, 32
# Numbers of inputs that a step holds at most.
_BATCH_NUMBERS = 2**22
_LEARNING_RATE = 2e-3
# Share of the time that is left which learning may take.
_SHARE = 0.6
# Images are shifted by up to this share of their sides.
_SHIFT = 1 / 8
# Steps before a step is captured.
_WARM_UP = 3


@dataclass(frozen=True, eq=False)
class DecoderTraining:
    """What one decoder learns from, and how long.

    Args:
        task: The network.
        layers: Names of the layers, and whether the scale of what each one read is known.
        inputs: Public inputs, in natural units.
        group: How many inputs the network normalises together; None for each by itself.
        epochs: Passes over the inputs.
        name: A hash of what decides the result.
    """

    task: Task
    layers: tuple[tuple[str, bool], ...]
    inputs: Tensor
    group: int | None
    epochs: int
    name: str

    def run(self, width: int) -> tuple[MapNetwork, float, bool]:
        """Learn on nine tenths of the public inputs, and judge on the others.

        Returns:
            The decoder; the share of the variance of the held-out inputs that it explains; and
            whether there was time for all steps.
        """
        order = self._key("split").permutation(len(self.inputs))
        held_out = order[: max(_HELD_OUT, len(order) // 10, self.group or 1)]
        network = self._build(held_out, width)
        stored, finished = checkpoints(), f"decoder-{self.name}"
        kept = stored.load(finished) if stored else None
        if kept is not None:
            explained, *weights = kept
            _restore(list(network.state_dict().values()), weights)
            return network.eval(), float(explained), True
        with staged("learning a decoder"):
            whole = self._train(network, order[len(held_out) :])
        network.zero_grad()  # frees the memory of the graph
        share = self._judge(network.eval(), held_out)
        if stored and whole:
            explained = torch.tensor(share, dtype=torch.float64)
            stored.save(finished, [explained, *network.state_dict().values()])
            stored.discard(self.name)
        return network, share, whole

    def _build(self, some: Tensor, width: int) -> MapNetwork:
        read = self._read(self._take(some)[: self.group or 2])
        with torch.device("meta"):
            network = MapNetwork(
                [tuple(one.shape[1:]) for one in read], self.task.domain.shape, width=width
            )
        network.to_empty(device=self.task.reference.device)
        network.draw_weights(self._key("weights"))
        return network

    def _train(self, network: MapNetwork, seen: Tensor) -> bool:
        """Train as long as there is time; return whether all steps were taken."""
        size = self._batch_size(len(seen))
        each = len(seen) // size
        steps, schedule = self.epochs * each, OneCycle()
        step = _TrainingStep(network, lambda inputs: self._loss(network, inputs))
        first, stored = self._resume(step), checkpoints()
        began, allowed = time.perf_counter(), _SHARE * time_left()
        network.train()
        for number in range(first, steps):
            # Short of time it takes fewer steps, and its learning rate falls as fast.
            spent = (time.perf_counter() - began) / allowed
            progress = max(number / steps, spent)
            if progress >= 1:
                return False
            order = self._key("order", number // each).permutation(len(seen))
            chosen = seen[order[(number % each) * size :][:size]]
            rate = _LEARNING_RATE * schedule(int(progress * steps), steps)
            loss = step(self._augment(self._take(chosen), number), rate)
            if number % REPORT_EVERY == 0 or number + 1 == steps:
                # Out of time it has learned something all the same.
                with suppress(NotApplicable):
                    report(number + 1, steps, loss.item())
            if stored and (number + 1) % stored.every == 0 and number + 1 < steps:
                stored.save(self.name, [torch.tensor(number + 1), *step.state()])
        return True

    def _loss(self, network: MapNetwork, inputs: Tensor) -> Tensor:
        # Autocast's cache would keep the weights of the first step.
        kind = inputs.device.type
        with torch.autocast(kind, torch.bfloat16, kind == "cuda", cache_enabled=False):
            guess = network(self._read(inputs))
        loss: Tensor = (guess.float() - inputs.float()).square().mean()
        return loss

    def _read(self, inputs: Tensor) -> list[Tensor]:
        """What the layers read of normalised inputs, as the decoder sees it."""
        names = [name for name, _ in self.layers]
        with torch.no_grad(), ExitStack() as hooks:
            if self.group is not None:
                for layer in batchnorm_layers(self.task.network).values():
                    normalise = partial(_normalise_groups, self.group)
                    hooks.enter_context(layer.register_forward_hook(normalise))
            read = read_layers(self.task, names, inputs)
        return [read[name] if s else scale_to_unit(read[name]) for name, s in self.layers]

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

    def _judge(self, network: MapNetwork, held_out: Tensor) -> float:
        """The share of the variance of held-out inputs that a decoder explains."""
        inputs = self._take(held_out)
        with torch.no_grad():
            guess = network(self._read(inputs))
        left = (guess - inputs).square().mean()
        return 1 - float(left / (inputs - inputs.mean(0)).square().mean().clamp_min(1e-30))

    def _resume(self, step: _TrainingStep) -> int:
        """Load the checkpoint, if there is one; return how many steps were taken."""
        stored = checkpoints()
        kept = stored.load(self.name) if stored else None
        if kept is None:
            return 0
        _restore(step.state(), kept[1:])
        return int(kept[0])

    def _key(self, *names: str | int) -> Rng:
        return Rng(0).fork("decoder", self.name, *names)


def scale_to_unit(values: Tensor) -> Tensor:
    """Scale what was read of each person to a root mean square of one."""
    mean = values.flatten(1).square().mean(1).clamp_min(torch.finfo(values.dtype).tiny)
    return values / mean.sqrt().reshape(-1, *(1,) * (values.ndim - 1))


def _normalise_groups(
    group: int,
    layer: nn.modules.batchnorm._BatchNorm,
    arguments: tuple[Tensor, ...],
    _: Tensor,
) -> Tensor:
    """What batch normalisation returns if every `group` inputs in turn are a batch."""
    (inputs,) = arguments
    grouped = inputs.float().reshape(-1, group, inputs.shape[1], inputs[0, 0].numel())
    variance, mean = torch.var_mean(grouped, dim=(1, 3), keepdim=True, correction=0)
    normal = (grouped - mean) * (variance + layer.eps).rsqrt()
    if layer.affine:
        normal = normal * layer.weight[:, None] + layer.bias[:, None]
    return normal.reshape(inputs.shape).to(inputs.dtype)


class _TrainingStep:
    """One step of AdamW; on a GPU it becomes a CUDA graph, since launching it takes longer.

    Args:
        network: What is trained.
        loss: Of a batch of inputs, which has the same shape at every step.
    """

    def __init__(self, network: MapNetwork, loss: Callable[[Tensor], Tensor]) -> None:
        self._network, self._loss = network, loss
        weights = list(network.parameters())
        device, on_gpu = weights[0].device, weights[0].is_cuda
        self._rate = torch.zeros((), device=device) if on_gpu else 0.0
        self._optimiser = torch.optim.AdamW(weights, lr=self._rate, capturable=on_gpu)
        for weight in weights:
            self._optimiser.state[weight] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        self._warm_up = _WARM_UP if on_gpu else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: Tensor = weights[0]
        self._last: Tensor = weights[0]

    def __call__(self, inputs: Tensor, rate: float) -> Tensor:
        """Take a step at this learning rate; return the loss before it."""
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        else:
            self._optimiser.param_groups[0]["lr"] = rate
        if self._warm_up == 0:
            self._capture(inputs)
        if self._graph is not None:
            self._inputs.copy_(inputs)
            self._graph.replay()
            return self._last
        if self._warm_up is None:
            return self._take(inputs)
        self._warm_up -= 1
        with beside_stream():
            return self._take(inputs)

    def state(self) -> list[Tensor]:
        """All tensors needed to go on learning."""
        moments = (moment.values() for moment in self._optimiser.state.values())
        return [*self._network.state_dict().values(), *chain.from_iterable(moments)]

    def _take(self, inputs: Tensor) -> Tensor:
        self._optimiser.zero_grad()
        loss = self._loss(inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return loss.detach()

    def _capture(self, inputs: Tensor) -> None:
        """Record the step; nothing is computed."""
        self._warm_up = None
        self._inputs, graph = inputs.clone(), torch.cuda.CUDAGraph()
        self._optimiser.zero_grad()
        try:
            with no_collection(), torch.cuda.graph(graph):
                self._last = self._take(self._inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.info("running eagerly: the step cannot be captured (%s)", first_line(error))
            torch.cuda.synchronize()
        else:
            self._graph = graph


def _restore(tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for mine, kept in zip(tensors, saved, strict=True):
            mine.copy_(kept)
