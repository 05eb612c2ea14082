"""The results of an audit as one table, to group and to summarise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any, overload

from seepage.audit._record import Record
from seepage.audit._words import NO_DEFENSE, Setup
from seepage.audit.results._columns import ATTACKED, COLUMNS, read_columns
from seepage.audit.results._effort_curve import EffortCurve, effort_curves
from seepage.audit.results._flatten import FlatRow, flatten
from seepage.audit.results._judge import judge
from seepage.audit.results._result import Level, Result
from seepage.core._grouping import group_by
from seepage.core.errors import MissingExtra


class Results(Sequence[Result]):
    """One row per case and person, judged once over a whole audit.

    Groups and selections keep that judgement.

    Args:
        rows: One per person and attack.
        records: Their cases, and those without a score.
        curves: What more steps found, of the whole audit.

    Example:
        >>> from seepage.core._construct import Component
        >>> dlg, no, threat = Component("dlg"), (), None
        >>> record = Record("digits", (0, 1), "mlp", Component("Gradient"), no, threat, dlg, 0,
        ...                 scores={"psnr": (12.0, 40.0)})
        >>> results = Results.of([record])
        >>> len(results), [row.person for row in results.strongest()]
        (2, [('digits', 1), ('digits', 0)])
        >>> {seed: len(group) for seed, group in results.by("seed").items()}
        {0: 2}
    """

    def __init__(
        self,
        rows: Iterable[Result],
        records: Iterable[Record] = (),
        curves: Sequence[EffortCurve] = (),
    ) -> None:
        self._rows = tuple(rows)
        self.records = tuple(records)
        self.curves = tuple(curves)

    @classmethod
    def of(cls, records: Results | Iterable[Record]) -> Results:
        """Judge the records of a whole audit; results that are judged already stay as they are."""
        if isinstance(records, Results):
            return records
        records = tuple(record for record in records if record.bound is None)
        curves = effort_curves(records)
        return cls(judge(records, curves), records, curves)

    @overload
    def __getitem__(self, place: int) -> Result: ...
    @overload
    def __getitem__(self, place: slice) -> Results: ...
    def __getitem__(self, place: int | slice) -> Result | Results:
        """A row, or the rows of a slice."""
        if isinstance(place, slice):
            return Results(self._rows[place], self.records, self.curves)
        return self._rows[place]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Result]:
        """Every row, in the order of the audit."""
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"Results({len(self._rows)} rows of {len(self.records)} cases)"

    def by(self, *columns: str) -> dict[Any, Results]:
        """Group by the values of these columns, which are a tuple if there are several.

        Columns are `data`, `model`, `local`, `threat`, `attack`, `defense`, `batch_size`,
        `sampling`, `seed`, `setup` (defense, local computation and batch size) and `knowledge`
        (what the threat grants besides the defense). Cases without a row are in the records of
        their group.
        """
        read = read_columns(*columns)
        cases = group_by(self.records, read)
        rows = group_by(self._rows, lambda row: read(row.record))
        for key, found in rows.items():
            # What was found behind a defense has no case of its own without it.
            cases.setdefault(key, list({row.number: row.record for row in found}.values()))
        return {key: Results(rows.get(key, ()), found) for key, found in cases.items()}

    def without(self, *columns: str) -> dict[tuple[Any, ...], Results]:
        """The results by all columns but these."""
        read_columns(*columns)
        return self.by(*(column for column in COLUMNS if column not in columns))

    def where(self, **values: object) -> Results:
        """The results whose columns have these values."""
        found = self
        for column, value in values.items():
            found = found.by(column).get(value, Results(()))
        return found

    @cached_property
    def setups(self) -> dict[Setup, Results]:
        """The results of each setup that has any, those without a defense first."""
        found = [(setup, group) for setup, group in self.by("setup").items() if group]
        return dict(sorted(found, key=lambda item: item[0].defense != NO_DEFENSE))

    @cached_property
    def bare(self) -> Results:
        """The results without a defense; all of them if every case has one."""
        found = [row for row in self if row.record.defense == NO_DEFENSE]
        return Results(found, self.records, self.curves) if found else self

    def strongest(self) -> Results:
        """Per person the result that shows most, the worst-off person first.

        A defense must hold against all attacks. Whoever is behind several captured updates counts
        once.

        References:
            Liu et al., 2024, Sec. 4 (liu2024systematic)
        """
        return self._strongest

    @cached_property
    def _strongest(self) -> Results:
        victims = group_by(self._rows, lambda row: row.victim)
        people = group_by(map(_pick_strongest, victims.values()), lambda row: row.person)
        best = [_join_updates(group) for group in people.values()]
        best.sort(key=lambda row: row.strength, reverse=True)
        found = Results(best, self.records, self.curves)
        found.__dict__["_strongest"] = found
        return found

    @property
    def identified(self) -> int:
        """How many people are singled out, recognisable or reconstructed."""
        return sum(row.level.identified for row in self.strongest())

    @property
    def unclear(self) -> bool:
        """Whether somebody was not identified by attacks that may be too weak to tell."""
        return any(row.unclear for row in self.strongest())

    @property
    def unscored(self) -> list[Record]:
        """The cases without a truth to compare with."""
        return [one for one in self.records if one.error is None and not one.scores]

    def to_rows(self) -> list[FlatRow]:
        """One flat row per person and attack, then one per person of cases without a score."""
        return flatten(self, self.records)

    def to_pandas(self) -> Any:  # noqa: ANN401 - a data frame
        """The flat rows as a data frame of pandas, with the columns of `--format csv`.

        Raises:
            MissingExtra: Without pandas.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_rows())


def _pick_strongest(group: Sequence[Result]) -> Result:
    best = max(group, key=lambda row: row.strength)
    # One attack that would have found the person is enough to say that nothing was shown. But it
    # must have worked on each network, behind each defense and for each adversary.
    read = read_columns(*ATTACKED)
    separate = group_by(group, lambda row: read(row.record))
    cleared = all(any(row.conclusive for row in some) for some in separate.values())
    able = [row for row in group if row.level is Level.not_shown]
    if best.level is Level.inconclusive and cleared and able:
        best = max(able, key=lambda row: row.strength)
    return _join(best, group, conclusive=cleared)


def _join_updates(group: Sequence[Result]) -> Result:
    """The worst result of one person over several updates; only all together are conclusive."""
    best = max(group, key=lambda row: row.strength)
    return _join(best, group, conclusive=all(row.conclusive for row in group))


def _join(best: Result, group: Sequence[Result], *, conclusive: bool) -> Result:
    """The strongest result, with whatever leaked by any."""
    return replace(
        best,
        label=any(row.label for row in group),
        parts=tuple(dict.fromkeys(part for row in group for part in row.parts)),
        conclusive=conclusive,
        settled=all(row.settled for row in group),
    )
