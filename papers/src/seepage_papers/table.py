"""A published table or figure, as a file describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType

from seepage.core.errors import InvalidValue, UnknownName
from seepage_papers.substitute import Plain, filled, laid_over

SCALES = ("smoke", "small", "paper")
# By the number that names of tables begin with.
PAPERS: Mapping[str, str] = MappingProxyType(
    {
        "000": "Huang et al., 2021: Evaluating Gradient Inversion Attacks and Defenses",
        "001": "Liu et al., 2024: Data Reconstruction Attacks and Defenses",
        "002": "Qian and Hansen, 2020: What Can We Learn from Gradients?",
        "003": "Geiping et al., 2020: Inverting Gradients",
        "004": "Chen and Campbell, 2022: Training-Data Leakage from Gradients",
    }
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A row or a column: what it is called and what it changes.

    Args:
        label: As the paper prints it.
        why: A known reason for another result.
        cause: Why its cells fall short of the paper, once that is known.
        ours: It is not in the paper, but what we have that is stronger.
        set: Values for the names in the scenario.
        change: Laid over the scenario.
    """

    label: str = ""
    why: str = ""
    cause: str = ""
    ours: bool = False
    set: Plain = field(default_factory=dict)
    change: Plain = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Published:
    """One number per cell, as the paper printed it.

    Args:
        by: How Seepage gets the number: "audit", "features", "rank_metric", "utility" or "victim".
        measure: What it is, in the paper's convention.
        statistic: How people become one number.
        values: By row, then by column; "-" is not printed. Empty if none is.
        columns: Numbers of the columns it has; empty for all.
        single: The paper's numbers are of one image, which it does not name.
        why: A known reason for another result.
        cause: Why its cells fall short of the paper, once that is known.
    """

    by: str = "audit"
    measure: str = "psnr"
    statistic: str = "mean"
    values: Sequence[Sequence[float | str]] = ()
    columns: Sequence[int] = ()
    single: bool = False
    why: str = ""
    cause: str = ""

    def value(self, row: int, column: int) -> float | None:
        """What is printed in a cell; None if nothing is."""
        if not self.values:
            return None
        at = self.columns.index(column) if self.columns else column
        printed = self.values[row][at]
        return None if isinstance(printed, str) else float(printed)


@dataclass(frozen=True, eq=False)
class Cell:
    """One combination of a row and a column, at some scale."""

    row: int
    column: int
    labels: tuple[str, str]
    scenario: Plain

    def __str__(self) -> str:
        """Its labels in a row."""
        return ", ".join(label for label in self.labels if label) or "the table"


@dataclass(frozen=True, eq=False)
class PaperTable:
    """A table or figure of a paper, and how to make it.

    Args:
        name: Such as "003-table1".
        title: What it shows.
        paper: Key in `docs/references.bib`.
        place: Where in the paper.
        claim: What the paper says it shows.
        figure: "rows" or "columns", whichever runs across; "tradeoff" for one measure against
            another.
        scenario: What all cells share.
        rows: At least one.
        columns: At least one.
        published: At least one number per cell.
        scales: Values for the names in the scenario, by scale; `rows` and `columns` there are the
            numbers of those that are made, `seeds` the repetitions.
    """

    name: str
    title: str
    paper: str
    place: str
    claim: str
    figure: str
    scenario: Plain
    rows: Sequence[Entry]
    columns: Sequence[Entry]
    published: Sequence[Published]
    scales: Mapping[str, Plain]

    @property
    def citation(self) -> str:
        """Authors, year and title of the paper, for people."""
        return PAPERS.get(self.name[:3], self.paper)

    def cells(self, scale: str) -> list[Cell]:
        """Every cell, row by row, of the rows and columns that a scale has."""
        values = self.at(scale)
        rows, columns = (
            [(i, entry) for i, entry in enumerate(entries) if i in values.get(kept, [i])]
            for kept, entries in (("rows", self.rows), ("columns", self.columns))
        )
        return [
            Cell(
                i,
                j,
                (str(filled(row.label, values)), str(filled(column.label, values))),
                _scenario(self.scenario, (row, column), values),
            )
            for (i, row), (j, column) in product(rows, columns)
        ]

    def only(self, rows: Sequence[str], scale: str, *, columns: Sequence[str] = ()) -> PaperTable:
        """The same table with the rows and columns of these labels alone; all where none is named.

        Raises:
            UnknownName: A label is of no row or column.
            InvalidValue: There are no labels to choose from.
        """
        values = dict(self.at(scale))
        for kind, wanted, entries in (
            ("row", rows, self.rows),
            ("column", columns, self.columns),
        ):
            labels = [str(filled(entry.label, values)) for entry in entries]
            if wanted and not any(labels):
                raise InvalidValue(
                    f"expected no {kind}, for {self.name} has only one without a label, got "
                    f"{wanted[0]!r}; leave --{kind} away"
                )
            for label in wanted:
                if label not in labels:
                    raise UnknownName(kind, label, labels)
            if wanted:
                values[f"{kind}s"] = [i for i, label in enumerate(labels) if label in wanted]
        return replace(self, scales={**self.scales, scale: values})

    def with_values(self, scale: str, changed: Plain) -> PaperTable:
        """The same table with other values at a scale, such as fewer people or more steps.

        Raises:
            UnknownName: The scale has no value of that name.
        """
        values = self.at(scale)
        for name in changed:
            if name not in values:
                raise UnknownName("value", name, values)
        return replace(self, scales={**self.scales, scale: {**values, **changed}})

    def at(self, scale: str) -> Plain:
        """The values of a scale."""
        if scale not in self.scales:
            raise UnknownName("scale", scale, self.scales)
        return self.scales[scale]

    def seeds(self, scale: str) -> list[int]:
        """The repetitions at a scale."""
        return list(self.at(scale).get("seeds", [0]))


def _scenario(base: Plain, entries: Sequence[Entry], values: Plain) -> Plain:
    for entry in entries:
        base = laid_over(base, entry.change)
        values = {**values, **filled(entry.set, values)}
    scenario: Plain = filled(base, values)
    return scenario
