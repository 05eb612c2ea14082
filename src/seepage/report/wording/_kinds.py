"""What a finding is about, and how a template is filled with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum, auto
from string import Formatter
from typing import Any

from seepage.audit._words import count_noun, decibels, list_words, percent, residual_words

# The words of a kind: a template for `fill`, or a function of the numbers.
Template = str | Callable[..., str]


class Kind(StrEnum):
    """What a finding is about."""

    # Of an audit without a result.
    no_result_yet = auto()
    every_case_failed = auto()
    nothing_measured = auto()
    nothing_applies = auto()
    # Of people, the headline.
    identified = auto()
    not_identified = auto()
    inconclusive = auto()
    words_leaked = auto()
    # Of people, further.
    worst_off = auto()
    counting = auto()
    repeated = auto()
    outdone = auto()
    scarce = auto()
    unsimulated = auto()
    population = auto()
    identified_by_setup = auto()
    identified_behind = auto()
    settled_behind = auto()
    held_behind = auto()
    inconclusive_behind = auto()
    parts_behind = auto()
    nothing_holds = auto()
    no_result = auto()
    more_without_result = auto()
    certain_words = auto()
    # Of theory.
    limit = auto()
    no_limit = auto()
    limit_beaten = auto()
    bound_beaten = auto()
    bound_on_people = auto()
    bound_silent = auto()
    bound_contradicted = auto()
    bound_without_attack = auto()
    bound_holds = auto()
    bound_looser_than_guess = auto()
    bound_passed_by_luck = auto()
    bound_passed_by_bias = auto()
    bound_passed_by_prior = auto()
    # Of how hard the attacks looked.
    effort = auto()
    control_without_result = auto()
    control_found = auto()
    control_found_few = auto()
    control_found_nobody = auto()
    negative_control = auto()
    masked = auto()
    rehearsal_rising = auto()
    made_up = auto()
    # Of captured updates without a known truth.
    nothing_assumed = auto()
    assumed = auto()
    words_proved = auto()
    layer_read = auto()
    proved = auto()
    explained = auto()
    not_proved = auto()
    layers_read = auto()
    updates_proved = auto()
    updates_explained = auto()
    updates_not_proved = auto()
    read_off_embeddings = auto()
    not_checked = auto()
    layer_solved = auto()
    residual = auto()
    no_proof_of_nothing = auto()
    # Of two audits.
    nothing_changed = auto()
    noise_only = auto()
    less_leaks = auto()
    more_leaks = auto()
    within_noise = auto()
    most_changed = auto()
    compared = auto()


class Cause(StrEnum):
    """Why it is inconclusive that no one was found; galleries have their own names."""

    unsimulated = auto()
    exact_alone = auto()
    exact_fits_others = auto()
    few_of_the_label = "few of the label"
    synthetic = "synthetic"
    one_shade = "one shade"
    close_call = auto()
    foreign = auto()
    no_control = auto()
    cut = auto()
    misled = auto()
    more_steps = auto()
    few_canaries = auto()
    too_weak = auto()


def fill(template: str, **numbers: object) -> str:
    """Fill a template as `str.format` does, and word what is no plain number.

    Example:
        >>> fill("{hits:person/people} behind {setups:or}", hits=2, setups=["noise", "pruning"])
        '2 people behind noise or pruning'
        >>> fill("{share:percent}, {best:dB}", share=0.105, best=31.25)
        '10.5 %, 31.2 dB'
    """
    return _WORDS.vformat(template, (), numbers)


class _Words(Formatter):
    def format_field(self, value: Any, spec: str) -> str:  # noqa: ANN401
        if isinstance(value, list | tuple):
            return list_words(value, spec or "and")
        if spec in _UNITS:
            return _UNITS[spec](value)
        if isinstance(value, int) and spec[:1].isalpha():
            return count_noun(value, *spec.split("/"))
        return format(value, spec)


def _say_length(residual: float) -> str:
    return f"{residual_words(residual)} {'of' if residual < 1 else 'times'} its length"


_WORDS = _Words()
_UNITS: Mapping[str, Callable[[float], str]] = {
    "percent": percent,
    "dB": decibels,
    "length": _say_length,
}
