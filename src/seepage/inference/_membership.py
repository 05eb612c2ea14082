"""Was this input in the batch? Tested from one update, or several, with a valid p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.core import Batch, Observation, Rng
from seepage.core._usable_update import require_usable
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.data._public_data import PublicData
from seepage.inference._known_others import Crowd, rehearse_candidates, rehearse_public
from seepage.inference._rehearsed_test import MADE_UP, PublicPeople, RehearsedTest
from seepage.inference._update_statistics import stack_rounds
from seepage.numerics._significance import (
    Rate,
    conformal_p_values,
    evidence,
    monotone_likelihood_ratios,
)

# Fewer public inputs than this cannot give a p-value below 1/20.
_LEAST = 40
# At this false-positive rate the rehearsed power is stated.
LEVEL = 0.01


@dataclass(frozen=True, eq=False)
class Membership:
    """For each candidate, how surprising its score would be if it had not been in the batch.

    Args:
        p_values: `(N,)`. Among non-members, at most a share a has a p-value <= a.
        likelihood_ratios: `(N,)`, of having been in the batch against not.
        scores: `(N,)`; higher is more likely a member.
        test: Which statistic was used, one for each round.
        strangers: How many public non-members the p-values come from; None if they are exact.
        power: Share of rehearsed members found at the false-positive rate `level`.
        notes: What limits the result.
    """

    kind: ClassVar[str] = "membership"
    p_values: Tensor
    likelihood_ratios: Tensor
    scores: Tensor
    test: tuple[str, ...]
    strangers: int | None
    power: Rate | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        """Write one line for each candidate, and what the test can tell."""
        lines = ["candidate   p-value   likelihood ratio"]
        pairs = zip(self.p_values.tolist(), self.likelihood_ratios.tolist(), strict=True)
        lines += [f"{i:9d} {p:9.2g} {ratio:18.3g}" for i, (p, ratio) in enumerate(pairs)]
        return "\n".join((*lines, *self.explain()))

    @property
    def level(self) -> float:
        """The false-positive rate at which members are counted: 1 %, or the lowest p-value."""
        return LEVEL if self.strangers is None else max(LEVEL, 1 / (self.strangers + 1))

    def plain(self) -> dict[str, Any]:
        """The result as data that JSON can hold."""
        # JSON has no infinity.
        columns = (self.p_values, self.likelihood_ratios.clamp(max=1e300), self.scores)
        return {
            "test": list(self.test),
            "strangers": self.strangers,
            "level": self.level,
            "power": None
            if self.power is None
            else {"false_positive_rate": self.level, **self.power.plain()},
            "notes": list(self.notes),
            "candidates": [
                {"candidate": number, "p_value": p, "likelihood_ratio": ratio, "score": score}
                for number, (p, ratio, score) in enumerate(
                    zip(*(column.tolist() for column in columns), strict=True)
                )
            ],
        }

    def explain(self) -> tuple[str, ...]:
        """Say which test this is and what a large p-value means, in sentences."""
        said = [f"test: {'; '.join(dict.fromkeys(self.test))}"]
        if self.strangers is not None:
            said.append(
                f"calibrated on {self.strangers} public non-members, so no p-value is below "
                f"{1 / (self.strangers + 1):.2g}"
            )
        if self.power is not None:
            said.append(
                f"in rehearsals it found {self.power} of members at a false-positive rate of "
                f"{self.level:.2g}, so a large p-value "
                + ("speaks against membership" if self.power.low > 0.9 else "clears nobody")
            )
        return (*said, *self.notes)


def membership(
    observations: Observation | Sequence[Observation],
    candidates: Batch | Tensor,
    *,
    public: PublicData | None = None,
    others: Batch | tuple[()] | None = None,
) -> Membership:
    """Test whether candidates were in the batch behind an update, or behind several.

    Half of the public inputs are used to be the client: the adversary shares updates of them and
    sees which statistic tells its members from strangers. That is the distance to the span of a
    layer's inputs (`span_scores`) or the agreement of gradients (`alignment_scores`). The other
    half are strangers to the real update, and a candidate's p-value is its rank among them. It is
    valid if a candidate who is not a member is exchangeable with the public inputs: drawn like
    them, and no copy or near-duplicate of a member.

    Several observations of clients that train on the same data at the same layers are added up:
    the sum of their scores is calibrated, so they need not be independent. Or their gradients of
    the first layer are stacked, if that tells more: every round spans the same inputs, so that
    several rounds of a narrow layer span what one round of a wide one does.

    Args:
        observations: What the adversary saw of one round, or of several.
        candidates: Inputs and labels that were in every batch or in none; inputs alone if labels
            are not known, which leaves the spans.
        public: Inputs of the kind that clients have; 2000 give p-values down to 0.001.
        others: Members whom the adversary knows, as differential privacy assumes; `()` if there are
            none. With Gaussian noise last in the client's defense, and nothing random before it,
            the test is exact and the most powerful, if everybody else in the batch is a candidate.
            With `public` beside it, anybody may have been in the batch.

    Raises:
        InvalidValue: Candidates of another shape or domain, or among `others`; rounds of different
            models; too few public inputs.
        NotApplicable: No layer has a span to test and there are no labels; or `others` are given,
            but the client does not end with Gaussian noise, or somebody in the batch is neither
            known nor a candidate.

    Example:
        >>> import seepage as sp
        >>> digits = sp.data.load("digits").take(range(100))
        >>> people, public = digits.inputs[:6], PublicData(digits.inputs[20:], digits.labels[20:])
        >>> task = sp.zoo.mlp(domain=sp.domains.MNIST)
        >>> batch = sp.Batch(people[:4], digits.labels[:4])
        >>> seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        >>> found = membership(seen, sp.Batch(people, digits.labels[:6]), public=public)
        >>> (found.p_values < 0.05).tolist()
        [True, True, True, True, False, False]

    References:
        Shokri et al., 2017 (shokri2017membership); Carlini et al., 2022 (carlini2022membership) on
        power at low false-positive rates
    """
    rounds = [observations] if isinstance(observations, Observation) else list(observations)
    _check_rounds(rounds, candidates)
    if others is not None:
        if len(rounds) != 1 or isinstance(candidates, Tensor):
            raise InvalidValue(
                "expected one observation and candidates with labels beside `others`, got "
                f"{len(rounds)} observations and {type(candidates).__name__}"
            )
        known = others if isinstance(others, Batch) else None
        if known is not None and not {*_list_bytes(known.inputs)}.isdisjoint(
            _list_bytes(candidates.inputs)
        ):
            raise InvalidValue("expected candidates besides `others`, got some of them again")
        if public is None:
            return _exact_test(rounds[0], candidates, known)
        return _ranked_test(rounds[0], candidates, known, public)
    if public is None:
        raise InvalidValue(
            "expected public inputs to calibrate on, got none; give public=PublicData(inputs, "
            "labels), or others= for the exact test"
        )
    return _RoundTests.of(rounds, candidates, public).after(len(rounds))


def membership_by_round(
    observations: Sequence[Observation], candidates: Batch | Tensor, *, public: PublicData
) -> tuple[Membership, ...]:
    """What `membership` says after the first round, after the first two, and so on.

    Args:
        observations: One for each round, in order.
        candidates: As for `membership`.
        public: As for `membership`.

    Example:
        >>> import seepage as sp
        >>> digits = sp.data.load("digits").take(range(100))
        >>> public = PublicData(digits.inputs[20:], digits.labels[20:])
        >>> client, batch = sp.Client(sp.Gradient()), sp.Batch(digits.inputs[:8], digits.labels[:8])
        >>> tasks = [sp.zoo.mlp(hidden=(4,), domain=sp.domains.MNIST, seed=i) for i in range(3)]
        >>> seen = [sp.Threat().observe(client, task, batch, rng=sp.rng(0)) for task in tasks]
        >>> people = sp.Batch(digits.inputs[:12], digits.labels[:12])
        >>> last = membership_by_round(seen, people, public=public)[-1]
        >>> last.test
        ('span of hidden1, floor 1e-13, stacked over 3 rounds',)
        >>> bool(last.p_values[:8].max() < 0.05)
        True
    """
    rounds = list(observations)
    _check_rounds(rounds, candidates)
    tests = _RoundTests.of(rounds, candidates, public)
    return tuple(tests.after(number) for number in range(1, len(rounds) + 1))


def _check_rounds(rounds: Sequence[Observation], candidates: Batch | Tensor) -> None:
    if not rounds:
        raise InvalidValue("expected at least one observation, got none")
    first = {name: tuple(p.shape) for name, p in rounds[0].task.parameters.items()}
    for number, seen in enumerate(rounds[1:], start=2):
        if {name: tuple(p.shape) for name, p in seen.task.parameters.items()} != first:
            raise InvalidValue(
                f"expected rounds of one model, but observation {number} is of {seen.task.name} "
                f"with other parameters than {rounds[0].task.name}; test them apart"
            )
    for seen in rounds:
        require_usable(seen.update, seen.task)
        if isinstance(candidates, Batch):
            seen.task.check(candidates)
        else:
            seen.task.domain.check(candidates)


def _require_public(
    public: PublicData, candidates: Batch | Tensor, others: Batch | None = None
) -> tuple[PublicData, tuple[str, ...]]:
    """Public inputs of nobody who is tested or known, and how many were left out."""
    inputs = candidates.inputs if isinstance(candidates, Batch) else candidates
    own = {*_list_bytes(inputs), *([] if others is None else _list_bytes(others.inputs))}
    keep = torch.tensor([row not in own for row in _list_bytes(public.inputs)])
    if int(keep.sum()) < _LEAST:
        raise InvalidValue(
            f"expected at least {_LEAST} public inputs that are no candidates, got "
            f"{int(keep.sum())}"
        )
    if bool(keep.all()):
        return public, ()
    labels = None if public.labels is None else public.labels[keep]
    left_out = f"{int((~keep).sum())} public inputs are candidates and were left out"
    return replace(public, inputs=public.inputs[keep], labels=labels), (left_out,)


def _list_bytes(inputs: Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in inputs.detach().cpu().double()]


@dataclass(frozen=True, eq=False)
class _RoundTests:
    """Scores of every round by its best statistic, to be added up over some of them."""

    rounds: Sequence[Observation]
    candidates: Batch
    prepared: PublicPeople
    tests: Sequence[RehearsedTest]
    scores: Sequence[Tensor]
    strangers: Sequence[Tensor]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, rounds: Sequence[Observation], candidates: Batch | Tensor, public: PublicData
    ) -> _RoundTests:
        """Rehearse every round, and score everybody."""
        public, left_out = _require_public(public, candidates)
        prepared = PublicPeople.of(public, rounds, labelled=not isinstance(candidates, Tensor))
        tests = [prepared.rehearse(seen, number) for number, seen in enumerate(rounds)]
        if isinstance(known := candidates, Tensor):
            known = Batch(known, torch.zeros(len(known), dtype=torch.long))
        return cls(
            rounds,
            known,
            prepared,
            tests,
            [test(seen, known) for test, seen in zip(tests, rounds, strict=True)],
            [test(seen, prepared.strangers) for test, seen in zip(tests, rounds, strict=True)],
            (*prepared.notes, *left_out),
        )

    def after(self, number: int) -> Membership:
        """What the first so many rounds tell together."""
        tests, rounds = self.tests[:number], self.rounds[:number]
        names = tuple(test.name for test in tests)
        scores, strangers = (_add(tests, s[:number]) for s in (self.scores, self.strangers))
        inside, outside = (
            _add(tests, [getattr(test, kind) for test in tests])
            for kind in ("members", "outsiders")
        )
        stacked = self.prepared.rehearse_stacked(rounds) if number > 1 else None
        # Where both tell everything, rounding would choose.
        if stacked is not None and stacked.told[0] > evidence(inside, outside):
            seen = stack_rounds(rounds)
            assert seen is not None
            names = (f"{stacked.name}, stacked over {number} rounds",)
            scores, strangers = (
                stacked(seen, b) for b in (self.candidates, self.prepared.strangers)
            )
            inside, outside = stacked.members, stacked.outsiders
        return Membership(
            p_values=conformal_p_values(scores, strangers),
            likelihood_ratios=monotone_likelihood_ratios(scores, inside, outside),
            scores=scores,
            test=names,
            strangers=len(strangers),
            power=_power(inside, outside, len(strangers)),
            notes=self.notes,
        )


def _add(tests: Sequence[RehearsedTest], scores: Sequence[Tensor]) -> Tensor:
    """Add up the rounds; one round alone keeps its scores."""
    if len(tests) == 1:
        return scores[0]
    weighed = (test.weight * score for test, score in zip(tests, scores, strict=True))
    return torch.stack(list(weighed)).sum(0)


def _power(members: Tensor, outsiders: Tensor, strangers: int) -> Rate:
    level = max(LEVEL, 1 / (1 + min(strangers, len(outsiders))))
    found = conformal_p_values(members, outsiders) <= level
    return Rate(int(found.sum()), len(found))


def _exact_test(seen: Observation, candidates: Batch, others: Batch | None) -> Membership:
    """What normal distributions tell, if everybody in the batch is known or a candidate."""
    crowd, number = Crowd.of(seen, candidates, others), len(candidates)
    rest = crowd.rest(seen.update.flat())
    if not rest.is_explained():
        raise NotApplicable(
            "none of the candidates, nor nobody, explains what `others` leave of the update: "
            "somebody else was in the batch; give public=PublicData(inputs, labels), of people "
            "like them"
        )
    p_values, gaps = torch.tensor(rest.test(range(number)), dtype=torch.float64).T
    moved = [float(crowd.shift(frozenset([one])).norm()) for one in range(number)]
    return Membership(
        p_values=p_values,
        likelihood_ratios=gaps.exp(),
        scores=gaps,
        test=("exact test between normal distributions, all other members known",),
        strangers=None,
        power=_count_found(rehearse_candidates(crowd), LEVEL),
        notes=(
            f"the update moves by {min(moved):.3g} to {max(moved):.3g} deviations of the noise "
            "with a candidate",
        ),
    )


def _ranked_test(
    seen: Observation, candidates: Batch, others: Batch | None, public: PublicData
) -> Membership:
    """The same statistic ranked among public people: anybody may have been in the batch."""
    public, notes = _require_public(public, candidates, others)
    if public.made_up:
        notes = (MADE_UP, *notes)
    people = public.draw(len(public.inputs), seen.task, rng=Rng(0).fork("membership"))
    crowd, number = Crowd.of(seen, candidates, others, people), len(candidates)
    first, last = number + len(people) // 4, number + len(people)
    rest, strangers = crowd.rest(seen.update.flat()), range(first, last)
    ranked = [rest.rank(one, strangers) for one in range(number)]
    p_values, scores = torch.tensor(ranked, dtype=torch.float64).T
    rehearsed = rehearse_public(crowd, range(number, first), strangers)
    every_rank = torch.arange(1, len(strangers) + 2, dtype=torch.float64) / (len(strangers) + 1)
    return Membership(
        p_values=p_values,
        likelihood_ratios=monotone_likelihood_ratios(
            -p_values, -torch.tensor(rehearsed, dtype=torch.float64), -every_rank
        ),
        scores=scores,
        test=("what a candidate adds to known members, ranked among public people",),
        strangers=len(strangers),
        power=_count_found(rehearsed, max(LEVEL, 1 / (1 + len(strangers)))),
        notes=notes,
    )


def _count_found(p_values: Sequence[float], level: float) -> Rate | None:
    if not p_values:
        return None
    return Rate(sum(p_value <= level for p_value in p_values), len(p_values))
