"""Make one guess of several, without the truth: of several attacks, or of several starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from seepage.attacks._agreement import residual
from seepage.attacks._tableak import align_members
from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.core import AttackWrapper, Observation, Prepared, Reconstruction, Rng

# A guess that leaves this many times as much of the update unexplained only blurs a mean.
_FAR = 4.0


def combine(rule: str, seen: Observation, guesses: Sequence[Reconstruction]) -> Reconstruction:
    """Make one guess of several, without the truth.

    Args:
        rule: "first" takes the first, "residual" the one whose update is nearest to the observed
            one, "mean" the mean of all that explain the update about as well, person by person.
        seen: What was observed.
        guesses: Of the attacks that were chosen, the best first.
    """
    first = guesses[0]
    if rule == "residual":
        return min(guesses, key=lambda guess: _residual(seen, guess))
    if rule != "mean" or len(guesses) < 2:
        return first
    left = [_residual(seen, guess) for guess in guesses]
    near = [guess for guess, one in zip(guesses, left, strict=True) if one <= _FAR * min(left)]
    first = near[0]
    same_shape = [guess for guess in near if guess.inputs.shape == first.inputs.shape]
    if len(same_shape) < 2:
        return first
    rows = torch.stack([guess.inputs.flatten(1) for guess in same_shape])
    anybody = torch.zeros(len(first.inputs), dtype=torch.long)
    ordered = align_members(rows, anybody, reference=0)
    mean = ordered.mean(0).reshape(first.inputs.shape)
    return replace(first, inputs=seen.task.domain.project(mean), certificate=None)


def keep_sure(guess: Reconstruction, solved: Reconstruction) -> Reconstruction | None:
    """Put whole inputs of which a closed form is sure in the places of the nearest guesses.

    Returns:
        The guess with these inputs; None if there are none.
    """
    if solved.confidence is None or solved.inputs.shape[1:] != guess.inputs.shape[1:]:
        return None
    sure = solved.inputs[(solved.confidence >= 1).all(1)][: len(guess.inputs)].to(guess.inputs)
    if not len(sure):
        return None
    places = match_one_to_one(-torch.cdist(sure.flatten(1), guess.inputs.flatten(1)))
    inputs = guess.inputs.index_copy(0, places, sure)
    return replace(guess, inputs=inputs, certificate=None)


@dataclass(frozen=True)
class MeanOfStarts(AttackWrapper):
    """Searches from several starts, and takes the mean of what they end at, person by person."""

    starts: int

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Draw a key for each start."""

        def finish(*guesses: Reconstruction) -> Reconstruction:
            mean = combine("mean", seen, guesses)
            finals = tuple(final for guess in guesses for final in guess.trace.finals)
            return replace(mean, trace=replace(mean.trace, finals=finals))

        keys = tuple(rng.fork("start", number) for number in range(self.starts))
        return Prepared(seen, finish, rngs=keys)


def _residual(seen: Observation, guess: Reconstruction) -> float:
    labels = seen.labels if guess.labels is None else guess.labels
    if labels is None:
        return math.inf
    try:
        return residual(seen, guess.inputs, labels)
    except Exception:  # noqa: BLE001 - a guess that cannot be simulated explains nothing
        return math.inf
