"""What a spec measures."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit.captured import Captured
from seepage.audit.entries import numbered, trusting_nothing
from seepage.core import Metric, Paired
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.core.located import located
from seepage.data import Dataset
from seepage.scoring import METRICS, find_metric


def metrics(names: object) -> tuple[Metric, ...] | None:
    """The metrics of these names, after PSNR, which orders the tables; None takes all that fit."""
    if names is None:
        return None
    with located("metrics"):
        if not isinstance(names, list) or not names:
            raise InvalidValue(f"expected metrics as a list of names, got {names!r}")
        asked = numbered(names, _metric)
    return tuple({metric.name: metric for metric in (METRICS["psnr"], *asked)}.values())


def _metric(name: object) -> Metric:
    if not isinstance(name, str):
        raise UnknownName("metric", str(name), METRICS)
    with trusting_nothing(name):
        return find_metric(name)


def fitting(
    asked: Sequence[Metric] | None, dataset: Dataset | Captured
) -> tuple[Metric, ...] | None:
    """Those of the metrics that fit these inputs; one that cannot run here is an error."""
    if asked is None:
        return None
    one = dataset.take([0])
    itself = Paired(one.inputs, one.inputs, one.labels, one.labels, (0,), domain=dataset.domain)
    return tuple(metric for metric in asked if _fits(metric, itself))


def _fits(metric: Metric, paired: Paired) -> bool:
    try:
        with trusting_nothing(metric.name):
            metric(paired)
    except NotApplicable:
        return False
    return True
