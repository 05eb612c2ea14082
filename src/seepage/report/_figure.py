"""A figure for a paper: every person's score with every defense, as SVG and as PDF."""

from __future__ import annotations

import io
from dataclasses import dataclass
from statistics import median

from seepage._printable import make_printable
from seepage.audit._words import label_setups
from seepage.audit.results import Result, Results
from seepage.audit.results._amount import SATURATED
from seepage.core.errors import import_extra
from seepage.report.page._chart import Axis, Shape, span_axis
from seepage.report.page._document import macros

# In points: one column of a paper, or both.
COLUMN, PAGE = 252.0, 516.0
_SIZE, _ROW, _TOP, _BOTTOM, _GAP = 8.0, 18.0, 8.0, 30.0, 6.0
_INK, _FAINT, _LEAK, _SAFE = "#222222", "#bbbbbb", "#b2432f", "#2a6f77"
# About the width of a letter, as a share of the font size.
_LETTER = 0.6
# The most letters of a label, so that half of the page is left for the strips.
_LONGEST = int((PAGE / 2 - 2 * _GAP) / (_LETTER * _SIZE))
_ACROSS = "PSNR of each person in dB; red: identified"
_SHARED = "% right of each person; red: identified"


@dataclass(frozen=True)
class _Row:
    """One setup: its name, and the value of each person with whether they were identified."""

    label: str
    people: tuple[tuple[float, bool], ...]


@dataclass(frozen=True)
class Figure:
    """One strip per setup above one axis, in points.

    It is as wide as one column of a paper, or as the page if the labels are long.
    """

    title: str
    axis: Axis
    ticks: tuple[tuple[float, str], ...]
    rows: tuple[_Row, ...]

    @property
    def _left(self) -> float:
        longest = max((len(row.label) for row in self.rows), default=0)
        return _LETTER * _SIZE * longest + 2 * _GAP

    @property
    def width(self) -> float:
        """Width in points."""
        return COLUMN if self._left <= COLUMN / 2 else PAGE

    @property
    def height(self) -> float:
        """Height in points."""
        return _TOP + _ROW * max(1, len(self.rows)) + _BOTTOM

    def svg(self) -> str:
        """Write the figure as SVG."""
        written: str = macros("figure").figure(self.width, self.height, _SIZE, self._draw())
        return make_printable(f"{written}\n")

    def pdf(self) -> bytes:
        """Write the figure as PDF, as vectors.

        Raises:
            MissingExtra: matplotlib draws it, and is not installed.
        """
        import_extra(
            "matplotlib", "figures", reason="a figure as PDF needs an extra",
            otherwise="; or take --format svg",
        )  # fmt: skip
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(self.width / 72, self.height / 72))
        place = self._left / self.width, _BOTTOM / self.height
        axes = canvas.add_axes((*place, 1 - place[0] - 2 * _GAP / self.width,
                                1 - place[1] - _TOP / self.height))  # fmt: skip
        for number, row in enumerate(self.rows):
            values = [self._inside(value) for value, _ in row.people]
            colours = [_LEAK if identified else _SAFE for _, identified in row.people]
            axes.scatter(values, [number] * len(values), s=18, c=colours, linewidths=0, zorder=3)
            axes.vlines(median(values), number - 0.3, number + 0.3, colors=_INK, linewidth=1.4)
        axes.set_xlim(self.axis.low, self.axis.high)
        axes.set_ylim(max(1, len(self.rows)) - 0.5, -0.5)
        axes.set_xticks([at for at, _ in self.ticks], [text for _, text in self.ticks])
        names = [make_printable(row.label).replace("$", r"\$") for row in self.rows]
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(labelsize=_SIZE, length=0)
        axes.grid(axis="x", color=_FAINT, linewidth=0.4)
        axes.set_xlabel(self.title, fontsize=_SIZE)
        for side in ("left", "top", "right"):
            axes.spines[side].set_visible(False)
        written = io.BytesIO()
        canvas.savefig(written, format="pdf", metadata={"CreationDate": None})
        return written.getvalue()

    def _inside(self, value: float) -> float:
        return min(max(value, self.axis.low), self.axis.high)

    def _draw(self) -> list[Shape]:
        left, right, bottom = self._left, self.width - 2 * _GAP, self.height - _BOTTOM

        def across(value: float) -> float:
            return left + (right - left) * self.axis.place(value) / 100

        shapes: list[Shape] = []
        for tick, text in self.ticks:
            shapes.append(_line(across(tick), _TOP, across(tick), bottom, _FAINT, 0.4))
            shapes.append(_text(across(tick), bottom + _SIZE + 3, text, "middle"))
        shapes.append(_line(left, bottom, right, bottom))
        shapes.append(_text((left + right) / 2, bottom + _BOTTOM - 6, self.title, "middle"))
        for number, row in enumerate(self.rows):
            middle = _TOP + _ROW * (number + 0.5)
            shapes.append(_text(left - _GAP, middle + 0.35 * _SIZE, row.label, "end"))
            found = across(median(value for value, _ in row.people))
            shapes.append(_line(found, middle - 6, found, middle + 6, width=1.4))
            shapes += [
                Shape("circle", {"cx": f"{across(value):.2f}", "cy": f"{middle:.2f}", "r": 2.2,
                                 "fill": _LEAK if identified else _SAFE})
                for value, identified in row.people
            ]  # fmt: skip
        return shapes


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str = _INK, width: float = 0.6
) -> Shape:
    places = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    ends = {name: f"{value:.2f}" for name, value in places.items()}
    return Shape("line", {**ends, "stroke": colour, "stroke-width": f"{width:g}"})


def _text(x: float, y: float, text: str, anchor: str) -> Shape:
    place = {"x": f"{x:.2f}", "y": f"{y:.2f}", "text-anchor": anchor, "fill": _INK}
    return Shape("text", {**place}, text)


def leak_figure(results: Results) -> Figure:
    """Draw one strip per setup: every person at the best of any attack, and the median.

    The axis is PSNR, or the share of columns or words that is right if all inputs have those.
    """
    groups = {setup: group.strongest() for setup, group in results.setups.items()}
    labels = label_setups(groups)
    everybody = [row for people in groups.values() for row in people]
    shares = bool(everybody) and all(row.is_share for row in everybody)

    def value_of(row: Result) -> float:
        return row.measured if shares else min(row.psnr, SATURATED)

    axis = Axis(0.0, 100.0) if shares else span_axis(map(value_of, everybody))
    return Figure(
        _SHARED if shares else _ACROSS,
        axis,
        tuple(
            (tick, f"{tick:g}{'+' * (tick >= SATURATED and not shares)}") for tick in axis.ticks(5)
        ),
        tuple(
            _Row(
                _shorten(labels[setup]),
                tuple((value_of(row), row.level.identified) for row in people),
            )
            for setup, people in groups.items()
        ),
    )


def _shorten(label: str) -> str:
    """Cut a label that is too long in its middle: both ends tell it from others.

    Example:
        >>> len(_shorten("ClipEach 1, " * 9)), _shorten("Prune 0.9")
        (51, 'Prune 0.9')
    """
    if len(label) <= _LONGEST:
        return label
    half = (_LONGEST - 1) // 2
    return f"{label[:half]}\N{HORIZONTAL ELLIPSIS}{label[half + 1 - _LONGEST :]}"
