"""What the papers say, and whether the recorded numbers say so too."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seepage.core._construct import construct
from seepage.core.errors import UnknownName
from seepage_papers.comparisons import Between, Close, Extreme, Rising, Test
from seepage_papers.contrasts import Less, Printed, Somewhere, Varied, Widens
from seepage_papers.evidence import Comparison, Margin, margin
from seepage_papers.numbers import Numbers
from seepage_papers.substitute import Plain

FILE = Path(__file__).parent / "claims.toml"
HOLDS, FAILS, NOISE = "holds", "does not hold", "within noise"
BEATEN, NO_PREMISE, NOT_RUN = "beaten", "premise fails", "not run"
WORDS = (HOLDS, FAILS, NOISE, NO_PREMISE, BEATEN, NOT_RUN)
DOUBT = 0.05
TESTS: Mapping[str, type[Any]] = MappingProxyType(
    {
        test.__name__.lower(): test
        for test in (Between, Close, Extreme, Less, Printed, Rising, Somewhere, Varied, Widens)
    }
)


@dataclass(frozen=True, eq=False)
class Premise:
    """What must be so for a claim to mean anything: a defense that hides what nobody got.

    Args:
        says: In one sentence.
        test: How numbers of the claim's table compare then.
        measure: Which numbers; the table's first if none.
        statistic: Likewise.
        usual: Whether they are read in the usual convention.
        table: Of another table than the claim's.
    """

    says: str
    test: Test
    measure: str = ""
    statistic: str = ""
    usual: bool = False
    table: str = ""


@dataclass(frozen=True, eq=False)
class Claim:
    """One thing a paper says of a table.

    Args:
        table: Name of the table.
        says: In one sentence.
        test: How the numbers compare if it is so.
        measure: Which numbers; the table's first if none.
        statistic: Likewise.
        centre: "median" where one lost search would decide a mean over people.
        limit: It says what an attack cannot do, so that a stronger attack beats it.
        because: Why it comes out as it does, or what its verdict is worth, once that is known.
        provided: Without these nothing is judged; none where numbers are counted and not measured.
    """

    table: str
    says: str
    test: Test
    measure: str = ""
    statistic: str = ""
    centre: str = "mean"
    limit: bool = False
    because: str = ""
    provided: tuple[Premise, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What came of a claim.

    Args:
        word: One of `WORDS`.
        numbers: The comparison that decides: the least sure one, or the one that contradicts most;
            where a premise fails, what it fails by.
        scale: Of the run that was judged.
        margin: By how much that comparison is as claimed, with its interval.
        printed: The paper's numbers in that comparison; empty where they are not printed.
        found: Our numbers in it.
        comparisons: How many there are in the claim.
        other: What the other centre says, mean or median, where that is of another sign.
    """

    word: str
    numbers: str = ""
    scale: str = ""
    margin: Margin | None = None
    printed: str = ""
    found: str = ""
    comparisons: int = 0
    other: str = ""


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim there is, in the order of the file."""
    plain = tomllib.loads(FILE.read_text(encoding="utf-8"))
    shared = {name: _premise(one) for name, one in plain.get("premise", {}).items()}
    return tuple(_claim(one, shared) for one in plain["claim"])


def judged(claim: Claim, runs: Mapping[str, Plain]) -> Verdict:
    """Test a claim on recorded runs, by the name of their table.

    It holds where every comparison does at 95 % confidence. It does not hold where one is
    contradicted, at a confidence that allows for picking the worst of several (Bonferroni).
    Otherwise it is within noise. Of a run that lacks cells only a contradiction can be told.

    Args:
        claim: What to judge.
        runs: As `Reproduction.plain` has them; tables that are missing were not run.
    """
    needed = {claim.table, *([claim.test.than] if isinstance(claim.test, Less) else [])}
    if not needed <= runs.keys():
        return Verdict(NOT_RUN)
    kind = (claim.measure, claim.statistic)
    compared = _compared(claim.test, claim.table, runs, *kind)
    known = [one for one in compared if not _lacks(one)]
    if not known:
        return Verdict(NOT_RUN)
    scale = str(runs[claim.table]["scale"])
    for premise in claim.provided:
        given = _given(premise, claim, runs)
        if not given or any(map(_lacks, given)):
            return Verdict(NOT_RUN)
        worst = min(given, key=lambda comparison: margin(comparison).value)
        if margin(worst).value < 0:
            numbers = f"{premise.says} Found: {worst.told()}"
            found = worst.found()
            return Verdict(NO_PREMISE, numbers, scale, found=found, comparisons=len(compared))
    decided = _decided(claim, known, scale, doubt=DOUBT / len(compared))
    contradicted = decided.word in (FAILS, BEATEN)
    return decided if contradicted or len(known) == len(compared) else Verdict(NOT_RUN)


def _lacks(comparison: Comparison) -> bool:
    """Whether a number of it is missing."""
    return any(math.isnan(term.value) for term in comparison.terms)


def _decided(claim: Claim, compared: list[Comparison], scale: str, *, doubt: float) -> Verdict:
    """The word that all comparisons together give, with the one that decides."""
    strict = [margin(one, centre=claim.centre, doubt=doubt) for one in compared]
    usual = [margin(one, centre=claim.centre, doubt=DOUBT) for one in compared]
    against = min(range(len(compared)), key=lambda i: strict[i].high)
    weakest = min(range(len(compared)), key=lambda i: (usual[i].low, usual[i].value))
    if strict[against].high < 0:
        word, decides = BEATEN if claim.limit else FAILS, against
    else:
        word, decides = HOLDS if usual[weakest].low >= 0 else NOISE, weakest
    one = compared[decides]
    return Verdict(
        word,
        one.told(),
        scale,
        usual[decides],
        one.printed(),
        one.found(),
        len(compared),
        _other_centre(claim, one, usual[decides]),
    )


def _other_centre(claim: Claim, one: Comparison, found: Margin) -> str:
    """The median beside the mean, or the reverse, where they point to different sides."""
    other = "mean" if claim.centre == "median" else "median"
    there = margin(one, centre=other)
    apart = found.paired and math.isfinite(there.value) and found.value * there.value < 0
    return f"by the {other} {there.value:+.3g}" if apart else ""


def _given(premise: Premise, claim: Claim, runs: Mapping[str, Plain]) -> list[Comparison]:
    """The comparisons of a premise."""
    table, kind = premise.table or claim.table, (premise.measure, premise.statistic)
    return _compared(premise.test, table, runs, *kind, usual=premise.usual)


def _compared(
    test: Test,
    table: str,
    runs: Mapping[str, Plain],
    measure: str,
    statistic: str,
    *,
    usual: bool = False,
) -> list[Comparison]:
    """The comparisons of a test; none of a table without such numbers."""

    def numbers(of: str) -> Numbers:
        return Numbers.of(runs[of], measure, statistic, usual=usual)

    if table not in runs or not numbers(table).lines:
        return []
    return test(numbers(table), numbers)


def _claim(plain: Mapping[str, Any], shared: Mapping[str, Premise]) -> Claim:
    """A claim with its premises: its own, and those of the file that it names."""
    provided = [
        shared[one] if isinstance(one, str) else _premise(one) for one in plain.get("provided", ())
    ]
    return Claim(**{**plain, "test": _test(plain["test"]), "provided": tuple(provided)})


def _premise(plain: Mapping[str, Any]) -> Premise:
    return Premise(**{**plain, "test": _test(plain["test"])})


def _test(plain: Mapping[str, Any]) -> Test:
    options = dict(plain)
    name = options.pop("name")
    if name not in TESTS:
        raise UnknownName("test of a claim", name, TESTS)
    test: Test = construct(name, TESTS[name], options)
    return test
