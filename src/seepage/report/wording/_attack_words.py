"""Sentences on attacks: what theory allows, how hard they looked, and what controls found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from seepage.audit._record import Record
from seepage.audit._words import count_noun, defense_words, list_words, short_names
from seepage.audit.results._effort_curve import EffortCurve
from seepage.report.wording._kinds import Kind, Template, fill

if TYPE_CHECKING:
    from seepage.report._headroom import Headroom


def _say_limit(*, settled: bool, **numbers: object) -> str:
    settles = (
        " That settles the verdict, whatever the controls found and however long an attack "
        "searches: it is the theorem of IdentificationLimit, the blow-up of two Gaussians (Hayes "
        "et al., 2023)."
    )
    return fill(
        "Theory: behind {setup} no attack on one update, known or not, puts a person first among "
        "{strangers:stranger} in more than {chance:percent} of all cases; luck does in "
        "{luck:percent}.",
        **numbers,
    ) + (settles * settled)


def _say_bound_beaten(*, headroom: Headroom, ratio: float, **numbers: object) -> str:
    cause = "the bound or the attack has a bug"
    if headroom.middle.covers_every_attack:
        cause = (
            "do not rely on this ceiling. These inputs are easier to guess than the bound assumes, "
            f"or {cause}"
        )
    return fill(
        "CONTRADICTION: {attack} came {closer:.3g} times closer than {headroom.bound} allows on "
        "{headroom.scene.model} behind {defense} (at most {headroom.middle.ceiling:dB}), over "
        "{cases:case}: {cause}.",
        headroom=headroom,
        closer=1 / ratio,
        defense=defense_words(headroom.scene.setup.defense),
        cause=cause,
        **numbers,
    )


def _say_standing(template: str) -> Callable[..., str]:
    """Word how attacks stand to a bound, and of how many people it says nothing."""

    def say(*, silent: int, **numbers: object) -> str:
        return fill(template, **numbers) + (f"; says nothing of {silent}" if silent else "")

    return say


def _say_effort(*, rising: int, total: int, most: tuple[str, EffortCurve] | None) -> str:
    told = f"Effort: {rising} of {count_noun(total, 'curve')} may still rise"
    if most is None:
        return f"{told}: doubling the steps gains little."
    return f"{told}. With {most[0]}, {curve_words(most[1])}."


def curve_words(curve: EffortCurve) -> str:
    """The end of a curve of effort, without a full stop."""
    (fewer, _), (more, _) = curve.medians[-2:]
    gain = curve.gain
    state = "may still rise" if curve.rising else "has reached a plateau"
    return (
        f"{curve.attack.name} {state}: from {fewer:,} to {more:,} steps, doubling them gains "
        f"{gain.middle:+.1f} dB ({gain.low:+.1f} to {gain.high:+.1f})"
    )


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


_CANARIES = "people whom the audit had chosen itself"


def _say_control_found(
    *, hits: int, tested: int, by_search: bool, by_form: bool, useless: bool, readable: bool
) -> str:
    how = "a closed form" if by_form else "the search alone" if by_search else "the attack"
    told = f"Positive control: without a defense {how} found {hits} of {tested} {_CANARIES}"
    if not useless:
        return f"{told}."
    if not readable:
        return f"{told}, but behind the defense it has no gradient to read."
    return f"{told}, but it does not explain the updates that were attacked."


def _say_control_missed(few: str) -> Callable[..., str]:
    """Word a control that found hardly anybody."""

    def say(*, hits: int, tested: int, alone: bool, finds_people: bool) -> str:
        never = "even without a defense" if hits else "not even without a defense"
        besides = "though it found others" if finds_people else never
        found = few.format(hits=hits, tested=tested) + " by the search alone" * alone
        return f"Positive control: {found}, {besides}."

    return say


def _say_negative_control(*, hits: int, tested: int, luck: float, misleading: Sequence[str]) -> str:
    told = (
        f"Negative control: in guesses made from other updates, {hits} of {tested} people were "
        f"found, where luck finds {luck:.2g}."
    )
    names = list_words(misleading)
    return f"{told} With {names} that is more than luck explains." if names else told


ATTACKS: Mapping[Kind, Template] = {
    Kind.limit: _say_limit,
    Kind.no_limit: "Theory sets no limit behind {setups:or}: nothing bounds how far one person can "
    "move the update. Clip each example before the noise, as dp_sgd does, or the whole update.",
    Kind.limit_beaten: "CONTRADICTION: {attack} identified {hits} of {people} people on {model} "
    "behind {setup}, where any attack identifies {chance:percent} at most: the defense does not do "
    "what it says, or the attack has a bug.",
    Kind.bound_beaten: _say_bound_beaten,
    Kind.bound_on_people: "no attack identifies more than {share:percent} of people",
    Kind.bound_silent: "says nothing",
    Kind.bound_contradicted: _say_standing("BEATEN: one of the two has a bug"),
    Kind.bound_without_attack: _say_standing("no attack to compare with"),
    Kind.bound_holds: _say_standing("holds for {tried:person/people}, {gap:.1f} dB above"),
    Kind.bound_looser_than_guess: _say_standing(
        "a guess without any update is closer, for {passed} of {tried}"
    ),
    Kind.bound_passed_by_luck: _say_standing(
        "closer for {passed} of {tried}, no more than luck explains"
    ),
    Kind.bound_passed_by_bias: _say_standing(
        "closer for {passed} of {tried}, by bias or luck: the bound covers unbiased attacks only"
    ),
    Kind.bound_passed_by_prior: _say_standing(
        "closer for {passed} of {tried}, by what the bound leaves out: a prior, or luck"
    ),
    Kind.effort: _say_effort,
    Kind.control_without_result: "Positive control: it gave no result.",
    Kind.control_found: _say_control_found,
    Kind.control_found_few: _say_control_missed(
        f"only {{hits}} of {{tested}} {_CANARIES} were found"
    ),
    Kind.control_found_nobody: _say_control_missed(f"{_CANARIES} were not singled out"),
    Kind.negative_control: _say_negative_control,
    Kind.masked: "Masked: behind {setups}, searches that ignore the defense recovered more in "
    "rehearsal than those that simulate it. It misleads the search more than it hides the data.",
    Kind.rehearsal_rising: "With {setups}, more steps still recovered more in rehearsal; a higher "
    "effort may find more.",
    Kind.made_up: "Rehearsals used made-up inputs, since no public ones were given.",
}
