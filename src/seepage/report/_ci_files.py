"""Results for continuous integration: JUnit XML and SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from seepage._printable import make_printable
from seepage.audit._folder import SPEC
from seepage.audit._record import Record
from seepage.audit._words import count_noun, defense_words, local_words, short_names, threat_label
from seepage.audit.results import Results
from seepage.core._construct import Component

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
    """Write SARIF 2.1.0, which code hosts show beside the code: what leaks, and what is unclear."""
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
