"""Laws of every defense."""

from __future__ import annotations

import torch

from seepage.core import Defense, Rng, Update
from seepage.defenses import chain
from seepage.testing.value import check_value
from seepage.testing.violation import require

DRAWS = 400
# Of a few dozen entries compared, one beyond five standard errors would be a 1 in 20 000 event.
ERRORS = 5.0


def check_defense(
    defense: Defense, *, neutral: Defense | None = None, rounding: float = 0.0
) -> None:
    """Raise `ContractError` unless a defense keeps every law.

    Laws: deterministic under a fixed key; arguments untouched; names, shapes and precision kept;
    `chain(d)` equals `d`; a frozen dataclass whose fields rebuild it; `expected` is the mean of
    many calls (for a deterministic defense, of one).

    Args:
        defense: The defense to check.
        neutral: The same defense at zero strength, which must be the identity.
        rounding: How far a call may stray from `expected`, as a share of the update's largest
            entry, where what rounding adds is taken for noise.

    Example:
        >>> from seepage.defenses import AddGaussian
        >>> check_defense(AddGaussian(0.1), neutral=AddGaussian(0.0))
    """
    update = _example(defense)
    before = update.flat().clone()
    shared = defense(update, rng=Rng(1))
    require(torch.equal(update.flat(), before), defense, "arguments are not changed")
    again = defense(update, rng=Rng(1))
    require(_equal(shared, again), defense, "the same key gives the same result")
    require(
        _equal(chain(defense)(update, rng=Rng(1)), shared), defense, "chain(d) is the same as d"
    )
    require(shared.granularity == defense.produces, defense, "it gives what it says it produces")
    require(shared.kind == update.kind, defense, "a gradient stays a gradient")
    require(_form(shared) == _form(update, defense), defense, "names, shapes and dtype are kept")
    check_value(defense)
    _check_expected(defense, update, slack=rounding * float(before.abs().max()))
    if neutral is not None:
        require(
            _equal(neutral(update, rng=Rng(1)), update), neutral, "zero strength is the identity"
        )


def _example(defense: Defense) -> Update:
    lead = (3,) if defense.consumes == "per_example" else ()
    shapes = {"weight": (4, 5), "bias": (4,), "scale": ()}
    draw = {n: Rng(0).fork(n).normal((*lead, *s)).double() for n, s in shapes.items()}
    return Update(draw, granularity=defense.consumes)


def _form(update: Update, defense: Defense | None = None) -> dict[str, tuple[object, ...]]:
    """Name to shape and dtype, after the batch axis is gone if the defense removes it."""
    combined = defense is not None and defense.consumes != defense.produces
    return {n: (t.shape[combined:], t.dtype) for n, t in update.tensors.items()}


def _equal(a: Update, b: Update) -> bool:
    return a.tensors.keys() == b.tensors.keys() and torch.equal(a.flat(), b.flat())


def _check_expected(defense: Defense, update: Update, slack: float) -> None:
    calls = torch.stack([defense(update, rng=Rng(2).fork(i)).flat() for i in range(DRAWS)])
    expected = defense.expected(update).flat()
    spread = calls.std(0)
    tolerance = ERRORS * spread / DRAWS**0.5 + slack + 1e-9
    off = (calls.mean(0) - expected).abs()
    require(bool((off <= tolerance).all()), defense, "`expected` is the mean of many calls")
