"""The report of one audit as a page, with its shorter sections.

Truth, guesses and objectives are read from the audit's folder while the page is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup
from torch import Tensor

from seepage.audit._choices import Choice
from seepage.audit._words import Setup, count_noun, label_setups, residual_words, short_names
from seepage.audit.results import Result, Results
from seepage.report._headroom import headrooms
from seepage.report._unscored import missing
from seepage.report._verdict import audit_verdict
from seepage.report.page._curve_sections import (
    convergence_section,
    effort_section,
    race_section,
    tradeoff_section,
)
from seepage.report.page._document import (
    Section,
    amount,
    assumptions,
    badge,
    coloured,
    document,
    faint,
    filter_link,
    join_markup,
    macros,
    make_scrollable,
    number_columns,
    opening,
    rerun_section,
    table,
)
from seepage.report.page._people_section import (
    Look,
    pair,
    people_section,
    record_section,
    unscored_section,
)
from seepage.report.page._picture import Shown
from seepage.report.page._strip_sections import bound_section, defense_section
from seepage.report.wording import proof_words

if TYPE_CHECKING:
    from seepage.audit._audit_result import AuditResult
    from seepage.audit._record import Record


# Files that are held in memory, of either kind.
_HELD = 16


def audit_page(audit: AuditResult, *, choices: Sequence[Choice] = ()) -> str:
    """Write one self-contained HTML page; the audit may still be running, or be broken.

    The `choices` say what each defense costs, if utility was measured.
    """
    records, results = audit.records, audit.results
    truth = _look_up(records, lambda r: r.truth, audit.truth_said, audit.truth)
    guess = _look_up(records, lambda r: r.case, audit.guess_said, audit.guess)

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
        tradeoff_section(choices),
        bound_section(headrooms(results, audit.bounds)),
        race_section(records),
        effort_section(results.curves),
        convergence_section(results, objective=objective),
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


def _look_up(
    records: Iterable[Record],
    file: Callable[[Record], str],
    words: Callable[[Record], Sequence[Shown]],
    tensor: Callable[[Record], Sequence[Shown] | Tensor | None],
) -> Look:
    """Find what a file holds of the person of a row; people of one update share their files."""
    named = {file(record): record for record in records}

    @lru_cache(maxsize=_HELD)
    def read(name: str) -> Sequence[Shown] | Tensor | None:
        return words(named[name]) or tensor(named[name])

    def look(row: Result) -> Shown | None:
        found = read(file(row.record))
        return None if found is None else found[row.index]

    return look


_TOGETHER = (
    " Each round was attacked alone. Where a client trained on the same data again, its rounds "
    "tell more together: see stack_rounds."
)


def _federation_section(results: Results) -> Section | None:
    """One cell for each update, by client and round; None unless there are several of them."""
    updates = results.by("data")
    sent = {record.data: record.sent for group in updates.values() for record in group.records}
    places = {data: (one.client, one.round) for data, one in sent.items() if one is not None}
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
    """How each attack did on people that the audit chose itself; None without controls."""
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


def _name_private(audit: AuditResult) -> str:
    """Say which private data a page about an audit embeds."""
    shown = {who for r in audit.records if audit.holds_inputs(r) for who in r.persons}
    if not shown and not any(audit.holds_guess(record) for record in audit.records):
        return "This page holds scores only: no private inputs, and no guesses at them."
    of = f"private inputs of {count_noun(len(shown), 'person', 'people')} and " if shown else ""
    return f"This page embeds {of}guesses at private inputs; handle it as you handle the data."
