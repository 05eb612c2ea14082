"""What tells photographs from their negatives, weighed: `python -m benchmarks.negatives`.

Needs CIFAR-10 in SEEPAGE_DATA; some seconds on a CPU. The weights of `attacks.unmixing.negatives`
are fitted to training images, one by one, and judge groups of consecutive test images, which are
all photographs or all negatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

import seepage as sp
from benchmarks.provenance import save
from seepage.attacks._lost_signs import PHOTOGRAPH_WEIGHTS, is_photograph, photograph_evidence

IMAGES, SIZES = 20_000, (1, 4, 6)
STEPS = 30


def photographs(split: str) -> Tensor:
    """Images less the middle of their range."""
    return sp.data.load("cifar10", split=split).inputs.double() - 0.5


def fitted(found: Tensor) -> Tensor:
    """Logistic regression without a constant, by Newton's method: w of the least loss.

        sum_i log(1 + exp(-w . f_i))

    A negative has the opposite evidence and label, hence the same loss as its photograph.
    """
    weights = found.new_zeros(found.shape[1])
    for _ in range(STEPS):
        wrong = torch.sigmoid(-found @ weights)
        curvature = found.T @ (found * (wrong * (1 - wrong)).unsqueeze(1))
        weights = weights + torch.linalg.solve(curvature, found.T @ wrong)
    return weights


def dark(values: Tensor) -> bool:
    """What would be said by darkness alone."""
    return bool(values.sum() <= 0)


def judged(images: Tensor, size: int) -> dict[str, object]:
    """The share of whole groups that are taken for what they are.

    A negative is judged as the opposite of its photograph, so that photographs stand for both.
    """
    groups = [group for group in images.split(size) if len(group) == size]
    rules = {"weighed": is_photograph, "darkness": dark}
    shares = {name: sum(map(rule, groups)) / len(groups) for name, rule in rules.items()}
    return {"size": size, "groups": len(groups), **{k: round(v, 4) for k, v in shares.items()}}


def main() -> None:
    learned = photographs("train")[:IMAGES]
    weights = [round(weight, 1) for weight in fitted(photograph_evidence(learned)).tolist()]
    test = photographs("test")
    rows = [judged(test, size) for size in SIZES]
    for row in rows:
        print(row)
    print(
        "weights",
        weights,
        "as in the library" if weights == list(PHOTOGRAPH_WEIGHTS) else "OTHERS THERE",
    )
    content: dict[str, object] = {
        "weights": weights,
        "weights_in_the_library": list(PHOTOGRAPH_WEIGHTS),
        "fitted_to": len(learned),
        "rows": rows,
    }
    print(save("negatives", "cpu", content))


if __name__ == "__main__":
    main()
