"""How hard an audit looked, and whether more steps of a search would still find more, in words."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit.record import Record
from seepage.audit.results.effort_curve import EffortCurve
from seepage.audit.words import count_noun, label_setups, list_words, short_names


def curve_words(curve: EffortCurve) -> str:
    """One sentence about the end of a curve."""
    (fewer, _), (more, _) = curve.medians[-2:]
    gain = curve.gain
    state = "may still rise" if curve.rising else "has reached a plateau"
    return (
        f"{curve.attack.name} {state}: from {fewer:,} to {more:,} steps, doubling them gains "
        f"{gain.middle:+.1f} dB ({gain.low:+.1f} to {gain.high:+.1f})"
    )


def tell_effort(curves: Sequence[EffortCurve]) -> list[str]:
    """Whether more steps would find more, of attacks that ran with several numbers of steps."""
    rising = sorted((c for c in curves if c.rising), key=lambda c: -c.gain.high)
    labels = label_setups(curve.setup for curve in curves)
    told = f"Effort: {len(rising)} of {count_noun(len(curves), 'curve')} may still rise"
    if rising:
        return [f"{told}. With {labels[rising[0].setup]}, {curve_words(rising[0])}."]
    return [f"{told}: doubling the steps gains little."] if curves else []


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
