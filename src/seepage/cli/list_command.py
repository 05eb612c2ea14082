"""What `seepage list` can list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from seepage import data, scoring, zoo
from seepage.attacks import ATTACKS
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.clients import LOCALS
from seepage.core.plugins import Catalogue
from seepage.data.load import NAMED
from seepage.defenses import DEFENSES
from seepage.scoring import METRICS
from seepage.zoo import MODELS


def read_catalogue(kind: str) -> dict[str, str]:
    """Return each name of a kind with one line about it, and the package if it is another's."""
    lines, known = _SOURCES[kind](), _CATALOGUES.get(kind)
    packages = {} if known is None else {name: p.package for name, p in known.plugins().items()}
    return {
        name: f"{line} [{packages[name]}]".strip() if name in packages else line
        for name, line in lines.items()
    }


def _described(parts: Mapping[str, object]) -> dict[str, str]:
    """The first line about each part, and the key of every paper it cites."""
    return {name: _line(part.__doc__ or "") for name, part in parts.items()}


def _line(documentation: str) -> str:
    first = documentation.strip().partition("\n")[0]
    keys = dict.fromkeys(re.findall(r"\(([a-z]+\d{4}[a-z]+)\)", documentation))
    return f"{first} ({', '.join(keys)})" if keys else first


_SOURCES: Mapping[str, Callable[[], dict[str, str]]] = {
    "attacks": lambda: _described(ATTACKS),
    "bounds": lambda: _described(BOUNDS),
    "risks": lambda: _described(RISKS),
    "defenses": lambda: _described(DEFENSES),
    "locals": lambda: _described(LOCALS),
    "models": zoo.catalogue,
    "data": data.catalogue,
    "metrics": scoring.catalogue,
}
_CATALOGUES: Mapping[str, Catalogue[object]] = {
    "attacks": ATTACKS,
    "bounds": BOUNDS,
    "risks": RISKS,
    "defenses": DEFENSES,
    "models": MODELS,
    "data": NAMED,
    "metrics": METRICS,
}
