"""Statistics that tell members of a batch from strangers, chosen by being the client oneself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.labels._count_labels import estimate_batch_size
from seepage.core import Batch, Observation, Rng
from seepage.core.errors import MissingKnowledge, NotApplicable, SeepageError
from seepage.data._public_data import PublicData
from seepage.inference._update_statistics import (
    Whitening,
    alignment_scores,
    read_layers,
    span_layers,
    span_scores,
    stack_rounds,
)
from seepage.numerics._significance import evidence
from seepage.rehearsal._simulated_clients import simulate_client

# Public inputs for the whitening of gradients, and rehearsed members, batches and strangers: 40
# members who are all found show a power above 90 %.
_WHITENING, _MEMBERS, _BATCHES, _STRANGERS = 64, 48, 40, 1600
MADE_UP = "the public inputs are made up, so that the p-values do not hold for real people"


@dataclass(frozen=True, eq=False)
class RehearsedTest:
    """A statistic, and what it gave in rehearsals of one round.

    Args:
        name: Of the statistic.
        members: Scores of rehearsed members, `(m,)`.
        outsiders: Scores of rehearsed strangers, `(n,)`.
        whitening: For the agreement of gradients; None for spans.
    """

    name: str
    members: Tensor
    outsiders: Tensor
    whitening: Whitening | None

    def __call__(self, seen: Observation, batch: Batch) -> Tensor:
        """Score examples, `(N,)`."""
        return score_members(seen, batch, self.whitening)[self.name]

    @property
    def weight(self) -> float:
        """What one unit of the score adds to the log-likelihood ratio, if scores are normal."""
        spread = float(self.members.var(correction=0) + self.outsiders.var(correction=0)) / 2
        gap = float(self.members.mean() - self.outsiders.mean())
        return max(gap, 1e-12) / max(spread, 1e-12)

    @property
    def told(self) -> tuple[float, float]:
        """How much it tells; of tests that tell everything, the one with the widest gap."""
        gap = float(self.members.mean() - self.outsiders.mean())
        return evidence(self.members, self.outsiders), gap / max(float(self.outsiders.std()), 1e-12)


@dataclass(frozen=True, eq=False)
class PublicPeople:
    """Public people, split by what they are used for.

    Args:
        batches: People to be the client with, and for each batch the strangers to it.
        whitening: People whose gradients are common directions.
        strangers: People for the p-values.
        labelled: Whether labels of candidates are known.
        notes: What limits the result.
    """

    batches: tuple[tuple[Batch, Batch], ...]
    whitening: Batch
    strangers: Batch
    labelled: bool
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, public: PublicData, rounds: Sequence[Observation], *, labelled: bool
    ) -> PublicPeople:
        """Split public people at random; the sizes of the batches are those of the client."""
        key, task = Rng(0).fork("membership"), rounds[0].task
        everybody = public.draw(len(public.inputs), task, rng=key)
        half = len(everybody) // 2
        apart = min(_WHITENING, half // 4)
        strangers = _take(everybody, slice(half, None))
        whitening, rest = (
            _take(everybody, slice(0, apart)),
            _take(everybody, slice(apart, half)),
        )
        size, notes = require_batch_size(rounds[0]), []
        if public.made_up:
            notes.append(MADE_UP)
        most = max(1, len(rest) * 3 // 4)
        if size > most:
            notes.append(
                f"rehearsed with {most} instead of {size} inputs, since there are only "
                f"{len(public.inputs)} public ones; the likelihood ratios are too large"
            )
            size = most
        number = max(1, min(_BATCHES, -(-_MEMBERS // size)))
        most = size + _STRANGERS // number
        orders = [key.fork("batch", i).permutation(len(rest)) for i in range(number)]
        batches = [(_take(rest, o[:size]), _take(rest, o[size:most])) for o in orders]
        return cls(tuple(batches), whitening, strangers, labelled, tuple(notes))

    def _be_client(self, seen: Observation, number: int) -> list[Observation]:
        """What would be seen of every batch in this round, with its own randomness."""
        key = Rng(0).fork("membership", "client", number)
        return [
            simulate_client(seen, members, rng=key.fork(i))
            for i, (members, _) in enumerate(self.batches)
        ]

    def rehearse(self, seen: Observation, number: int) -> RehearsedTest:
        """Be the client, and find the statistic that tells members from strangers best."""
        rehearsed = self._be_client(seen, number)
        best = self._best(rehearsed, None)
        if best is not None and float(best.members.min()) > float(best.outsiders.max()):
            return best
        if self.labelled:
            aligned = self._best(rehearsed, Whitening.of(seen.task, self.whitening))
            if best is None or (aligned is not None and aligned.told > best.told):
                best = aligned
        if best is None:
            raise NotApplicable(
                f"no layer of {seen.task.name} has a span to test; give candidates with labels, so "
                "that gradients can be compared"
            )
        return best

    def rehearse_stacked(self, rounds: Sequence[Observation]) -> RehearsedTest | None:
        """The same with all rounds at once; None if the first layer reads no inputs as they are."""
        if stack_rounds(rounds) is None:
            return None
        each = [self._be_client(seen, number) for number, seen in enumerate(rounds)]
        stacked = [stack_rounds(several) for several in zip(*each, strict=True)]
        return self._best([seen for seen in stacked if seen is not None], None)

    def _best(
        self, rehearsed: Sequence[Observation], whitening: Whitening | None
    ) -> RehearsedTest | None:
        inside: dict[str, list[Tensor]] = {}
        outside: dict[str, list[Tensor]] = {}
        for update, (members, strangers) in zip(rehearsed, self.batches, strict=True):
            joined = Batch(
                torch.cat([members.inputs, strangers.inputs]),
                torch.cat([members.labels, strangers.labels]),
            )
            for name, scores in score_members(update, joined, whitening).items():
                inside.setdefault(name, []).append(scores[: len(members)])
                outside.setdefault(name, []).append(scores[len(members) :])
        tests = [
            RehearsedTest(name, torch.cat(inside[name]), torch.cat(outside[name]), whitening)
            for name in inside
        ]
        return max(tests, key=lambda test: test.told, default=None)


def score_members(
    seen: Observation, batch: Batch, whitening: Whitening | None
) -> dict[str, Tensor]:
    """Score examples by every statistic: of spans, or of gradients if they are whitened."""
    if whitening is not None:
        return alignment_scores(seen.update, seen.task, batch, whitening)
    layers = [layer for layer in span_layers(seen.task) if layer.is_shared(seen.update)]
    readings = read_layers(seen.task, layers, batch.inputs)
    return {n: s.cpu() for n, s in span_scores(seen.update, layers, readings).items()}


def _take(batch: Batch, which: slice | Tensor) -> Batch:
    return Batch(batch.inputs[which], batch.labels[which])


def require_batch_size(seen: Observation) -> int:
    """The batch size as far as it is known or can be told from the update."""
    if seen.batch_size is not None:
        return seen.batch_size
    try:
        found = estimate_batch_size(seen)
    except SeepageError:
        found = None
    if found is None:
        raise MissingKnowledge("batch size", needed_by="membership")
    return found
