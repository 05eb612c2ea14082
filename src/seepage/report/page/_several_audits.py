"""Pages about several audits: two of them compared, and many of them in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from markupsafe import Markup

from seepage.audit._audit_result import AuditResult
from seepage.audit._words import Setup, count_noun, decibels, label_setups, list_words, short_names
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._amount import SATURATED
from seepage.audit.results._judge import NOTICED
from seepage.report._change import Change, Direction, changes, comparison_verdict, shifts
from seepage.report._unscored import missing
from seepage.report._verdict import audit_verdict
from seepage.report.page._chart import PercentLine, percent_chart
from seepage.report.page._document import (
    Section,
    amount,
    coloured,
    document,
    faint,
    join_markup,
    level_class,
    macros,
    number_columns,
    opening,
    rerun_section,
    table,
)
from seepage.report.page._strip_sections import median_words

# People in the table of a comparison.
SHOWN = 400


def comparison_page(before: AuditResult, after: AuditResult) -> str:
    """Write one self-contained page: what got worse and what got better, person by person."""
    found = changes(before.results, after.results)
    judged = comparison_verdict(found)
    lacks = [f"{a.path.name}: {said}" for a in (before, after) if (said := missing(a))]
    first, second = (f"{audit.title} ({audit.path.name})" for audit in (before, after))
    title = f"Seepage comparison: {first} against {second}"
    return document(
        f"{title}: {judged.headline}",
        first=opening(title, judged, missing=list_words(lacks) or None),
        sections=[
            _group_section(found),
            _person_section(found),
            rerun_section(after.records, spec=after.spec, environment=after.environment),
        ],
        private=False,
    )


def _group_section(found: Sequence[Change]) -> Section:
    labels = label_setups(setup for change in found for setup in change.setups)
    networks = short_names(change.attacked.model for change in found)
    ways = (Direction.worse, Direction.better, Direction.same)
    rows = [
        [
            shift.changes[0].words(labels),
            shift.changes[0].attacked.data,
            networks[shift.changes[0].attacked.model],
            median_words(c.before for c in shift.changes if c.before),
            median_words(c.after for c in shift.changes if c.after),
            *(str(sum(c.direction is way for c in shift.changes)) for way in ways),
            str(shift.direction),
        ]
        for shift in shifts(found)
    ]
    counted = ("median before", "median now", *map(str, ways))
    header = [*number_columns(*counted, words=("defense", "data", "network")), ("together", "")]
    caption = "Median over people in dB of PSNR with its 95 % interval, and how many changed"
    return Section(
        "defenses",
        "By setup",
        f"A person counts as changed from {NOTICED:g} dB on, or when the level changes. The last "
        "column is about all people of a line: within noise, unless the 95 % interval of the mean "
        "change over people lies on one side of zero.",
        table("By setup", caption, header, rows, kind="stacked"),
    )


def _person_section(found: Sequence[Change]) -> Section:
    labels = label_setups(setup for change in found for setup in change.setups)
    words, counted = ("person", "defense", "attack"), ("before", "now", "difference")
    header = [*number_columns(*counted, words=words), ("", "")]
    rows: list[list[str]] = [
        [
            change.name,
            change.words(labels),
            change.attacks,
            _write_amount(change.before),
            _write_amount(change.after),
            f"{change.difference:+.1f} dB" if change.difference else "-",
            coloured(str(change.direction), change.direction.name),
        ]
        for change in found[:SHOWN]
    ]
    left = len(found) - len(rows)
    caption = "Every person with every defense, what got worst first"
    return Section(
        "people",
        "Person by person",
        f"The strongest guess at each person, before and now. The difference counts PSNR up to "
        f"{SATURATED:g} dB: above that, a guess equals the input up to rounding."
        + (f" These are the first {SHOWN}; {left} more are in the other formats." if left else ""),
        table("Person by person", caption, header, rows, kind="stacked"),
    )


def _write_amount(row: Result | None) -> Markup:
    if row is None:
        return faint("-")
    return coloured(amount(row), level_class(row.level))


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
        first=_open_dashboard(ordered, scenes),
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


def _open_dashboard(
    audits: Sequence[DashboardAudit], scenes: Sequence[dict[Scene, Results]]
) -> Markup:
    latest = _write_time(audits[-1].when).replace("-", "\N{NON-BREAKING HYPHEN}")
    said = [f"{count_noun(len(audits), 'audit')}, the latest of {latest}."]
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
    filled = table("The audits", caption, header, rows, kind="audits stacked")
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
    lines = list[PercentLine]()
    for scene in shown[:LINES]:
        points = [(i, 100 * _share(f[scene])) for i, f in enumerate(scenes) if scene in f]
        kind = _find_colour(next(found[scene] for found in reversed(scenes) if scene in found))
        lines.append(PercentLine(labels[scene], points, kind, kind))
    chart = percent_chart(
        [audit.name for audit in audits],
        lines,
        across="audits in time",
        up="people identified, %",
        label="People identified",
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
        join_markup(chart, table("Audit by audit", caption, header, rows)),
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
    return coloured(told, _find_colour(people))


def _find_colour(people: Results) -> str:
    """The style class of people: "safe" only if nothing about them is inconclusive."""
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
