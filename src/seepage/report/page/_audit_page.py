"""The report of one audit as a page, with its shorter sections.

Truth, guesses and objectives are read from the audit's folder while the page is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from seepage.audit._captured_data import read_update_name
from seepage.audit._choices import Choice, pareto_front
from seepage.audit._words import (
    Setup,
    count_noun,
    decibels,
    defense_words,
    label_setups,
    residual_words,
    short_names,
)
from seepage.audit.results import Result, Results
from seepage.audit.results._amount import SATURATED
from seepage.audit.results._effort_curve import GAIN, EffortCurve
from seepage.core._scale import DECIBELS
from seepage.report._headroom import headrooms
from seepage.report._unscored import missing
from seepage.report._verdict import audit_verdict
from seepage.report.page._chart import Axis, Curve, Labels, Mark, line_chart, span_axis
from seepage.report.page._document import (
    Section,
    amount,
    badge,
    coloured,
    document,
    faint,
    filter_link,
    join_markup,
    level_class,
    macros,
    make_scrollable,
    number_columns,
    table,
)
from seepage.report.page._opening import assumptions, opening, rerun_section
from seepage.report.page._people_section import (
    pair,
    people_section,
    record_section,
    unscored_section,
)
from seepage.report.page._picture import Shown
from seepage.report.page._race_section import race_section
from seepage.report.page._strip_sections import bound_section, defense_section
from seepage.report.wording import curve_words, proof_words

if TYPE_CHECKING:
    from seepage.audit._audit_result import AuditResult
    from seepage.audit._record import Record

# The most curves in a chart, and about the most points of a curve.
CURVES = 40
POINTS = 80


def audit_page(audit: AuditResult, *, choices: Sequence[Choice] = ()) -> str:
    """Write one self-contained HTML page; the audit may still be running, or be broken.

    The `choices` say what each defense costs, if utility was measured.
    """
    records, results = audit.records, audit.results

    def truth(row: Result) -> Shown | None:
        shown = audit.truth_said(row.record) or audit.truth(row.record)
        return None if shown is None else shown[row.index]

    def guess(row: Result) -> Shown | None:
        shown = audit.guess_said(row.record) or audit.guess(row.record)
        return None if shown is None else shown[row.index]

    def objective(row: Result) -> Sequence[float]:
        values = audit.objective(row.record)
        return () if values is None else values.tolist()

    judged = audit_verdict(audit)
    pictures = None if judged.worst is None else pair(judged.worst, truth=truth, guess=guess)
    title = f"Seepage audit: {audit.title}"
    sections = [
        _federation_section(results),
        people_section(results, truth=truth, guess=guess) if results else None,
        unscored_section(results.unscored, guess=audit.guess),
        defense_section(results) if results else None,
        _control_section(records),
        _tradeoff_section(choices),
        bound_section(headrooms(results, audit.bounds)),
        race_section(records),
        _effort_section(results.curves),
        _convergence_section(results, objective=objective),
        record_section(results, incomplete=audit.incomplete) if records else None,
        rerun_section(records, spec=audit.spec, environment=audit.environment),
    ]
    return document(
        f"{audit.title}: {judged.headline}",
        first=join_markup(
            opening(
                title,
                judged,
                pictures=pictures,
                missing=missing(audit),
                private=_name_private(audit),
            ),
            assumptions(records) if records else None,
        ),
        sections=sections,
    )


_TOGETHER = (
    " Each round was attacked alone. Where a client trained on the same data again, its rounds "
    "tell more together: see stack_rounds."
)


def _federation_section(results: Results) -> Section | None:
    """One cell for each update, by client and round; None unless there are several of them."""
    updates = results.by("data")
    places = {data: place for data in updates if (place := read_update_name(data)) is not None}
    if len(set(places.values())) < 2:
        return None
    clients = sorted({client for client, _ in places.values()})
    rounds = sorted({number for _, number in places.values()})
    names = {place: data for data, place in places.items()}
    rows = [
        (client, [_draw_cell(names.get((client, number)), updates) for number in rounds])
        for client in clients
    ]
    return Section(
        "federation",
        "By client and by round",
        f"{len(places)} updates of {len(clients)} clients in {len(rounds)} rounds. Each cell shows "
        "what came back of the worst-off person behind one update. Clients are named by the "
        "beginning of their hash, and a number leads to all results of an update. Without a truth "
        "it is the residual; a guess that is right to 8 bits, or in every token, is proved."
        + (_TOGETHER if len(places) > len(clients) else ""),
        make_scrollable("Clients and rounds", macros("audit").federation(rounds, rows)),
    )


def _draw_cell(data: str | None, updates: Mapping[str, Results]) -> Markup:
    if data is None:
        return faint("-")
    mine = updates[data]
    if mine:
        worst = max(mine, key=lambda row: row.strength)
        return join_markup(badge(worst.level), " ", filter_link(amount(worst), words=data))
    blind = sorted(mine.unscored, key=lambda r: r.residual)
    if not blind:
        return filter_link("failed", words=data)
    proofs = [r.certificate for r in blind if r.certificate and r.certificate["unique"]]
    said = proof_words(proofs[0]) if proofs else "no truth"
    left = filter_link(f"residual {residual_words(blind[0].residual)}", words=data)
    return join_markup(coloured(said, f"badge {'leak' if proofs else 'trace'}"), " ", left)


def _control_section(records: Sequence[Record]) -> Section | None:
    """How each attack did on people whom the audit chose itself; None without controls."""
    found = {
        (record.data, record.model, record.attack, Setup.of(record)): record.control
        for record in records
        if record.control is not None
    }
    if not found:
        return None
    networks = short_names(model for _, model, _, _ in found)
    short = short_names(attack for _, _, attack, _ in found)
    labels = label_setups(setup for *_, setup in found)
    rows = [
        [
            short[attack],
            data,
            networks[model],
            labels[setup],
            _share(control.bare),
            _share(control.defended),
            "{} of {} (luck: {:.1f})".format(*control.negative),
            "yes" if control.able else "no: inconclusive",
        ]
        for (data, model, attack, setup), control in found.items()
    ]
    words = ("attack", "data", "network", "defense")
    counted = ("without defense", "with defense", "in other updates", "strong enough")
    return Section(
        "canaries",
        "Would the attacks have found anybody?",
        "Each attack also ran on canaries, people whom the audit chose itself. An attack is strong "
        "enough to tell if it finds them without the defense. The last count looks for people "
        "in guesses made from other updates and from noise, which cannot contain them, beside "
        "what luck finds.",
        table("Controls", "Canaries and people found", number_columns(*counted, words=words), rows),
    )


def _share(counts: tuple[int, int, float] | None) -> str:
    return "-" if counts is None else f"{counts[0]} of {counts[1]}"


def _effort_section(found: Sequence[EffortCurve]) -> Section | None:
    """Leakage against steps, of attacks that ran with several numbers of steps; None without."""
    if not found:
        return None
    labels = label_setups(curve.setup for curve in found)
    lines = [
        Curve(
            [(math.log2(steps), value) for steps, value in curve.medians],
            f"{labels[curve.setup]}, {curve.model}, {curve.data}: {curve_words(curve)}",
            "leak" if curve.rising else "safe",
            f"{number}",
        )
        for number, curve in enumerate(found)
    ]
    across = span_axis(x for line in lines for x, _ in line.points)
    up = span_axis(y for line in lines for _, y in line.points)
    ticks = sorted({steps for curve in found for steps in curve.scores})
    words = Labels(
        "steps",
        "median over people, dB",
        [(math.log2(steps), f"{steps:,}") for steps in ticks],
    )
    return Section(
        "effort",
        "Would more steps find more?",
        "Each line is one attack on one setup with several numbers of steps. It has reached a "
        f"plateau if the 95 % interval over people of what doubling the steps gains is below "
        f"{GAIN:g} dB. Otherwise nobody gets the level not shown by this attack.",
        join_markup(
            line_chart(across, up, words, label="Leakage against steps", curves=lines),
            macros("parts").list([line.tip for line in lines]),
        ),
    )


# The objective at the start and after each step; empty if it was not kept.
Objective = Callable[[Result], Sequence[float]]


def _convergence_section(results: Results, *, objective: Objective) -> Section | None:
    """One chart per attack of objective against step; None if no curve was kept."""
    ran = (row for row in results if not row.behind)
    searched = [row for row in ran if row.record.effort.get("steps")]
    short = short_names(row.record.attack for row in searched)
    groups = Results(searched).by("attack")
    charts = [_draw_searches(short[attack], group, objective) for attack, group in groups.items()]
    if not any(charts):
        return None
    return Section(
        "convergence",
        "How the searches converged",
        "The objective of the restart that each attack chose, step by step, on a logarithmic "
        "scale. If a curve still falls at its end, more steps might find more.",
        join_markup(*charts),
    )


def _draw_searches(name: str, group: Results, objective: Objective) -> Markup | None:
    """One curve per case; cases that got more are drawn over the others."""
    cases = {row.number: row for row in sorted(group, key=lambda row: row.strength)}
    shown = sorted(cases.values(), key=lambda row: row.strength)[-CURVES:]
    lines = [c for c in (_make_curve(a, objective(a)) for a in shown) if len(c.points) > 1]
    if not lines:
        return None
    across = Axis(0.0, max(x for line in lines for x, _ in line.points))
    up = span_axis(y for line in lines for _, y in line.points)
    powers = range(math.ceil(up.low), math.floor(up.high) + 1)
    labels = Labels(
        "step",
        "objective",
        across.labels(),
        [(float(power), f"1e{power}") for power in powers[:: max(1, len(powers) // 5)]],
    )
    left = faint(f" the {len(shown)} cases that got most, of {len(cases)}")
    return join_markup(
        macros("parts").heading(join_markup(name, left if len(cases) > len(shown) else None)),
        line_chart(across, up, labels, label=f"Objective of {name} by step", curves=lines),
    )


def _make_curve(row: Result, values: Sequence[float]) -> Curve:
    stride = max(1, len(values) // POINTS)
    steps = sorted({*range(0, len(values), stride), *range(len(values))[-1:]})
    points = [(step, math.log10(values[step])) for step in steps if 0 < values[step] < math.inf]
    key = row.name
    tip = f"{key}, {defense_words(row.record.defense)}: {amount(row)}"
    return Curve(points, tip, level_class(row.level), key)


def _tradeoff_section(choices: Sequence[Choice]) -> Section | None:
    """Draw one choice per defense and the Pareto front; None if no utility was measured."""
    if not choices:
        return None
    across = span_axis([c.utility for c in choices], room=0.1)
    up = span_axis([min(c.leakage, SATURATED) for c in choices], room=0.15)
    marks = [
        Mark(
            choice.utility,
            choice.leakage,
            f"{choice.label}: {decibels(choice.leakage)} leaked at utility {choice.utility:g}",
            choice.label,
            "leak" if choice.leakage >= DECIBELS.telling else "safe",
        )
        for choice in choices
    ]
    stairs = Curve([(c.utility, c.leakage) for c in pareto_front(choices)], "", "front", "")
    return Section(
        "tradeoff",
        "What protection costs",
        "The model is better further right, and less leaks further down. The line joins the "
        "choices that no other choice beats in both.",
        line_chart(
            across,
            up,
            Labels("utility", "worst-off person, dB"),
            label="Leakage against utility",
            curves=[stairs],
            marks=marks,
        ),
    )


def _name_private(audit: AuditResult) -> str:
    """Say which private data a page about an audit embeds."""
    shown = {who for r in audit.records if audit.holds_inputs(r) for who in r.persons}
    if not shown and not any(audit.holds_guess(record) for record in audit.records):
        return "This page holds scores only: no private inputs, and no guesses at them."
    of = f"private inputs of {count_noun(len(shown), 'person', 'people')} and " if shown else ""
    return f"This page embeds {of}guesses at private inputs; handle it as you handle the data."
