"""From a cell to an ordinary scenario: what must be trained is trained, who must be chosen is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seepage.audit import _spec_entries as entries
from seepage.core.errors import InvalidValue
from seepage_papers.chosen import chosen
from seepage_papers.place import Place
from seepage_papers.trained import trained


def prepared(scenario: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """A scenario of a cell, as a spec may hold it."""
    data, model = dict(scenario["data"]), dict(scenario["models"])
    if model.pop("schooling", None):
        model["weights"] = str(trained(scenario, place).path)
    if isinstance(data.get("people"), Mapping):
        data["people"] = _people(data, model, place)
    return {**scenario, "data": data, "models": model}


def _people(data: Mapping[str, Any], model: Mapping[str, Any], place: Place) -> list[int]:
    rule = data["people"]
    dataset = place.find({k: v for k, v in data.items() if k in entries.DATASET})
    people = chosen(rule, dataset, entries.read_model(model, dataset).to(device=place.device))
    if len(people) < rule["count"]:
        raise InvalidValue(
            f"expected {rule['count']} people by {rule['choose']}, found {len(people)}; choose "
            "among more"
        )
    return people


def without_preparation(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The same scenario with a fresh network and the first people, to be counted or checked."""
    model, data = dict(scenario["models"]), dict(scenario["data"])
    model.pop("schooling", None)
    if isinstance(data.get("people"), Mapping):
        data.update(people=data["people"]["count"], start=0)
    return {**scenario, "data": data, "models": model}
