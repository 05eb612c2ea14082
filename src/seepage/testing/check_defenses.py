"""Laws of every defense."""

from __future__ import annotations

import torch

from seepage.clients.client import Client
from seepage.clients.gradient import Gradient
from seepage.core import Aggregation, Batch, Defense, InputDefense, Rng, Task, Update
from seepage.defenses.chain import chain
from seepage.testing.contract import check_value, require

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


def check_input_defense(preparation: InputDefense, *, task: Task, batch: Batch) -> None:
    """Raise `ContractError` unless a defense of data or network keeps every law.

    Laws: deterministic under a fixed key; arguments untouched; a frozen dataclass whose fields
    rebuild it; what is trained on is valid for the network; what is sought has one input for each
    private one, and is simulated as a finite update of the same form.

    Args:
        preparation: The defense to check.
        task: A network it can defend.
        batch: Data it can defend.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=4)
        >>> check_input_defense(sp.MixUp(4), task=sp.zoo.mlp(hidden=(4,)), batch=photos)
    """
    check_value(preparation)
    client = Client(Gradient(), preparation)
    held = client.broadcast(task)
    before = _numbers(held, batch)
    shared = client.share(held, batch, rng=Rng(1))
    require(torch.equal(before, _numbers(held, batch)), preparation, "arguments are not changed")
    again = client.share(held, batch, rng=Rng(1))
    same = torch.equal(shared.update.flat(), again.update.flat())
    require(same, preparation, "the same key gives the same update")
    (prepared,) = shared.prepared_batches
    held.check(prepared.batch)
    require(len(prepared.target) == len(batch), preparation, "it seeks one input per private one")
    simulated = client.expected(held, prepared.target.inputs, prepared.target.labels)
    alike = _form_of(simulated) == _form_of(shared.update) and bool(
        simulated.flat().isfinite().all()
    )
    require(alike, preparation, "the target gives a finite update of the same form")


def check_aggregation(aggregation: Aggregation, *, batch: Batch) -> None:
    """Raise `ContractError` unless an aggregation keeps every law.

    Laws: a frozen dataclass whose fields rebuild it; everybody is dealt to one client, in order;
    the combination is linear in the updates.

    Args:
        aggregation: The defense to check.
        batch: Data it can deal.

    Example:
        >>> import seepage as sp
        >>> check_aggregation(sp.SecureAggregation(2), batch=sp.data.bundled("photos", size=4))
    """
    check_value(aggregation)
    parts = aggregation.split(batch)
    dealt = torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])
    whole = torch.equal(dealt[0], batch.inputs) and torch.equal(dealt[1], batch.labels)
    require(whole, aggregation, "everybody is dealt to one client, in order")
    sizes = [len(part) for part in parts]
    first, second = (
        [Update({"w": Rng(seed).fork(i).normal((7,)).double()}) for i in range(len(parts))]
        for seed in (0, 1)
    )
    pairs = zip(first, second, strict=True)
    sums = [Update({"w": 2 * a.flat() + b.flat()}) for a, b in pairs]
    apart = 2 * aggregation.combine(first, sizes).flat() + aggregation.combine(second, sizes).flat()
    together = aggregation.combine(sums, sizes).flat()
    require(torch.allclose(together, apart), aggregation, "combining is linear in the updates")


def _numbers(task: Task, batch: Batch) -> torch.Tensor:
    tensors = [*task.parameters.values(), batch.inputs, batch.labels]
    return torch.cat([t.flatten().double() for t in tensors])


def _form_of(update: Update) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in update.tensors.items()}
