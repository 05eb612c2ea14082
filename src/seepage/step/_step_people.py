"""Whom the audit of a step is about: its people, strangers, canaries, and whom to rehearse on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.audit._record import CANARIES
from seepage.audit._targets import Target
from seepage.core import Batch, Domain, Rng, Task
from seepage.core._device import convert
from seepage.core.errors import InvalidValue
from seepage.rehearsal import PublicData
from seepage.scoring._gallery import FEWEST, Gallery, find_strangers

# Made-up strangers where there are no others; fewer large ones, which hold about so many entries.
_POOL, _FEWEST, _ENTRIES = 64, 24, 2**24


@dataclass(frozen=True, eq=False)
class _StepPeople:
    """The people of a step.

    Args:
        attacked: Those in the batch, with everybody among whom they are looked for.
        canaries: Batches of others for the positive control.
        public: What `auto` rehearses on; None if inputs have to be made up.
        note: Whether some of the others were in the batch; empty if none were.
    """

    attacked: Target
    canaries: Sequence[Target]
    public: PublicData | None
    note: str = ""


def read_people(
    task: Task,
    private: Batch,
    others: Tensor | None,
    labels: Tensor | None,
    public: PublicData | Tensor | None,
) -> _StepPeople:
    """Sort people into those attacked, canaries, and those whom the adversary may know.

    Canaries have the labels of the batch as far as possible. They are taken out of the last quarter
    of the others, on whom nobody rehearses: the adversary must not see which they are. Whoever is
    in the batch is left out of all others: the adversary must not have the truth, and a guess that
    fits somebody else of the batch as well would speak against both.

    Args:
        task: The network, with the domain of the inputs.
        private: The batch of the step.
        others: Inputs of people who are not in it; noise if there are none.
        labels: Of the others, if known; taken only if both are classes.
        public: What to rehearse on instead of the others who are left.
    """
    size, shape = len(private), task.domain.shape
    truth, left_out = private.inputs.reshape(-1, *shape).cpu(), 0
    if others is not None:
        others = _shape(others, task.domain)
        kept = find_strangers(truth, others)
        left_out, others = len(others) - len(kept), others[kept]
        labels = None if labels is None else labels[kept.to(labels.device)]
    reserved = max(size * math.ceil(CANARIES / size), 0 if others is None else len(others) // 4)
    if labels is not None and (labels.ndim, private.labels.ndim) != (1, 1):
        labels = None
    if others is not None and labels is not None:
        order = _put_alike_last(labels.cpu(), private.labels.cpu(), reserved)
        others, labels = others[order], labels[order]
    attacked = _gather(task, private, others, labels)
    if isinstance(public, Tensor):
        public = PublicData(public)
    elif public is None and others is not None and len(others) > reserved:
        public = PublicData(others[:-reserved])
    if public is not None:
        inputs = _shape(public.inputs, task.domain)
        kept = find_strangers(truth, inputs)
        left_out += len(inputs) - len(kept)
        labels = None if public.labels is None else public.labels[kept.to(public.labels.device)]
        public = replace(public, inputs=inputs[kept], labels=labels)
    # The last ones have the labels of the batch; enough others stay as strangers.
    last = 0 if others is None else size + len(others) - 1
    canaries = attacked.take_canaries(range(last, size + FEWEST - 1, -1))
    note = f"{left_out} of the others or public inputs are in the batch and were left out"
    return _StepPeople(attacked, canaries, public, note if left_out else "")


def _put_alike_last(labels: Tensor, wanted: Tensor, reserved: int) -> Tensor:
    """Order the reserved people so that the last ones, the canaries, have the batch's labels.

    Classes that a batch holds twice are harder to tell apart, so another mixture would be no
    control.

    Example:
        >>> _put_alike_last(torch.tensor([0, 1, 0, 1, 2, 2]), torch.tensor([0, 2, 1]), 5).tolist()
        [0, 1, 4, 2, 5, 3]
    """
    people, last = list(range(len(labels))), list[int]()
    free = people[-reserved:]
    batches = min(math.ceil(CANARIES / len(wanted)), len(labels) // len(wanted))
    for label in wanted.flip(0).tolist() * batches:
        found = next((i for i in reversed(free) if int(labels[i]) == label), free[-1])
        free.remove(found)
        last.append(found)
    return torch.tensor([*people[:-reserved], *free, *reversed(last)])


def _gather(task: Task, private: Batch, others: Tensor | None, labels: Tensor | None) -> Target:
    """The people in the batch, beside those whom a guess without any update is made of."""
    shape = task.domain.shape
    shaped = Batch(private.inputs.reshape(-1, *shape).cpu(), private.labels.cpu())
    pool = _make_up(task.domain, len(private)) if others is None else others
    if len(pool) < len(private):
        raise InvalidValue(
            f"expected others to be at least as many as the batch, got {len(pool)} who are not in "
            f"it for {len(private)}; give more of them, or none"
        )
    return Target(
        "step",
        tuple(range(len(private))),
        shaped,
        everybody=Gallery(
            torch.cat([shaped.inputs.to(pool), pool]),
            None if labels is None else torch.cat([shaped.labels, labels.cpu().to(shaped.labels)]),
            task.domain,
            synthetic=others is None,
        ),
        bounds=task.domain.bounds,
        domain=task.domain,
    )


def _make_up(domain: Domain, size: int) -> Tensor:
    """Strangers where there are no others, at least as many as the batch."""
    each = math.prod(domain.shape)
    count = max(size, _FEWEST, min(_POOL, 4 * _ENTRIES // each))
    together = max(1, _ENTRIES // each)
    return torch.cat(
        [
            domain.sample(min(together, count - first), rng=Rng(0).fork(first) if first else Rng(0))
            for first in range(0, count, together)
        ]
    )


def _shape(inputs: Tensor, domain: Domain) -> Tensor:
    """Inputs of other people on the CPU, in float32 and this shape; tokens stay whole numbers."""
    kept = inputs.detach().cpu()
    if kept.shape[1:].numel() != math.prod(domain.shape):
        raise InvalidValue(
            f"expected others and public inputs like those of the batch, {domain.shape} each, got "
            f"{tuple(kept.shape)}"
        )
    kept = convert(kept, torch.float32).reshape(-1, *domain.shape)
    try:
        domain.check(kept)
    except InvalidValue as error:
        raise InvalidValue(f"others and public inputs must be like the batch: {error}") from None
    return kept
