"""The first screen: the verdict, its picture, and what it assumes; and how to run it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from seepage.audit._record import Record
from seepage.audit._words import list_words, threat_words
from seepage.audit.results import Level
from seepage.report._finding import Verdict
from seepage.report._unscored import inapplicable
from seepage.report.page._document import Section, badge, level_class, macros
from seepage.report.wording import describe_effort

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


def opening(
    title: str,
    judged: Verdict,
    *,
    pictures: str | None = None,
    missing: str | None = None,
    private: str | None = None,
) -> Markup:
    """Write the verdict, what the audit lacks and, beside it, the pictures if they were kept.

    The last sentence says which private data the page embeds.
    """
    found: Markup = macros("opening").opening(
        title,
        level_class(judged.level),
        judged.headline,
        judged.alarms,
        judged.details,
        missing,
        private,
        pictures,
    )
    return found


def assumptions(records: Sequence[Record]) -> Markup:
    """What the verdict rests on: knowledge, convention and effort."""
    found: Markup = macros("opening").assumptions(
        [threat_words(threat) for threat in dict.fromkeys(r.threat for r in records)],
        describe_effort(records),
        inapplicable(records),
        [(badge(level), meaning) for level, meaning in MEANINGS.items()],
    )
    return found


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
        macros("opening").rerun(
            seeds or "none", spec, json.dumps(environment, indent=2), "\n".join(parts)
        ),
    )


def _write(value: object) -> str:
    return " + ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
