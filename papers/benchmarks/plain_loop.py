"""The search against the loop that anybody would write: `python -m benchmarks.plain_loop`.

Both minimise the objective of `inverting_gradients` from the same start on a CPU, with one restart.
They take turns, and the times of a turn are divided by each other, so that a neighbour who takes
the cores slows both. The time of the search is that of the whole attack, with all it prepares. Time
on the clock and time of the processor are both kept: on a busy machine only the second, with one
thread, says much.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import save

TV = 1e-4
STEP_SIZE = 0.1
PHOTOS = sp.data.load("photos")


def small_batchnorm() -> sp.Task:
    """Two blocks of convolution, batch normalisation, ReLU and max pooling."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 10)),
    )
    return sp.Task(model, sp.cross_entropy, PHOTOS.domain)


NETWORKS: dict[str, Callable[[], sp.Task]] = {
    "cnn3-v3": lambda: sp.zoo.cnn(variant="cnn3-v3", domain=PHOTOS.domain),
    "Conv-BN-ReLU-MaxPool": small_batchnorm,
    "LeNet": lambda: sp.zoo.lenet(domain=PHOTOS.domain),
    "MLP": lambda: sp.zoo.mlp(domain=PHOTOS.domain),
    "ResNet-20": lambda: sp.zoo.resnet20(domain=PHOTOS.domain),
}


def plain_loop(
    task: sp.Task, observed: list[Tensor], labels: Tensor, start: Tensor, steps: int
) -> tuple[Tensor, list[float]]:
    """Differentiate twice, take the sign, step by Adam, clamp; return the point and the values."""
    network = task.network
    parameters = [p for p in network.parameters() if p.requires_grad]
    low, high = (
        task.domain.normalise(torch.full_like(start, bound)) for bound in task.domain.bounds
    )
    candidate = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([candidate], lr=STEP_SIZE)
    decay = torch.optim.lr_scheduler.MultiStepLR(
        optimiser, [-(-steps * eighths // 8) for eighths in (3, 5, 7)], gamma=0.1
    )
    norm = torch.stack([g.square().sum() for g in observed]).sum().sqrt()
    values = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(candidate), labels)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        product = torch.stack(
            [(a * b).sum() for a, b in zip(gradient, observed, strict=True)]
        ).sum()
        own = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
        rough = candidate.diff(dim=-1).abs().mean() + candidate.diff(dim=-2).abs().mean()
        value = 1 - product / (own * norm) + TV * rough
        (slope,) = torch.autograd.grad(value, candidate)
        candidate.grad = slope.sign()
        optimiser.step()
        decay.step()
        with torch.no_grad():
            candidate.clamp_(low, high)
        values.append(value.detach())
    return candidate.detach(), torch.stack(values).tolist()


def observe(task: sp.Task, size: int) -> sp.Observation:
    batch = PHOTOS.batch(size).to(dtype=next(iter(task.parameters.values())).dtype)
    client = sp.Client(sp.Gradient())
    return sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))


def first_point(seen: sp.Observation) -> Tensor:
    """The start that the attack draws for its first restart."""
    assert seen.labels is not None
    shape = (len(seen.labels), *seen.task.domain.shape)
    return sp.rng(1).fork("restart", 0).normal(shape, like=next(iter(seen.update)))


def apart(task: sp.Task, size: int, steps: int = 60) -> float:
    """How far the objectives of both loops are from each other, in double precision."""
    seen = observe(task.to(dtype=torch.float64), size)
    assert seen.labels is not None
    _, theirs = plain_loop(seen.task, list(seen.update), seen.labels, first_point(seen), steps)
    ours = attack(steps)(seen, rng=sp.rng(1)).trace.objective
    return max(abs(a - b) for a, b in zip(ours[:steps], theirs, strict=True))


def attack(steps: int) -> sp.Attack:
    return sp.attacks.inverting_gradients(steps=steps, restarts=1, step_size=STEP_SIZE, tv=TV)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Time on the clock, and of the processor."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


def compare(name: str, size: int, steps: int, turns: int) -> dict[str, object]:
    """One row of the table: steps per second of both, and the medians of their ratios."""
    task = NETWORKS[name]()
    seen = observe(task, size)
    assert seen.labels is not None
    observed, labels, start = list(seen.update), seen.labels, first_point(seen)
    # ResNet-20 takes ten times as long as the others.
    steps = steps // 5 if name == "ResNet-20" else steps
    plain, ours = [], []
    for _ in range(turns):
        plain.append(seconds(lambda: plain_loop(task, observed, labels, start, steps)))
        ours.append(seconds(lambda: attack(steps)(seen, rng=sp.rng(1))))
    clock, processor = (
        [round(a[kind] / b[kind], 2) for a, b in zip(plain, ours, strict=True)] for kind in (0, 1)
    )
    return {
        "network": name,
        "batch": size,
        "steps": steps,
        "plain": round(steps / statistics.median(turn[0] for turn in plain), 1),
        "seepage": round(steps / statistics.median(turn[0] for turn in ours), 1),
        "ratio": round(statistics.median(clock), 2),
        "ratio_processor": round(statistics.median(processor), 2),
        "turns": {"clock": clock, "processor": processor},
        "apart": apart(task, size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000, help="of each run")
    parser.add_argument("--turns", type=int, default=5, help="of both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="by comma")
    parser.add_argument("--batches", default="1,4", help="sizes, by comma")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.networks.split(","):
        for size in map(int, options.batches.split(",")):
            rows.append(compare(name, size, options.steps, options.turns))
            print(rows[-1], flush=True)
            content = {"unit": "steps per second", "rows": rows}
            path = save("plain_loop", "cpu", content, options.out)
    print(path)


if __name__ == "__main__":
    main()
