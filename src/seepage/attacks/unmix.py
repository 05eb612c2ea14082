"""Solve for private inputs, given mixtures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.certificate import EXPLAINED, residual
from seepage.attacks.lost_signs import agree_with_neighbours, choose_patterns, retrieve_signs
from seepage.core import Attack, Mixing, Observation, Reconstruction, Rng
from seepage.core.errors import InvalidValue, NotApplicable, SeepageError
from seepage.search.many import attack_many

# Patterns of signs that one round is searched for are compared pair by pair.
MOST_SIGNS = 7


def unmix(
    encodings: Tensor,
    mixing: Mixing,
    *,
    rng: Rng,
    restarts: int = 20,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """The private inputs whose mixtures come nearest to these encodings.

        min_x ||W x - e||^2,   or   min_x || |W (x - c)| - |e - c| ||^2   where signs were flipped

    Without flipped signs this is linear least squares. With them, magnitudes determine every entry
    only up to one mirroring at c for all inputs together; neighbouring entries are mirrored to
    agree, and the whole so that it looks like photographs rather than their negatives. Encodings of
    several rounds determine the rest: `torch.cat` them, and the coefficients. Those of one round
    leave up to 2^(B-1) solutions for every entry, of which the range and the neighbours leave one
    where inputs are smooth; that is exact encodings' privilege, since errors grow with the
    condition of W.

    Args:
        encodings: `(E, ...)`, in natural units.
        mixing: How they were made, with coefficients `(E, B)`.
        rng: Where the searches for signs start.
        restarts: How many searches for signs there are; the best is kept entry by entry.
        bounds: The range of inputs, by which those of one round are judged.

    Returns:
        Inputs `(B, ...)`, in natural units.

    Example:
        >>> from seepage.core import rng
        >>> halves = Mixing(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        >>> solved = unmix(torch.tensor([[0.5], [0.75]]), halves, rng=rng(0))
        >>> torch.allclose(solved, torch.tensor([[0.0], [1.0]]), atol=1e-6)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating); Carlini et al., 2021
        (carlini2021private) for the magnitudes
    """
    weights = mixing.coefficients.double()
    if len(weights) != len(encodings):
        raise InvalidValue(
            f"expected one row of coefficients per encoding, got {len(weights)} rows and "
            f"{len(encodings)} encodings"
        )
    flat = encodings.flatten(1).double()
    if mixing.flipped_about is None:
        solved: Tensor = torch.linalg.pinv(weights) @ flat
        return solved.reshape(-1, *encodings.shape[1:]).to(encodings)
    centre, (seen, sought) = mixing.flipped_about, weights.shape
    if not _can_unmix(mixing):
        raise NotApplicable(
            f"expected more encodings than inputs, since their signs are lost, or as many of "
            f"{MOST_SIGNS} at most, got {seen} for {sought}; add those of other rounds"
        )
    magnitudes = (flat - centre).abs()
    if seen > sought:
        centred = retrieve_signs(magnitudes, weights, restarts=restarts, rng=rng)
    else:
        low, high = (bound - centre for bound in bounds)
        shaped = magnitudes.reshape(encodings.shape)
        centred = choose_patterns(shaped, weights, low=low, high=high)
    agreed = agree_with_neighbours(centred.reshape(-1, *encodings.shape[1:]))
    return (centre + agreed).to(encodings)


def _can_unmix(mixing: Mixing) -> bool:
    """Whether there are more encodings than inputs, or as many and few enough to try all signs."""
    seen, sought = mixing.coefficients.shape
    return seen > sought or seen == sought <= MOST_SIGNS


@dataclass(frozen=True)
class Unmixed:
    """Find InstaHide's encodings, then the private inputs that were mixed into them.

    Encodings are unmixed where mixing and labels are known, signs were flipped, one round is enough
    (see `unmix`), and the encodings explain the update: errors grow with the condition of the
    mixing, so that others resemble the inputs more as they stand. Everything else is left as it
    is. The labels say which encoding is which row of the mixing.

    Args:
        attack: What finds the encodings.

    Example:
        >>> import seepage as sp
        >>> photos, task = sp.data.bundled("photos", size=4), sp.zoo.mlp(hidden=(64,))
        >>> client = sp.Client(sp.Gradient(), sp.InstaHide(4))
        >>> seen = sp.Threat.strongest().observe(client, task, photos, rng=sp.rng(0))
        >>> guess = Unmixed(sp.attacks.exact_batch())(seen, rng=sp.rng(1))
        >>> bool(sp.score(guess, photos)["psnr"].min() > 28)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """

    attack: Attack

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack, and unmix what explains the update."""
        return _unmix_guess(self.attack(observation, rng=rng), observation, rng=rng)

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction | SeepageError]:
        """Attack side by side if the attack can, and unmix each guess."""
        guesses = attack_many(self.attack, observations, rngs=rngs)
        return [
            guess if isinstance(guess, SeepageError) else _unmix_guess(guess, seen, rng=key)
            for guess, seen, key in zip(guesses, observations, rngs, strict=True)
        ]


def _unmix_guess(guess: Reconstruction, observation: Observation, *, rng: Rng) -> Reconstruction:
    """The inputs in the encodings, or the guess as it is."""
    mixing, known = observation.mixing, observation.labels
    if mixing is None or mixing.flipped_about is None or known is None or not _can_unmix(mixing):
        return guess
    found = known if guess.labels is None else guess.labels
    if found.shape != known.shape or residual(observation, guess.inputs, found) > EXPLAINED:
        return guess
    domain, encodings = observation.task.domain, guess.inputs[_order(found, known)]
    inputs = unmix(encodings, mixing, rng=rng.fork("signs"), bounds=domain.bounds)
    inverse = torch.linalg.pinv(mixing.coefficients.to(known))
    labels = (inverse @ known).argmax(1)
    return replace(guess, inputs=domain.project(inputs), labels=labels, certificate=None)


def _order(found: Tensor, known: Tensor) -> Tensor:
    """Which of the found each of the known labels belongs to."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(known.double(), found.to(known).double()).cpu().numpy()
    return torch.as_tensor(linear_sum_assignment(distances)[1], device=found.device)
