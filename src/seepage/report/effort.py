"""How hard an audit looked, in words."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit.record import Record
from seepage.audit.words import count_noun, list_words, short_names


def describe_effort(records: Sequence[Record]) -> str:
    """Attacks, cases, steps and time of these records, in words."""
    done = [record for record in records if record.error is None]
    attacks = short_names(record.attack for record in records)
    steps = sum(int(r.effort.get("steps", 0)) * int(r.effort.get("restarts", 0)) for r in done)
    hours = _duration(sum(float(record.effort.get("seconds", 0)) for record in done))
    devices = list_words(list(dict.fromkeys(str(r.effort.get("device")) for r in done)))
    searched = f", {steps:,} search steps" if steps else ""
    return (
        f"{list_words(list(attacks.values()))}: {count_noun(len(done), 'case')}{searched}, {hours} "
        f"on {devices}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
