"""From a table to the spec that makes it, and from an audit to the table."""

from __future__ import annotations

import time
from collections.abc import Callable

from seepage.audit import AuditResult, Spec, SpecSource, build_spec
from seepage.core.errors import UnknownName
from seepage_papers.features import feature_errors
from seepage_papers.lines import Line, line
from seepage_papers.measures import measure
from seepage_papers.place import Place
from seepage_papers.prepare import prepared, without_preparation
from seepage_papers.reproduction import Reproduction
from seepage_papers.sources import SOURCES, Audited, Sample, attacked, counted, schooled
from seepage_papers.table import Cell, PaperTable, Published
from seepage_papers.toml import spec_text

Announce = Callable[[str], None]
# What a scenario of a spec may hold; the rest of a cell is for other sources.
SPEC_KEYS = ("data", "models", "locals", "defenses", "threats", "attacks")


def _silent(_words: str) -> None:
    """Say nothing."""


def source(
    table: PaperTable,
    scale: str,
    *,
    place: Place | None = None,
    announce: Announce = _silent,
) -> SpecSource | None:
    """The spec of a table; None if no number of it comes from an audit.

    Args:
        table: What to make.
        scale: How large.
        place: Where to train what must be; None leaves networks as they begin and takes the first
            people for those to be chosen, which is enough to check and to count.
        announce: Is told what is prepared.
    """
    if not any(block.by == "audit" for block in table.published):
        return None
    scenarios = []
    for cell in table.cells(scale):
        if place is None:
            scenarios.append(without_preparation(cell.scenario))
            continue
        if "schooling" in cell.scenario["models"]:
            announce(f"network for {cell}")
        scenarios.append(prepared(cell.scenario, place))
    needed = {measure(block.measure).standard for block in table.published if block.by == "audit"}
    text = spec_text(
        title=f"{table.name} ({scale})",
        seeds=table.seeds(scale),
        metrics=sorted({"psnr", "ssim", *needed}),
        scenarios=[{k: v for k, v in s.items() if k in SPEC_KEYS} for s in scenarios],
    )
    return SpecSource(f"{table.name}.toml", text, place.device if place else "cpu")


def reproduction(
    table: PaperTable,
    scale: str,
    *,
    spec: Spec | None,
    found: AuditResult | None,
    place: Place,
    announce: Announce = _silent,
) -> Reproduction:
    """Put what was found beside what was published."""
    began = time.perf_counter()
    audited = None if spec is None or found is None else Audited(found, spec)
    lines: list[Line] = []
    for block in table.published:
        for number, cell in enumerate(table.cells(scale)):
            if block.columns and cell.column not in block.columns:
                continue
            sample = _sample(number, cell, block, audited, place, announce, table.seeds(scale))
            lines.append(line(table, cell, block, sample))
    records = found.records if found else ()
    seconds = sum(float(record.effort.get("seconds", 0)) for record in records)
    failed = tuple(dict.fromkeys(record.error for record in records if record.error))
    return Reproduction(table, scale, lines, seconds + time.perf_counter() - began, failed)


def build(table: PaperTable, scale: str) -> Spec | None:
    """The spec of a table with nothing trained, to see that all it names exists."""
    made = source(table, scale)
    return None if made is None else build_spec(made)


def _sample(
    number: int,
    cell: Cell,
    block: Published,
    audited: Audited | None,
    place: Place,
    announce: Announce,
    seeds: list[int],
) -> Sample:
    match block.by:
        case "audit":
            return Sample() if audited is None else audited.sample(number, block)
        case "features":
            announce(f"features of {cell}")
            errors = feature_errors(cell.scenario, place, seeds=seeds)
            return Sample(errors.values, each=errors.each, missed=errors.missed)
        case "rank_metric":
            announce(f"ranks of {cell}")
            return counted(cell, block)
        case "utility":
            announce(f"training of {cell}")
            return schooled(cell, block, place)
        case "victim":
            return attacked(cell, block, place)
        case _:
            raise UnknownName("source", block.by, SOURCES)
