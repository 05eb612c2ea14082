"""Which attacks have more labels or columns right than luck explains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from seepage.audit._record import Control, Record
from seepage.audit._words import Setup
from seepage.audit.results._identified import Entry

# Probability with which labels or columns may be right by chance and still count as leaked.
_LUCK = 0.05
# What one thing that is tested may have as its number by luck, with its chances, and what it has.
_Count = tuple[Sequence[float], int]


def find_leaked_labels(records: Sequence[Record], identified: Collection[Entry]) -> set[Entry]:
    """Which results have their person's label, of attacks that beat chance.

    Over the people of a setup and its canaries, the number of labels that an attack has right is
    tested against a guess of the most frequent label: one person alone would prove nothing. Every
    person counts once, in the first repetition. The probability is multiplied by the number of
    attacks on the setup, networks and adversaries included.
    """
    asked = [
        number
        for number, record in enumerate(records)
        if record.label_chance is not None
        and "label_accuracy" in record.scores
        and not (record.threat is not None and record.threat.arguments.get("knows_labels"))
    ]
    beyond = _find_beyond_luck(records, asked, _list_labels)
    return {
        (number, index)
        for number in asked
        for index, right in enumerate(records[number].scores["label_accuracy"])
        # Nobody is reconstructed by luck, nor has the label with it.
        if right == 1
        and (
            number in beyond or ((number, index) in identified and records[number].is_exact(index))
        )
    }


def find_leaked_columns(records: Sequence[Record]) -> set[int]:
    """Records of attacks that have more columns right of their people than of strangers.

    A guess that needs no update is right in as many columns of strangers, so that this tests
    against the best of them. Otherwise as for labels.
    """
    asked = [number for number, record in enumerate(records) if record.columns]
    return _find_beyond_luck(records, asked, _list_columns)


def _find_beyond_luck(
    records: Sequence[Record],
    asked: Iterable[int],
    read: Callable[[Sequence[Record]], list[_Count]],
) -> set[int]:
    """Numbers of the records of attacks whose sum of counts in a setup luck does not explain."""
    setups: dict[Setup, dict[tuple[object, ...], list[int]]] = {}
    for number in asked:
        record = records[number]
        key = record.model, record.threat, record.attack
        setups.setdefault(Setup.of(record), {}).setdefault(key, []).append(number)
    return {
        number
        for attacks in setups.values()
        for numbers in attacks.values()
        if _luck_with(read([records[n] for n in numbers])) * len(attacks) <= _LUCK
        for number in numbers
    }


def _luck_with(counts: Sequence[_Count]) -> float:
    """Probability of a sum as large as this one, by chance alone."""
    spread = np.ones(1)
    for chances, _ in counts:
        spread = np.convolve(spread, chances)
    return float(spread[sum(had for _, had in counts) :].sum())


def _list_labels(records: Sequence[Record]) -> list[_Count]:
    """For each person and canary whether the label is right, with the chances of no and yes."""
    tested: dict[tuple[str, int], tuple[float, bool]] = {}
    for record in records:
        for person, right in zip(record.persons, record.scores["label_accuracy"], strict=True):
            if right is not None and record.label_chance is not None:
                tested.setdefault(person, (record.label_chance, right == 1))
    canaries = (one for control in _list_controls(records) for one in control.labels)
    return [((1 - chance, chance), int(right)) for chance, right in (*tested.values(), *canaries)]


def _list_columns(records: Sequence[Record]) -> list[_Count]:
    """For each update the per cent of columns that are right, and how often strangers have that."""
    tested: dict[tuple[tuple[str, int], ...], tuple[float, ...]] = {}
    for record in records:
        tested.setdefault(record.persons, record.columns)
    canaries = (one for control in _list_controls(records) for one in control.columns)
    counts: list[_Count] = []
    for shares in (*tested.values(), *canaries):
        hundredths = np.round(100 * np.array(shares)).astype(int)
        chances = np.bincount(hundredths, minlength=101) / len(hundredths)
        counts.append((tuple(chances), int(hundredths[0])))
    return counts


def _list_controls(records: Sequence[Record]) -> Collection[Control]:
    """The controls of an attack, one for each data set."""
    return {r.data: r.control for r in records if r.control is not None}.values()
