"""What is kept of a case, an attack or a bound: plain data, one number per person."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from seepage.audit.ceiling import Ceiling


@dataclass(frozen=True)
class Record:
    """The result of a case.

    Args:
        data: Name of the data set.
        people: Numbers of the people in the batch.
        model: The broadcast network.
        local: What the client computed.
        defense: What it did before sharing.
        threat: What the adversary knew; empty for a bound.
        attack: What it did; for a bound, its name.
        seed: Of all randomness.
        scores: Metric to one value per person; None where a value is not defined.
        baselines: The same for each guess that needs no update.
        certificate: Residual and uniqueness, where the attack gave them.
        effort: Steps, restarts, seconds and device.
        error: Why there is no result; None if there is one.
        case: The id of the case, a hash of everything that decides its result.
        truth: The name under which the private inputs are kept.
        vetted: What vetting says of the network an attack planted: how detectable it is; empty
            where nothing was planted.
        bound: What theory says, where the case is a bound; None where it is an attack.
    """

    data: str
    people: tuple[int, ...]
    model: str
    local: str
    defense: str
    threat: str
    attack: str
    seed: int
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, tuple[float | None, ...]]] = field(default_factory=dict)
    certificate: Mapping[str, float | bool | None] | None = None
    effort: Mapping[str, float | int | str] = field(default_factory=dict)
    error: str | None = None
    case: str = ""
    truth: str = ""
    vetted: str = ""
    bound: Ceiling | None = None

    @property
    def batch_size(self) -> int:
        """Number of people in the batch."""
        return len(self.people)

    def plain(self) -> dict[str, Any]:
        """The record as data that JSON can hold, where infinity is the word "inf"."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Record:
        """The record of which `plain` is the plain form."""
        known = {field.name for field in fields(cls)}
        values = {key: _restored(value) for key, value in plain.items() if key in known}
        ceiling = values.get("bound")
        return cls(**{**values, "bound": Ceiling(**ceiling) if ceiling else None})


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _restored(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_restored(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value
