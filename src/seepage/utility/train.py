"""Training under a defense: what protection costs."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from seepage.core import Batch, Protection, Rng, Task
from seepage.core.checkpoint import checkpoints
from seepage.core.device import precision as gpu_precision
from seepage.core.errors import Diverged, InvalidValue
from seepage.core.progress import report
from seepage.core.rng import require_key
from seepage.defenses.chain import chain
from seepage.defenses.clip import epsilon, noise_multiplier
from seepage.utility.course import Course
from seepage.utility.quality import Quality, Utility
from seepage.utility.training_plan import TrainingPlan

# Steps that are timed with the defense and without it, after one that warms up.
TIMED = 4


def overhead(
    task: Task, data: Batch, *, plan: TrainingPlan, defense: Protection, rng: Rng
) -> float:
    """Time of a step with the defense over time without, on copies that learn apart."""
    if defense == chain():
        return 1.0
    courses = [Course.begin(task, data, plan=plan, defense=d, rng=rng) for d in (defense, chain())]
    seconds: list[list[float]] = [[], []]
    for step in range(TIMED + 1):
        for course, spent in zip(courses, seconds, strict=True):
            began = time.perf_counter()
            course.advance(step % course.steps)
            if data.inputs.is_cuda:
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
    # The fastest, which whatever else the machine does disturbed least.
    defended, plain = (min(spent[1:]) for spent in seconds)
    return defended / plain


def promised(
    defense: Protection, plan: TrainingPlan, *, examples: int, delta: float | None
) -> float | None:
    """Epsilon of the whole training, or None where no account covers it.

    Raises:
        MissingExtra: It applies, but Opacus is not installed.
    """
    multiplier, rate = noise_multiplier(defense), plan.sample_rate(examples)
    if multiplier is None or rate is None or delta is None:
        return None
    steps = plan.count_steps(examples)
    return epsilon(noise_multiplier=multiplier, sample_rate=rate, steps=steps, delta=delta)


Rounding = Literal["float32", "tf32", "bf16"]
# Steps between two looks at the weights, for which a GPU has to be waited for.
LOOK = 50


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
    """Train a network behind a defense, and measure what it is worth.

    Every step runs the `Client` and the chain that attacks face, so that what is trained is what
    is attacked. Batch normalisation uses the batch's own statistics and keeps running ones, which
    evaluation uses. Runs where the task is. Inside `core.checkpoint.checkpointing`, an interrupted
    training goes on where it was, and on a CPU to the same bits.

    Args:
        task: The network at the start; it is left as it is.
        data: What is trained on.
        held_out: What it is judged by.
        plan: `Training` or `Federated`.
        defense: What clients do; nothing by default.
        precision: "tf32" and "bf16" round on a GPU, to 11 and 8 bits; nothing does on a CPU.
        delta: For epsilon; None makes no account, which would need Opacus.
        rng: All randomness. Defenses draw on the device, since draws on the CPU would take longer
            than training on a GPU.

    Raises:
        Diverged: Weights or losses are no numbers any more.

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
    reference = next(iter(task.parameters.values()))
    data, held_out = (
        b.to(device=reference.device, dtype=reference.dtype) for b in (data, held_out)
    )
    for batch in (data, held_out):
        task.check(batch)
    epsilon = promised(defense, plan, examples=len(data), delta=delta)
    settings = (plan, defense, precision, rng)
    name = _fingerprint(task, data, held_out, settings) if checkpoints() else ""
    with _rounded(precision, reference.device):
        course = Course.begin(task, data, plan=plan, defense=defense, rng=rng)
        slowdown = overhead(task, data, plan=plan, defense=defense, rng=rng)
        began = time.perf_counter()
        curve = _run(course, held_out, name)
        seconds = time.perf_counter() - began
        training_loss = course.judge(data).loss
    return Utility(
        defense=repr(defense),
        accuracy=tuple(quality.accuracy for _, quality in curve),
        loss=tuple(quality.loss for _, quality in curve),
        evaluated=tuple(step for step, _ in curve),
        training_loss=training_loss,
        epsilon=epsilon,
        overhead=slowdown,
        seconds=seconds,
        device=str(reference.device),
        task=course.trainee.snapshot(),
    )


Curve = list[tuple[int, Quality]]


def _run(course: Course, held_out: Batch, name: str) -> Curve:
    """Take all steps, evaluating, reporting and saving on the way."""
    saved = checkpoints()
    first, curve = _continued(course, name)
    every = course.plan.evaluated_every(len(course.data))
    for step in range(first, course.steps):
        course.advance(step)
        done = step + 1
        evaluated = done % every == 0 or done == course.steps
        if evaluated:
            curve.append((done, course.judge(held_out)))
        if evaluated or done % LOOK == 0:
            _require_finite(course, done, curve[-1][1].loss if evaluated else 0.0)
        report(done, course.steps, curve[-1][1].loss if curve else math.inf)
        if saved and done < course.steps and (evaluated or done % saved.every == 0):
            saved.save(name, [torch.tensor(done), _rows(curve), *course.trainee.tensors()])
    if saved:
        saved.discard(name)
    return curve


def _require_finite(course: Course, done: int, loss: float) -> None:
    """Stop a training that has diverged, before anybody saves or attacks what is left."""
    lost = course.trainee.diverged()
    if lost is None and math.isfinite(loss):
        return
    what = "the loss on held-out data" if lost is None else f"the weights of {lost!r}"
    raise Diverged(
        f"the training of {course.trainee.task.name} diverged: {what} held NaN or infinity after "
        f"step {done} of {course.steps}; use a learning rate below lr={course.plan.lr!r}"
    )


def _continued(course: Course, name: str) -> tuple[int, Curve]:
    """Where a training begins: at the start, or where it was interrupted."""
    saved = checkpoints()
    kept = saved.load(name) if saved else None
    if kept is None:
        return 0, []
    done, rows, *tensors = kept
    course.trainee.restore(tensors)
    return int(done), [(int(step), Quality(loss, hits)) for step, loss, hits in rows.tolist()]


def _rows(curve: Curve) -> Tensor:
    rows = [(step, quality.loss, quality.accuracy) for step, quality in curve]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)


@contextmanager
def _rounded(wanted: Rounding, device: torch.device) -> Iterator[None]:
    halves = wanted == "bf16" and device.type == "cuda"
    # Without its cache, which would keep the weights of the first step.
    halved = torch.autocast(device.type, torch.bfloat16, halves, cache_enabled=False)
    with gpu_precision("float32" if wanted == "float32" else "tf32"), halved:
        yield


def _fingerprint(task: Task, data: Batch, held_out: Batch, settings: object) -> str:
    """A name for a training that no training with another result shares."""
    loss = getattr(task.loss, "__qualname__", repr(task.loss))
    digest = hashlib.sha256(repr((task, loss, settings)).encode())
    model = (*task.model.parameters(), *task.model.buffers())
    for tensor in (*model, data.inputs, data.labels, held_out.inputs, held_out.labels):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]
