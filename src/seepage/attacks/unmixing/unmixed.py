"""Any attack that finds encodings, carried on to the private inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.certify import EXPLAINED, residual
from seepage.attacks.side_by_side import each
from seepage.attacks.unmixing.unmix import enough, unmix
from seepage.core import Attack, Observation, Reconstruction, Rng


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
        return _unmixed(self.attack(observation, rng=rng), observation, rng=rng)

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Attack side by side where the attack can, and unmix each."""
        guesses = each(self.attack, observations, rngs=rngs)
        found = zip(guesses, observations, rngs, strict=True)
        return [_unmixed(guess, seen, rng=key) for guess, seen, key in found]


def _unmixed(guess: Reconstruction, observation: Observation, *, rng: Rng) -> Reconstruction:
    """The inputs in the encodings, or the guess as it is."""
    mixing, known = observation.mixing, observation.labels
    if mixing is None or mixing.flipped_about is None or known is None or not enough(mixing):
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
