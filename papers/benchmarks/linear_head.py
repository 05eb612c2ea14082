"""Table 2 of Liu et al. (2024) through a wide layer without an activation.

    python -m benchmarks.linear_head

The paper adds "an extra linear layer" of 16384 neurons and reads features off the gradient of the
layer after it. Its theory has an activation, and with ReLU its estimator errs three times as much
as is printed. Here the layer has none, and the span is that of the first moments W^T G of the
gradient G. Features are those of an untrained ResNet-18, of the first 16 test images, and all else
is as in the table. Without an activation the error is about sqrt(d / m), in any batch.

Only noise sees how long features are, which is not printed. `length` 1 is that of the theory, and
at 0.1 noise of 0.1 costs one image what is printed. `relu` has the activation and the same
estimator, and `kept` leaves the 2048 trained neurons out. Needs CIFAR-10 in SEEPAGE_DATA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import seepage as sp
from benchmarks.feature_recovery import features, outside
from benchmarks.provenance import parse_options, save
from seepage.audit import _spec_entries as entries
from seepage.core import Update
from seepage_papers.reading import load_table
from seepage_papers.table import Cell

PEOPLE = 16
CLASSES = 10
Activation = Callable[[Tensor], Tensor]
# What is varied: the activation, the neurons, and the length of features.
VARIANTS: dict[str, tuple[Activation, int, float]] = {
    "linear": (lambda x: x, 16_384, 0.1),
    "length 1": (lambda x: x, 16_384, 1.0),
    "kept": (lambda x: x, 14_336, 0.1),
    "relu": (torch.relu, 16_384, 0.1),
}


def share(inputs: Tensor, labels: Tensor, weight: Tensor, head: Tensor, act: Activation) -> Tensor:
    """The gradient of the head, `(K, m)`, for features `(B, d)`."""
    hidden = act(inputs @ weight.T)
    chances = torch.softmax(hidden @ head.T, 1)
    return (chances - torch.nn.functional.one_hot(labels, CLASSES)).T @ hidden / len(inputs)


def descend(
    inputs: Tensor, labels: Tensor, weight: Tensor, head: Tensor, act: Activation, local: Any
) -> Tensor:
    """What local steps on the head share; the wide layer stays as it was drawn."""
    at = head.clone()
    for _ in range(local["steps"]):
        at -= local["lr"] * share(inputs, labels, weight, at, act)
    return head - at


def span(update: Tensor, weight: Tensor, size: int) -> Tensor:
    """The leading directions of the first moments, `(d, B)`."""
    return torch.linalg.svd(update @ weight, full_matrices=False).Vh[:size].T


def measure(cell: Cell, variant: str) -> list[float]:
    """The error of every person of a cell."""
    act, neurons, length = VARIANTS[variant]
    size = cell.scenario["data"]["batch_size"]
    task, data = sp.zoo.wide_head_resnet18(neurons=64, trained=0), sp.data.load("cifar10")
    weight = sp.rng(0).normal((neurons, 512), like=torch.zeros((), dtype=torch.float64))
    head = torch.arange(1.0, CLASSES + 1, dtype=torch.float64)[:, None].expand(-1, neurons)
    head = head / neurons
    (defense,) = entries.read_defenses(cell.scenario.get("defenses", [[]]))
    errors: list[float] = []
    for start in range(0, PEOPLE, size):
        batch = data.batch(size, start=start)
        truth = features(task, batch.inputs)
        seen = length * truth, batch.labels, weight, head, act
        local = cell.scenario.get("locals")
        plain = descend(*seen, local) if local else share(*seen)
        shared = defense(Update({"head": plain}), rng=sp.rng(start)).tensors["head"]
        errors += outside(truth, span(shared, weight, size)).tolist()
    return errors


def rows() -> Iterator[dict[str, object]]:
    """Every cell without an activation, and the undefended ones in every variant."""
    for cell in load_table("001-table2").cells("small"):
        for variant in VARIANTS:
            noisy = "Noise" in cell.labels[0] and variant == "length 1"
            if variant == "linear" or noisy or cell.labels[0] == "no defense":
                errors = measure(cell, variant)
                row, column = cell.labels
                yield {
                    "variant": variant,
                    "row": row,
                    "column": column,
                    "found": round(fmean(errors), 4),
                    "least": round(min(errors), 4),
                    "most": round(max(errors), 4),
                }


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    made = []
    for row in rows():
        made.append(row)
        print(row, flush=True)
    content = {"table": "001-table2", "measure": "feature_error", "rows": made}
    print(save("linear_head", "cpu", content, options.out))


if __name__ == "__main__":
    main()
