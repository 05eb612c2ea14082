"""Was this input in the batch? Tested from one update, or several, with a valid p-value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.attacks.labels.count_labels import estimate_batch_size
from seepage.core import Batch, Observation, Rng
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, SeepageError
from seepage.defenses.clip import AddGaussian
from seepage.inference.alignment import Whitening, alignment_scores
from seepage.inference.calibration import (
    conformal_p_values,
    evidence,
    monotone_likelihood_ratios,
)
from seepage.inference.layer_span import read_layers, span_layers, span_scores, stack_rounds
from seepage.numerics.binomial import Rate
from seepage.probing.usable_update import require_usable
from seepage.rehearsal.public_data import PublicData
from seepage.rehearsal.rehearse import simulate_client

# Public inputs for the whitening of gradients, and rehearsed members, batches and strangers: 40
# members who are all found show a power above 90 %.
_WHITENING, _MEMBERS, _BATCHES, _STRANGERS = 64, 48, 40, 1600
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
            Gaussian noise last in the client's defense, the test is exact and the most powerful.

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


def _unlabelled(inputs: Tensor) -> Batch:
    return Batch(inputs, torch.zeros(len(inputs), dtype=torch.long))


@dataclass(frozen=True, eq=False)
class _Test:
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


@dataclass(frozen=True, eq=False)
class _RoundTests:
    """Scores of every round by its best statistic, to be added up over some of them.

    Args:
        rounds: What was seen.
        candidates: Who is tested.
        prepared: Public people.
        tests: One for each round.
        scores: Of the candidates in each round.
        strangers: Of public strangers in each round.
        notes: What limits the result.
    """

    rounds: Sequence[Observation]
    candidates: Batch
    prepared: _Prepared
    tests: Sequence[_Test]
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
        prepared = _Prepared.of(public, rounds, labelled=not isinstance(candidates, Tensor))
        tests = [prepared.rehearse(seen, number) for number, seen in enumerate(rounds)]
        known = candidates if isinstance(candidates, Batch) else _unlabelled(candidates)
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
        if stacked is not None and _told(stacked) > _told(_Test("", inside, outside, None)):
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


def _add(tests: Sequence[_Test], scores: Sequence[Tensor]) -> Tensor:
    """Add up the rounds; one round alone keeps its scores."""
    if len(tests) == 1:
        return scores[0]
    weighed = (test.weight * score for test, score in zip(tests, scores, strict=True))
    return torch.stack(list(weighed)).sum(0)


def score_members(
    seen: Observation, batch: Batch, whitening: Whitening | None
) -> dict[str, Tensor]:
    """Score examples by every statistic: of spans, or of gradients if they are whitened."""
    if whitening is not None:
        return alignment_scores(seen.update, seen.task, batch, whitening)
    layers = [layer for layer in span_layers(seen.task) if layer.is_shared(seen.update)]
    readings = read_layers(seen.task, layers, batch.inputs)
    return {n: s.cpu() for n, s in span_scores(seen.update, layers, readings).items()}


def _power(members: Tensor, outsiders: Tensor, strangers: int) -> Rate:
    level = max(LEVEL, 1 / (1 + min(strangers, len(outsiders))))
    found = conformal_p_values(members, outsiders) <= level
    return Rate(int(found.sum()), len(found))


@dataclass(frozen=True, eq=False)
class _Prepared:
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
    def of(cls, public: PublicData, rounds: Sequence[Observation], *, labelled: bool) -> _Prepared:
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
            notes.append(
                "the public inputs are made up, so that the p-values do not hold for real people"
            )
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

    def rehearse(self, seen: Observation, number: int) -> _Test:
        """Be the client, and find the statistic that tells members from strangers best."""
        rehearsed = self._be_client(seen, number)
        best = self._best(rehearsed, None)
        if best is not None and float(best.members.min()) > float(best.outsiders.max()):
            return best
        if self.labelled:
            aligned = self._best(rehearsed, Whitening.of(seen.task, self.whitening))
            if best is None or (aligned is not None and _told(aligned) > _told(best)):
                best = aligned
        if best is None:
            raise NotApplicable(
                f"no layer of {seen.task.name} has a span to test; give candidates with labels, so "
                "that gradients can be compared"
            )
        return best

    def rehearse_stacked(self, rounds: Sequence[Observation]) -> _Test | None:
        """The same with all rounds at once; None if the first layer reads no inputs as they are."""
        if stack_rounds(rounds) is None:
            return None
        each = [self._be_client(seen, number) for number, seen in enumerate(rounds)]
        stacked = [stack_rounds(several) for several in zip(*each, strict=True)]
        return self._best([seen for seen in stacked if seen is not None], None)

    def _best(self, rehearsed: Sequence[Observation], whitening: Whitening | None) -> _Test | None:
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
            _Test(name, torch.cat(inside[name]), torch.cat(outside[name]), whitening)
            for name in inside
        ]
        return max(tests, key=_told, default=None)


def _told(test: _Test) -> tuple[float, float]:
    """How much the test tells; of those that tell everything, the one with the widest gap."""
    gap = float(test.members.mean() - test.outsiders.mean())
    return evidence(test.members, test.outsiders), gap / max(float(test.outsiders.std()), 1e-12)


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
        raise MissingKnowledge(
            "batch size", needed_by="membership", hint="use knows_batch_size=True"
        )
    return found


def _gaussian_test(seen: Observation, candidates: Batch, others: Batch) -> Membership:
    """Neyman and Pearson's test between two normal distributions of known means.

        T = <U - E[U without x], D> / (s ||D||),   D = E[U with x] - E[U without x]

    Without the candidate T is standard normal, and with it its mean is mu = ||D|| / s. The
    likelihood ratio is exp(mu T - mu^2 / 2).
    """
    from scipy.special import ndtr

    std = _noise_std(seen)
    without = seen.simulate(others.inputs, others.labels).detach().flat().double()
    rest = seen.update.flat().double() - without
    statistics, shifts = [], []
    for one, label in zip(candidates.inputs, candidates.labels, strict=True):
        inputs = torch.cat([others.inputs, one[None].to(others.inputs)])
        labels = torch.cat([others.labels, label[None].to(others.labels)])
        shift = seen.simulate(inputs, labels).detach().flat().double() - without
        statistics.append(float(rest @ shift / (std * shift.norm().clamp_min(1e-300))))
        shifts.append(float(shift.norm()) / std)
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


def _noise_std(seen: Observation) -> float:
    """Standard deviation of the Gaussian noise that the client adds last."""
    client = seen.simulate.client
    links = () if client is None else client.chain.update_defenses
    last = links[-1] if links else None
    if client is None or not isinstance(last, AddGaussian) or not last.std > 0:
        raise NotApplicable(
            "the exact test needs a client whose known defense ends with Gaussian noise; leave "
            "`others` out, and give public inputs"
        )
    if client.chain.aggregation is not None:
        raise NotApplicable(
            "the exact test is of one client, but several are aggregated; leave `others` out"
        )
    return last.std
