"""Bounds beside attacks in words: a table, how they compare, and why some say nothing.

Where the assumptions of a bound do not cover an attack, that is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from seepage.report.contradiction import contradictions
from seepage.report.headroom import Headroom, Standing, reached
from seepage.report.words import (
    count_noun,
    decibels,
    label_setups,
    list_words,
    percent,
    short_names,
)

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
COLUMNS = ("network", "defense", "bound", "error at least", "PSNR at most", "closest attack", "")


def tabulate_bounds(found: Sequence[Headroom]) -> list[list[str]]:
    """One row per scene and bound, as text under `COLUMNS`."""
    short = short_names(headroom.bound for headroom in found)
    labels = label_setups(headroom.scene.setup for headroom in found)
    return [
        [
            headroom.scene.model,
            labels[headroom.scene.setup],
            short[headroom.bound],
            error_words(headroom.middle.rmse) if headroom.speaks else "-",
            decibels(headroom.middle.ceiling) if headroom.speaks else "-",
            closest_words([headroom]),
            read_headroom(headroom),
        ]
        for headroom in found
    ]


def read_headroom(headroom: Headroom) -> str:
    """How the closest attacks stand to the bound, in words."""
    if headroom.odds:
        return f"no attack identifies more than {percent(max(headroom.odds))} of people"
    if not headroom.speaks:
        return "says nothing"
    silent = f"; says nothing of {headroom.silent}" if headroom.silent else ""
    return _comparison(headroom) + silent


def _comparison(headroom: Headroom) -> str:
    if contradictions([headroom]):
        return "BEATEN: one of the two has a bug"
    tried = [person for person in headroom.people if person.tried]
    if not tried:
        return "no attack to compare with"
    passed = [person for person in tried if person.passed]
    share = f"{len(passed)} of {len(tried)}"
    if passed and all(person.blunt for person in passed):
        return f"a guess without any update is closer, for {share}"
    if passed and headroom.middle.covers_every_attack:
        return f"closer for {share}, no more than luck explains"
    if passed and headroom.middle.covers_unbiased_attacks_only:
        return f"closer for {share}, by bias or luck: the bound covers unbiased attacks only"
    if passed:
        return f"closer for {share}, by what the bound leaves out: a prior, or luck"
    return f"holds for {count_noun(len(tried), 'person', 'people')}, {headroom.gap:.1f} dB above"


def silences(found: Sequence[Headroom]) -> list[str]:
    """Why some bounds say nothing, one sentence for each reason.

    Reasons that differ in numbers alone are told once, with the range of the numbers.
    """
    labels = label_setups(headroom.scene.setup for headroom in found)
    short = short_names(headroom.bound for headroom in found)
    reasons: dict[tuple[str, str], list[str]] = {}
    places: dict[tuple[str, str], dict[str, None]] = {}
    for headroom in found:
        for remark in headroom.remarks:
            key = short[headroom.bound], _NUMBER.sub("#", remark)
            reasons.setdefault(key, []).append(remark)
            places.setdefault(key, {})[labels[headroom.scene.setup]] = None
    return [
        f"{bound} says nothing behind {list_words(list(places[bound, pattern]))}: "
        f"{_merge_remarks(remarks)}."
        for (bound, pattern), remarks in reasons.items()
    ]


def _merge_remarks(remarks: Sequence[str]) -> str:
    """Remarks of one pattern as one.

    Example:
        >>> _merge_remarks(["2 of 9 are open", "4 of 9 are open"])
        '2 to 4 of 9 are open'
    """
    columns = zip(*(_NUMBER.findall(remark) for remark in remarks), strict=True)
    spans = iter([sorted(set(column), key=float) for column in columns])

    def span(_: re.Match[str]) -> str:
        values = next(spans)
        return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return _NUMBER.sub(span, remarks[0])


def closest_words(found: Sequence[Headroom]) -> str:
    """The attack that came closest to anybody."""
    people = reached(found)
    if not people:
        return "-"
    best = max(people.values(), key=lambda attempt: attempt.psnr)
    return f"{decibels(best.psnr)} by {best.record.attack.name}"


def error_words(rmse: float) -> str:
    """An error per entry, in a few characters.

    Example:
        >>> error_words(0.01234), error_words(math.inf)
        ('0.0123', 'any')
    """
    return "any" if math.isinf(rmse) else f"{rmse:.3g}"


def ceiling_words(person: Standing) -> str:
    """What a bound says of one person."""
    sign = "at most" if person.bound.side == "lower" else "at least"
    return f"{sign} {decibels(person.ceiling)} (error {error_words(person.rmse)})"
