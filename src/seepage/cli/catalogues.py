"""What `seepage list` can list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from seepage import data, scoring, zoo
from seepage.attacks import ATTACKS
from seepage.clients import LOCALS
from seepage.defenses import DEFENSES


class Kind(StrEnum):
    """A catalogue."""

    attacks = "attacks"
    defenses = "defenses"
    locals = "locals"
    models = "models"
    data = "data"
    metrics = "metrics"


def catalogue(kind: Kind) -> dict[str, str]:
    """Return each name of a kind with one line about it."""
    return _SOURCES[kind]()


def _first_lines(parts: Mapping[str, object]) -> dict[str, str]:
    return {name: (part.__doc__ or "").strip().splitlines()[0] for name, part in parts.items()}


_SOURCES: Mapping[Kind, Callable[[], dict[str, str]]] = {
    Kind.attacks: lambda: _first_lines(ATTACKS),
    Kind.defenses: lambda: _first_lines(DEFENSES),
    Kind.locals: lambda: _first_lines(LOCALS),
    Kind.models: zoo.catalogue,
    Kind.data: data.catalogue,
    Kind.metrics: scoring.catalogue,
}
