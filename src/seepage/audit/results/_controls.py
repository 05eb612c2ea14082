"""How the controls of each attack went, read off their records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from seepage.attacks._agreement import EXPLAINED
from seepage.audit._record import Control, Record
from seepage.audit.results._columns import read_columns
from seepage.core._grouping import group_by
from seepage.defenses._recorded import only_scales

# What a closed form that fails leaves of the update, at least.
_FAILED = 0.1
# What an attack and its control share: everything but the defense, the people and the seed.
_SHARED = read_columns("data", "batch_size", "model", "local", "method", "knowledge")


def join_controls(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the records of attacks on people, each with how the controls of its attack went."""
    records = tuple(records)
    controls = group_by((r for r in records if r.control_kind and r.error is None), _SHARED)
    people = [record for record in records if not record.control_kind]
    if not controls:
        return tuple(people)
    return tuple(replace(r, control=_join(r, controls.get(_SHARED(r), ()))) for r in people)


def _join(record: Record, controls: Sequence[Record]) -> Control | None:
    if not controls:
        return None
    bare = [c for c in controls if c.control_kind == "canary" and not c.defense]
    found = [c for c in bare if _vouches_for(c, record)]
    alone = [c for c in controls if c.control_kind == "search" and _vouches_for(c, record)]
    same = [c for c in controls if c.defense == record.defense]
    canaries = [c for c in same if c.control_kind == "canary"]
    tried = [one for c in same for one in c.negatives]
    hits = sum(one.singled_out for one in tried)
    return Control(
        bare=_count(found or alone or bare),
        defended=_count(canaries) if record.defense else None,
        negative=(hits, len(tried), sum(1 / (one.strangers + 1) for one in tried)),
        labels=tuple(
            (c.label_chance, right == 1)
            for c in canaries
            if c.label_chance is not None
            for right in c.scores.get("label_accuracy", ())
            if right is not None
        ),
        columns=tuple(c.columns for c in canaries if c.columns),
        relevant=bool(found or alone) or not bare,
        searched=bool(alone) and not found,
    )


def _vouches_for(control: Record, record: Record) -> bool:
    """Whether what found a canary was tried on this update too, and can read it.

    Behind a defense a closed form may not apply, or compute from what is no gradient any more. A
    canary that it found then says nothing of this update, least of all of the search that is left.
    Nor does it if the closed form fails here by its own account: it leaves more of this update
    than of the canary's, though the defense only scales.
    """
    race, other = control.race, record.race
    if control.effort.get("simulates"):
        # What won a race is no weaker than the searches in it.
        raced = other is not None and any(trial.steps for trial in other.trials)
        return raced or bool(record.effort.get("simulates"))
    if record.defense and not record.readable:
        return False
    scaled = all(map(only_scales, record.defense))
    limit = EXPLAINED if control.residual <= EXPLAINED else _FAILED
    if scaled and control.certificate is not None and record.residual > limit:
        return False
    if race is None or other is None:
        return True
    tried = {*other.chosen, *(trial.attack for trial in other.trials)}
    return bool(tried & {*race.chosen})


def _count(controls: Sequence[Record]) -> tuple[int, int, float] | None:
    """Count identified canaries and canaries, with the chance of one by luck, for the best attack.

    None if no canary could be looked for.
    """
    counts = []
    for group in group_by(controls, read_columns("attack", "threat")).values():
        found = [one for control in group for one in control.identification]
        if found:
            luck = max(1 / (one.strangers + 1) for one in found)
            counts.append((sum(one.singled_out for one in found), len(found), luck))
    return max(counts, default=None)
