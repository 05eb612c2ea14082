"""Many audits in time on one page: which version of a model leaks more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from markupsafe import Markup

from seepage.audit._audit_result import AuditResult
from seepage.audit._words import Setup, count_noun, decibels, label_setups, short_names
from seepage.audit.results import Level, Results
from seepage.audit.results._amount import SATURATED
from seepage.report._verdict import audit_verdict
from seepage.report.page._chart import Axis, Curve, Labels, Mark, line_chart
from seepage.report.page._document import (
    Section,
    coloured,
    document,
    faint,
    join_markup,
    level_class,
    macros,
    number_columns,
    table,
)

# The most lines in the chart: those that leak most now.
LINES = 12
# A share must change by so much to be called more or less.
_NOTICED = 0.05

Scene = tuple[str, str, Setup]


@dataclass(frozen=True)
class DashboardAudit:
    """One audit of a dashboard."""

    name: str
    when: datetime
    result: AuditResult
    link: str = ""


def dashboard_page(audits: Sequence[DashboardAudit], *, unread: Mapping[str, str]) -> str:
    """Write one self-contained page about audits in the order of time."""
    ordered = sorted(audits, key=lambda audit: (audit.when, audit.name))
    scenes = [_group_people(audit.result) for audit in ordered]
    return document(
        f"Seepage dashboard: {count_noun(len(ordered), 'audit')}",
        first=_opening(ordered, scenes),
        sections=[
            _list_section(ordered),
            _course_section(ordered, scenes),
            _unread_section(unread),
        ],
        private=False,
    )


def _group_people(result: AuditResult) -> dict[Scene, Results]:
    """The strongest result on each person of every data set, network and setup."""
    groups = result.results.by("data", "model", "setup")
    found = {key: group.strongest() for key, group in groups.items() if group}
    return dict(sorted(found.items(), key=lambda item: bool(item[0][2].defense)))


def _share(people: Results) -> float:
    return people.identified / len(people)


def _opening(audits: Sequence[DashboardAudit], scenes: Sequence[dict[Scene, Results]]) -> Markup:
    said = [f"{count_noun(len(audits), 'audit')}, the latest of {_write_time(audits[-1].when)}."]
    level = ""
    headline = audit_verdict(audits[-1].result)
    if len(audits) > 1:
        shared = [s for s in scenes[-1] if s in scenes[-2]]
        worse = [s for s in shared if _share(scenes[-1][s]) > _share(scenes[-2][s]) + _NOTICED]
        better = [s for s in shared if _share(scenes[-1][s]) < _share(scenes[-2][s]) - _NOTICED]
        changed = (
            f"more people identified in {len(worse)} of {count_noun(len(shared), 'setup')}, fewer "
            f"in {len(better)}"
        )
        said.append(
            f"Against {audits[-2].name}, the one before: "
            f"{changed if shared else 'no setup in common'}. To compare two audits person by "
            "person, give both to seepage report."
        )
        level = "leak" if worse else ""
    found: Markup = macros("opening").opening(
        "Seepage dashboard",
        level or level_class(headline.level),
        f"{audits[-1].name}: {headline.headline}",
        details=said,
    )
    return found


def _list_section(audits: Sequence[DashboardAudit]) -> Section:
    rows: list[list[str]] = []
    for audit in reversed(audits):
        judged = audit_verdict(audit.result)
        name = macros("parts").link(audit.link, audit.name) if audit.link else audit.name
        people = audit.result.results.strongest()
        worst = "-" if judged.worst is None else judged.worst.amount.words()
        rows.append(
            [
                name,
                _write_time(audit.when),
                f"{people.identified} of {len(people)}" if people else "-",
                coloured(worst, level_class(judged.level)),
                join_markup(audit.result.title, ": ", judged.headline),
            ]
        )
    header = [
        *number_columns("identified", words=("audit", "begun")),
        ("worst-off", "number worst"),
        ("verdict", ""),
    ]
    caption = "The latest first; people identified by any attack in any setup"
    filled = table("The audits", caption, header, rows, kind="audits")
    return Section(
        "audits",
        "The audits",
        "Each name leads to the report of the audit, if it was written.",
        filled,
    )


def _course_section(
    audits: Sequence[DashboardAudit], scenes: Sequence[dict[Scene, Results]]
) -> Section | None:
    """The share of people identified, audit by audit, one line per setup."""
    every = list(dict.fromkeys(scene for found in scenes for scene in found))
    if not every:
        return None
    labels = _label_scenes(every)
    latest = {s: max((i, _share(f[s])) for i, f in enumerate(scenes) if s in f) for s in every}
    shown = sorted(every, key=lambda scene: latest[scene], reverse=True)
    curves, marks = list[Curve](), list[Mark]()
    for number, scene in enumerate(shown[:LINES]):
        points = [(float(i), 100 * _share(f[scene])) for i, f in enumerate(scenes) if scene in f]
        kind = _colour(next(found[scene] for found in reversed(scenes) if scene in found))
        curves.append(Curve(points, labels[scene], kind, str(number)))
        marks += [
            Mark(x, y, f"{labels[scene]}, {audits[int(x)].name}: {y:.0f} %", "", kind)
            for x, y in points
        ]
    spread = max(1, len(audits) - 1)
    stride = -(-len(audits) // 8)
    across = Axis(-0.05 * spread, 1.05 * spread)
    words = Labels(
        "audits in time",
        "people identified, %",
        [(float(i), audits[i].name) for i in range(0, len(audits), stride)],
        [(float(tick), f"{tick}") for tick in (0, 25, 50, 75, 100)],
    )
    rows = [
        [labels[scene], *(_write_cell(found.get(scene)) for found in scenes)] for scene in shown
    ]
    header = number_columns(*(audit.name for audit in audits), words=["setup"])
    caption = (
        "People identified of those attacked, and the median of the best guesses: PSNR in dB, or "
        "per cent of the columns or words"
    )
    return Section(
        "course",
        "What leaks, audit by audit",
        "A line is one data set, network, defense, local computation and batch size; it is red if "
        "people were identified the last time. "
        + f"The chart shows the {LINES} that leak most now; the table has all."
        * (len(shown) > LINES),
        join_markup(
            line_chart(
                across, Axis(-3, 103), words, label="People identified", curves=curves, marks=marks
            ),
            table("Audit by audit", caption, header, rows),
        ),
    )


def _label_scenes(scenes: Sequence[Scene]) -> dict[Scene, str]:
    data, networks = (short_names(scene[i] for scene in scenes) for i in (0, 1))
    setups = label_setups(setup for *_, setup in scenes)
    return {
        (one, network, setup): ", ".join(
            [
                *[data[one]] * (len(data) > 1),
                *[networks[network]] * (len(networks) > 1),
                setups[setup],
            ]
        )
        for one, network, setup in scenes
    }


def _write_cell(people: Results | None) -> Markup:
    if not people:
        return faint("-")
    found = people.identified
    shares = all(row.is_share for row in people)
    middle = median(row.measured if shares else min(row.psnr, SATURATED) for row in people)
    told = f"{middle:.0f} %" if shares and middle >= 0 else decibels(middle, unit=False)
    told = f"{found} of {len(people)}, {told}"
    return coloured(told, _colour(people))


def _colour(people: Results) -> str:
    """Safe only if every attack would have found somebody."""
    worst = min((row.level for row in people), key=lambda level: level.rank)
    unclear = any(row.level is Level.inconclusive for row in people)
    return "trace" if unclear and not worst.identified else level_class(worst)


def _unread_section(unread: Mapping[str, str]) -> Section | None:
    if not unread:
        return None
    items = [f"{name}: {reason}" for name, reason in unread.items()]
    lead = "These folders look like audits and are left out."
    return Section("unread", "Not read", lead, macros("parts").list(items))


def _write_time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M}"
