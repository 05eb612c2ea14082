"""Train a network under a defense, through the same client that attacks face."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.core import Batch, PreparedBatch, Protection, Rng, Task, Update
from seepage.core._chain import chain
from seepage.core._checkpoint import checkpoints
from seepage.core._client import Client
from seepage.core._device import precision as gpu_precision
from seepage.core._progress import report
from seepage.core._rng import require_key
from seepage.core._task import batchnorm_layers
from seepage.core.errors import Diverged, InvalidValue
from seepage.defenses._aggregation import SecureAggregation
from seepage.defenses._clip import epsilon, noise_multiplier
from seepage.defenses._mixing import InstaHide
from seepage.utility._per_example import TrackStatistics
from seepage.utility._quality import Quality, Utility, evaluate
from seepage.utility._training_plan import Sampler, TrainingPlan
from seepage.zoo._wide_head import random_weights

# Steps that are timed with the defense and without it, after one warm-up step.
TIMED = 4
# Steps between two checks of the weights, each of which waits for the GPU.
CHECK_INTERVAL = 50

Rounding = Literal["float32", "tf32", "bf16"]
Curve = list[tuple[int, Quality]]


def train(
    task: Task,
    data: Batch,
    *,
    held_out: Batch,
    plan: TrainingPlan,
    defense: Protection | None = None,
    precision: Rounding = "float32",
    delta: float | None = 1e-5,
    rng: Rng,
) -> Utility:
    """Train a network under a defense, and measure how good it becomes.

    Every step runs the same `Client` and chain that attacks face. Batch normalisation uses the
    batch's own statistics and keeps running ones for evaluation. Training runs on the device of the
    task. Inside `core.checkpoint.checkpointing`, an interrupted training continues where it
    stopped; on a CPU the result is the same to the bit.

    Args:
        task: The network at the start; it is not changed.
        data: Training data.
        held_out: Data for evaluation.
        plan: `Training` or `Federated`.
        defense: Defense of the clients; none by default.
        precision: On a GPU, "tf32" and "bf16" round to 11 and 8 bits; on a CPU nothing is rounded.
        delta: For epsilon, which needs Opacus; None computes no epsilon.
        rng: All randomness. Defenses draw on the device, since draws on the CPU would take longer
            than training on a GPU.

    Raises:
        Diverged: A weight or a loss is NaN or infinite.

    Deviations:
        The clients of a step update the running statistics of batch normalisation one after the
        other.

    Example:
        >>> import seepage as sp
        >>> from seepage.utility import Training, train
        >>> digits = sp.data.load("digits")
        >>> task = sp.zoo.mlp(hidden=(16,), domain=digits.domain)
        >>> seen, unseen = digits.batch(80), digits.batch(20, start=80)
        >>> plan = Training(epochs=4, batch_size=16, lr=0.05)
        >>> kept = train(task, seen, held_out=unseen, plan=plan, rng=sp.rng(0))
        >>> lost = train(
        ...     task, seen, held_out=unseen, plan=plan, defense=sp.AddGaussian(1.0), rng=sp.rng(0)
        ... )
        >>> kept.accuracy[-1] > lost.accuracy[-1]
        True

    References:
        Huang et al., 2021, Table 1 (huang2021evaluating), accuracy; Liu et al., 2024, Table 5
        (liu2024systematic), final training loss
    """
    if precision not in ("float32", "tf32", "bf16"):
        raise InvalidValue(f"expected precision 'float32', 'tf32' or 'bf16', got {precision!r}")
    require_key(rng)
    defense = chain() if defense is None else defense
    data, held_out = task.move_batch(data), task.move_batch(held_out)
    for batch in (data, held_out):
        task.check(batch)
    promised = _account(defense, plan, examples=len(data), delta=delta)
    settings = (plan, defense, precision, rng)
    name = _fingerprint(task, data, held_out, settings) if checkpoints() else ""
    with _round_to(precision, task.reference.device):
        run = _TrainingRun.begin(task, data, plan=plan, defense=defense, rng=rng)
        overhead = _measure_overhead(task, data, plan=plan, defense=defense, rng=rng)
        began = time.perf_counter()
        curve = _finish(run, held_out, name)
        seconds = time.perf_counter() - began
        training_loss = run.evaluate(data).loss
    return Utility(
        defense=repr(defense),
        accuracy=tuple(quality.accuracy for _, quality in curve),
        loss=tuple(quality.loss for _, quality in curve),
        evaluated=tuple(step for step, _ in curve),
        held_out=len(held_out),
        chance=_find_chance(held_out.labels),
        training_loss=training_loss,
        epsilon=promised,
        overhead=overhead,
        seconds=seconds,
        device=str(task.reference.device),
        task=run.model.copy_task(),
    )


def _find_chance(labels: Tensor) -> float:
    """The share of the most frequent class: the most that one answer to all has right."""
    classes = labels if labels.ndim == 1 else labels.argmax(1)
    return max(Counter(classes.tolist()).values()) / len(classes)


class _TrainedModel:
    """A copy of a task whose parameters are trained and whose running statistics are kept.

    Batch normalisation runs in mode "train", all other layers in mode "eval". The random neurons of
    a wide head stay fixed: neither the gradient nor weight decay moves them. `task` stays the same
    object; its parameters are updated in place.
    """

    def __init__(self, task: Task, plan: TrainingPlan) -> None:
        model = copy.deepcopy(task.model).eval()
        if next(model.parameters()).is_cuda:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for layer in batchnorm_layers(model).values():
            layer.train()
        self.task = replace(task, model=model, mode="train")
        named = self.task.model.named_parameters()
        self._weights = {name: p for name, p in named if p.requires_grad}
        self._optimiser = torch.optim.SGD(
            self._weights.values(), lr=1.0, momentum=plan.momentum, weight_decay=plan.weight_decay
        )
        self._fixed = [(weights, weights.clone()) for weights in random_weights(self.task.model)]

    def descend(self, update: Update, *, lr: float) -> None:
        """Take one step against the update, which is a gradient or a difference of parameters."""
        gradient = update.descent().tensors
        for name, weight in self._weights.items():
            weight.grad = gradient[name]
        self._optimiser.param_groups[0]["lr"] = lr
        self._optimiser.step()
        self._optimiser.zero_grad()
        # Every entry descends independently, so restoring an entry equals never moving it.
        for weights, drawn in self._fixed:
            weights.copy_(drawn)

    def find_diverged(self) -> str | None:
        names = list(self._weights)
        finite = torch.stack([p.detach().isfinite().all() for p in self._weights.values()])
        return None if bool(finite.all()) else names[int(finite.int().argmin())]

    def copy_task(self) -> Task:
        """Copy the current network into a task that evaluates with the running statistics."""
        return replace(self.task, model=copy.deepcopy(self.task.model), mode="eval")

    def state(self) -> list[Tensor]:
        """List all tensors needed to continue: parameters, buffers, momentum."""
        states = (self._optimiser.state[weight] for weight in self._weights.values())
        momentum = [state.get("momentum_buffer") for state in states]
        kept = [buffer for buffer in momentum if buffer is not None]
        return [*self.task.model.parameters(), *self.task.model.buffers(), *kept]

    def restore(self, state: list[Tensor]) -> None:
        for weight in self._weights.values():
            if self._optimiser.param_groups[0]["momentum"]:
                self._optimiser.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        with torch.no_grad():
            for mine, saved in zip(self.state(), state, strict=True):
                mine.copy_(saved)


@dataclass(frozen=True, eq=False)
class _TrainingRun:
    """A training in progress."""

    plan: TrainingPlan
    client: Client
    model: _TrainedModel
    data: Batch
    sampler: Sampler
    rng: Rng

    @classmethod
    def begin(
        cls, task: Task, data: Batch, *, plan: TrainingPlan, defense: Protection, rng: Rng
    ) -> _TrainingRun:
        """Prepare the training, and reject a plan and a defense that do not fit."""
        client = Client(plan.local, defense)
        aggregation = client.chain.aggregation
        hidden = aggregation.clients if isinstance(aggregation, SecureAggregation) else None
        if None not in (hidden, plan.cohort) and hidden != plan.cohort:
            raise InvalidValue(
                f"{aggregation} hides {hidden} clients, but {plan.cohort} take part in a round; "
                "make the two equal"
            )
        model = _TrainedModel(client.broadcast(task), plan)
        local = TrackStatistics(plan.local, model.task.model)
        sampler = plan.build_sampler(data.labels.cpu(), rng=rng.fork("deal"))
        key = rng.fork("clients").on(data.inputs.device)
        run = cls(plan, replace(client, local=local), model, data, sampler, key)
        run._try_smallest_batch()
        return run

    @property
    def steps(self) -> int:
        return self.plan.count_steps(len(self.data))

    def evaluate(self, data: Batch) -> Quality:
        """Evaluate the network; with random signs if it was trained with InstaHide."""
        flipped = any(isinstance(link, InstaHide) for link in self.client.chain.links)
        flips = self.rng.fork("evaluation") if flipped else None
        return evaluate(self.model.copy_task(), data, flips=flips)

    def take_step(self, step: int) -> None:
        """Let the clients of this step share, and apply the update that the server sees."""
        drawn = [indices for indices in self.sampler.draw(step) if len(indices)]
        if not drawn:
            return
        key = self.rng.fork(step)
        batches = [self._batch(indices, key.fork(i)) for i, indices in enumerate(drawn)]
        update = self._share(batches, rng=key)
        self.model.descend(update, lr=self.plan.lr * self.plan.schedule(step, self.steps))

    def _share(self, batches: Sequence[Batch], *, rng: Rng) -> Update:
        """Compute what the server sees: the update of one client, or of several combined."""
        task, links = self.model.task, self.client.chain.links
        if self.plan.cohort is None:
            return self.client(task, batches[0], rng=rng)
        aggregation = self.client.chain.aggregation
        # The clients of a federation are real, so the defense does not split their batches.
        own = links if aggregation is None else links[:-1]
        client = replace(self.client, defense=chain(*own))
        updates = [client(task, b, rng=rng.fork("client", i)) for i, b in enumerate(batches)]
        combine = aggregation or SecureAggregation(len(batches))
        return combine.combine(updates, [len(batch) for batch in batches])

    def _try_smallest_batch(self) -> None:
        """Prepare the smallest batch, so that a defense that needs a larger one fails now."""
        size = self.sampler.smallest
        batch = Batch(self.data.inputs[:size], self.data.labels[:size])
        parts = self.client.chain.split(batch) if self.plan.cohort is None else [batch]
        prepared = PreparedBatch.undefended(self.model.task, min(parts, key=len))
        self.client.chain.prepare(prepared, rng=self.rng)

    def _batch(self, indices: Tensor, key: Rng) -> Batch:
        device = self.data.inputs.device
        if device.type == "cuda":
            # From pinned memory, so that the next step is prepared while the GPU computes this one.
            indices = indices.pin_memory().to(device, non_blocking=True)
        inputs, labels = self.data.inputs[indices], self.data.labels[indices]
        if self.plan.augment is not None:
            inputs = self.plan.augment(inputs, rng=key.fork("augment"))
        return Batch(inputs, labels)


def _finish(run: _TrainingRun, held_out: Batch, name: str) -> Curve:
    """Take all steps that are left, with evaluations, progress reports and checkpoints."""
    saved = checkpoints()
    first, curve = _resume(run, name)
    interval = run.plan.evaluation_interval(len(run.data))
    for step in range(first, run.steps):
        run.take_step(step)
        done = step + 1
        evaluated = done % interval == 0 or done == run.steps
        if evaluated:
            curve.append((done, run.evaluate(held_out)))
        if evaluated or done % CHECK_INTERVAL == 0:
            _require_finite(run, done, curve[-1][1].loss if evaluated else 0.0)
        report(done, run.steps, curve[-1][1].loss if curve else math.inf)
        if saved and done < run.steps and (evaluated or done % saved.every == 0):
            rows = [(step, quality.loss, quality.accuracy) for step, quality in curve]
            table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
            saved.save(name, [torch.tensor(done), table, *run.model.state()])
    if saved:
        saved.discard(name)
    return curve


def _resume(run: _TrainingRun, name: str) -> tuple[int, Curve]:
    """Load the checkpoint, if there is one; return the next step and the curve so far."""
    saved = checkpoints()
    kept = saved.load(name) if saved else None
    if kept is None:
        return 0, []
    done, rows, *state = kept
    run.model.restore(state)
    return int(done), [(int(step), Quality(loss, hits)) for step, loss, hits in rows.tolist()]


def _require_finite(run: _TrainingRun, done: int, loss: float) -> None:
    """Stop a training that has diverged, before its network is saved or attacked."""
    diverged = run.model.find_diverged()
    if diverged is None and math.isfinite(loss):
        return
    what = "the loss on held-out data" if diverged is None else f"the weights of {diverged!r}"
    raise Diverged(
        f"the training of {run.model.task.name} diverged: {what} held NaN or infinity after "
        f"step {done} of {run.steps}; use a learning rate below lr={run.plan.lr!r}"
    )


def _measure_overhead(
    task: Task, data: Batch, *, plan: TrainingPlan, defense: Protection, rng: Rng
) -> float:
    """Time of a step with the defense over the time without, on separate copies."""
    if defense == chain():
        return 1.0
    runs = [
        _TrainingRun.begin(task, data, plan=plan, defense=d, rng=rng) for d in (defense, chain())
    ]
    seconds: list[list[float]] = [[], []]
    for step in range(TIMED + 1):
        for run, spent in zip(runs, seconds, strict=True):
            began = time.perf_counter()
            run.take_step(step % run.steps)
            if data.inputs.is_cuda:
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
    # The fastest step is the one that other processes disturbed least.
    defended, plain = (min(spent[1:]) for spent in seconds)
    return defended / plain


def _account(
    defense: Protection, plan: TrainingPlan, *, examples: int, delta: float | None
) -> float | None:
    """Compute epsilon of the whole training, or None if no account covers it."""
    multiplier, rate = noise_multiplier(defense), plan.sample_rate(examples)
    if multiplier is None or rate is None or delta is None:
        return None
    steps = plan.count_steps(examples)
    return epsilon(noise_multiplier=multiplier, sample_rate=rate, steps=steps, delta=delta)


@contextmanager
def _round_to(precision: Rounding, device: torch.device) -> Iterator[None]:
    half = precision == "bf16" and device.type == "cuda"
    # Autocast's cache would keep the weights of the first step.
    autocast = torch.autocast(device.type, torch.bfloat16, half, cache_enabled=False)
    with gpu_precision("float32" if precision == "float32" else "tf32"), autocast:
        yield


def _fingerprint(task: Task, data: Batch, held_out: Batch, settings: object) -> str:
    """Name a training so that two trainings with different results have different names."""
    loss = getattr(task.loss, "__qualname__", repr(task.loss))
    digest = hashlib.sha256(repr((task, loss, settings)).encode())
    model = (*task.model.parameters(), *task.model.buffers())
    for tensor in (*model, data.inputs, data.labels, held_out.inputs, held_out.labels):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]
