"""Files for other programs: rows as CSV, JSON and Parquet, and results as JUnit XML and SARIF."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from seepage._printable import make_printable
from seepage.audit._folder import SPEC
from seepage.audit._record import Record
from seepage.audit._words import (
    count_noun,
    defense_words,
    local_words,
    short_names,
    threat_label,
    threat_words,
)
from seepage.audit.results import Results
from seepage.audit.results._flatten import FlatRow, describe_case, describe_setup
from seepage.core._construct import Component
from seepage.core._schema import to_plain
from seepage.core.errors import import_extra

if TYPE_CHECKING:
    from seepage.report._change import Change


def result_rows(records: Results | Sequence[Record]) -> list[FlatRow]:
    """One row per person and attack: scored ones first, then those without truth or result."""
    return Results.of(records).to_rows()


def flat_bounds(records: Sequence[Record]) -> list[FlatRow]:
    """One row per person and bound."""
    rows: list[FlatRow] = []
    for record in records:
        bound = record.bound
        assert bound is not None
        values: Sequence[float | None] = bound.values or [None] * record.batch_size
        rows += [
            {
                **describe_case(record, person),
                "attack": None,
                "attack_name": None,
                "threat": None,
                "bound": str(record.attack),
                "side": bound.side,
                "bounded": bound.metric,
                "value": None if bound.remark else value,
                "remark": bound.remark,
                "error": record.error,
            }
            for person, value in zip(record.people, values, strict=True)
        ]
    return rows


def change_rows(found: Sequence[Change]) -> list[FlatRow]:
    """One row per person and setup of either audit."""
    return [
        {
            "data": change.victim[0],
            "person": change.victim[1],
            "model": change.attacked.model,
            **describe_setup(change.setups[1]),
            "defense_before": defense_words(change.defenses[0]),
            "attack_before": str(change.before.record.attack) if change.before else None,
            "attack_after": str(change.after.record.attack) if change.after else None,
            "psnr_before": change.before.psnr if change.before else None,
            "psnr_after": change.after.psnr if change.after else None,
            "level_before": str(change.before.level) if change.before else None,
            "level_after": str(change.after.level) if change.after else None,
            "direction": str(change.direction),
        }
        for change in found
    ]


def labelled_record(record: Record) -> dict[str, Any]:
    """The plain form of a record, with its values in words under `labels`."""
    labels = {
        "local": local_words(record.local),
        "defense": defense_words(record.defense),
        "threat": threat_words(record.threat),
        "attack": str(record.attack),
    }
    return {**record.plain(), "labels": labels}


def as_csv(rows: Sequence[FlatRow]) -> str:
    """Write rows as CSV, with every column that any row has.

    Text that a spreadsheet would run as a formula begins with an apostrophe.

    Example:
        >>> print(as_csv([{"a": 1}, {"a": 2.5, "b": "=x"}]), end="")
        a,b
        1,
        2.5,'=x
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _quote_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_json(content: Mapping[str, object]) -> str:
    """Write plain data as JSON, with infinity as the word "inf" as in every record.

    Example:
        >>> print(as_json({"psnr": [float("inf"), 1.5]}), end="")
        {
         "psnr": [
          "inf",
          1.5
         ]
        }
    """
    return json.dumps(to_plain(content), indent=1, allow_nan=False) + "\n"


def as_parquet(rows: Sequence[FlatRow]) -> bytes:
    """Write rows as Parquet; raises MissingExtra without pyarrow."""
    reason, otherwise = "--format parquet needs pyarrow", ", or use --format csv"
    pyarrow = import_extra("pyarrow", "parquet", reason=reason, otherwise=otherwise)
    parquet = import_module("pyarrow.parquet")
    kept = io.BytesIO()
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in _columns(rows)})
    parquet.write_table(table, kept)
    return kept.getvalue()


