"""Where Seepage's number for a cell comes from: an audit, a count, or a training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean

from seepage.audit import AuditResult, Case, Outcome, Part, Record, Spec
from seepage.audit import _spec_entries as entries
from seepage.core.errors import InvalidValue, UnknownName
from seepage.exposure._rank_metric import RankMetric, rank_metric
from seepage_papers.measures import Measure, measure
from seepage_papers.place import Place, Trained
from seepage_papers.table import Cell, Published
from seepage_papers.trained import trained

# Letters of a digest that tell the people of a table apart.
NAMED = 10
SOURCES = ("audit", "features", "rank_metric", "utility", "victim")


@dataclass(frozen=True)
class Sample:
    """What was found for one cell.

    Args:
        values: One per person and seed, or a single number.
        updates: The people of the batch that each value is from; empty for a single number.
        standard: The same in the usual convention; empty where there is no other.
        each: Of every person the mean over seeds; empty where a cell is one number.
        records: What they were read from; of several attacks in a cell, the strongest's.
        missed: Why people have no value, one reason for each batch; where there are records, they
            tell.
    """

    values: tuple[float, ...] = ()
    updates: tuple[tuple[int, ...], ...] = ()
    standard: tuple[float, ...] = ()
    each: Mapping[str, float] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    missed: tuple[str, ...] = ()


class Audited:
    """Samples of an audit whose scenarios are the cells, in their order."""

    def __init__(self, found: AuditResult, spec: Spec) -> None:
        """Index what was found."""
        self._found = found
        self._spec = spec
        self._records = {record.case: record for record in found.records}
        self._samples: dict[tuple[int, str], Sample] = {}

    def sample(self, cell: int, block: Published) -> Sample:
        """What came back in one cell; of several attacks, by the strongest."""
        known = self._samples
        if (cell, block.measure) not in known:
            known[cell, block.measure] = self._strongest(cell, block)
        return known[cell, block.measure]

    def outcomes(self, cell: int, block: Published) -> list[Outcome]:
        """The cases behind a cell, failed ones too; of several attacks, the strongest's."""
        groups = self._groups(self._spec.parts[cell])
        records = groups[0] if len(groups) == 1 else self.sample(cell, block).records
        return [outcome for record in records if (outcome := self._outcome(record))]

    def _strongest(self, cell: int, block: Published) -> Sample:
        kind, part = measure(block.measure), self._spec.parts[cell]
        samples = [self._of(records, part, kind) for records in self._groups(part)]
        scored = [sample for sample in samples if sample.values]
        sign = 1.0 if kind.higher_leaks_more else -1.0
        return max(scored, key=lambda sample: sign * fmean(sample.values), default=Sample())

    def _groups(self, part: Part) -> list[list[Record]]:
        by_attack: dict[str, list[Record]] = {}
        for case in part.audit.cases(part.batches):
            if isinstance(case, Case) and case.id in self._records:
                by_attack.setdefault(case.name, []).append(self._records[case.id])
        return list(by_attack.values())

    def _of(self, records: Sequence[Record], part: Part, kind: Measure) -> Sample:
        outcomes = [outcome for record in records if (outcome := self._outcome(record))]
        domain, usual = part.audit.tasks[0].domain, measure(kind.standard)
        found = [(o.record, kind.values(o, domain)) for o in outcomes]
        known = [(r.people, v) for r, values in found for v in values if not math.isnan(v)]
        standard = (v for outcome in outcomes for v in usual.values(outcome, domain))
        return Sample(
            values=tuple(value for _, value in known),
            updates=tuple(people for people, _ in known),
            standard=tuple(v for v in standard if not math.isnan(v)),
            each=mean_by_person(
                (f"{record.truth[:NAMED]}.{number}", value)
                for record, values in found
                for number, value in enumerate(values)
            ),
            records=tuple(records),
        )

    def _outcome(self, record: Record) -> Outcome | None:
        truth = self._found.truth(record)
        return None if truth is None else Outcome(record, truth, self._found.guess(record))


def mean_by_person(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean over seeds of every person's values that are defined.

    Example:
        >>> mean_by_person([("a", 1.0), ("b", 5.0), ("a", 3.0), ("b", math.nan)])
        {'a': 2.0, 'b': 5.0}
    """
    several: dict[str, list[float]] = {}
    for who, value in found:
        if not math.isnan(value):
            several.setdefault(who, []).append(value)
    return {who: fmean(values) for who, values in several.items()}


def counted(cell: Cell, block: Published) -> Sample:
    """The rank metric of the cell's network, or the deficiency of its i-th convolution.

    Args:
        cell: Whose network.
        block: Its statistic is "c(M)", or "rd1", "rd2" and so on.
    """
    found = _ranks(json.dumps(cell.scenario))
    if block.statistic == "c(M)":
        return Sample((float(round(found.value)),))
    number = int(block.statistic.removeprefix("rd"))
    ranks = [float(layer.deficiency) for layer in found.layers]
    return Sample(tuple(ranks[number - 1 : number]))


@lru_cache
def _ranks(scenario: str) -> RankMetric:
    """Once for all numbers that are read off it."""
    plain = json.loads(scenario)
    task = entries.read_model(plain["models"], entries.read_dataset(plain["data"]))
    return rank_metric(task, numerical=plain.get("numerical", False))


def schooled(cell: Cell, block: Published, place: Place) -> Sample:
    """What a network trained behind the cell's defense, by its table `training`, is worth."""
    defenses = entries.read_defenses(cell.scenario.get("defenses", [[]]))
    if len(defenses) != 1:
        raise InvalidValue(f"expected one defense in a cell, got {len(defenses)}")
    model = {**cell.scenario["models"], "schooling": cell.scenario["training"]}
    scenario = {**cell.scenario, "models": model}
    return _worth(trained(scenario, place, defense=defenses[0]), block)


def attacked(cell: Cell, block: Published, place: Place) -> Sample:
    """What the cell's network is worth, by its table `schooling`, when it is attacked."""
    if "schooling" not in cell.scenario["models"]:
        raise InvalidValue(f"expected a network with schooling in {cell}, got one that has none")
    return _worth(trained(cell.scenario, place), block)


def _worth(found: Trained, block: Published) -> Sample:
    worth: Mapping[str, float] = {
        "accuracy": 100 * found.accuracy,
        "training_loss": found.training_loss,
    }
    if block.measure not in worth:
        raise UnknownName("measure of utility", block.measure, worth)
    return Sample((worth[block.measure],))
