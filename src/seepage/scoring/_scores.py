"""Scores of one reconstruction, person by person, and of guesses that need no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Metric, Paired, Reconstruction, Rng
from seepage.core._batch import class_numbers
from seepage.core._construct import construct
from seepage.core._plugins import Catalogue, find_part, first_line
from seepage.core._scale import Scale, Scaled, scale_of
from seepage.core.errors import InvalidValue, MissingExtra, NotApplicable, UnknownName
from seepage.domains import domain_of
from seepage.scoring._accuracy import (
    FeatureAccuracy,
    LabelAccuracy,
    RougeL,
    TokenAccuracy,
    TokenPrecision,
    TokenRecall,
)
from seepage.scoring._entrywise import L1, MSE, PSNR, RMSE, ExactMatch
from seepage.scoring._pairing import pair
from seepage.scoring._perceptual import LPIPS, SSIM

_ALL: tuple[Metric, ...] = (
    MSE(),
    RMSE(),
    PSNR(),
    SSIM(),
    LPIPS(),
    L1(),
    LabelAccuracy(),
    ExactMatch(),
    FeatureAccuracy(),
    TokenAccuracy(),
    TokenRecall(),
    TokenPrecision(),
    RougeL(),
)


def _make_metric(name: str, found: object) -> Metric:
    """A metric, made of an instance, a class, or a function without arguments."""
    ready = isinstance(found, Metric) and not isinstance(found, type)
    made = construct(name, found, {}) if callable(found) and not ready else found
    if not isinstance(made, Metric):
        raise InvalidValue(
            f"expected {name} to be a metric with `name` and `higher_leaks_more`, got "
            f"{type(made).__name__}"
        )
    return made


def _make_named_metric(name: str, found: object) -> Metric:
    """A metric that calls itself as its package does, since records know it by its own name."""
    made = _make_metric(name, found)
    if made.name != name:
        raise InvalidValue(f"it calls itself {made.name!r}")
    return made


METRICS: Catalogue[Metric] = Catalogue(
    "metric", "seepage.metrics", {metric.name: metric for metric in _ALL}, adapt=_make_named_metric
)


@runtime_checkable
class _Choosy(Protocol):
    """A metric that is not for all inputs, or not everywhere."""

    def require(self, paired: Paired, /) -> object:
        """Raise `NotApplicable` or `MissingExtra` unless it can score these."""


def catalogue() -> dict[str, str]:
    """What each metric is, in one line, by name.

    Example:
        >>> catalogue()["mse"]
        'Mean squared error: mean_j (guess_j - truth_j)^2.'
    """
    return {name: first_line(type(metric)) for name, metric in METRICS.items()}


def find_metric(name: str) -> Metric:
    """The metric of a name in the catalogue, or of a path `package.module:factory`.

    Example:
        >>> find_metric("psnr").higher_leaks_more
        True

    Raises:
        UnknownName: No metric of that name.
        InvalidValue: The path leads to no metric, or to one whose name is taken.
    """
    found = find_part("metric", name, METRICS)
    if name in METRICS:
        return found
    made = _make_metric(name, found)
    if made.name in METRICS:
        raise InvalidValue(
            f"expected a metric with a name of its own, got {name}, which calls itself "
            f"{made.name!r} as another one does"
        )
    return made


@cache
def find_scale(name: str) -> Scale:
    """How to read a built-in metric; decibels if it is none."""
    return scale_of(METRICS.built_in.get(name))


def applicable(paired: Paired) -> tuple[Metric, ...]:
    """The built-in metrics that make sense for these inputs and can run here, in their order.

    Left out are `ssim` and `lpips` for signals and for images too small for them, and `lpips`
    where its weights are not found; `feature_accuracy` but for tables, `token_accuracy` and the
    like but for tokens. Metrics of other packages are measured where they are asked for by name.

    Example:
        >>> import torch
        >>> beats = torch.zeros(1, 1, 140)
        >>> [m.name for m in applicable(Paired(beats, beats, torch.tensor([0]), None, (0,)))]
        ['mse', 'rmse', 'psnr', 'l1', 'label_accuracy', 'exact']
    """
    return tuple(metric for metric in METRICS.built_in.values() if _fits(metric, paired))


def _fits(metric: Metric, paired: Paired) -> bool:
    try:
        if isinstance(metric, _Choosy):
            metric.require(paired)
    except (NotApplicable, MissingExtra):
        return False
    return True


# What verdicts, tables and gates read: an input that came back exactly, labels, columns, words.
JUDGED = tuple(one.name for one in _ALL if isinstance(one, Scaled | LabelAccuracy | ExactMatch))


def add_judged(asked: Sequence[Metric], paired: Paired) -> tuple[Metric, ...]:
    """The metrics that were asked for, then those that judge people and fit these inputs.

    What is asked for decides what is shown, and must not decide what is said of a person.

    Example:
        >>> import torch
        >>> from seepage.scoring._entrywise import L1
        >>> rows = torch.zeros(1, 4)
        >>> [m.name for m in add_judged([L1()], Paired(rows, rows, torch.tensor([0]), None, (0,)))]
        ['l1', 'psnr', 'label_accuracy', 'exact']
    """
    names = {metric.name for metric in asked}
    judges = [METRICS.built_in[name] for name in JUDGED if name not in names]
    return (*asked, *(metric for metric in judges if _fits(metric, paired)))


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """What each metric says about each person; reads like a mapping from metric name to `(B,)`.

    Args:
        paired: The pairs that were scored.
        metrics: The metrics, which are evaluated once, on construction.
    """

    paired: Paired
    metrics: tuple[Metric, ...]
    values: Mapping[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        if not names or len(set(names)) < len(names):
            raise InvalidValue(f"expected metrics with distinct names, got {names}")
        size = len(self.paired)
        values = {metric.name: _evaluate(metric, self.paired, size) for metric in self.metrics}
        object.__setattr__(self, "values", MappingProxyType(values))

    def __getitem__(self, metric: str) -> Tensor:
        """One number per person, `(B,)`."""
        if metric not in self.values:
            raise UnknownName("metric", metric, self.values)
        return self.values[metric]

    def __contains__(self, metric: object) -> bool:
        return metric in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def keys(self) -> KeysView[str]:
        """Names of the metrics."""
        return self.values.keys()

    def ranking(self, metric: str = "psnr") -> list[int]:
        """People from worst-off to least, by one metric; NaN counts as no leak."""
        values = self[metric].tolist()
        sign = next(1 if m.higher_leaks_more else -1 for m in self.metrics if m.name == metric)
        leaks = [-math.inf if math.isnan(value) else sign * value for value in values]
        return sorted(range(len(leaks)), key=lambda person: -leaks[person])

    def worst(self, metric: str = "psnr") -> int:
        """Index of the worst-off person: the one about whom most has leaked."""
        return self.ranking(metric)[0]

    def rows(self) -> list[dict[str, float]]:
        """One row per person, in the order of the batch."""
        columns = {name: values.tolist() for name, values in self.values.items()}
        return [{name: c[i] for name, c in columns.items()} for i in range(len(self.paired))]

    def __repr__(self) -> str:
        """A table, worst-off person first (by PSNR where it was evaluated)."""
        rows = self.rows()
        order = self.ranking("psnr" if "psnr" in self else self.metrics[0].name)
        cells = [
            [str(i), *("-" if math.isnan(v) else f"{v:.4g}" for v in rows[i].values())]
            for i in order
        ]
        return _format_table([["person", *self.keys()], *cells])


def score(
    guess: Reconstruction,
    batch: Batch,
    *,
    metrics: Sequence[Metric] | None = None,
    peak: float = 1.0,
    low: float = 0.0,
    domain: Domain | None = None,
) -> Scores:
    """Pair a reconstruction with the truth and score it, person by person.

    Args:
        guess: What the attack returned.
        batch: The truth.
        metrics: By default every metric that fits these inputs.
        peak: Width of the range of values, 1 for images in [0, 1].
        low: Lowest value of the range.
        domain: What an input is, for metrics that ask for it: the columns of a table.

    Example:
        >>> import torch
        >>> from seepage.scoring._entrywise import PSNR, ExactMatch
        >>> batch = Batch(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([7, 8]))
        >>> guess = Reconstruction(torch.tensor([[1.0, 1.0], [0.5, 0.5]]))
        >>> score(guess, batch, metrics=[PSNR(), ExactMatch()])
        person   psnr  exact
             1    inf      1
             0  6.021      0
    """
    discrete = (domain or domain_of(batch.inputs)).discrete
    outside = (batch.inputs < low - peak / 255) | (batch.inputs > low + peak * 256 / 255)
    if not discrete and bool(outside.any()):
        raise InvalidValue(
            f"expected private inputs in [{low:g}, {low + peak:g}], got {int(outside.sum())} of "
            f"{outside.numel()} values outside; give their range as low= and peak= (its width)"
        )
    paired = pair(guess, batch, peak=peak, low=low, domain=domain)
    return Scores(paired, applicable(paired) if metrics is None else tuple(metrics))


def _evaluate(metric: Metric, paired: Paired, size: int) -> Tensor:
    values = metric(paired)
    if values.shape != (size,):
        raise InvalidValue(
            f"expected {metric.name} to give one number per person, shape ({size},), got "
            f"{tuple(values.shape)}; do not reduce over the batch"
        )
    return values


def _format_table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(lines)


def mean_guess(mean_input: Tensor, size: int) -> Reconstruction:
    """The same mean input for everybody: the best single guess in mean squared error.

    Args:
        mean_input: Mean over inputs of other people, without the batch axis.
        size: Number of people.

    Example:
        >>> import torch
        >>> mean_guess(torch.zeros(1, 4, 4), 3).inputs.shape
        torch.Size([3, 1, 4, 4])
    """
    _check_size(size)
    return Reconstruction(mean_input.detach().expand(size, *mean_input.shape).clone())


def draw_guess(pool: Tensor, size: int, *, rng: Rng) -> Reconstruction:
    """Other people's inputs, drawn without replacement: a guess that looks real and is not.

    Example:
        >>> import torch
        >>> pool = torch.arange(5.0).reshape(5, 1)
        >>> len(set(draw_guess(pool, 5, rng=Rng(0)).inputs.flatten().tolist()))
        5
    """
    _check_size(size)
    if len(pool) < size:
        raise InvalidValue(
            f"expected a pool of at least {size} inputs to draw from, got {len(pool)}; "
            "give a larger pool of other people's inputs"
        )
    chosen = rng.permutation(len(pool))[:size]
    return Reconstruction(pool.detach()[chosen.to(pool.device)])


def baseline_scores(
    batch: Batch,
    *,
    pool: Tensor,
    labels: Tensor | None = None,
    metrics: Sequence[Metric] | None = None,
    rng: Rng,
    peak: float = 1.0,
    low: float = 0.0,
    domain: Domain | None = None,
) -> dict[str, Scores]:
    """Scores of the guesses that need no update, paired and scored exactly as an attack's.

    Args:
        batch: The truth.
        pool: Inputs `(N, ...)` of people who are not in the batch, at least as many as in it.
        labels: Labels of the pool; None if there are none.
        metrics: By default every metric that fits these inputs.
        rng: Randomness of the draw.
        peak: Width of the range of values, 1 for images in [0, 1].
        low: Lowest value of the range.
        domain: If known, the mean is made a valid input, with the most frequent categories.

    Returns:
        Scores under "mean", which of tokens is the most frequent at each place, and "draw"; with
        labels also under "label", the mean of others with the person's own label.

    Example:
        >>> import torch
        >>> batch = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([7, 8]))
        >>> scores = baseline_scores(batch, pool=torch.tensor([[0.25], [0.75]]), rng=Rng(0))
        >>> scores["mean"]["mse"].tolist(), scores["draw"]["mse"].tolist()
        ([0.25, 0.25], [0.0625, 0.0625])
    """
    drawn = draw_guess(pool, len(batch), rng=rng)
    kind = domain or domain_of(pool)
    guesses = {"mean": mean_guess(kind.typical(pool), len(batch)), "draw": drawn}
    if labels is not None and class_numbers(batch.labels) is not None:
        guesses["label"] = _guess_by_label(batch.labels, pool, labels, kind)
    return {
        name: score(guess, batch, metrics=metrics, peak=peak, low=low, domain=domain)
        for name, guess in guesses.items()
    }


def _guess_by_label(wanted: Tensor, pool: Tensor, labels: Tensor, domain: Domain) -> Reconstruction:
    """The mean of others with each person's label; of everybody if nobody else has it."""
    classes = class_numbers(wanted)
    assert classes is not None
    alike = [pool[labels == label] for label in classes.tolist()]
    rows = [domain.typical(rows if len(rows) else pool) for rows in alike]
    return Reconstruction(torch.stack(rows))


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidValue(f"expected at least one person to guess for, got {size!r}")
