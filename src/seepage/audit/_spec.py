"""A spec: the audit written down, mapping one to one to constructors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from seepage.audit import _spec_entries as entries
from seepage.audit._captured_data import CapturedData, find_same_people
from seepage.audit._grid import Audit
from seepage.audit._spec_text import SpecSource, locate_error
from seepage.audit._targets import Target
from seepage.clients._gradient import Gradient
from seepage.core import LocalComputation, Metric, Paired, Protection, Task
from seepage.core._chain import chain
from seepage.core._construct import build, construct, parse_toml
from seepage.core._rng import require_seed
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName, error_path
from seepage.scoring import METRICS, find_metric
from seepage.threats._threat import Threat

if TYPE_CHECKING:
    from seepage.audit._run_case import AnyCase
    from seepage.audit._spec_entries import AnyData, Table


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


@dataclass(frozen=True, kw_only=True)
class _Head:
    """What is at the top of a spec."""

    title: str = ""
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[Metric, ...] | None = None
    controls: bool = True
    timeout: float | None = None
    scenario: Any = None

    def __post_init__(self) -> None:
        """Refuse seeds and times that no case can have."""
        read_timeout(self.timeout)
        with error_path("seeds"):
            if not self.seeds or not all(type(seed) is int for seed in self.seeds):
                raise InvalidValue(
                    f"expected seeds as a list of whole numbers, got {list(self.seeds)!r}"
                )
            for seed in self.seeds:
                require_seed(seed)


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """What a scenario combines, on one data set."""

    models: tuple[Task, ...]
    attacks: tuple[entries.NamedAttack, ...]
    locals: tuple[LocalComputation, ...] = (Gradient(),)
    defenses: tuple[Protection, ...] = (chain(),)
    threats: tuple[Threat, ...] = (Threat(),)
    bounds: tuple[entries.NamedBound, ...] = ()
    data: Any = None


def build_spec(source: SpecSource) -> Spec:
    """Build all that a spec names."""
    try:
        table: Table = parse_toml(source.text)
    except InvalidValue as error:
        raise InvalidValue(f"{source.name} is not valid TOML: {error}") from error
    with locate_error(source):
        head = construct("a spec", _Head, table, parts={Metric: _read_metric})
        data = partial(entries.read_data, find=entries.build_once(entries.read_dataset))
        model = entries.build_once(partial(_read_model, device=torch.device(source.device)))
        parts = list[Part]()
        for number, scenario in enumerate(_list_scenarios(head.scenario)):
            with error_path("scenario", number):
                parts += _build_parts(scenario, head, data=data, model=model)
        # Last, since whoever reads a number can say more about it.
        entries.require_numbers(table)
    named = iter(find_same_people([target for part in parts for target in part.batches]))
    parts = [replace(part, batches=tuple(next(named) for _ in part.batches)) for part in parts]
    title = head.title if "title" in table else Path(source.name).stem
    return Spec(title, source, tuple(parts), read_timeout(head.timeout))


def _list_scenarios(value: object) -> list[Table]:
    listed = [value] if isinstance(value, Mapping) else value
    if isinstance(listed, list) and listed and all(isinstance(one, Mapping) for one in listed):
        return listed
    came = "nothing" if value is None else repr(value)
    with error_path("scenario"):
        raise InvalidValue(f"expected scenario as one or more [[scenario]] sections, got {came}")


def _read_model(part: entries.Part, dataset: AnyData, *, device: torch.device) -> Task:
    return entries.read_model(part, dataset).to(device=device)


def _build_parts(
    scenario: Table,
    head: _Head,
    *,
    data: Callable[[entries.Part], entries.FoundData],
    model: Callable[..., Task],
) -> Iterator[Part]:
    """Build a scenario once for each of its data sets."""
    with error_path("data"):
        found: Iterable[entries.FoundData] = build(
            scenario.get("data", []),
            tuple[entries.FoundData, ...],
            "expected data",
            parts={entries.FoundData: data},
        )
    for dataset, batches in found:
        made = construct(
            "a scenario",
            _Entries,
            scenario,
            parts={
                Task: partial(model, dataset=dataset),
                entries.NamedAttack: partial(entries.read_attack, domain=dataset.domain),
                entries.NamedBound: entries.read_bound,
                LocalComputation: partial(entries.build_part, "local computation"),
                Protection: entries.read_defense,
                Threat: partial(entries.build_part, "threat"),
            },
        )
        if isinstance(dataset, CapturedData):
            made = _take_from_capture(made, dataset, scenario)
        audit = Audit(
            tasks=made.models,
            locals=made.locals,
            defenses=made.defenses,
            threats=made.threats,
            attacks=dict(made.attacks),
            bounds=dict(made.bounds),
            metrics=_select_metrics(head.metrics, dataset),
            seeds=head.seeds,
            controls=head.controls,
        )
        _require_consistent(audit, batches, captured=isinstance(dataset, CapturedData))
        yield Part(audit, batches)


def _take_from_capture(made: _Entries, held: CapturedData, given: Table) -> _Entries:
    """What the client computed and what the adversary knows, as a captured update tells."""
    for key, what in _TOLD_BY_CAPTURES.items():
        if key in given:
            with error_path(key):
                raise InvalidValue(f"a captured update says itself {what}; leave {key} out")
    captured = held.captured
    return replace(made, locals=(captured.capture.local,), threats=(captured.threat,))


_TOLD_BY_CAPTURES = {"locals": "how the client computed", "threats": "what the adversary knows"}


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
        audit.make_clients()
    for task, target in product(audit.tasks, batches):
        with error_path("models"), entries.explain_errors(task.name):
            target.check(task)


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
    asked: Collection[Metric] | None, dataset: AnyData
) -> tuple[Metric, ...] | None:
    """PSNR, which orders the tables, and the others that fit these inputs; None is all that fit.

    One that cannot run here is an error.
    """
    if asked is None:
        return None
    asked = {metric.name: metric for metric in (METRICS["psnr"], *asked)}.values()
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
