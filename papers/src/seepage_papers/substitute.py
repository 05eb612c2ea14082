"""Plain data with names in it, and tables laid over tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seepage.core.errors import UnknownName

Plain = Mapping[str, Any]
NAME = re.compile(r"\$([a-z]\w*)")


def filled(value: Any, names: Plain) -> Any:  # noqa: ANN401
    """Put values in the place of `$name`, at any depth; alone in a string it keeps its type.

    Example:
        >>> filled({"steps": "$steps", "label": ["$steps steps"]}, {"steps": 20})
        {'steps': 20, 'label': ['20 steps']}

    Raises:
        UnknownName: There is no value of that name.
    """
    if isinstance(value, Mapping):
        return {key: filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if not isinstance(value, str):
        return value
    alone = NAME.fullmatch(value)
    if alone:
        return _named(alone[1], names)
    return NAME.sub(lambda found: str(_named(found[1], names)), value)


def laid_over(under: Plain, over: Plain) -> dict[str, Any]:
    """Lay one table over another, inner tables too; what has another `name` replaces all.

    Example:
        >>> base = {"attacks": {"name": "dlg", "iterations": 300}}
        >>> laid_over(base, {"attacks": {"iterations": 5}})
        {'attacks': {'name': 'dlg', 'iterations': 5}}
        >>> laid_over(base, {"attacks": {"name": "rgap"}})
        {'attacks': {'name': 'rgap'}}
    """
    laid = dict(under)
    for key, value in over.items():
        below = laid.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and _same(below, value):
            value = laid_over(below, value)
        laid[key] = value
    return laid


def _named(name: str, names: Plain) -> Any:  # noqa: ANN401
    if name not in names:
        raise UnknownName("value", name, names)
    return names[name]


def _same(below: Plain, value: Plain) -> bool:
    return "name" not in value or value["name"] == below.get("name")
