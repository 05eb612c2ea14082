"""The dossier as one document that prints well, written from its JSON alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from seepage.audit._words import count_noun, list_words
from seepage.report._dossier import Status
from seepage.report.page._document import (
    MEANINGS,
    Section,
    coloured,
    document,
    faint,
    macros,
    table,
)

Plain = Mapping[str, Any]
_CLASSES = {
    Status.leak: "leak",
    Status.unclear: "trace",
    Status.resisted: "safe",
    Status.absent: "none",
}
_SHORT = {Status.resisted: "resisted at this effort"}


def dossier_page(dossier: Plain) -> str:
    """Write one self-contained page; it embeds no private inputs."""
    tests = dossier["tests"]
    adversaries = list(dict.fromkeys(one["adversary"] for t in tests for one in t["findings"]))
    numbers = {words: f"A{number}" for number, words in enumerate(adversaries, start=1)}
    run = [test for test in tests if test["findings"]]
    sections = [
        _summary_section(tests),
        _change_section(dossier["changes"]),
        *(_test_section(test, numbers) for test in run),
        _adversary_section(numbers),
        _system_section(dossier["sources"]),
        _limit_section(dossier["limits"]),
        Section("words", "Words", "As they are used in this document.", _facts(_WORDS)),
        _origin_section(dossier),
    ]
    return document(
        f"{dossier['title']}: {dossier['headline']}",
        first=_opening(dossier),
        sections=sections,
        private=False,
    )


def _opening(dossier: Plain) -> Markup:
    worst = min((Status(t["status"]) for t in dossier["tests"]), key=lambda status: status.rank)
    found: Markup = macros("dossier").opening(dossier, _CLASSES[worst])
    return found


def _badge(status: str) -> Markup:
    known = Status(status)
    return coloured(_SHORT.get(known, str(known)), f"badge {_CLASSES[known]}")


def _table(label: str, caption: str, titles: Sequence[str], rows: list[list[str]]) -> Markup:
    """The style sheet knows columns by the first word of their title."""
    header = [(title, title.partition(" ")[0]) for title in titles]
    return table(label, caption, header, rows, kind="dossier stacked")


def _summary_section(tests: Sequence[Plain]) -> Section:
    cell = macros("dossier")
    rows: list[list[str]] = [
        [
            cell.named(test["name"], test["question"]),
            cell.lines(test["guidance"]),
            _badge(test["status"]),
            _tell_settings(test["findings"]) or faint(test["missing"]),
        ]
        for test in tests
    ]
    return Section(
        "tests",
        "The tests",
        "Listed beside EDPB Opinion 28/2024 and headings of NIST AI 100-2, with one of our own. "
        "Which test answers which guidance is our assignment; the list may not be complete.",
        _table(
            "Tests",
            "Tests, and how far they were run",
            ("test", "guidance", "status", "settings tested"),
            rows,
        ),
    )


def _tell_settings(findings: Sequence[Plain]) -> str:
    counts = Counter(Status(one["status"]) for one in findings)
    if len(findings) == 1:
        return str(findings[0]["result"])
    said = [f"{_SHORT.get(s, str(s))} in {counts[s]}" for s in Status if counts[s]]
    return f"{count_noun(len(findings), 'setting')}: {list_words(said)}" if findings else ""


def _test_section(test: Plain, numbers: Mapping[str, str]) -> Section:
    cell = macros("dossier")
    rows: list[list[str]] = [
        [
            cell.named(
                one["subject"], f"adversary {numbers[one['adversary']]}, source: {one['source']}"
            ),
            _badge(one["status"]),
            cell.lines([one["result"]], one["interval"]),
            one["effort"],
            one["control"],
        ]
        for one in sorted(test["findings"], key=lambda one: Status(one["status"]).rank)
    ]
    return Section(
        test["test"],
        test["name"],
        f"{test['question']} ({'; '.join(test['guidance'])})",
        _table(
            test["name"],
            "One line for each setting that was tested, the worst first",
            ("setting", "status", "result", "effort", "control"),
            rows,
        ),
    )


def _adversary_section(numbers: Mapping[str, str]) -> Section | None:
    if not numbers:
        return None
    return Section(
        "adversaries",
        "Threat models",
        "What the adversary of each line had. None was given what it looks for, or the randomness "
        "of a client.",
        _facts({number: f"had {words}." for words, number in numbers.items()}),
    )


def _system_section(sources: Sequence[Plain]) -> Section:
    return Section(
        "systems",
        "System and data",
        "What was tested, as the audits and files of evidence record it.",
        macros("dossier").systems(sources, _list_facts),
    )


def _facts(facts: Mapping[str, str]) -> Markup:
    found: Markup = macros("parts").definitions("facts", _list_facts(facts))
    return found


def _list_facts(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, words) for name, words in facts.items() if words]


def _limit_section(limits: Sequence[str]) -> Section:
    return Section(
        "limits",
        "What this does not show",
        "Read these before relying on anything above.",
        macros("parts").list(limits, "limits"),
    )


_WORDS = {
    "update": "what a client shares in one round: a gradient, or how far its model moved",
    "setting": "a network with the client's defense, batch size and local training",
    "identified": "the attack's guess puts the person first among strangers of the same kind",
    **{str(level): meaning for level, meaning in MEANINGS.items() if level.identified},
    "stranger": "somebody of the same data who was not in the update, unless a limit above says "
    "that strangers were made up",
    "canary": "a person or record planted by the test itself, to see whether it is found",
    "luck": "what a guess finds that ignores the update",
    "p-value": "how often somebody who was not there would look as much like a member",
    "interval": "where the true share lies with the stated confidence; wide if few were tested",
    "epsilon": "the promise of differential privacy: the smaller, the less one person can matter",
}


_WORSE = {"worse": "worse", "no longer run": "worse", "better": "better"}


def _change_section(changes: Plain | None) -> Section | None:
    if changes is None:
        return None
    cell = macros("dossier")
    rows: list[list[str]] = [
        [
            row["subject"],
            row["test"],
            coloured(row["change"], _WORSE.get(row["change"])),
            cell.lines([row["before"]], row["results"][0]),
            cell.lines([row["now"]], row["results"][1]),
        ]
        for row in changes["rows"]
        if row["change"] != "same"
    ]
    old = changes["against"]
    titles = ("setting", "test", "change", "before", "now")
    content = (
        _table("Changes", "Findings that changed", titles, rows)
        if rows
        else macros("parts").paragraph("No finding changed.")
    )
    return Section(
        "changes",
        "Since the last dossier",
        f"Against {old['title']}, written {old['written']}, digest {old['digest'][:16]}. "
        f"{changes['headline']}.",
        content,
    )


def _origin_section(dossier: Plain) -> Section:
    sources = [
        (
            source["name"],
            ", ".join(f"{name} {value}" for name, value in source["versions"].items()),
            list_words([str(seed) for seed in source["seeds"]]) or "none",
            source["files"].items(),
        )
        for source in dossier["sources"]
    ]
    return Section(
        "origin",
        "Versions, seeds and digests",
        "SHA-256 of every file that this dossier was made from, as sha256sum prints it. The digest "
        "of the dossier is that of its JSON without the entry digest, with sorted keys and no "
        "spaces, in UTF-8; seepage verify computes it.",
        macros("dossier").origin(sources),
    )
