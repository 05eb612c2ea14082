"""Attack several observations, by any attack."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.core import Attack, Observation, Reconstruction, Rng, SideBySide
from seepage.core.errors import SeepageError


def attack_many(
    attack: Attack, observations: Sequence[Observation], *, rngs: Sequence[Rng]
) -> list[Reconstruction | SeepageError]:
    """Attack observations side by side if the attack can, else one after the other.

    Clients whose mixing is simulated are attacked one by one, since each mixes in its own way.

    Args:
        attack: The attack.
        observations: They have the same batch size, task, client and threat.
        rngs: One key for each observation.

    Returns:
        One reconstruction for each observation, or the error that says why it cannot be attacked.
    """
    alike = len(observations) > 1 and all(seen.simulate.mixing is None for seen in observations)
    if alike and isinstance(attack, SideBySide):
        return list(attack.many(observations, rngs=rngs))
    found: list[Reconstruction | SeepageError] = []
    for observation, rng in zip(observations, rngs, strict=True):
        try:
            found.append(attack(observation, rng=rng))
        except SeepageError as error:
            found.append(error)
    return found


def attack_one(attack: SideBySide, observation: Observation, *, rng: Rng) -> Reconstruction:
    """Attack one observation by an attack on several, and raise what it cannot."""
    (found,) = attack.many((observation,), rngs=(rng,))
    if isinstance(found, SeepageError):
        raise found
    return found
