"""Plain data as TOML, which the standard library reads and does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def spec_text(
    *,
    title: str,
    seeds: Sequence[int],
    metrics: Sequence[str],
    scenarios: Sequence[Mapping[str, Any]],
) -> str:
    r"""A spec that `seepage audit` runs.

    Example:
        >>> scenario = {"data": {"name": "photos"}, "defenses": [[]]}
        >>> print(spec_text(title="T", seeds=[0], metrics=["psnr"], scenarios=[scenario]), end="")
        title = "T"
        seeds = [0]
        metrics = ["psnr"]
        controls = false
        <BLANKLINE>
        [[scenario]]
        data = { name = "photos" }
        defenses = [[]]
    """
    head = {
        "title": title,
        "seeds": list(seeds),
        "metrics": list(metrics),
        # Tables of papers have no canaries.
        "controls": False,
    }
    blocks = [_lines(head), *(f"[[scenario]]\n{_lines(scenario)}" for scenario in scenarios)]
    return "\n\n".join(blocks) + "\n"


def _lines(table: Mapping[str, Any]) -> str:
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # Strings, booleans and finite numbers are written alike in both.
    return json.dumps(value, allow_nan=False)
