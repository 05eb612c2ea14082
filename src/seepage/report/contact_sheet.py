"""Truth beside reconstruction, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from seepage.audit import Outcome
from seepage.report.sheet import Block, Strip, draw
from seepage.report.words import decibels, defense_words

SHOWN = 8


def save_contact_sheet(outcomes: Sequence[Outcome], path: Path) -> bool:
    """Draw every case whose inputs are images, and tell whether there was any."""
    blocks = _blocks([o for o in outcomes if _images(o)])
    if blocks:
        draw(blocks).save(path)
    return bool(blocks)


def truth_strip(outcomes: Sequence[Outcome], *, shown: int = SHOWN) -> Strip | None:
    """The private inputs of the first people, by their number; None where nobody has them."""
    known = [o for o in outcomes if o.truth is not None]
    people = [f"#{person}" for o in known for person in o.record.people]
    truth = [image for o in known if o.truth is not None for image in o.truth]
    return Strip("truth", tuple(truth[:shown]), tuple(people[:shown])) if known else None


def guess_strip(label: str, outcomes: Sequence[Outcome], *, shown: int = SHOWN) -> Strip:
    """What came back of the first people, by its PSNR."""
    pictures: list[Tensor | None] = []
    captions: list[str] = []
    for outcome in outcomes:
        if outcome.guess is None:
            pictures.extend([None] * len(outcome.record.people))
            captions.extend(["failed"] * len(outcome.record.people))
        else:
            unscored = tuple(None for _ in outcome.guess)
            pictures.extend(outcome.guess)
            captions.extend(decibels(v) for v in outcome.record.scores.get("psnr", unscored))
    return Strip(label, tuple(pictures[:shown]), tuple(captions[:shown]))


def _images(outcome: Outcome) -> bool:
    shown = outcome.guess if outcome.truth is None else outcome.truth
    return shown is not None and shown.ndim == 4


def _blocks(outcomes: Sequence[Outcome]) -> list[Block]:
    groups: dict[tuple[str | int, ...], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        record = outcome.record
        same = (record.data, record.attack, record.model, record.local, record.threat, record.seed)
        groups.setdefault(same, {}).setdefault(record.defense, []).append(outcome)
    headings = [f"{key[0]}, {str(key[1]).partition('(')[0]} on {key[2]}" for key in groups]
    # What the short headings leave out is added where two would read the same.
    full = [", ".join(map(str, key)) for key in groups]
    shown = [
        short if headings.count(short) == 1 else long
        for short, long in zip(headings, full, strict=True)
    ]
    return [_block(name, group) for name, group in zip(shown, groups.values(), strict=True)]


def _block(heading: str, by_defense: dict[str, list[Outcome]]) -> Block:
    truth = truth_strip(next(iter(by_defense.values())))
    guesses = [guess_strip(_words(defense), group) for defense, group in by_defense.items()]
    return Block(heading, tuple(guesses if truth is None else [truth, *guesses]))


def _words(defense: str) -> str:
    label = "no defense" if defense == "chain()" else defense_words(defense)
    return label.replace(" + ", " +\n")
