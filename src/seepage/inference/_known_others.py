"""The exact test: which candidates explain what the known members leave of an update?

If Gaussian noise of deviation s is the last step of the client, and nothing before it is random, an
update is normal about what the client shares of the batch. A set S of people beside the known ones
moves it by v(S), counted in deviations, and its log-likelihood ratio against nobody is

    l(S) = <R, v(S)> - ||v(S)||^2 / 2
    R = (U - F(others)) / s,   v(S) = (F(others, S) - F(others)) / s

Whoever was in the batch, a stranger who resembles them explains the update better than nobody does.
So a candidate is compared with every explanation without them, not with nobody alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain as join_all
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor

from seepage.core import Batch, Observation, Rng
from seepage.core._chain import chain
from seepage.core._device import precision
from seepage.core.errors import NotApplicable
from seepage.defenses._clip import AddGaussian
from seepage.numerics._significance import conformal_p_values

# Numbers in the shared updates that are held, and updates of rehearsals that are computed.
_HELD, _COMPUTED = 30_000_000, 2_000
# Rehearsals of the power at most and at least, and strangers in each.
_REHEARSALS, _FEWEST, _STRANGERS = 40, 8, 199
# An explanation is refused if the energy that it leaves is so many deviations above that of noise.
_DEVIATIONS = 5.0

People = frozenset[int]
NOBODY: People = frozenset()


class _Share(Protocol):
    def __call__(self, batch: Batch, *, key: int = 0) -> Tensor:
        """What the client would share of a batch without its noise, `(P,)`."""


@dataclass(frozen=True, eq=False)
class Crowd:
    """People who may have been in a batch beside its known members.

    Args:
        share: The client up to its noise.
        std: Deviation of the noise.
        others: The known members; None if there are none.
        people: Candidates, and after them public people.
        candidates: How many candidates there are.
        unknown: How many people were in the batch beside the known ones, at least 1; None if the
            batch size is not known.
    """

    share: _Share
    std: float
    others: Batch | None
    people: Batch
    candidates: int
    unknown: int | None
    base: Tensor
    _held: dict[People, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, seen: Observation, candidates: Batch, others: Batch | None, public: Batch | None = None
    ) -> Crowd:
        """Take the client's noise apart from the rest of it."""
        share, std = _part_noise(seen)
        people = candidates if public is None else _join(candidates, public)
        base = torch.zeros_like(seen.update.flat().double()) if others is None else share(others)
        asked = others or _take(candidates, [0])
        if not torch.equal(share(asked, key=1), share(asked)):
            raise NotApplicable(
                "the exact test needs a client whose only randomness is its last noise, but "
                f"{seen.simulate.client} draws something before; leave `others` out"
            )
        size, known = seen.batch_size, len(others or ())
        unknown = None if size is None else max(1, size - known)
        if public is None and unknown is not None and unknown > len(candidates):
            raise NotApplicable(
                f"the batch has {unknown} people besides `others`, but there are only "
                f"{len(candidates)} candidates, so that somebody in it is not known; give "
                "public=PublicData(inputs, labels), of people like them"
            )
        return cls(share, std, others, people, len(candidates), unknown, base)

    @property
    def most(self) -> int:
        """How many of the candidates may have been in the batch."""
        return self.candidates if self.unknown is None else min(self.unknown, self.candidates)

    def shift(self, people: People) -> Tensor:
        """By how many deviations these people move the update, `(P,)`."""
        if people not in self._held:
            chosen = _take(self.people, sorted(people))
            batch = chosen if self.others is None else _join(self.others, chosen)
            shift = (self.share(batch) - self.base) / self.std
            if (len(self._held) + 1) * shift.numel() > _HELD:
                return shift
            self._held[people] = shift
        return self._held[people]

    def rest(self, update: Tensor) -> Rest:
        """What the known members leave of an update `(P,)`."""
        return Rest(self, (update.double() - self.base) / self.std)

    def act(self, people: People, *, rng: Rng) -> Rest:
        """What they would leave of the update of these people."""
        noise = rng.normal(tuple(self.base.shape)).to(self.base)
        return Rest(self, self.shift(people) + noise)

    def count_rehearsals(self, strangers: int = 0) -> int:
        """How many rehearsals are worth their time; fewer if each needs updates of its own."""
        people = self.candidates + strangers
        if self.most == 1 and people * len(self.base) <= _HELD:
            return _REHEARSALS
        runs = 2 * self.most * self.candidates + self.most * strangers
        return min(_REHEARSALS, _COMPUTED // runs)


@dataclass(frozen=True, eq=False)
class Rest:
    """What the known members leave of one update, and who explains it.

    Args:
        crowd: Everybody.
        remainder: In deviations of the noise, `(P,)`.
    """

    crowd: Crowd
    remainder: Tensor
    _measured: dict[People, tuple[float, float]] = field(default_factory=dict)

    def gain(self, people: People) -> float:
        """The log-likelihood ratio of these people having been there, against nobody."""
        return self._measure(people)[0]

    def _measure(self, people: People) -> tuple[float, float]:
        if not people:
            return 0.0, 0.0
        if people not in self._measured:
            shift = self.crowd.shift(people)
            length = float(shift.norm())
            self._measured[people] = float(self.remainder @ shift) - length**2 / 2, length
        return self._measured[people]

    def explain_without(self, one: int | None) -> People:
        """The likeliest set of candidates, this one left out: by adding, then by exchanging."""
        pool = [person for person in range(self.crowd.candidates) if person != one]
        best = chosen = NOBODY
        while len(chosen) < min(self.crowd.most, len(pool)):
            chosen = max((chosen | {p} for p in pool if p not in chosen), key=self.gain)
            best = max(best, chosen, key=self.gain)
            if self.crowd.unknown is None and len(chosen) > len(best) + 1:
                break
        before = None
        while best != before:
            before = best
            for leaving in sorted(before):
                if leaving not in best:
                    continue
                fewer = best - {leaving}
                near = (fewer | {p} for p in pool if p not in fewer)
                best = max([best, fewer, *near], key=self.gain)
        return best

    def explain_with(self, one: int, instead: People) -> list[People]:
        """This explanation with one more person, or with that person in place of another."""
        room = self.crowd.unknown is None or len(instead) < self.crowd.unknown
        exchanged = [instead - {leaving} | {one} for leaving in sorted(instead)]
        return [*exchanged, *[instead | {one}] * room]

    def add(self, one: int, instead: People) -> float:
        """How much this person adds to an explanation, at best."""
        return max(map(self.gain, self.explain_with(one, instead))) - self.gain(instead)

    def is_explained(self) -> bool:
        """Whether the likeliest candidates leave no more than noise does."""
        best = self.explain_without(None)
        left = self.remainder - self.crowd.shift(best) if best else self.remainder
        entries = len(left)
        return float(left.square().sum()) < entries + _DEVIATIONS * math.sqrt(2 * entries)

    def test(self, tested: Sequence[int]) -> list[tuple[float, float]]:
        """The p-value of each candidate, and the log-likelihood ratio.

        Under S without the candidate, <R - v(S), v(A) - v(S)> over the length of v(A) - v(S) is
        standard normal for any other set A, and never less than sqrt(2 (l(A) - l(S))). The p-value
        is the largest over nobody, where the length is known, and the likeliest of the others. It
        is multiplied by the number of sets A with the candidate that could have been tried.
        """
        tried = [self.explain_with(one, self.explain_without(one)) for one in tested]
        for people in join_all.from_iterable(tried):
            self.gain(people)
        return [self._compare(one, sets) for one, sets in zip(tested, tried, strict=True)]

    def _compare(self, one: int, tried: Sequence[People]) -> tuple[float, float]:
        from scipy.special import ndtr

        crowd = self.crowd
        without = (g for people, (g, _) in self._measured.items() if one not in people)
        rival, least = max(without, default=-math.inf), 1.0
        for people in tried:
            gain, length = self._measure(people)
            from_nobody = float(ndtr(-(gain / max(length, 1e-300) + length / 2)))
            from_rival = float(ndtr(-math.sqrt(2 * (gain - rival)))) if gain > rival else 1.0
            sets = crowd.most * math.comb(crowd.candidates - 1, len(people) - 1)
            least = min(least, sets * max(from_nobody, from_rival))
        return least, max(map(self.gain, tried)) - max(rival, 0.0)

    def rank(self, one: int, strangers: Sequence[int]) -> tuple[float, float]:
        """The p-value among strangers to the update, and how much the person adds.

        Everybody takes the same place beside the likeliest candidates, found without the one who
        is tested. So whoever else was in the batch, a stranger is one of the strangers.
        """
        instead = self.explain_without(one)
        added = self.add(one, instead)
        scores = torch.tensor([self.add(person, instead) for person in strangers])
        return float(conformal_p_values(torch.tensor([added]), scores)), added


def rehearse_candidates(crowd: Crowd) -> list[float]:
    """P-values of candidates if they had been in the batch, with noise of one's own."""
    key = Rng(0).fork("known others")
    number = crowd.count_rehearsals()
    return [
        rest.test([one])[0][0]
        for one, rest in _act_each(crowd, range(crowd.candidates), number, key)
        if number >= _FEWEST
    ]


def rehearse_public(crowd: Crowd, members: Sequence[int], strangers: Sequence[int]) -> list[float]:
    """P-values of public people if they had been in the batch, among strangers."""
    key, few = Rng(0).fork("known others"), strangers[:_STRANGERS]
    number = max(_FEWEST, crowd.count_rehearsals(len(few)))
    return [rest.rank(one, few)[0] for one, rest in _act_each(crowd, members, number, key)]


def _act_each(
    crowd: Crowd, people: Sequence[int], number: int, key: Rng
) -> Iterator[tuple[int, Rest]]:
    """Members by turns, each with as many more as were in the batch."""
    size = min(crowd.unknown or 1, len(people))
    for i in range(number):
        one = people[i % len(people)]
        more = [
            p for p in key.fork("more", i).permutation(len(people)).tolist() if people[p] != one
        ]
        batch = {one, *(people[p] for p in more[: size - 1])}
        yield one, crowd.act(frozenset(batch), rng=key.fork("noise", i))


def _take(batch: Batch, which: Sequence[int]) -> Batch:
    return Batch(batch.inputs[list(which)], batch.labels[list(which)])


def _join(first: Batch, second: Batch) -> Batch:
    return Batch(
        torch.cat([first.inputs, second.inputs.to(first.inputs)]),
        torch.cat([first.labels, second.labels.to(first.labels)]),
    )


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
