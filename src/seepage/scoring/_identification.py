"""Whether a guess singles out its person among strangers, and whether luck explains that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from torch import Tensor

from seepage.core._schema import Count, Place

# Probability of an accusation by luck that is accepted over all people and attempts.
_LUCK = 0.05
LARGEST_CLAIM = 1e9
# Who strangers may be; see `Identification.gallery`.
GalleryKind = Literal["same label", "any label", "few of the label", "synthetic", "one shade"]


@dataclass(frozen=True)
class Identification:
    """How well the guesses of one attack pick one person out of a gallery.

    Attributes:
        rank: Place of the truth among the candidates; 1 is first. Whoever a guess fits as exactly
            as the truth counts as before it.
        strangers: How many others were in the gallery.
        gallery: Who they were: "same label", "any label" if nobody has one, "few of the label" if
            too few others have it, "synthetic" if they were made up, or "one shade" if the person's
            input has nothing in it that could look more like one than like another.
        match: How far the truth stands out, in robust deviations of the candidates.
        rival: The same for the stranger who stands out most.
        recognisable: Whether an eye would agree; see `identify`.
        one_in: How many people the guess tells apart, extrapolated from the gallery.
        one_in_low: Lower end of its 95 % interval.
        one_in_high: Upper end.
        exact: Whether a guess is the input, to the resolution of its kind: the same 8-bit image,
            every column, every word. Alone this says nothing: a blank guess is every blank scan.
            None where nobody looked, as in records of 0.3.
        copies: How many others in the data have the input of such a guess.
    """

    rank: Place
    strangers: Place
    gallery: GalleryKind
    match: float
    rival: float
    recognisable: bool
    one_in: float
    one_in_low: float
    one_in_high: float
    exact: bool | None = None
    copies: Count = 0

    @property
    def p_value(self) -> float:
        """Probability of this rank or a better one for a guess that ignores the update."""
        return self.rank / (self.strangers + 1)

    @property
    def fair(self) -> bool:
        """Whether a guess that ignores the update has no better chance than any stranger's."""
        return self.gallery in ("same label", "any label")

    @property
    def singled_out(self) -> bool:
        """Whether the truth is first; in a gallery that is not fair it must be a near copy too."""
        return self.rank == 1 and (self.fair or self.recognisable)


def extrapolate(match: float, others: Tensor) -> tuple[float, float, float]:
    """How many people a match tells apart: 1 / P(a stranger matches as well), with its interval.

    The upper tail of the strangers is taken to be exponential, which falls more slowly than that of
    a normal distribution and so claims less. With k strangers above a level u and a mean excess b,

        P(stranger > t) = k / (N + 1) exp(-(t - u) / b),    k b_hat / b ~ Gamma(k)

    Args:
        match: How far the truth stands out.
        others: How far each stranger does, `(N,)`.

    Example:
        >>> import torch
        >>> others = -torch.log(torch.linspace(0.01, 0.99, 99))
        >>> one_in, low, high = extrapolate(9.0, others)
        >>> low < one_in < high, 2_000 < one_in < 40_000
        (True, True)
    """
    from scipy.special import gammaincinv

    count = len(others)
    as_well = 1 + int((others >= match).sum())
    if as_well > 1 or count < 5:
        plain = (count + 1) / as_well
        return plain, plain, plain
    k = max(3, count // 5)
    ordered = others.sort(descending=True).values.double()
    level = float(ordered[k]) if count > k else float(ordered[-1])
    excess = max(float((ordered[:k] - level).mean()), 1e-6)

    def claim(scale: float) -> float:
        power = min((match - level) / scale, math.log(LARGEST_CLAIM))
        return min(LARGEST_CLAIM, max(count + 1.0, (count + 1) / k * math.exp(power)))

    wide, narrow = (k * excess / float(gammaincinv(k, q)) for q in (0.025, 0.975))
    return claim(excess), claim(wide), claim(narrow)


def is_identified(found: Sequence[Identification]) -> bool:
    """Whether any of several attempts singles a person out, corrected for how many there were.

    The truth must stand out more, in some attempt, than any stranger in any attempt. A guess that
    ignores the update reaches that with probability 1 / (N + 1), however many attempts there are.
    Or it stands out so much in one attempt, by the lower end of `one_in`, that the best of all of
    them would do so by luck with a tenth of that probability.

    Example:
        >>> one = Identification(1, 99, "any label", 8.0, 3.0, True, 1e4, 1e3, 1e5)
        >>> is_identified([one]), is_identified([])
        (True, False)
    """
    first = [one for one in found if one.singled_out]
    if not first:
        return False
    rare = 10 * len(found)
    clear = any(one.one_in_low >= rare * (one.strangers + 1) or not one.fair for one in first)
    return clear or max(one.match for one in first) > max(one.rival for one in found)


def compute_luck(hits: int, people: int, chance: float) -> float:
    """Probability of so many first places or more for guesses that ignore the update.

    Were people independent, hits would be binomial. But people may share a guess, as those of one
    batch do, and strangers. Then all n of them and the N strangers are in one order, in which k of
    the n come before every stranger with probability

        n (n - 1) ... (n - k + 1) / ((n + N) (n + N - 1) ... (n + N - k + 1))

    The larger of the two is returned.

    Args:
        hits: k, how many people came first.
        people: n, how many were looked for.
        chance: That of one person, 1 / (N + 1).

    Example:
        >>> round(compute_luck(3, 8, 0.1), 3), round(compute_luck(1, 1, 0.01), 3)
        (0.082, 0.01)
    """
    from scipy.special import betainc

    if hits == 0:
        return 1.0
    strangers = 1 / chance - 1
    shared = math.prod((people - i) / (people + strangers - i) for i in range(hits))
    return max(shared, float(betainc(hits, people - hits + 1, chance)))


def is_close_call(found: Identification, people: int) -> bool:
    """Whether a person is first, but among so few strangers that luck would explain it anyway.

    Example:
        >>> first = Identification(1, 13, "same label", 2.0, 1.9, False, 14.0, 14.0, 14.0)
        >>> is_close_call(first, people=1), is_close_call(first, people=2)
        (True, False)
    """
    return found.singled_out and compute_luck(people, people, 1 / (found.strangers + 1)) > _LUCK


def fewest_strangers(people: int) -> int:
    """Among how many strangers each of these people must be first, so that luck explains it not.

    Example:
        >>> fewest_strangers(1), fewest_strangers(2)
        (19, 5)
    """
    return next(n for n in count(1) if compute_luck(people, people, 1 / (n + 1)) <= _LUCK)


def explain_by_luck(found: Sequence[Identification], people: int, *, tries: int = 1) -> list[bool]:
    """Which of the people singled out in a group may owe it to luck alone.

    If more people are singled out than luck explains, nobody does. Otherwise those do whose match
    is not so rare that luck would not produce it even once among so many people.

    Args:
        found: Those who are singled out.
        people: How many were looked for.
        tries: How often each of them was, if that is not allowed for yet.

    Example:
        >>> weak = Identification(1, 9, "same label", 2.0, 1.9, False, 12.0, 10.0, 20.0)
        >>> explain_by_luck([weak], people=20), any(explain_by_luck([weak] * 12, people=20))
        ([True], False)
    """
    if not found:
        return []
    chance = min(1.0, tries * max(1 / (one.strangers + 1) for one in found))
    count = len(found)
    if compute_luck(count, people, chance) <= _LUCK:
        return [False] * count
    rare = people * tries / _LUCK
    return [(one.fair or bool(one.exact)) and one.one_in_low < rare for one in found]
