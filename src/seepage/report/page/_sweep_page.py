"""One setting, several values: what leaks beside what it costs, as a page and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from seepage.audit._words import decibels
from seepage.audit.results._flatten import FlatRow
from seepage.report._finding import Verdict
from seepage.report.page._chart import PercentLine, percent_chart
from seepage.report.page._document import (
    Section,
    document,
    join_markup,
    macros,
    number_columns,
    opening,
    table,
)

# Probability with which a network that learned nothing may seem better than chance.
_LUCK = 0.05


@dataclass(frozen=True)
class SweepPoint:
    """What one value of the setting does.

    Args:
        value: The value.
        people: People attacked with a score.
        identified: How many were identified by any attack.
        conclusive: Whether the attacks would have found everybody who was not.
        worst: The best of any attack on anybody; None without a score.
        median: The median over people; None without a score.
        accuracy: Of the network trained so, on held-out data; None if it was not trained, or if
            the training diverged.
        held_out: Number of held-out inputs.
        chance: Share of the most frequent class among these.
        luck: Probability that chance alone has as many right; 1 if the training diverged, None
            if there was none.
        epsilon: Of one update, if the defense is DP-SGD.
        unit: Of worst and median: "dB" of PSNR, or "%" of the columns or words.
    """

    value: float
    people: int
    identified: int
    conclusive: bool
    worst: float | None
    median: float | None
    accuracy: float | None = None
    held_out: int | None = None
    chance: float | None = None
    luck: float | None = None
    epsilon: float | None = None
    unit: str = "dB"

    @property
    def percent_right(self) -> str:
        """The accuracy, and whether it is no better than chance."""
        if self.luck is None:
            return "-"
        if self.accuracy is None:
            return "diverged"
        return f"{100 * self.accuracy:.0f} %" + " (chance)" * (self.luck > _LUCK)

    @property
    def leak(self) -> str:
        """How many were identified, and whether more might be."""
        if not self.people:
            return "no result"
        open_ = "" if self.conclusive or self.identified == self.people else " (inconclusive)"
        return f"{self.identified} of {self.people}{open_}"


def sweep_rows(knob: str, points: Sequence[SweepPoint]) -> list[FlatRow]:
    """One row per value, for CSV."""
    return [{"knob": knob, **asdict(point)} for point in points]


def tabulate_sweep(
    knob: str, points: Sequence[SweepPoint]
) -> tuple[list[str], list[list[str]], str]:
    """The titles of a table, its rows without columns that no point fills, and its caption."""
    columns = {
        knob: [f"{point.value:g}" for point in points],
        "identified": [point.leak for point in points],
        "worst-off": [_write_score(point.worst, point.unit) for point in points],
        "median": [_write_score(point.median, point.unit) for point in points],
        "accuracy": [point.percent_right if _has_learned(points) else "-" for point in points],
        "epsilon of one update": [
            "-" if point.epsilon is None else f"{point.epsilon:.3g}" for point in points
        ],
    }
    titles = [title for title, cells in columns.items() if set(cells) != {"-"}]
    rows = [list(row) for row in zip(*(columns[title] for title in titles), strict=True)]
    return titles, rows, _tell_training(points)


def _has_learned(points: Sequence[SweepPoint]) -> bool:
    """Whether some network is better than chance, corrected for their number."""
    lucks = [point.luck for point in points if point.luck is not None]
    return bool(lucks) and min(lucks) * len(lucks) <= _LUCK


def _tell_training(points: Sequence[SweepPoint]) -> str:
    """What the accuracies are worth, in a sentence; empty if nothing was trained."""
    if all(point.luck is None for point in points):
        return ""
    best = max(points, key=lambda point: -1.0 if point.accuracy is None else point.accuracy)
    if best.accuracy is None or best.chance is None:
        return "No network learned anything: every training diverged, so no accuracy is drawn."
    chance = f"the most frequent class alone has {100 * best.chance:.0f} %"
    if _has_learned(points):
        return f"Accuracy is the share of {best.held_out} held-out inputs that are right; {chance}."
    return (
        f"No network learned anything: the best has {100 * best.accuracy:.0f} % of {best.held_out} "
        f"held-out inputs right and {chance}, so no accuracy is drawn; train longer "
        "(--train-steps), on more data or with a weaker defense."
    )


def _write_score(value: float | None, unit: str) -> str:
    return decibels(value) if unit == "dB" or value is None else f"{value:.0f} {unit}"


def sweep_page(title: str, knob: str, points: Sequence[SweepPoint], judged: Verdict) -> str:
    """Write one self-contained page: the curve of leakage beside that of accuracy, and a table."""
    titles, rows, said = tabulate_sweep(knob, points)
    caption = (
        "People identified by any attack, and the best guesses: PSNR, or the share of columns or "
        "words that is right"
    )
    filled = table("Sweep", caption, number_columns(*titles), rows)
    trained = " Blue, dashed: the accuracy of the network trained with the same value."
    lead = (
        f"Red: the share of people identified.{trained if 'accuracy' in titles else ''} A share of "
        "zero says that these attacks found nobody; the table says if they were strong enough to "
        "tell."
    )
    lead = " ".join(filter(None, (lead, said)))
    section = Section(
        "sweep",
        f"Leakage against {knob}",
        lead,
        join_markup(_draw_curves(knob, points), filled),
    )
    parts = macros("parts")
    link = parts.paragraph(parts.link("report.html", "The whole report"))
    return document(
        f"Seepage sweep: {title}",
        first=join_markup(opening(title, judged), link),
        sections=[section],
        private=False,
    )


def _draw_curves(knob: str, points: Sequence[SweepPoint]) -> str:
    trained = points if _has_learned(points) else ()
    leaks = [(i, 100 * p.identified / p.people) for i, p in enumerate(points) if p.people]
    right = [(i, 100 * p.accuracy) for i, p in enumerate(trained) if p.accuracy is not None]
    lines = [
        PercentLine("identified", leaks, "leak", "leak"),
        PercentLine("accuracy", right, "front", "safe"),
    ]
    values = [f"{point.value:g}" for point in points]
    shown = [line for line in lines if line.points]
    return percent_chart(values, shown, across=knob, up="per cent", label="Sweep")
