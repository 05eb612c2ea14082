"""A spec: the audit written down, mapping one to one to constructors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import torch

from seepage.audit import adversary, entries, measured, whose
from seepage.audit.audit import Audit
from seepage.audit.bound_case import known
from seepage.audit.captured import Captured
from seepage.audit.entries import Table
from seepage.audit.execution import AnyCase
from seepage.audit.placed import placed
from seepage.audit.source import Source
from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims
from seepage.bounds import Bound
from seepage.core import LocalComputation, Metric, Task
from seepage.core.errors import InvalidValue
from seepage.core.located import located
from seepage.data import Dataset
from seepage.threats import Threat


@dataclass(frozen=True, eq=False)
class Part:
    """One audit and the batches it runs on: a scenario on one data set."""

    audit: Audit
    batches: tuple[Victims | Strangers, ...]


@dataclass(frozen=True, eq=False)
class Spec:
    """A whole spec, with everything in it built and checked.

    Args:
        title: What it is called.
        source: The file as it was read.
        parts: What to run, in order.
    """

    title: str
    source: Source
    parts: tuple[Part, ...]

    @cached_property
    def cases(self) -> tuple[AnyCase, ...]:
        """Everything to run, in order; cases that are the same in all that matters are one."""
        listed = [case for part in self.parts for case in part.audit.cases(part.batches)]
        return tuple({case.id: case for case in listed}.values())


def load_spec(path: Path | None = None, *, device: str = "cpu") -> Spec:
    """Read a spec and build all it names; nothing has run when this returns.

    Args:
        path: A TOML file; None takes the bundled quickstart.
        device: Where the networks go.

    Raises:
        SeepageError: One sentence with the file, the place in it, what was expected and what came.
    """
    return build_spec(Source.read(path, device=device))


def build_spec(source: Source) -> Spec:
    """Build all that a spec names."""
    table = _parsed(source)
    with placed(source):
        entries.only(table, "title", "seeds", "metrics", "scenario")
        metrics = measured.metrics(table.get("metrics"))
        seeds = entries.seeds(table.get("seeds", [0]))
        data = partial(whose.data, find=whose.once())
        model = _once(source.device)
        build = partial(_parts, data=data, model=model, metrics=metrics, seeds=seeds)
        parts = [part for made in entries.each(table, "scenario", build) for part in made]
    return Spec(str(table.get("title", Path(source.name).stem)), source, tuple(parts))


def _parsed(source: Source) -> Table:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{source.name} is not valid TOML: {error}") from error


def _once(device: str) -> Callable[..., Task]:
    """Build a network that several scenarios broadcast a single time."""
    known: dict[tuple[str, int], tuple[Task, Dataset | Captured]] = {}

    def made(table: Table, dataset: Dataset | Captured) -> Task:
        key = repr(sorted(table.items())), id(dataset)
        if key not in known:
            task = entries.model(table, dataset).to(device=torch.device(device))
            # The data set is kept along, lest another takes its place in memory.
            known[key] = task, dataset
        return known[key][0]

    return made


def _parts(
    scenario: Table,
    *,
    data: Callable[[Table], tuple[Dataset | Captured, tuple[Victims | Strangers, ...]]],
    model: Callable[..., Task],
    metrics: Sequence[Metric] | None,
    seeds: Sequence[int],
) -> list[Part]:
    entries.only(scenario, "data", "models", "locals", "defenses", "threats", "attacks", "bounds")
    parts = []
    for dataset, batches in entries.each(scenario, "data", data):
        audit = Audit(
            tasks=entries.each(scenario, "models", partial(model, dataset=dataset)),
            locals=_locals(scenario, dataset),
            defenses=entries.defenses(scenario.get("defenses", [[]])),
            threats=_threats(scenario, dataset),
            attacks=dict(
                entries.each(scenario, "attacks", partial(adversary.attack, domain=dataset.domain))
            ),
            bounds=_bounds(scenario),
            metrics=measured.fitting(metrics, dataset),
            seeds=seeds,
        )
        with located("threats"):
            audit.permitted()
        if audit.bounds:
            with located("bounds"):
                tuple(map(known, batches))
        with located("defenses"):
            audit.cases(batches)
        for task, who in product(audit.tasks, batches):
            with located("models"), entries.trusting_nothing(task.name):
                who.check(task)
        parts.append(Part(audit, batches))
    return parts


def _bounds(scenario: Table) -> dict[str, Bound]:
    """What theory is asked: nothing unless the scenario says so."""
    if "bounds" not in scenario:
        return {}
    return dict(entries.each(scenario, "bounds", entries.bound))


def _locals(scenario: Table, dataset: Dataset | Captured) -> list[LocalComputation]:
    """What clients compute; of a captured update its file tells."""
    if isinstance(dataset, Captured):
        _require_none(scenario, "locals", "how the client computed")
        return [dataset.tapped.capture.local]
    return entries.each(scenario, "locals", entries.local, [{}])


def _threats(scenario: Table, dataset: Dataset | Captured) -> list[Threat]:
    if isinstance(dataset, Captured):
        _require_none(scenario, "threats", "what the adversary knows")
        return [dataset.tapped.threat]
    return entries.each(scenario, "threats", entries.threat, [{}])


def _require_none(scenario: Table, key: str, what: str) -> None:
    if key in scenario:
        with located(key):
            raise InvalidValue(f"a captured update says itself {what}; leave {key} out")
