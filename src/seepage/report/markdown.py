"""The report as Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit.audit_result import AuditResult
from seepage.report.change import Change, Direction, comparison_verdict, psnr_words
from seepage.report.headroom import COLUMNS, headrooms, silences, tabulate_bounds
from seepage.report.leak import Verdict, attempts
from seepage.report.summary import exact_words, summarise, unscored_words
from seepage.report.verdict import audit_verdict, missing
from seepage.report.words import label_setups, threat_words


def audit_markdown(audit: AuditResult) -> str:
    """The verdict, what the adversary had, and a table with the worst leak first."""
    header = ["data", "network", "attack", "defense", "batch size"]
    header += ["worst-off", "median", "no update", "exact"]
    found = summarise(audit.records)
    labels = label_setups(row.setup for row in found)
    rows = [
        [
            row.data,
            row.model,
            row.attack.name,
            labels[row.setup],
            str(row.batch_size),
            f"{row.words(row.worst)} #{row.worst_person}" if row.people else unscored_words(row),
            row.words(row.median),
            row.words(row.baseline),
            exact_words(row, of=" of "),
        ]
        for row in found
    ]
    threats = dict.fromkeys(record.threat for record in audit.records)
    lacks = missing(audit)
    return _document(
        audit.title,
        audit_verdict(audit),
        [
            *(f"The adversary had {threat_words(threat)}." for threat in threats),
            *([lacks] if lacks else []),
        ],
        header,
        rows,
    ) + _bounds(audit)


def _bounds(audit: AuditResult) -> str:
    """What theory allows, where it was asked."""
    found = headrooms(attempts(audit.records), audit.bounds)
    if not found:
        return ""
    told = [line for sentence in silences(found) for line in ("", markdown_words(sentence))]
    lines = [
        "",
        "## What theory allows",
        "",
        *markdown_table(list(COLUMNS), tabulate_bounds(found)),
        *told,
    ]
    return "\n".join(lines) + "\n"


def comparison_markdown(before: str, after: str, found: Sequence[Change]) -> str:
    """What changed between two audits, the worst first; what stayed is left out."""
    header = ["person", "defense", "attack", before, after, ""]
    labels = label_setups(change.setup for change in found)
    rows = [
        [
            "{} #{}".format(*change.victim),
            labels[change.setup],
            change.attack.name,
            psnr_words(change.before),
            psnr_words(change.after),
            str(change.direction),
        ]
        for change in found
        if change.direction is not Direction.same
    ]
    title = f"{before} against {after}"
    return _document(title, comparison_verdict(found), [], header, rows)


def _document(
    title: str, judged: Verdict, notes: list[str], header: list[str], rows: list[list[str]]
) -> str:
    lines = [
        f"# {markdown_words(title)}",
        "",
        f"**{markdown_words(judged.headline)}.**",
        "",
        *(line for alarm in judged.alarms for line in (f"**{markdown_words(alarm)}**", "")),
        *(line for note in (*judged.details, *notes) for line in (markdown_words(note), "")),
        *markdown_table(header, rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table; none if it has no rows."""
    if not rows:
        return []
    every = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(markdown_words(cell) for cell in row) + " |" for row in every]


def markdown_words(text: str) -> str:
    """Text from a spec as text: no markup, no cell or line of its own."""
    plain = " ".join(text.split())
    for sign in "\\`*_[]<>|":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
