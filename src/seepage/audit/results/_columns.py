"""The columns of results, by which their cases are grouped."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from operator import attrgetter

from seepage.audit._record import UNAWARE, Record
from seepage.audit._words import Setup
from seepage.core._construct import Component
from seepage.core.errors import UnknownName

COLUMNS = (
    *("data", "model", "local", "threat", "attack", "defense", "batch_size", "sampling", "seed"),
)
# What an attack works on or not: on one, it says nothing of another.
ATTACKED = ("setup", "data", "model", "threat")


def _read_knowledge(record: Record) -> str:
    granted = {} if record.threat is None else dict(record.threat.arguments)
    granted.pop("knows_defense", None)
    return str(granted)


def _read_method(record: Record) -> Component:
    return replace(record.attack, name=record.attack.name.removeprefix(UNAWARE))


def read_search(record: Record) -> Component:
    """The attack without its number of steps."""
    others = {name: value for name, value in record.attack.arguments.items() if name != "steps"}
    return replace(record.attack, arguments=others)


_READERS: Mapping[str, Callable[[Record], Hashable]] = {
    **{column: attrgetter(column) for column in COLUMNS},
    "setup": Setup.of,
    "knowledge": _read_knowledge,
    "method": _read_method,
    "search": read_search,
}


def read_columns(*columns: str) -> Callable[[Record], Hashable]:
    """Return what reads these columns off a record: a value, or a tuple of several.

    Besides `COLUMNS` there are `setup`, the defense, local computation and batch size together;
    `knowledge`, what the threat grants besides the defense; `method`, the attack whether it adapts
    to the defense or not; and `search`, the attack without its number of steps.
    """
    for column in columns:
        if column not in _READERS:
            raise UnknownName("column", column, _READERS, where="in results")
    readers = [_READERS[column] for column in columns]
    return readers[0] if len(readers) == 1 else lambda record: tuple(r(record) for r in readers)
