"""How exactly closed-form inversion gives inputs back, through one, two and three dense layers.

    python -m benchmarks.analytic_fc [--people 50]

Needs CIFAR-10 and the heart beats in SEEPAGE_DATA. The people attacked are the first of each test
set; networks are trained on others. "Below" a bias: only the last layer has one, so the input is
computed through the layers above it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.core.errors import NotApplicable
from seepage.data import Dataset

HIDDEN = ((), (256,), (256, 128))
ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}
STEPS, BATCH = 300, 64


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(labels, outputs.shape[1])).square().mean(1)


LOSSES = {"cross-entropy": sp.cross_entropy, "squared": squared}
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


def network(
    data: Dataset, hidden: tuple[int, ...], activation: str, biases: str, loss: str
) -> sp.Task:
    torch.manual_seed(0)
    sizes = (data.inputs[0].numel(), *hidden, data.classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for number, (before, after) in enumerate(pairwise(sizes)):
        last = number == len(hidden)
        layers.append(nn.Linear(before, after, bias=last or biases == "everywhere"))
        layers += [] if last else [ACTIVATIONS[activation]()]
    return sp.Task(nn.Sequential(*layers), LOSSES[loss], data.domain)


def trained(task: sp.Task, data: Dataset, people: int) -> sp.Task:
    """The network after a few hundred steps of Adam on everybody but the people attacked."""
    model = task.model
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4)
    order = torch.randint(people, len(data), (STEPS, BATCH), generator=torch.manual_seed(1))
    for chosen in order:
        batch = data.take(chosen)
        loss = task.loss(model(task.domain.normalise(batch.inputs)), batch.labels).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return replace(task, model=model)


def cases() -> Iterator[tuple[tuple[int, ...], str, str, str]]:
    for hidden, loss in product(HIDDEN, LOSSES):
        if not hidden:
            yield hidden, "none", "everywhere", loss
            continue
        for activation, biases in product(ACTIVATIONS, ("everywhere", "last layer only")):
            yield hidden, activation, biases, loss


def errors(
    task: sp.Task, data: Dataset, people: int, dtype: torch.dtype
) -> tuple[list[float], int]:
    """Relative error of each person, and how many had a gradient of zero in the first layer."""
    task = task.to(dtype=dtype)
    found, silent = [], 0
    for person in range(people):
        batch = data.batch(1, start=person).to(dtype=dtype)
        seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(person))
        try:
            guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
        except NotApplicable:
            silent += 1
            continue
        found.append(float((guess.inputs - batch.inputs).norm() / batch.inputs.norm()))
    return found, silent


def main() -> None:
    options = parse_options(__doc__, people=50)
    people = options.people
    rows: list[dict[str, object]] = []
    for name in ("cifar10", "ecg"):
        data = sp.data.load(name)
        for hidden, activation, biases, loss in cases():
            untrained = network(data, hidden, activation, biases, loss)
            for state in ("untrained", "trained"):
                task = untrained if state == "untrained" else trained(untrained, data, people)
                for precision, dtype in PRECISIONS.items():
                    began = time.perf_counter()
                    found, silent = errors(task, data, people, dtype)
                    row = {
                        "data": name,
                        "layers": len(hidden) + 1,
                        "activation": activation,
                        "biases": biases,
                        "loss": loss,
                        "weights": state,
                        "precision": precision,
                        "people": len(found),
                        "silent": silent,
                        "largest_relative_error": max(found, default=None),
                        "seconds_each": round((time.perf_counter() - began) / people, 4),
                    }
                    print(row, flush=True)
                    rows.append(row)
    print(save("analytic_fc", "cpu", {"people": people, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
