"""Any attack that simulates the client, adapted to the client's defense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from seepage.attacks.inverters import read_code, read_columns, read_mixtures, read_noise
from seepage.attacks.unmix import Unmixed
from seepage.core import Attack, Observation, Protection, Reconstruction, Rng
from seepage.core.errors import MissingKnowledge, NotApplicable, SeepageError
from seepage.defenses import (
    AddGaussian,
    AddLaplace,
    Dropout,
    InstaHide,
    Precode,
    Prune,
    Sign,
    Soteria,
    TopK,
    chain,
)
from seepage.search.defense_inversion import AttackPlan, read_signs, read_survivors
from seepage.search.many import attack_many

INVERTERS: Mapping[type, Callable[[Any, AttackPlan], AttackPlan]] = MappingProxyType(
    {
        AddGaussian: read_noise,
        AddLaplace: read_noise,
        Dropout: read_survivors,
        InstaHide: read_mixtures,
        Precode: read_code,
        Prune: read_survivors,
        Sign: read_signs,
        Soteria: read_columns,
        TopK: read_survivors,
    }
)
"""What inverts each class of defense. The others need no inverter: either the simulation covers
them already (clipping, MixUp with known mixing, sums over clients), or simulating them recovered
less (rounding, OASIS's rotations)."""


def adapt_to_defense(attack: Attack, observation: Observation) -> AttackPlan:
    """Plan an attack with everything about the defense that can be read off the update."""
    plan = AttackPlan(attack, observation)
    if observation.simulate.client is None:
        return plan
    # Start with the last link: earlier links can only be read once its effect is known.
    for link in reversed(plan.defense.links):
        if type(link) in INVERTERS:
            plan = INVERTERS[type(link)](link, plan)
    return plan


@dataclass(frozen=True)
class Adaptive:
    """Read off the update what the client did with its defense, then attack with that simulated.

    Attacks that never simulate the client, such as the closed form, are left as they are, and so
    is every attack where the threat withholds the defense.

    Args:
        attack: What attacks.
        defense: What it is adapted to, and to no other; None adapts it to whatever the threat
            reveals.
    """

    attack: Attack
    defense: Protection | None = None

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Adapt the simulation, and attack."""
        plan = self._plan(observation)
        return plan.attack(plan.observation, rng=rng)

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction | SeepageError]:
        """Adapt to each, and attack side by side those that are then attacked alike."""
        plans = [self._plan(observation) for observation in observations]
        found: dict[int, Reconstruction | SeepageError] = {}
        for attack in {id(plan.attack): plan.attack for plan in plans}.values():
            places = [i for i, p in enumerate(plans) if i not in found and p.attack == attack]
            chosen, keys = [plans[i].observation for i in places], [rngs[i] for i in places]
            found |= zip(places, attack_many(attack, chosen, rngs=keys), strict=True)
        return [found[i] for i in range(len(plans))]

    def _plan(self, observation: Observation) -> AttackPlan:
        if self.defense is not None:
            self._require(self.defense, observation)
        return adapt_to_defense(self.attack, observation)

    def _require(self, defense: Protection, observation: Observation) -> None:
        client = observation.simulate.client
        known = chain() if client is None else client.chain
        if chain(known) == chain(defense):
            return
        if known == chain():
            raise MissingKnowledge(
                "defense",
                needed_by=f"an attack adapted to {defense}",
                hint="use Threat(knows_defense=True), or the attack as it is",
            )
        raise NotApplicable(
            f"expected a client behind {defense}, which the attack is adapted to, got one behind "
            f"{chain(known)}; adapt it to that, or to whatever the threat reveals"
        )


def adaptive(attack: Attack, defense: Protection | None = None) -> Attack:
    """The attack of an adversary who knows the defense and adapts to it.

    A threat with `knows_defense` has every attack simulate the deterministic part of the defense.
    Random or data-dependent choices of the defense can often be read off the update itself:
    `INVERTERS` has a function for each such defense. An inverter can be wrong about some inputs,
    and without the truth nobody knows which guess is nearer. So an audit also runs the attack
    without knowledge of the defense: knowing it never lowers the leakage that is reported.

    Args:
        attack: The attack. One that never simulates the client is left as it is. In an attack
            that unmixes, the search for the encodings is adapted.
        defense: What it is adapted to, and to no other; None adapts it to whatever the threat
            reveals.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.cnn(variant="cnn2-v2")
        >>> client = sp.Client(sp.Gradient(), sp.Dropout(0.7))
        >>> seen = sp.Threat(knows_labels=True).observe(client, task, photo, rng=sp.rng(0))
        >>> search = sp.attacks.inverting_gradients(steps=2, restarts=1)
        >>> tuple(adaptive(search, sp.Dropout(0.7))(seen, rng=sp.rng(1)).inputs.shape)
        (1, 3, 32, 32)
        >>> adaptive(search, sp.Prune(0.9))(seen, rng=sp.rng(1))
        Traceback (most recent call last):
        ...
        seepage.core.errors.NotApplicable: expected a client behind Prune(0.9), which the attack \
is adapted to, got one behind Dropout(0.7); adapt it to that, or to whatever the threat reveals

    References:
        Balunovic et al., 2022 (balunovic2022bayesian) on attacks as inference under the defense;
        Huang et al., 2021 (huang2021evaluating)
    """
    if isinstance(attack, Unmixed):
        return replace(attack, attack=adaptive(attack.attack, defense))
    return Adaptive(attack, defense)


Value = TypeVar("Value")


def without_adaptation(attack: Value) -> Value:
    """Remove every `Adaptive` from an attack, however deep inside; itself if there is none.

    Example:
        >>> import seepage as sp
        >>> search = sp.attacks.dlg(iterations=1)
        >>> knowing = sp.attacks.Unmixed(sp.attacks.adaptive(search, sp.Prune(0.9)))
        >>> without_adaptation(knowing) == sp.attacks.Unmixed(search)
        True
        >>> without_adaptation(search) is search
        True
    """
    if isinstance(attack, Adaptive):
        return without_adaptation(attack.attack)  # type: ignore[return-value]
    if not is_dataclass(attack) or isinstance(attack, type):
        return attack
    held = {field.name: getattr(attack, field.name) for field in fields(attack) if field.init}
    bare = {name: without_adaptation(value) for name, value in held.items()}
    changed = {name: value for name, value in bare.items() if value is not held[name]}
    return replace(attack, **changed) if changed else attack
