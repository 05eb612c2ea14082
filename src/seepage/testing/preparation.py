"""Laws of every defense that acts before the update or with other clients."""

from __future__ import annotations

import torch

from seepage.clients import Client, Gradient
from seepage.core import Aggregation, Batch, Preparation, Rng, Task, Update
from seepage.testing.value import check_value
from seepage.testing.violation import require


def check_preparation(preparation: Preparation, *, task: Task, batch: Batch) -> None:
    """Raise `ContractError` unless a defense of data or network keeps every law.

    Laws: deterministic under a fixed key; arguments untouched; a frozen dataclass whose fields
    rebuild it; what is trained on is valid for the network; what is sought has one input for each
    private one, and rehearses to a finite update of the same form.

    Args:
        preparation: The defense to check.
        task: A network it can defend.
        batch: Data it can defend.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=4)
        >>> check_preparation(sp.MixUp(4), task=sp.zoo.mlp(hidden=(4,)), batch=photos)
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
    (lesson,) = shared.lessons
    held.check(lesson.batch)
    require(len(lesson.sought) == len(batch), preparation, "it seeks one input per private one")
    rehearsed = client.expected(held, lesson.sought.inputs, lesson.sought.labels)
    alike = _form(rehearsed) == _form(shared.update) and bool(rehearsed.flat().isfinite().all())
    require(alike, preparation, "what is sought rehearses to a finite update of the same form")


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


def _form(update: Update) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in update.tensors.items()}
