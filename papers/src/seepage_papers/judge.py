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

from seepage.core.construct import construct
from seepage.core.errors import UnknownName
from seepage_papers.comparisons import Between, Close, Extreme, Margin, Rising, Test
from seepage_papers.contrasts import Less, Printed, Varied, Widens
from seepage_papers.numbers import Numbers
from seepage_papers.substitute import Plain

FILE = Path(__file__).parent / "claims.toml"
HOLDS, FAILS, BEATEN, NOT_RUN = "holds", "does not hold", "beaten", "not run"
UNDECIDED = "undecided"
TESTS: Mapping[str, type[Any]] = MappingProxyType(
    {
        test.__name__.lower(): test
        for test in (Between, Close, Extreme, Less, Printed, Rising, Varied, Widens)
    }
)


@dataclass(frozen=True, eq=False)
class Premise:
    """What must be so for a claim to mean anything.

    Args:
        test: How numbers of the claim's table compare then.
        measure: Which numbers; the table's first if none.
    """

    test: Test
    measure: str = ""


@dataclass(frozen=True, eq=False)
class Claim:
    """One thing a paper says of a table.

    Args:
        table: Name of the table.
        says: In one sentence.
        test: How the numbers compare if it is so.
        measure: Which numbers; the table's first if none.
        statistic: Likewise.
        limit: It says what an attack cannot do, so that a stronger attack beats it.
        because: Why it comes out as it does, or what its verdict is worth, once that is known.
        provided: Without this it is undecided: a defense that leaks little says nothing where as
            little leaks without.
    """

    table: str
    says: str
    test: Test
    measure: str = ""
    statistic: str = ""
    limit: bool = False
    because: str = ""
    provided: Premise | None = None


@dataclass(frozen=True)
class Verdict:
    """What came of a claim.

    Args:
        word: "holds", "does not hold", "beaten", "undecided" or "not run".
        numbers: The comparison that decides: the tightest, or the one that contradicts most; of a
            claim that is undecided, what its premise fails by.
        scale: Of the run that was judged.
    """

    word: str
    numbers: str = ""
    scale: str = ""


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim there is, in the order of the file."""
    plain = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(_claim(one) for one in plain["claim"])


def judged(claim: Claim, runs: Mapping[str, Plain]) -> Verdict:
    """Test a claim on recorded runs, by the name of their table.

    Args:
        claim: What to judge.
        runs: As `Reproduction.plain` has them; tables that are missing were not run.
    """
    needed = {claim.table, *([claim.test.than] if isinstance(claim.test, Less) else [])}
    if not needed <= runs.keys():
        return Verdict(NOT_RUN)

    tightest = _tightest(claim.test, claim, runs, claim.measure, claim.statistic)
    if tightest is None:
        return Verdict(NOT_RUN)
    scale, premise = str(runs[claim.table]["scale"]), claim.provided
    if premise is not None:
        given = _tightest(premise.test, claim, runs, premise.measure, "")
        if given is None:
            return Verdict(NOT_RUN)
        if given.value < 0:
            return Verdict(UNDECIDED, given.words, scale)
    wrong = BEATEN if claim.limit else FAILS
    return Verdict(HOLDS if tightest.value >= 0 else wrong, tightest.words, scale)


def _tightest(
    test: Test, claim: Claim, runs: Mapping[str, Plain], measure: str, statistic: str
) -> Margin | None:
    """The comparison that comes closest to contradicting, or contradicts most; None without."""

    def numbers(table: str) -> Numbers:
        return Numbers.of(runs[table], measure, statistic)

    margins = test(numbers(claim.table), numbers)
    missing = not margins or any(math.isnan(margin.value) for margin in margins)
    return None if missing else min(margins)


def _claim(plain: Mapping[str, Any]) -> Claim:
    parts = {**plain, "test": _test(plain["test"])}
    if "provided" in parts:
        options = dict(parts["provided"])
        measure = options.pop("measure", "")
        parts["provided"] = Premise(_test(options), measure)
    return Claim(**parts)


def _test(plain: Mapping[str, Any]) -> Test:
    options = dict(plain)
    name = options.pop("name")
    if name not in TESTS:
        raise UnknownName("test of a claim", name, TESTS)
    test: Test = construct(name, TESTS[name], options)
    return test
