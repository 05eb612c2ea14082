"""The first screen: the verdict, its picture, and what it assumes; and how to run it again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from seepage.audit.record import Record
from seepage.audit.results import Level
from seepage.audit.words import list_words, threat_words
from seepage.report.effort import describe_effort
from seepage.report.finding import Verdict
from seepage.report.page.document import (
    Markup,
    Section,
    badge,
    definitions,
    element,
    join_markup,
    level_class,
)
from seepage.report.unscored import inapplicable


def opening(
    title: str,
    judged: Verdict,
    *,
    pictures: Markup | None,
    missing: str | None,
    private: str | None = None,
) -> Markup:
    """Write the verdict, what the audit lacks and, beside it, the pictures if they were kept.

    The last sentence says which private data the page embeds.
    """
    return element(
        "header",
        {"class": f"opening {level_class(judged.level)}"},
        element("p", {"class": "eyebrow"}, title),
        element("h1", None, _keep_counts(judged.headline), "."),
        *(element("p", {"class": "alarm", "role": "alert"}, alarm) for alarm in judged.alarms),
        element(
            "div",
            {"class": "beside"},
            element(
                "div",
                None,
                *(element("p", {"class": "detail"}, _keep_counts(said)) for said in judged.details),
                None if missing is None else element("p", {"class": "warning"}, missing),
                None if private is None else element("p", {"class": "detail"}, private),
            ),
            None if pictures is None else element("div", {"class": "figures"}, pictures),
        ),
    )


def _keep_counts(text: str) -> str:
    """Keep a number and the word it counts on one line."""
    return re.sub(r"(?<=\d) (?=\w)|(?<=\bof) (?=\d)", "\N{NO-BREAK SPACE}", text)


_LIMIT = "If nothing was found, it was not found with this effort."


def assumptions(records: Sequence[Record]) -> Markup:
    """What the verdict rests on: knowledge, convention and effort."""
    knowledge = [f"{threat_words(t)}." for t in dict.fromkeys(r.threat for r in records)]
    parts = {
        "The adversary had": join_markup(*(element("p", None, known) for known in knowledge)),
        "How hard we looked": join_markup(
            element("p", None, describe_effort(records), ". ", _LIMIT),
            *(element("p", {"class": "faint"}, line) for line in inapplicable(records)),
        ),
        "What the words mean": _convention(),
    }
    return element(
        "section",
        {"id": "assumptions", "aria-label": "What this rests on"},
        *(element("div", None, element("h2", None, title), text) for title, text in parts.items()),
    )


MEANINGS = {
    Level.reconstructed: "the same 8-bit image, every column, every word came back, and fits no "
    "stranger as well",
    Level.recognisable: "first among the strangers, and as similar as a noisy copy of the truth: "
    "an eye would agree",
    Level.singled_out: "first among the strangers, though an eye may see nothing",
    Level.partly: "the label, some columns or some words came back",
    Level.not_shown: "not identified, by an attack that finds people chosen by the audit "
    "without the defense; or behind noise that, in theory, leaves any attack nothing but luck",
    Level.inconclusive: "not identified, and the attack may have been too weak or too short, or "
    "the strangers too few to tell",
}


def _convention() -> Markup:
    return join_markup(
        element(
            "p",
            None,
            "Each guess is compared with the person and with strangers from the same data, of the "
            "same label if they have one. A guess that ignores the update puts the person first in "
            "1 of N + 1 cases, however many attacks are tried.",
        ),
        definitions("levels", ((badge(level), meaning) for level, meaning in MEANINGS.items())),
    )


def rerun_section(
    records: Sequence[Record], *, spec: str, environment: Mapping[str, object]
) -> Section:
    """How to run the audit again: the command, the spec, the seeds and the versions."""
    kinds = ("data", "model", "local", "defense", "threat", "attack")
    parts = [
        f"{kind}: {value}"
        for kind in kinds
        for value in dict.fromkeys(_write(getattr(record, kind)) for record in records)
    ]
    seeds = list_words([str(seed) for seed in sorted({record.seed for record in records})])
    return Section(
        "rerun",
        "To run it again",
        "The same spec, seeds, versions and device give the same results, on a GPU up to rounding.",
        join_markup(
            element(
                "p", None, "Save the spec as spec.toml and run ",
                element("code", None, "seepage audit spec.toml --out again"), ". ",
                f"Seeds: {seeds or 'none'}.",
            ),
            _fold("Spec", spec),
            _fold("Versions and machine", json.dumps(environment, indent=2)),
            _fold("What ran, in full", "\n".join(parts)),
        ),
    )  # fmt: skip


def _write(value: object) -> str:
    return " + ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _fold(title: str, text: str) -> Markup:
    return element("details", None, element("summary", None, title), element("pre", None, text))
