"""Confidence intervals over people, who are independent draws only if their updates are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core._grouping import group_by

CONFIDENCE = 0.95
BLOCKS, BLOCK = 10, 100


@dataclass(frozen=True)
class Interval:
    """A median or a mean, and its 95 % confidence interval."""

    low: float
    middle: float
    high: float


def median_interval(
    values: Sequence[float], updates: Sequence[Hashable] | None = None, *, seed: int = 0
) -> Interval:
    """Bootstrap of the median over people; infinity (an exact guess) is allowed.

    Args:
        values: One per person.
        updates: The update that each value came from; by default, each has its own.
        seed: Of the bootstrap.

    Example:
        >>> median_interval([3.0, 3.0, 3.0])
        Interval(low=3.0, middle=3.0, high=3.0)
    """
    return _bootstrap(values, updates, np.median, seed)


def mean_interval(
    values: Sequence[float], updates: Sequence[Hashable] | None = None, *, seed: int = 0
) -> Interval:
    """Bootstrap of the mean over people, as `median_interval`; values must be finite.

    Where fewer updates than people were drawn, the interval is widened as Student's t asks for.

    Example:
        >>> mean_interval([1.0, 1.0, 4.0]).middle
        2.0
        >>> alone, shared = mean_interval([1, 2, 8, 9]), mean_interval([1, 2, 8, 9], "aabb")
        >>> alone.high - alone.low < shared.high - shared.low
        True
    """
    found = _bootstrap(values, updates, np.mean, seed)
    people, count = len(values), len(set(range(len(values)) if updates is None else updates))
    if count in (1, people):
        return found
    more = _student(count) / _student(people) * math.sqrt((people - 1) / people)
    more *= math.sqrt(count / (count - 1))
    low, high = (found.middle + more * (end - found.middle) for end in (found.low, found.high))
    return Interval(low, found.middle, high)


def _bootstrap(
    values: Sequence[float],
    updates: Sequence[Hashable] | None,
    statistic: Callable[..., Any],
    seed: int,
) -> Interval:
    """Percentile bootstrap of a statistic, in which whole updates are drawn.

    People of one update share its noise and its attack, so they are no independent draws. Of one
    update alone, the interval is the range of its people.

    References:
        Efron, 1979 (efron1979bootstrap); Davison and Hinkley, 1997, Sec. 3.8
        (davison1997bootstrap), for groups that are drawn as a whole
    """
    people = np.asarray(values, dtype=float)
    middle = float(statistic(people))
    groups = _group(people, range(len(people)) if updates is None else updates)
    if len(groups) == 1:
        return Interval(float(people.min()), middle, float(people.max()))
    found = [statistic(drawn, axis=1) for drawn in _draw_groups(groups, seed)]
    tail = (1 - CONFIDENCE) / 2
    # Take observed values only: infinities cannot be interpolated.
    low, high = np.quantile(np.concatenate(found), [tail, 1 - tail], method="inverted_cdf")
    return Interval(float(low), middle, float(high))


def _group(people: np.ndarray, updates: Iterable[Hashable]) -> list[np.ndarray]:
    """The values of each update, in the order in which updates appear."""
    groups = group_by(zip(people, updates, strict=True), lambda pair: pair[1])
    return [np.array([value for value, _ in group]) for group in groups.values()]


def _draw_groups(groups: Sequence[np.ndarray], seed: int) -> Iterator[np.ndarray]:
    """Draw as many updates as there are, with replacement; one row of values for each draw."""
    rng = np.random.default_rng(seed)
    same_size = len({len(group) for group in groups}) == 1
    stacked = np.stack(groups) if same_size else None
    # In blocks, to save memory with many people.
    for _ in range(BLOCKS):
        draws = rng.integers(len(groups), size=(BLOCK, len(groups)))
        if stacked is not None:
            yield stacked[draws].reshape(BLOCK, -1)
        else:
            yield from (np.concatenate([groups[i] for i in draw])[None] for draw in draws)


def join_shared(updates: Sequence[Collection[Hashable]]) -> list[int]:
    """Number the groups of values that any chain of shared updates connects.

    A change between two audits comes from an update of each, and depends on every change that
    shares one of them.

    Example:
        >>> join_shared([("a", 1), ("a", 2), ("b", 2), ("c", 3)])
        [0, 0, 0, 3]
    """
    numbers = list(range(len(updates)))
    first: dict[Hashable, int] = {}
    for place, several in enumerate(updates):
        for update in several:
            old, new = numbers[first.setdefault(update, place)], numbers[place]
            if old != new:
                numbers = [min(old, new) if n in (old, new) else n for n in numbers]
    return numbers


def share_interval(found: Sequence[bool], updates: Sequence[Hashable] | None = None) -> Interval:
    """The share of a population that is like those found, with its exact binomial interval.

    People of one update count as the number of independent people who would vary as much. With
    nobody or everybody found, one end is known, and all of the 5 % is on the other.

    Args:
        found: Whether each person was.
        updates: The update that each came from; by default, each has their own.

    Example:
        >>> alone = share_interval([True] * 4 + [False] * 4)
        >>> round(alone.low, 3), alone.middle, round(alone.high, 3)
        (0.157, 0.5, 0.843)
        >>> round(share_interval([False] * 8).high, 3)
        0.312
        >>> round(share_interval([True] * 4 + [False] * 4, "aabbccdd").high, 3)
        0.932

    References:
        Clopper and Pearson, 1934 (clopper1934use); Korn and Graubard, 1998 (korn1998confidence),
        for the effective number of people
    """
    from scipy.special import betaincinv

    people = np.asarray(found, dtype=float)
    share = float(people.mean())
    count = _count_independent(people, range(len(people)) if updates is None else updates)
    hits = share * count
    tail = (1 - CONFIDENCE) / (2 if 0 < share < 1 else 1)
    low = float(betaincinv(hits, count - hits + 1, tail)) if share > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if share < 1 else 1.0
    return Interval(low, share, high)


def _count_independent(people: np.ndarray, updates: Iterable[Hashable]) -> float:
    """How many independent people vary as much as these, whose updates may be shared."""
    share = people.mean()
    apart = np.array([group.sum() for group in _group(people - share, updates)])
    count = len(apart)
    if count == 1 or not 0 < share < 1:
        return float(count)
    variance = count / (count - 1) * float((apart**2).sum()) / len(people) ** 2
    alike = len(people) if variance == 0 else 1 + share * (1 - share) / variance
    # Few updates tell little of how much updates differ.
    known = (_student(len(people)) / _student(count)) ** 2
    return float(min(max(alike * known, count), len(people)))


def _student(draws: int) -> float:
    """Quantile of Student's t for the mean of so many draws."""
    from scipy.special import stdtrit

    return float(stdtrit(draws - 1, (1 + CONFIDENCE) / 2))


def share_not_ruled_out(updates: int) -> float:
    """The share of a population that may still be identified if nobody of these updates was.

    This is the exact binomial bound for zero events, `1 - (1 - confidence)^(1 / updates)`. It holds
    however people of one update depend on each other: if a share p of people is identified, an
    update of any size shows somebody with a probability of at least p.

    Example:
        >>> round(share_not_ruled_out(8), 3)
        0.312

    References:
        Clopper and Pearson, 1934 (clopper1934use)
    """
    return float(1 - (1 - CONFIDENCE) ** (1 / updates))
