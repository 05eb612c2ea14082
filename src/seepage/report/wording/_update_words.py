"""Sentences on captured updates whose truth is not known, and on what changed between audits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from seepage.audit._words import UNSIMULATED, count_noun, decibels
from seepage.core._reconstruction import Proof
from seepage.report.wording._kinds import Kind, Template, fill

if TYPE_CHECKING:
    from seepage.report._change import Change


def proof_words(certificate: Proof) -> str:
    """What a proof says of a guess. Tokens are the same or not, so theirs has no error.

    Example:
        >>> proof_words({"unique": True, "error": 1e-5})
        'right to 8 bits'
        >>> proof_words({"unique": True, "error": None})
        'right in every token'
    """
    return (
        "right to 8 bits" if certificate.get("error", 0.0) is not None else "right in every token"
    )


def _say_guess(template: str) -> Callable[..., str]:
    """Word what is known of captured updates, and whether the defense could be simulated."""

    def say(*, unsimulated: bool, **numbers: object) -> str:
        return fill(template, **numbers) + f"; {UNSIMULATED}" * unsimulated

    return say


def _say_updates_proved(*, proved: int, explained: int, **numbers: object) -> str:
    more = f"; a guess explains {explained}" if explained > proved else ""
    said = "The {noun} of {proved} of {updates:update} came back, proved {proofs}"
    return _say_guess(said + more)(proved=proved, **numbers)


_SHIFT = (
    "with {where}, {before} of {people} identified before and {now} now ({gained.middle:+.1f} dB, "
    "interval {gained.low:+.1f} to {gained.high:+.1f})"
)


def _say_direction(way: str) -> Callable[..., str]:
    def say(*, more: int, **shift: object) -> str:
        also = f", and {count_noun(more, 'setup')} more" if more else ""
        return fill(f"{way} leaks than before: {_SHIFT}", **shift) + also

    return say


def _say_most_changed(*, change: Change, where: str) -> str:
    sides = [
        f"{row.level} {when} ({decibels(row.psnr)})"
        for row, when in ((change.before, "before"), (change.after, "now"))
        if row is not None
    ]
    return f"Most: {change.name} with {where}, {' and '.join(sides)}."


def _say_compared(*, alone: int, **numbers: int) -> str:
    same = numbers["people"] - numbers["worse"] - numbers["better"]
    return fill(
        "Compared: {people:person/people} of {setups:setup} ({worse} worse, {better} better, "
        "{same} within {noticed:g} dB)",
        same=same,
        **numbers,
    ) + (f"; {alone} are in one audit only." if alone else ".")


UPDATES: Mapping[Kind, Template] = {
    Kind.no_result_yet: "There is no result yet",
    Kind.every_case_failed: "Every case failed: {reason}",
    Kind.nothing_measured: "Nothing was measured: {reason}",
    Kind.nothing_applies: "Nothing was measured, since no attack applies: {reason}",
    Kind.nothing_assumed: "No defense was assumed behind the {update}; if the client used one, "
    "name it with --defense, so that the attacks allow for it.",
    Kind.assumed: "Assumed behind the {update}, as given: {defenses:or}.",
    Kind.words_proved: _say_guess(
        "{words:different word} of {people:person/people} came back in no order, each proved to be "
        "in the batch"
    ),
    Kind.layer_read: _say_guess(
        "What the first layer read of {sure} of {people:person/people} came back"
    ),
    Kind.proved: _say_guess("The {noun} of {people:person/people} came back, proved {proof}"),
    Kind.explained: _say_guess(
        "What came back explains the update of {people:person/people}; others might as well"
    ),
    Kind.not_proved: _say_guess(
        "Cannot tell what leaked of {people:person/people}: the guesses are not proved right, and "
        "there is no truth to compare with"
    ),
    Kind.layers_read: _say_guess(
        "What the first layer read came back from {read} of {updates:update}"
    ),
    Kind.updates_proved: _say_updates_proved,
    Kind.updates_explained: _say_guess(
        "What came back explains {explained} of {updates:update}; others might as well"
    ),
    Kind.updates_not_proved: _say_guess(
        "Cannot tell what leaked from {updates:update}: no guess is proved right, and there is no "
        "truth to compare with"
    ),
    Kind.read_off_embeddings: "{attack} read them off the gradient of the embeddings.",
    Kind.not_checked: "The guess of {attack} could not be checked: it comes without labels.",
    Kind.layer_solved: "{attack} solved the equations of that layer, which have no other solution. "
    "The whole update, recomputed at the guess, differs by {residual:length} in some layer, as it "
    "does behind dropout, which cannot be simulated. So labels could not be checked, and if the "
    "client mixed its inputs, these are mixtures.",
    Kind.residual: "The update recomputed at the guess of {attack} differs from the captured one "
    "by {residual:length}, in the layer where it differs most.",
    Kind.no_proof_of_nothing: "That is no proof that nothing leaked: a guess may show a person "
    "without explaining the update to the last digit. Look at the pictures, or give the truth.",
    Kind.nothing_changed: "Nothing changed",
    Kind.noise_only: "Nothing changed beyond noise",
    Kind.less_leaks: _say_direction("Less"),
    Kind.more_leaks: _say_direction("More"),
    Kind.within_noise: f"Within noise: {_SHIFT}.",
    Kind.most_changed: _say_most_changed,
    Kind.compared: _say_compared,
}
