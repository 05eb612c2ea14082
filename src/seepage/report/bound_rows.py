"""Floors and ceilings in words: the same rows for the terminal, Markdown and the page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from seepage.audit import Record
from seepage.report.flat_rows import Cell, FlatRow, described
from seepage.report.headroom import Headroom, Standing, contradictions, reached
from seepage.report.words import behind, counted, decibels, enumerated, short_names

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
COLUMNS = ("network", "behind", "bound", "error at least", "PSNR at most", "closest attack", "")


def bound_rows(found: Sequence[Headroom]) -> list[list[str]]:
    """One row per scene and bound, as text under `COLUMNS`."""
    short = short_names(headroom.bound for headroom in found)
    return [
        [
            headroom.scene.model,
            behind(headroom.scene.defense),
            short[headroom.bound],
            error_words(headroom.middle.rmse) if headroom.speaks else "-",
            decibels(headroom.middle.ceiling) if headroom.speaks else "-",
            closest_words([headroom]),
            reading(headroom),
        ]
        for headroom in found
    ]


def reading(headroom: Headroom) -> str:
    """What floor and ceiling say of each other."""
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
    if passed:
        return f"closer for {share}, by what the bound leaves out: a prior, or luck"
    return f"holds for {counted(len(tried), 'person', 'people')}, {headroom.gap:.1f} dB above"


def silences(found: Sequence[Headroom]) -> list[str]:
    """Why bounds say nothing where they do not, one sentence for each reason.

    Reasons that differ in numbers alone are one, with what the numbers range over.
    """
    short = short_names(headroom.bound for headroom in found)
    reasons: dict[tuple[str, str], list[str]] = {}
    places: dict[tuple[str, str], dict[str, None]] = {}
    for headroom in found:
        for remark in headroom.remarks:
            key = short[headroom.bound], _NUMBER.sub("#", remark)
            reasons.setdefault(key, []).append(remark)
            places.setdefault(key, {})[behind(headroom.scene.defense)] = None
    return [
        f"{bound} says nothing behind {enumerated(list(places[bound, pattern]))}: "
        f"{_ranging(remarks)}."
        for (bound, pattern), remarks in reasons.items()
    ]


def _ranging(remarks: Sequence[str]) -> str:
    """Remarks of one pattern as one.

    Example:
        >>> _ranging(["2 of 9 are open", "4 of 9 are open"])
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
    return f"{decibels(best.psnr)} by {best.record.attack.partition('(')[0]}"


def error_words(rmse: float) -> str:
    """An error per entry, in a few characters.

    Example:
        >>> error_words(0.01234), error_words(math.inf)
        ('0.0123', 'any')
    """
    return "any" if math.isinf(rmse) else f"{rmse:.3g}"


def flat_bounds(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and bound, for spreadsheets and data frames."""
    return [row for record in records for row in _flat(record)]


def _flat(record: Record) -> list[FlatRow]:
    bound = record.bound
    assert bound is not None
    values: Sequence[float | None] = bound.values or [None] * record.batch_size
    about: dict[str, Cell] = {"attack": None, "threat": None, "bound": record.attack}
    return [
        {
            **described(record),
            **about,
            "person": person,
            "side": bound.side,
            "bounded": bound.metric,
            "value": None if bound.remark else value,
            "remark": bound.remark,
            "error": record.error,
        }
        for person, value in zip(record.people, values, strict=True)
    ]


def ceiling_words(person: Standing) -> str:
    """What a bound says of one person."""
    sign = "at most" if person.bound.side == "lower" else "at least"
    return f"{sign} {decibels(person.ceiling)} (error {error_words(person.rmse)})"
