"""Who is identified, and whose label or columns leaked, once luck is ruled out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from seepage.audit._record import Control, Record
from seepage.audit.results._columns import read_columns
from seepage.core._grouping import group_by
from seepage.scoring._identification import Identification, explain_by_luck, is_identified

# Position of a record, and of a person in its batch.
Entry = tuple[int, int]
# Probability with which labels or columns may be right by chance and still count as leaked.
_LUCK = 0.05
# What one thing that is tested may have as its number by luck, with its chances, and what it has.
_Count = tuple[Sequence[float], int]


def find_identified(records: Sequence[Record]) -> set[Entry]:
    """Return the results that identify their person; verdicts, tables and gates go by them.

    In each setup (defense, local computation and batch size) a person is judged by all attacks,
    networks, adversaries and seeds together. Among many people, luck alone may single some out;
    these are left out.
    """
    setup = read_columns("setup")
    found: set[Entry] = set()
    for numbers in group_by(range(len(records)), lambda number: setup(records[number])).values():
        people = defaultdict[tuple[str, int], list[Entry]](list)
        for number in numbers:
            record = records[number]
            for index, person in enumerate(record.persons if record.scores else ()):
                people[person].append((number, index))
        found.update(_identify(records, people.values()))
    return found


def _identify(records: Sequence[Record], people: Collection[Sequence[Entry]]) -> Iterator[Entry]:
    """Find the results that identify their person in one setup.

    People whose input came back exactly are judged apart from the others: their certainty must not
    be lent to weak guesses, nor do bad guesses of other attacks speak against an exact one.
    """
    exact: list[tuple[list[Entry], Identification]] = []
    near: list[tuple[list[Entry], Identification]] = []
    most = 1
    for entries in people:
        placed = [(number, i) for number, i in entries if records[number].identification]
        places = {(number, i): records[number].identification[i] for number, i in placed}
        first = {entry: place for entry, place in places.items() if place.singled_out}
        most = max(most, len(places))
        same = [place for (number, i), place in first.items() if records[number].is_exact(i)]
        if same:
            exact.append((list(first), max(same, key=lambda place: place.one_in_low)))
        elif is_identified(list(places.values())):
            near.append((list(first), max(first.values(), key=lambda place: place.match)))
    for singled, tries in ((exact, most), (near, 1)):
        lucky = explain_by_luck([place for _, place in singled], len(people), tries=tries)
        for (entries, _), by_luck in zip(singled, lucky, strict=True):
            if not by_luck:
                yield from entries


def find_leaked_labels(records: Sequence[Record], identified: Collection[Entry]) -> set[Entry]:
    """Return the results that have their person's label, of attacks that beat chance.

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
    """Return the records of attacks that have more columns right of their people than of strangers.

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
    """Records of the attacks that in some setup have more right than luck explains."""
    setup, attack = read_columns("setup"), read_columns("model", "threat", "attack")
    found: set[int] = set()
    for together in group_by(asked, lambda number: setup(records[number])).values():
        attacks = group_by(together, lambda number: attack(records[number])).values()
        for numbers in attacks:
            if _luck_with(read([records[n] for n in numbers])) * len(attacks) <= _LUCK:
                found.update(numbers)
    return found


def _luck_with(counts: Sequence[_Count]) -> float:
    """Probability of a sum as large as this one, by chance alone."""
    spread = np.ones(1)
    for chances, _ in counts:
        spread = np.convolve(spread, chances)
    return float(spread[sum(had for _, had in counts) :].sum())


def _list_labels(records: Sequence[Record]) -> list[_Count]:
    """Per person and canary: the chances of a wrong and a right label, and whether it is right."""
    tested: dict[tuple[str, int], tuple[float, bool]] = {}
    for record in records:
        for person, right in zip(record.persons, record.scores["label_accuracy"], strict=True):
            if right is not None and record.label_chance is not None:
                tested.setdefault(person, (record.label_chance, right == 1))
    canaries = (one for control in _list_controls(records) for one in control.labels)
    return [((1 - chance, chance), int(right)) for chance, right in (*tested.values(), *canaries)]


def _list_columns(records: Sequence[Record]) -> list[_Count]:
    """Per update: how often strangers have each per cent of columns right, and what it has."""
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
