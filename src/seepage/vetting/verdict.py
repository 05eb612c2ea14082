"""What vetting says of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["exposed", "suspicious", "malicious"]
Judgement = Literal["clean", "suspicious", "malicious"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Args:
        check: What looked for it.
        level: "exposed": the architecture gives inputs away, as honest ones may, and nothing about
            the weights is strange. "suspicious": honest training hardly leads here. "malicious":
            it has no purpose but to read inputs off the update.
        layer: The module it was found in; empty for the network as a whole.
        reason: One sentence for people.
    """

    check: str
    level: Level
    layer: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What was found in a network, and how bad it is.

    Args:
        model: Name of the task.
        findings: Everything that was found, alarms first.
        checks: Everything that was looked for.

    Example:
        >>> Verdict("mlp", (Finding("reader", "exposed", "fc", "reads the input"),)).judgement
        'clean'
    """

    model: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that an honest network does not have."""
        return tuple(found for found in self.findings if found.level != "exposed")

    @property
    def judgement(self) -> Judgement:
        """The worst alarm, or "clean"."""
        levels = {found.level for found in self.alarms}
        if "malicious" in levels:
            return "malicious"
        return "suspicious" if levels else "clean"

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against computing an update."""
        return not self.alarms
