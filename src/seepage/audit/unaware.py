"""Who attacks a client: an adversary who knows its defense does not have to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from seepage.attacks.adaptive import adaptive, unadapted
from seepage.clients import Client
from seepage.core import Attack
from seepage.core.digest import lasting
from seepage.defenses import chain
from seepage.threats import Threat

Adversary = tuple[Threat, str, Attack]
# What the name of an attack begins with that was adapted, and is run without.
UNAWARE = "unaware "


def adversaries(
    threats: Sequence[Threat], attacks: Mapping[str, Attack], client: Client
) -> list[Adversary]:
    """Every threat with every attack, and each adapted one unaware of the defense as well.

    Adapting brings back more on average, not of everybody, and without the truth nobody can say of
    whom. The unaware attack is open to the adversary all the same, and what a defense lets through
    is the lowest error over attacks. So it is in the set, and knowing the defense can add to what
    is reported but not take away from it.

    Args:
        threats: What the adversary may know.
        attacks: By the name that records use.
        client: Whose defense it is.

    References:
        Liu et al., 2024, Eq. 3 (liu2024systematic)
    """
    listed = [
        (threat, name, attack) for threat, (name, attack) in product(threats, attacks.items())
    ]
    if client.chain == chain():
        return listed
    names = {lasting(attack): name for name, attack in attacks.items()}
    every = {(threat, name): (threat, name, attack) for threat, name, attack in listed}
    for threat, name, attack in listed:
        unaware, plain = threat.unaware(), unadapted(attack)
        # Where the threat withholds the defense, an adapted attack is already the plain one, unless
        # it is adapted to one defense alone and refuses.
        already = unaware in threats and attack == adaptive(plain)
        if plain is not attack and not already:
            called = names.setdefault(lasting(plain), UNAWARE + name)
            every[unaware, called] = unaware, called, plain
    return list(every.values())
