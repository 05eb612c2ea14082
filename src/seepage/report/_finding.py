"""What a report says of an audit, as values: what was found, how bad it is, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seepage.audit.results import Level, Result
from seepage.report.wording import Kind, phrase


@dataclass(frozen=True)
class Finding:
    """One thing that a report says; as a string, it is the sentence.

    Args:
        kind: What was found.
        level: Of the person it is about, or of the worst-off; None if it is about nobody.
        numbers: What the sentence names.

    Example:
        >>> print(find(Kind.counting, updates=3).numbers)
        {'updates': 3}
    """

    kind: Kind
    level: Level | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return phrase(self.kind, self.numbers)


def find(kind: Kind, level: Level | None = None, /, **numbers: object) -> Finding:
    """Make a finding of these numbers."""
    return Finding(kind, level, numbers)


@dataclass(frozen=True)
class Verdict:
    """What leaked.

    Args:
        level: The reading of the worst-off person that the headline is about; None if nobody was
            attacked with a result.
        main: What the headline says.
        findings: The worst-off person, what each defense changes, and what that rests on.
        worst: The result that came closest, among those that the headline is about.
        contradictions: Bounds that an attack beat. This cannot happen without a bug.
    """

    level: Level | None
    main: Finding
    findings: tuple[Finding, ...] = ()
    worst: Result | None = None
    contradictions: tuple[Finding, ...] = ()

    @property
    def headline(self) -> str:
        """One sentence, without a full stop."""
        return str(self.main)

    @property
    def details(self) -> tuple[str, ...]:
        """One sentence or two for each finding."""
        return tuple(map(str, self.findings))

    @property
    def alarms(self) -> tuple[str, ...]:
        """One sentence for each contradiction."""
        return tuple(map(str, self.contradictions))
