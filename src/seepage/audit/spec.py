"""A spec: the audit written down, mapping one to one to constructors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from seepage.audit import spec_entries as entries
from seepage.audit.captured_data import CapturedData, find_same_people
from seepage.audit.grid import Audit
from seepage.audit.spec_text import SpecSource, locate_error
from seepage.audit.targets import Target
from seepage.core import LocalComputation, Metric, Paired, Task
from seepage.core.construct import parse_toml
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName, error_path
from seepage.scoring import METRICS, find_metric
from seepage.threats.threat import Threat

if TYPE_CHECKING:
    from seepage.audit.run_case import AnyCase
    from seepage.audit.spec_entries import Table
    from seepage.data.dataset import Dataset


# Seconds that a case may take at most; timers cannot count much further.
_YEAR = 366 * 86_400


@dataclass(frozen=True, eq=False)
class Part:
    """One audit and the batches it attacks: a scenario on one data set."""

    audit: Audit
    batches: tuple[Target, ...]


@dataclass(frozen=True, eq=False)
class Spec:
    """A whole spec, with everything in it built and checked.

    Args:
        title: What it is called.
        source: The file as it was read.
        parts: What to run, in order.
        timeout: Seconds that a case may take; None for no limit.
    """

    title: str
    source: SpecSource
    parts: tuple[Part, ...]
    timeout: float | None = None

    @cached_property
    def cases(self) -> tuple[AnyCase, ...]:
        """Everything to run, in order; cases with the same identity are listed once."""
        listed = [case for part in self.parts for case in part.audit.cases(part.batches)]
        return tuple({case.id: case for case in listed}.values())


def load_spec(path: Path | None = None, *, device: str = "cpu") -> Spec:
    """Read a spec and build all it names, without running anything.

    Args:
        path: A TOML file; None takes the bundled quickstart.
        device: Where the networks go.

    Raises:
        SeepageError: One sentence with the file, the place in it, what was expected and what came.
    """
    return build_spec(SpecSource.read(path, device=device))


def build_spec(source: SpecSource) -> Spec:
    """Build all that a spec names."""
    try:
        table: Table = parse_toml(source.text)
    except InvalidValue as error:
        raise InvalidValue(f"{source.name} is not valid TOML: {error}") from error
    with locate_error(source):
        entries.require_keys(table, "title", "seeds", "metrics", "controls", "timeout", "scenario")
        title = _read_title(table.get("title", Path(source.name).stem))
        timeout = read_timeout(table.get("timeout"))
        build = partial(
            _build_parts,
            metrics=_read_metrics(table.get("metrics")),
            seeds=entries.read_seeds(table.get("seeds", [0])),
            controls=entries.require_bool("controls", table.get("controls", True)),
            data=partial(entries.read_data, find=entries.share_datasets()),
            model=_share_models(source.device),
        )
        parts = [part for made in entries.read_each(table, "scenario", build) for part in made]
        # Last, since whoever reads a number can say more about it.
        entries.require_numbers(table)
    named = iter(find_same_people([target for part in parts for target in part.batches]))
    parts = [replace(part, batches=tuple(next(named) for _ in part.batches)) for part in parts]
    return Spec(title, source, tuple(parts), timeout)


def _share_models(device: str) -> Callable[..., Task]:
    """Return a `read_model` that builds what several scenarios share only once."""
    known: dict[tuple[str, int], tuple[Task, Dataset | CapturedData]] = {}

    def build(table: Table, dataset: Dataset | CapturedData) -> Task:
        key = repr(sorted(table.items())), id(dataset)
        if key not in known:
            task = entries.read_model(table, dataset).to(device=torch.device(device))
            # The data set is kept too, so that no other can get its id.
            known[key] = task, dataset
        return known[key][0]

    return build


def _build_parts(
    scenario: Table,
    *,
    data: Callable[[Table], tuple[Dataset | CapturedData, tuple[Target, ...]]],
    model: Callable[..., Task],
    metrics: Sequence[Metric] | None,
    seeds: Sequence[int],
    controls: bool,
) -> list[Part]:
    entries.require_keys(
        scenario, "data", "models", "locals", "defenses", "threats", "attacks", "bounds"
    )
    parts = []
    for dataset, batches in entries.read_each(scenario, "data", data):
        attack = partial(entries.read_attack, domain=dataset.domain)
        given = "bounds" in scenario
        audit = Audit(
            tasks=entries.read_each(scenario, "models", partial(model, dataset=dataset)),
            locals=_read_locals(scenario, dataset),
            defenses=entries.read_defenses(scenario.get("defenses", [[]])),
            threats=_read_threats(scenario, dataset),
            attacks=dict(entries.read_each(scenario, "attacks", attack)),
            bounds=dict(entries.read_each(scenario, "bounds", entries.read_bound) if given else ()),
            metrics=_select_metrics(metrics, dataset),
            seeds=seeds,
            controls=controls,
        )
        _require_consistent(audit, batches, captured=isinstance(dataset, CapturedData))
        parts.append(Part(audit, batches))
    return parts


def _require_consistent(audit: Audit, batches: Sequence[Target], *, captured: bool) -> None:
    """Raise `InvalidValue`, with the place in the spec, where two of its entries do not fit."""
    with error_path("threats"):
        audit.require_permitted()
    with error_path("attacks"):
        granted = "labels to the data" if captured else "knows_labels = true to the threats"
        audit.require_knowledge(hint=f"add infer_labels = true to the attack, or {granted}")
    if audit.bounds:
        with error_path("bounds"):
            for target in batches:
                target.require_batch()
    with error_path("defenses"):
        audit.cases(batches)
    for task, target in product(audit.tasks, batches):
        with error_path("models"), entries.explain_errors(task.name):
            target.check(task)


def _read_locals(scenario: Table, dataset: Dataset | CapturedData) -> list[LocalComputation]:
    """Read what clients compute; a captured update tells it itself."""
    if isinstance(dataset, CapturedData):
        _require_none(scenario, "locals", "how the client computed")
        return [dataset.captured.capture.local]
    return entries.read_each(scenario, "locals", entries.read_local, [{}])


def _read_threats(scenario: Table, dataset: Dataset | CapturedData) -> list[Threat]:
    if isinstance(dataset, CapturedData):
        _require_none(scenario, "threats", "what the adversary knows")
        return [dataset.captured.threat]
    return entries.read_each(scenario, "threats", entries.read_threat, [{}])


def _require_none(scenario: Table, key: str, what: str) -> None:
    if key in scenario:
        with error_path(key):
            raise InvalidValue(f"a captured update says itself {what}; leave {key} out")


def _read_metrics(names: object) -> tuple[Metric, ...] | None:
    """Read metrics, PSNR first because it orders the tables; None takes all that fit."""
    if names is None:
        return None
    with error_path("metrics"):
        if not isinstance(names, list) or not names:
            raise InvalidValue(f"expected metrics as a list of names, got {names!r}")
        asked = entries.read_list(names, _read_metric)
    return tuple({metric.name: metric for metric in (METRICS["psnr"], *asked)}.values())


def _read_title(value: object) -> str:
    if not isinstance(value, str):
        with error_path("title"):
            raise InvalidValue(f"expected title as words in quotes, got {value!r}")
    return value


def read_timeout(value: object) -> float | None:
    """Return the seconds that a case may take; None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _YEAR:
        with error_path("timeout"):
            raise InvalidValue(
                f"expected timeout as seconds for each case, a year at most, got {value!r}"
            )
    return float(value)


def _read_metric(name: object) -> Metric:
    if not isinstance(name, str):
        raise UnknownName("metric", str(name), METRICS)
    with entries.explain_errors(name):
        return find_metric(name)


def _select_metrics(
    asked: Sequence[Metric] | None, dataset: Dataset | CapturedData
) -> tuple[Metric, ...] | None:
    """Select the metrics that fit these inputs; one that cannot run here is an error."""
    if asked is None:
        return None
    one = dataset.take([0])
    itself = Paired(one.inputs, one.inputs, one.labels, one.labels, (0,), domain=dataset.domain)
    return tuple(metric for metric in asked if _fits(metric, itself))


def _fits(metric: Metric, paired: Paired) -> bool:
    try:
        with entries.explain_errors(metric.name):
            metric(paired)
    except NotApplicable:
        return False
    return True
