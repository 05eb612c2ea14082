"""From a cell to an ordinary scenario: what must be trained is trained, who must be chosen is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seepage.audit import entries, whose
from seepage.core.errors import InvalidValue
from seepage.reproduce.chosen import chosen
from seepage.reproduce.place import Place
from seepage.reproduce.trained import trained


def prepared(scenario: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """A scenario of a cell, as a spec may hold it."""
    model, data = scenario["models"], dict(scenario["data"])
    honest = {k: v for k, v in model.items() if k != "flipped"}
    if isinstance(data.get("people"), Mapping):
        # At the network as it was trained, also where a dishonest server broadcasts another.
        data["people"] = _people(data, _ready({**scenario, "models": honest}, place), place)
    return {**scenario, "data": data, "models": _ready(scenario, place)}


def _ready(scenario: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The network as a spec names it."""
    model = dict(scenario["models"])
    if "trained" in model:
        model["weights"] = str(trained(scenario, place).path)
    return {k: v for k, v in model.items() if k not in ("trained", "flipped")}


def _people(data: Mapping[str, Any], model: Mapping[str, Any], place: Place) -> list[int]:
    rule = data["people"]
    dataset = place.find({k: v for k, v in data.items() if k in whose.DATASET})
    people = chosen(rule, dataset, entries.model(model, dataset))
    if len(people) < rule["count"]:
        raise InvalidValue(
            f"expected {rule['count']} people by {rule['choose']}, found {len(people)}; choose "
            "among more"
        )
    return people


def without_preparation(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The same scenario with a fresh network and the first people, to be counted or checked."""
    model, data = dict(scenario["models"]), dict(scenario["data"])
    model.pop("trained", None)
    model.pop("flipped", None)
    if isinstance(data.get("people"), Mapping):
        data["people"] = data["people"]["count"]
    return {**scenario, "data": data, "models": model}
