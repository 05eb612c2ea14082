"""What a report says of an audit."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.audit.results import Level, Result


@dataclass(frozen=True)
class Verdict:
    """What leaked, as sentences.

    Args:
        level: The reading of the worst-off person that the headline is about; None if nobody was
            attacked with a result.
        headline: One sentence.
        details: More sentences: the worst-off person, and what each defense changes.
        worst: The result that came closest, among those that the headline is about.
        alarms: Bounds that an attack beat, one sentence each. This cannot happen without a bug.
    """

    level: Level | None
    headline: str
    details: tuple[str, ...] = ()
    worst: Result | None = None
    alarms: tuple[str, ...] = ()
