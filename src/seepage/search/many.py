"""Several updates at once, by any attack."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.core import Attack, Observation, Reconstruction, Rng, SideBySide
from seepage.threats import Simulation


def each(
    attack: Attack, observations: Sequence[Observation], *, rngs: Sequence[Rng]
) -> list[Reconstruction]:
    """Attack side by side where the attack can, else one after the other.

    A client whose mixing is simulated mixes in its own way, and none is alike.

    Args:
        attack: What attacks.
        observations: Of equal batch size, made with the same task, client and threat.
        rngs: One key for each.
    """
    alike = len(observations) > 1 and not any(map(mixes, observations))
    if alike and isinstance(attack, SideBySide):
        return attack.many(observations, rngs=rngs)
    return [attack(seen, rng=key) for seen, key in zip(observations, rngs, strict=True)]


def mixes(observation: Observation) -> bool:
    """Whether the adversary mixes its candidates, as the client did its inputs.

    Where signs were flipped it searches for the encodings, which are not mixed again.
    """
    simulation = observation.simulate
    if isinstance(simulation, Simulation):
        return simulation.mixing is not None
    return observation.mixing is not None
