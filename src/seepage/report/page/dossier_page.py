"""The dossier as one document that prints well, written from its JSON alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from seepage.audit.words import count_noun, list_words
from seepage.report.dossier import Status
from seepage.report.page.document import (
    Markup,
    Section,
    definitions,
    document,
    element,
    faint,
    join_markup,
    wide_table,
)
from seepage.report.page.opening import MEANINGS

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
        sections=[section for section in sections if section is not None],
        private=False,
    )


def _opening(dossier: Plain) -> Markup:
    worst = min((Status(t["status"]) for t in dossier["tests"]), key=lambda status: status.rank)
    changes = dossier["changes"]
    return element(
        "header",
        {"class": f"opening dossier {_CLASSES[worst]}"},
        element("p", {"class": "eyebrow"}, f"Privacy dossier: {dossier['title']}"),
        element("h1", None, dossier["headline"], "."),
        *(element("p", {"class": "alarm", "role": "alert"}, a) for a in dossier["alarms"]),
        element(
            "p",
            {"class": "detail"},
            "Each test that was run attacked what the system shares during training, as an "
            "adversary would. The most that a test can show in favour of a system is that it "
            "resisted these tests at this effort.",
        ),
        None
        if changes is None
        else element("p", {"class": "detail"}, f"Against the last dossier: {changes['headline']}."),
        element(
            "p",
            {"class": "faint"},
            f"{dossier['author']}. " if dossier["author"] else None,
            f"Written {dossier['written']} with Seepage {dossier['seepage']}. Digest (SHA-256) ",
            element("code", None, dossier["digest"]),
        ),
    )


def _badge(status: str) -> Markup:
    known = Status(status)
    return element("span", {"class": f"badge {_CLASSES[known]}"}, _SHORT.get(known, str(known)))


def _name_columns(*titles: str) -> dict[str, str]:
    """The style sheet knows columns by their first word, on a phone it writes some of them."""
    return {title: title.partition(" ")[0] for title in titles}


def _summary_section(tests: Sequence[Plain]) -> Section:
    rows: list[list[str]] = [
        [
            join_markup(element("b", None, test["name"]), element("br"), faint(test["question"])),
            join_markup(*(element("div", None, one) for one in test["guidance"])),
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
        wide_table(
            "Tests",
            "Tests, and how far they were run",
            _name_columns("test", "guidance", "status", "settings tested"),
            rows,
            {"class": "dossier"},
        ),
    )


def _tell_settings(findings: Sequence[Plain]) -> str:
    counts = Counter(Status(one["status"]) for one in findings)
    if len(findings) == 1:
        return str(findings[0]["result"])
    said = [f"{_SHORT.get(s, str(s))} in {counts[s]}" for s in Status if counts[s]]
    return f"{count_noun(len(findings), 'setting')}: {list_words(said)}" if findings else ""


def _test_section(test: Plain, numbers: Mapping[str, str]) -> Section:
    rows: list[list[str]] = [
        [
            join_markup(
                element("b", None, one["subject"]),
                element("br"),
                faint(f"adversary {numbers[one['adversary']]}, source: {one['source']}"),
            ),
            _badge(one["status"]),
            join_markup(
                element("div", None, one["result"]),
                faint(one["interval"]) if one["interval"] else None,
            ),
            one["effort"],
            one["control"],
        ]
        for one in sorted(test["findings"], key=lambda one: Status(one["status"]).rank)
    ]
    return Section(
        test["test"],
        test["name"],
        f"{test['question']} ({'; '.join(test['guidance'])})",
        wide_table(
            test["name"],
            "One line for each setting that was tested, the worst first",
            _name_columns("setting", "status", "result", "effort", "control"),
            rows,
            {"class": "dossier"},
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
        definitions("facts", ((number, f"had {words}.") for words, number in numbers.items())),
    )


def _system_section(sources: Sequence[Plain]) -> Section:
    parts = [
        join_markup(
            element("h3", None, source["title"], " ", faint(source["name"])),
            _facts(source["about"]),
        )
        for source in sources
    ]
    return Section(
        "systems",
        "System and data",
        "What was tested, as the audits and files of evidence record it.",
        join_markup(*parts),
    )


def _facts(facts: Mapping[str, str]) -> Markup:
    return definitions("facts", ((name, words) for name, words in facts.items() if words))


def _limit_section(limits: Sequence[str]) -> Section:
    return Section(
        "limits",
        "What this does not show",
        "Read these before relying on anything above.",
        element("ul", {"class": "limits"}, *(element("li", None, limit) for limit in limits)),
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
    rows: list[list[str]] = [
        [
            row["subject"],
            row["test"],
            element("span", {"class": _WORSE.get(row["change"])}, row["change"]),
            join_markup(element("div", None, row["before"]), faint(row["results"][0])),
            join_markup(element("div", None, row["now"]), faint(row["results"][1])),
        ]
        for row in changes["rows"]
        if row["change"] != "same"
    ]
    old = changes["against"]
    content = (
        wide_table(
            "Changes",
            "Findings that changed",
            _name_columns("setting", "test", "change", "before", "now"),
            rows,
            {"class": "dossier"},
        )
        if rows
        else element("p", None, "No finding changed.")
    )
    return Section(
        "changes",
        "Since the last dossier",
        f"Against {old['title']}, written {old['written']}, digest {old['digest'][:16]}. "
        f"{changes['headline']}.",
        content,
    )


def _origin_section(dossier: Plain) -> Section:
    parts = []
    for source in dossier["sources"]:
        seeds = list_words([str(seed) for seed in source["seeds"]])
        versions = ", ".join(f"{name} {value}" for name, value in source["versions"].items())
        files = source["files"].items()
        parts.append(
            join_markup(
                element("h3", None, source["name"]),
                element("p", {"class": "faint"}, f"{versions}. Seeds: {seeds or 'none'}."),
                definitions("facts", ((name, element("code", None, sha)) for name, sha in files)),
            )
        )
    return Section(
        "origin",
        "Versions, seeds and digests",
        "SHA-256 of every file that this dossier was made from, as sha256sum prints it. The digest "
        "of the dossier is that of its JSON without the entry digest, with sorted keys and no "
        "spaces, in UTF-8; seepage verify computes it.",
        join_markup(*parts),
    )
