"""A threshold of leakage that an audit must not pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from seepage.audit.record import Record
from seepage.core.errors import InvalidValue, UnknownName
from seepage.scoring import METRICS


@dataclass(frozen=True)
class Leak:
    """A person whose data came back better than a gate allows.

    Args:
        gate: The gate that tripped.
        record: The case.
        person: The person's number.
        value: What the metric says of that person.
    """

    gate: Gate
    record: Record
    person: int
    value: float


@dataclass(frozen=True)
class Gate:
    """How much may come back of anybody, by one metric.

    Args:
        metric: Its name.
        threshold: Beyond it, in the direction in which this metric says that more leaked, a
            person counts as leaked: above for PSNR, below for LPIPS.

    Example:
        >>> Gate.parse("psnr=20")
        Gate(metric='psnr', threshold=20.0)
    """

    metric: str
    threshold: float

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read METRIC=VALUE."""
        metric, _, value = text.partition("=")
        if metric not in METRICS:
            raise UnknownName("metric", metric, METRICS, where=f"in --fail-above {text}")
        try:
            threshold = float(value)
        except ValueError:
            threshold = math.nan
        if math.isnan(threshold):
            raise InvalidValue(f"expected --fail-above METRIC=NUMBER, got {text!r}")
        return cls(metric, threshold)

    def leaks(self, records: Iterable[Record]) -> list[Leak]:
        """Everybody beyond the threshold, the worst first."""
        sign = 1 if METRICS[self.metric].higher_leaks_more else -1
        found = [
            Leak(self, record, person, value)
            for record in records
            for person, value in zip(
                record.people, record.scores.get(self.metric, ()), strict=False
            )
            if value is not None and sign * value > sign * self.threshold
        ]
        return sorted(found, key=lambda leak: -sign * leak.value)