def _columns(rows: Sequence[FlatRow]) -> list[str]:
    """Every column, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _quote_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    # A spreadsheet begins a new cell, hence perhaps a formula, at any of these.
    plain = re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", value)
    # Full-width signs count as the plain ones in some languages.
    risky = plain.lstrip().startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))
    return f"'{plain}" if risky else plain


Status = Literal["identified", "passed", "inconclusive", "not applicable", "no truth", "failed"]
# Not in XML 1.0, whatever the encoding.
_FORBIDDEN = dict.fromkeys([0xFFFE, 0xFFFF], "?")


@dataclass(frozen=True)
class Check:
    """What one attack says about everybody in one setup."""

    group: str
    name: str
    status: Status
    message: str
    seconds: float


def _list_checks(records: Results | Sequence[Record]) -> list[Check]:
    """One check for each attack and setup, judged over all records as the verdict is."""
    groups = Results.of(records).without("seed").values()
    attacks = short_names(group.records[0].attack for group in groups)
    return [_check(group, attacks) for group in groups]


def _check(group: Results, attacks: Mapping[Component, str]) -> Check:
    first = group.records[0]
    knows = "" if first.threat is None else f", adversary {threat_label(first.threat)}"
    name = (
        f"{attacks[first.attack]}, {defense_words(first.defense)}, {local_words(first.local)}, "
        f"batch size {first.batch_size}{knows}"
    )
    status, message = _judge(group)
    seconds = sum(float(record.effort.get("seconds", 0)) for record in group.records)
    return Check(f"{first.data}.{first.model}", name, status, message, seconds)


def _judge(group: Results) -> tuple[Status, str]:
    broken = next((record.error for record in group.records if record.failed), None)
    people = group.strongest()
    found = [row for row in people if row.level.identified]
    if found:
        worst, of = found[0], count_noun(len(people), "person", "people")
        told = f"{worst.name} is {worst.level} ({worst.amount.words()})"
        return "identified", f"{len(found)} of {of} identified; {told}"
    if broken is not None:
        return "failed", broken
    if not people:
        unfit = next((record.error for record in group.records if not record.applicable), None)
        if unfit is not None:
            return "not applicable", unfit
        return "no truth", "there is no truth to compare with"
    if group.unclear:
        return "inconclusive", "nobody was identified, by an attack that may be too weak to tell"
    return "passed", f"nobody of {count_noun(len(people), 'person', 'people')} was identified"


def as_junit(title: str, records: Results | Sequence[Record]) -> str:
    """Write JUnit XML: a test for each attack and setup, which fails if anybody is identified.

    Cases that do not apply, and those that tell nothing, are skipped tests with the reason.
    """
    checks = _list_checks(records)
    counts = {
        "tests": len(checks),
        "failures": sum(check.status == "identified" for check in checks),
        "errors": sum(check.status == "failed" for check in checks),
        "skipped": sum(check.status in _SKIPPED for check in checks),
    }
    seconds = f"{sum(check.seconds for check in checks):.3f}"
    root = ElementTree.Element("testsuites")
    attributes = {"name": _clean(title), "time": seconds, **{k: str(v) for k, v in counts.items()}}
    suite = ElementTree.SubElement(root, "testsuite", attributes)
    for check in checks:
        named = {"classname": _clean(check.group), "name": _clean(check.name)}
        case = ElementTree.SubElement(suite, "testcase", {**named, "time": f"{check.seconds:.3f}"})
        tag = {"identified": "failure", "failed": "error"}.get(
            check.status, "skipped" if check.status in _SKIPPED else ""
        )
        if tag:
            told = f"{check.status}: {check.message}" if tag == "skipped" else check.message
            ElementTree.SubElement(case, tag, {"message": _clean(told)})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_SKIPPED = ("inconclusive", "not applicable", "no truth")


def _clean(text: str) -> str:
    return make_printable(text).translate(_FORBIDDEN)


_RULES = {
    "identified": ("error", "Somebody is singled out, recognisable or reconstructed."),
    "inconclusive": ("warning", "Nobody is identified, by an attack that may be too weak."),
    "failed": ("warning", "A case failed, so that nothing is known of it."),
}


def as_sarif(title: str, records: Results | Sequence[Record], *, version: str) -> str:
    """Write SARIF 2.1.0, which code hosts show: what leaks, and what is unclear."""
    rules = [
        {
            "id": f"seepage/{name}",
            "shortDescription": {"text": text},
            "defaultConfiguration": {"level": level},
        }
        for name, (level, text) in _RULES.items()
    ]
    driver = {"name": "seepage", "version": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": title},
        "results": list(_list_results(records)),
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _list_results(records: Results | Sequence[Record]) -> Iterator[dict[str, object]]:
    where = {"physicalLocation": {"artifactLocation": {"uri": SPEC}, "region": {"startLine": 1}}}
    for check in _list_checks(records):
        if check.status in _RULES:
            yield {
                "ruleId": f"seepage/{check.status}",
                "level": _RULES[check.status][0],
                "message": {"text": f"{check.group}, {check.name}: {check.message}."},
                "locations": [where],
                "partialFingerprints": {"check": f"{check.group} {check.name}"},
            }
