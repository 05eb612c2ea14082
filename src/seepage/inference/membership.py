"""Was this input in the batch? Tested from one update, or several, with a valid p-value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from seepage.core import Batch, Observation, Rng
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.defenses.chain import chain
from seepage.defenses.clip import AddGaussian
from seepage.inference.rehearsed_test import PublicPeople, RehearsedTest
from seepage.inference.update_statistics import stack_rounds
from seepage.numerics.significance import (
    Rate,
    conformal_p_values,
    evidence,
    monotone_likelihood_ratios,
)
from seepage.probing.usable_update import require_usable
from seepage.rehearsal.public_data import PublicData

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
    others: Batch | None = None,
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
        others: All other members, known to the adversary, as differential privacy assumes. With
            Gaussian noise last in the client's defense, and nothing random before it, the test is
            exact and the most powerful.

    Raises:
        InvalidValue: Candidates of another shape or domain; rounds of different models; too few
            public inputs.
        NotApplicable: No layer has a span to test and there are no labels.

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
        return _gaussian_test(rounds[0], candidates, others)
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


def _leave_out(public: PublicData, candidates: Batch | Tensor) -> tuple[PublicData, int]:
    """Public inputs that are no candidates, and how many were."""
    inputs = candidates.inputs if isinstance(candidates, Batch) else candidates
    own = {row.numpy().tobytes() for row in inputs.detach().cpu().double()}
    keep = torch.tensor(
        [row.numpy().tobytes() not in own for row in public.inputs.detach().cpu().double()]
    )
    dropped = int((~keep).sum())
    if not dropped:
        return public, 0
    if not bool(keep.any()):
        raise InvalidValue("expected public inputs besides the candidates, got none")
    labels = None if public.labels is None else public.labels[keep]
    return replace(public, inputs=public.inputs[keep], labels=labels), dropped


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
        public, dropped = _leave_out(public, candidates)
        if len(public.inputs) < _LEAST:
            raise InvalidValue(
                f"expected at least {_LEAST} public inputs that are no candidates, got "
                f"{len(public.inputs)}"
            )
        prepared = PublicPeople.of(public, rounds, labelled=not isinstance(candidates, Tensor))
        tests = [prepared.rehearse(seen, number) for number, seen in enumerate(rounds)]
        if isinstance(known := candidates, Tensor):
            known = Batch(known, torch.zeros(len(known), dtype=torch.long))
        left_out = [f"{dropped} public inputs are candidates and were left out"] * bool(dropped)
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


def _gaussian_test(seen: Observation, candidates: Batch, others: Batch) -> Membership:
    """Neyman and Pearson's test between two normal distributions of known means.

        T = <U - E[U without x], D> / (s ||D||),   D = E[U with x] - E[U without x]

    Without the candidate T is standard normal, and with it its mean is mu = ||D|| / s. The
    likelihood ratio is exp(mu T - mu^2 / 2).
    """
    from scipy.special import ndtr

    share, std = _part_noise(seen)
    without = share(others)
    rest = seen.update.flat().double() - without
    statistics, shifts = [], []
    for one, label in zip(candidates.inputs, candidates.labels, strict=True):
        inputs = torch.cat([others.inputs, one[None].to(others.inputs)])
        labels = torch.cat([others.labels, label[None].to(others.labels)])
        shift = share(Batch(inputs, labels)) - without
        statistics.append(float(rest @ shift / (std * shift.norm().clamp_min(1e-300))))
        shifts.append(float(shift.norm()) / std)
    if not torch.equal(share(others, key=1), without):
        raise NotApplicable(
            "the exact test needs a client whose only randomness is its last noise, but "
            f"{seen.simulate.client} draws something before; leave `others` out"
        )
    found, mu = torch.tensor(statistics).double(), torch.tensor(shifts).double()
    return Membership(
        p_values=torch.from_numpy(ndtr(-found.numpy())),
        likelihood_ratios=(mu * found - mu.square() / 2).exp(),
        scores=found,
        test=("exact test between two normal distributions, all other members known",),
        strangers=None,
        notes=(
            f"the update moves by {float(mu.min()):.3g} to {float(mu.max()):.3g} deviations of "
            "the noise with a candidate",
        ),
    )


class _Share(Protocol):
    def __call__(self, batch: Batch, *, key: int = 0) -> Tensor:
        """What the client would share of a batch without its noise, `(P,)`."""


def _part_noise(seen: Observation) -> tuple[_Share, float]:
    """The client up to its last noise, rounding included, and the deviation of that noise."""
    client, task = seen.simulate.client, seen.simulate.task
    links = () if client is None else client.chain.update_defenses
    noises = list(takewhile(lambda link: isinstance(link, AddGaussian), reversed(links)))
    std = math.hypot(*(link.std for link in noises if isinstance(link, AddGaussian)))
    if client is None or not std > 0:
        raise NotApplicable(
            "the exact test needs a client whose known defense ends with Gaussian noise; leave "
            "`others` out, and give public inputs"
        )
    if client.chain.aggregation is not None:
        raise NotApplicable(
            "the exact test is of one client, but several are aggregated; leave `others` out"
        )
    before = links[: len(links) - len(noises)]
    quiet = replace(client, defense=chain(*client.chain.input_defenses, *before))

    def share(batch: Batch, *, key: int = 0) -> Tensor:
        with precision("float32"):
            update = quiet(task, batch, rng=Rng(0).fork("exact test", key))
        return update.detach().flat().double()

    return share, std
