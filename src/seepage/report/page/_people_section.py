"""Sections person by person: truth and reconstruction, and a table of every score."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from torch import Tensor

from seepage._printable import make_printable
from seepage.audit._record import Record
from seepage.audit._words import (
    count_noun,
    decibels,
    defense_words,
    label_setups,
    local_words,
    residual_words,
    short_names,
    tell_apart,
    threat_words,
)
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._amount import Amount, headline
from seepage.core._reconstruction import Proof
from seepage.report.page._document import (
    Section,
    amount,
    badge,
    join_markup,
    level_class,
    macros,
)
from seepage.report.page._picture import Shown, picture
from seepage.report.wording import proof_words

# With many people only the worst-off are drawn, so that the page stays small enough to send.
PEOPLE = 24
BYTES = 4_000_000

# The private input of a row, or what came back; None if it was not kept.
Look = Callable[[Result], Shown | None]


class _Figure(NamedTuple):
    """A picture, None if it was not kept, and what stands below it."""

    drawn: Markup | None
    caption: str


def people_section(results: Results, *, truth: Look, guess: Look) -> Section:
    """Truth, then what came back with each defense, for the worst-off people."""
    labels = label_setups(results.setups)
    guesses = {
        labels[setup]: {row.person: row for row in group.strongest()}
        for setup, group in results.setups.items()
    }
    everybody = [row.person for row in results.strongest()]
    drawn: list[Markup] = []
    for victim in everybody:
        if len(drawn) == PEOPLE or sum(map(len, drawn)) > BYTES:
            break
        mine = {name: people[victim] for name, people in guesses.items() if victim in people}
        drawn.append(_draw_person(mine, truth, guess))
    beyond = (
        f" Shown are the {len(drawn)} worst-off of {len(everybody)} people; the table below has "
        "the scores of all."
    )
    return Section(
        "people",
        "Person by person, worst first",
        "The private input, then the best guess of any attack for each defense."
        + beyond * (len(drawn) < len(everybody)),
        join_markup(*drawn),
    )


def pair(row: Result, *, truth: Look, guess: Look) -> Markup | None:
    """The private input and one guess, or None if either was not kept."""
    original, reconstruction = truth(row), guess(row)
    if original is None or reconstruction is None:
        return None
    drawn = picture(reconstruction, alt=_alt(row), over=original)
    shown: Markup = macros("people").pair(_draw_truth(original, row).drawn, drawn, amount(row))
    return shown


def unscored_section(
    records: Sequence[Record], *, guess: Callable[[Record], Tensor | None]
) -> Section | None:
    """Pictures of the guesses without a truth, the best explanation first; None without any."""
    blind = sorted(records, key=lambda record: record.residual)
    if not blind:
        return None
    return Section(
        "unscored",
        "What came back, with no truth to compare it with",
        "Every guess as the attack left it, the one that explains the update best first. The "
        "residual is the relative difference between the update recomputed at the guess and the "
        "one that was seen. Right to 8 bits: the error is proved to be below half a step. Right in "
        "every token: no other text explains the update. No other input nearby fits: one that is "
        "far away, such as a mirror image, still may.",
        join_markup(*(_draw_unscored(record, guess(record)) for record in blind)),
    )


def _draw_unscored(record: Record, guesses: Tensor | None) -> Markup:
    name = record.attack.name
    figures = [
        _Figure(
            picture(values, alt=f"guess {number} of {name} on {record.data}"), f"guess {number}"
        )
        for number, values in enumerate([] if guesses is None else guesses[:PEOPLE])
    ]
    checked = _certificate_words(record.certificate) if record.certificate else "not checked"
    article: Markup = macros("people").article(f"{record.data}, {name}", checked, figures)
    return article


def _draw_person(mine: Mapping[str, Result], truth: Look, guess: Look) -> Markup:
    worst = max(mine.values(), key=lambda row: row.strength)
    original = truth(worst)
    figures = [
        _draw_truth(original, worst),
        *(_draw_guess(name, one, guess(one), original) for name, one in mine.items()),
    ]
    heading = join_markup(worst.name, " ", badge(worst.level))
    article: Markup = macros("people").article(heading, _baselines(worst), figures)
    return article


def _draw_truth(values: Shown | None, row: Result) -> _Figure:
    alt = f"private input of {row.name}"
    return _Figure(None if values is None else picture(values, alt=alt), "the truth")


def _draw_guess(label: str, row: Result, values: Shown | None, truth: Shown | None) -> _Figure:
    exact = row.level is Level.reconstructed
    shown = amount(row) if exact else f"{amount(row)}, {row.level}"
    caption = macros("people").guess(label, level_class(row.level), shown, _fine_print(row))
    return _Figure(None if values is None else picture(values, alt=_alt(row), over=truth), caption)


def _fine_print(row: Result) -> str:
    scores = {name: row.score(name) for name in ("ssim", "lpips")}
    certificate, found = row.record.certificate, row.identification
    parts = [
        row.record.attack.name,
        *([] if found is None else [f"place {found.rank} of {found.strangers + 1}"]),
        *([row.amount.words()] if row.exact else []),
        *(f"{name} {value:.2f}" for name, value in scores.items() if value is not None),
        *([] if certificate is None else [_certificate_words(certificate)]),
    ]
    return ", ".join(parts)


def _certificate_words(certificate: Proof) -> str:
    """What the attack can prove without the truth.

    Example:
        >>> _certificate_words({"residual": 1.2e-7, "unique": True})
        'residual 1e-07, right to 8 bits'
        >>> _certificate_words({"residual": float("inf"), "unique": None, "certain": 9})
        '9 different words proved'
        >>> _certificate_words({"residual": 1.2e-7, "unique": None, "locally_unique": True})
        'residual 1e-07, no other input nearby fits'
    """
    if certificate.get("certain") and not certificate["unique"]:
        return f"{certificate['certain']} different words proved"
    proof = ", no other input nearby fits" if certificate.get("locally_unique") else ""
    proof = f", {proof_words(certificate)}" if certificate["unique"] else proof
    return f"residual {residual_words(float(certificate['residual'] or 0))}{proof}"


def _baselines(row: Result) -> str:
    guesses = {
        "the mean of others": row.record.baselines.get("mean"),
        "the mean of their label": row.record.baselines.get("label"),
        "somebody else's": row.record.baselines.get("draw"),
    }
    metric = row.amount.metric
    said = [
        f"{name} {Amount(metric, scores[metric][row.index]).words()}"
        for name, scores in guesses.items()
        if scores and metric in scores
    ]
    return "Guesses that need no update: " + ", ".join(said) if said else ""


def _alt(row: Result) -> str:
    where = defense_words(row.record.defense)
    how = row.record.attack.name
    return f"{row.name} as {how} saw it, {where}: {amount(row)}, {row.level}"


# Rows written as HTML, for readers without scripts and for paper; the script has all of them.
WRITTEN = 200
# Columns that are shown only if they vary, by the field of a record.
VARYING = {"network": "model", "client": "local", "adversary": "threat", "drawn": "sampling"}
TEXTS = frozenset({"person", "defense", "attack", "verdict", *VARYING})


def record_section(results: Results, *, incomplete: Sequence[Record] = ()) -> Section:
    """One row per person and attack, worst first, failed cases last; to filter and to sort.

    Those of `incomplete` results are marked: what was stored of them is not there any more.
    """
    columns, rows = _table_rows(results, {record.case for record in incomplete})
    written = macros("people")
    header = [(written.sort_button(title), "" if title in TEXTS else "number") for title in columns]
    return Section(
        "records",
        "Every result",
        f"{count_noun(len(rows), 'row')}: one per person and attack, worst first. The filter shows "
        "the rows that contain all words typed; it is part of the page's address, so you can share "
        "it. Click a heading to sort.",
        written.records(header, rows[:WRITTEN], len(rows), _data(columns, rows)),
    )


def _table_rows(results: Results, incomplete: Container[str]) -> tuple[list[str], list[list[str]]]:
    """Titles of the columns, and the cells as text."""
    records = results.records
    ranked = sorted(results, key=lambda row: row.strength, reverse=True)
    short = short_names(r.attack for r in (*records, *(row.record for row in ranked)))
    labels: dict[str, dict[Any, str]] = {
        "model": short_names(record.model for record in records),
        "local": tell_apart((record.local for record in records), local_words, str),
        "threat": {record.threat: threat_words(record.threat) for record in records},
        "sampling": {record.sampling: record.sampling for record in records},
    }
    varying = {title: name for title, name in VARYING.items() if len(labels[name]) > 1}
    # The measure of the kind of input comes first.
    first = dict.fromkeys([*(headline(r.scores) for r in records if r.scores), "psnr"])
    metrics = list(first | dict.fromkeys(name for r in records for name in r.scores))
    columns = ["person", "defense", "attack", "batch size", *varying, "verdict", *metrics]
    columns += ["without update", "residual", "steps", "restarts", "seconds", "seed"]

    def describe(record: Record, verdict: str, **cells: str) -> dict[str, str]:
        damaged = ", files missing or altered" * (record.case in incomplete and not record.error)
        return {
            "person": f"{record.data} {', '.join(f'#{person}' for person in record.people)}",
            "defense": defense_words(record.defense),
            "attack": short[record.attack],
            "batch size": str(record.batch_size),
            **{title: labels[name][getattr(record, name)] for title, name in varying.items()},
            "verdict": verdict + damaged,
            "seed": str(record.seed),
            **cells,
        }

    def checked(record: Record, verdict: str, **cells: str) -> dict[str, str]:
        proof, effort = record.certificate, record.effort
        spent = {
            "residual": proof["residual"] if proof else None,
            # A closed form takes no steps.
            "steps": effort.get("steps") or None,
            "restarts": effort.get("restarts") or None,
            "seconds": effort.get("seconds"),
        }
        told = {title: _number(value) for title, value in spent.items()}
        return describe(record, verdict, **told, **cells)

    def scored(row: Result) -> dict[str, str]:
        scores = {name: _number(row.score(name)) for name in metrics}
        scores |= {"psnr": decibels(row.psnr, unit=False)}
        guess = {"without update": row.without_update.words(unit=False)}
        return checked(row.record, str(row.level)) | {"person": row.name, **scores, **guess}

    failed = sorted((one for one in records if one.error is not None), key=lambda one: one.failed)
    rows = [
        *map(scored, ranked),
        *(checked(record, "no truth") for record in results.unscored),
        *(describe(record, f"{record.status}: {record.error}") for record in failed),
    ]
    return columns, [[row.get(column, "-") for column in columns] for row in rows]


def _number(value: float | int | str | bool | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value)}"
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    return f"{value:.3g}"


def _data(columns: list[str], rows: list[list[str]]) -> Markup:
    """The rows for the script: each cell is the number of its text, since texts repeat."""
    words = {word: number for number, word in enumerate(dict.fromkeys(c for r in rows for c in r))}
    content = {
        "numbers": [title not in TEXTS for title in columns],
        "words": list(map(make_printable, words)),
        "rows": [[words[cell] for cell in row] for row in rows],
    }
    # A closing tag inside a text would end the element.
    return Markup(json.dumps(content, separators=(",", ":")).replace("<", "\\u003c"))
