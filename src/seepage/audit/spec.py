"""A spec: the audit written down, mapping one to one to constructors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import torch

from seepage.audit import spec_entries as entries
from seepage.audit.captures import CapturedData
from seepage.audit.case import known
from seepage.audit.grid import Audit
from seepage.audit.run_case import AnyCase
from seepage.audit.spec_entries import Table, numbered, trusting_nothing
from seepage.audit.spec_text import SpecSource, locate_error
from seepage.audit.targets import Strangers, Victims
from seepage.bounds import Bound
from seepage.core import LocalComputation, Metric, Paired, Task
from seepage.core.construct import Component
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName, error_path
from seepage.data import Dataset
from seepage.scoring import METRICS, find_metric
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
    source: SpecSource
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
    return build_spec(SpecSource.read(path, device=device))


def build_spec(source: SpecSource) -> Spec:
    """Build all that a spec names."""
    table = _parsed(source)
    with locate_error(source):
        entries.only(table, "title", "seeds", "metrics", "scenario")
        metrics = _read_metrics(table.get("metrics"))
        seeds = entries.seeds(table.get("seeds", [0]))
        data = partial(entries.data, find=entries.once())
        model = _once(source.device)
        build = partial(_parts, data=data, model=model, metrics=metrics, seeds=seeds)
        parts = [part for made in entries.each(table, "scenario", build) for part in made]
    return Spec(str(table.get("title", Path(source.name).stem)), source, tuple(parts))


def _parsed(source: SpecSource) -> Table:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{source.name} is not valid TOML: {error}") from error


def _once(device: str) -> Callable[..., Task]:
    """Build a network that several scenarios broadcast a single time."""
    known: dict[tuple[str, int], tuple[Task, Dataset | CapturedData]] = {}

    def made(table: Table, dataset: Dataset | CapturedData) -> Task:
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
    data: Callable[[Table], tuple[Dataset | CapturedData, tuple[Victims | Strangers, ...]]],
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
                entries.each(scenario, "attacks", partial(entries.attack, domain=dataset.domain))
            ),
            bounds=_bounds(scenario),
            metrics=_fitting_metrics(metrics, dataset),
            seeds=seeds,
        )
        with error_path("threats"):
            audit.permitted()
        if audit.bounds:
            with error_path("bounds"):
                tuple(map(known, batches))
        with error_path("defenses"):
            audit.cases(batches)
        for task, who in product(audit.tasks, batches):
            with error_path("models"), entries.trusting_nothing(task.name):
                who.check(task)
        parts.append(Part(audit, batches))
    return parts


def _bounds(scenario: Table) -> dict[Component, Bound]:
    """What theory is asked: nothing unless the scenario says so."""
    if "bounds" not in scenario:
        return {}
    return dict(entries.each(scenario, "bounds", entries.bound))


def _locals(scenario: Table, dataset: Dataset | CapturedData) -> list[LocalComputation]:
    """What clients compute; of a captured update its file tells."""
    if isinstance(dataset, CapturedData):
        _require_none(scenario, "locals", "how the client computed")
        return [dataset.tapped.capture.local]
    return entries.each(scenario, "locals", entries.local, [{}])


def _threats(scenario: Table, dataset: Dataset | CapturedData) -> list[Threat]:
    if isinstance(dataset, CapturedData):
        _require_none(scenario, "threats", "what the adversary knows")
        return [dataset.tapped.threat]
    return entries.each(scenario, "threats", entries.threat, [{}])


def _require_none(scenario: Table, key: str, what: str) -> None:
    if key in scenario:
        with error_path(key):
            raise InvalidValue(f"a captured update says itself {what}; leave {key} out")


def _read_metrics(names: object) -> tuple[Metric, ...] | None:
    """The metrics of these names, after PSNR, which orders the tables; None takes all that fit."""
    if names is None:
        return None
    with error_path("metrics"):
        if not isinstance(names, list) or not names:
            raise InvalidValue(f"expected metrics as a list of names, got {names!r}")
        asked = numbered(names, _metric)
    return tuple({metric.name: metric for metric in (METRICS["psnr"], *asked)}.values())


def _metric(name: object) -> Metric:
    if not isinstance(name, str):
        raise UnknownName("metric", str(name), METRICS)
    with trusting_nothing(name):
        return find_metric(name)


def _fitting_metrics(
    asked: Sequence[Metric] | None, dataset: Dataset | CapturedData
) -> tuple[Metric, ...] | None:
    """Those of the metrics that fit these inputs; one that cannot run here is an error."""
    if asked is None:
        return None
    one = dataset.take([0])
    itself = Paired(one.inputs, one.inputs, one.labels, one.labels, (0,), domain=dataset.domain)
    return tuple(metric for metric in asked if _fits(metric, itself))


def _fits(metric: Metric, paired: Paired) -> bool:
    try:
        with trusting_nothing(metric.name):
            metric(paired)
    except NotApplicable:
        return False
    return True
