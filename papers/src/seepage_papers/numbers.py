"""The numbers of one kind in a recorded table, found by the labels of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage_papers.evidence import LineData, Term
from seepage_papers.measures import measure
from seepage_papers.substitute import Plain, filled


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a run found, in one measure.

    Args:
        lines: Those of one measure and statistic, as `Reproduction.plain` has them.
        values: Of the scale, which labels may name.
        usual: Read them in the usual convention instead of the paper's.
    """

    lines: Sequence[LineData]
    values: Plain
    usual: bool = False

    @classmethod
    def of(cls, run: Plain, kind: str = "", statistic: str = "", *, usual: bool = False) -> Numbers:
        """Pick one measure and statistic of a run; the first of the table if none is named."""
        lines = run["lines"]
        kind = kind or lines[0]["measure"]
        same = [line for line in lines if line["measure"] == kind]
        wanted = statistic or next((line["statistic"] for line in same), "")
        return cls([line for line in same if line["statistic"] == wanted], run["values"], usual)

    def labels(self, axis: str, named: Sequence[str] = ()) -> list[str]:
        """Those named, with the values of the scale in them; every one if none is.

        Args:
            axis: "rows" or "columns".
            named: As the file of the table has them.
        """
        key = axis.removesuffix("s")
        every = list(dict.fromkeys(str(line[key]) for line in self.lines))
        return [str(filled(name, self.values)) for name in named] or every

    def term(self, weight: float, axis: str, label: str, other: str) -> Term:
        """The cell at a label of this axis and one of the other, to be summed."""
        row, column = (label, other) if axis == "rows" else (other, label)
        cells = (x for x in self.lines if (x["row"], x["column"]) == (row, column))
        return Term(weight, next(cells, None), self.usual)

    @property
    def sign(self) -> float:
        """Of what leaks more: 1 where that is the larger number, -1 where it is the smaller."""
        kind = measure(str(self.lines[0]["measure"]))
        if self.usual and kind.function is not None:
            kind = measure(kind.standard)
        return 1.0 if kind.higher_leaks_more else -1.0


def other_axis(axis: str) -> str:
    """Columns for rows, rows for columns."""
    return "columns" if axis == "rows" else "rows"


def cell_words(label: str, other: str) -> str:
    """The name of a cell in a sentence.

    Example:
        >>> cell_words("ConvNet", ""), cell_words("64", "ConvNet")
        ('ConvNet', '64 (ConvNet)')
    """
    return f"{label} ({other})" if label and other else label or other
