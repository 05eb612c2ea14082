"""Who is identified, over all attacks of an audit, once luck is ruled out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from seepage.audit._record import Record
from seepage.audit._words import Setup
from seepage.scoring._identification import Identification, explain_by_luck, is_identified

# Position of a record, and of a person in its batch.
Entry = tuple[int, int]


def find_identified(records: Sequence[Record]) -> set[Entry]:
    """Which results identify their person, as places of the record and of the person in it.

    Verdicts, tables and gates all go by this. In each setup (defense, local computation and batch
    size) a person is judged by all attacks, networks, adversaries and seeds together. People whom
    luck alone may have singled out among so many are left out.
    """
    setups: dict[Setup, dict[tuple[str, int], list[Entry]]] = {}
    for number, record in enumerate(records):
        people = setups.setdefault(Setup.of(record), {})
        for index, person in enumerate(record.persons if record.scores else ()):
            people.setdefault(person, []).append((number, index))
    return {entry for people in setups.values() for entry in _identify(records, people.values())}


def _identify(records: Sequence[Record], people: Collection[Sequence[Entry]]) -> Iterator[Entry]:
    """The results that identify their person in one setup.

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
