"""What attacks and bounds share of all that decides them: who shares what, and the client's key."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims
from seepage.clients import Client
from seepage.core import Rng, Task
from seepage.core.digest import digest, lasting
from seepage.core.version import __version__


def standing(task: Task, client: Client, victims: Victims | Strangers) -> dict[str, str]:
    """Who shares what, by name, as words."""
    return {
        "seepage": __version__,
        "data": victims.data,
        "people": str(victims.people),
        "inputs": victims.digest,
        "model": f"{task.name}, mode={task.mode!r}",
        "domain": repr(task.domain),
        "weights": task.digest,
        "local": repr(client.local),
        "defense": repr(client.defense),
        # Results of audits in which all clients drew the same noise are not taken over.
        "keys": "one per client",
    }


def client_key(seed: int, client: Client, victims: Victims) -> Rng:
    """Return the key of everything that a simulated client draws.

    It is computed from the private data, which makes it reproducible for whoever has the data and
    out of reach for an attack, which has not. Every client has another key, and so has every
    defense of the same client: otherwise the difference of two updates is free of noise. The attack
    does not count, so that all attacks see the same update.

    Args:
        seed: Of the case.
        client: Who shares, and behind which defense.
        victims: Whose data is private.
    """
    return Rng(seed).fork("client", victims.secret, lasting(client.chain))


def hash_of(identity: Mapping[str, str]) -> str:
    """Equal for equal identities in every process and on every machine."""
    return digest(json.dumps(identity))


def named(victims: Victims | Strangers) -> str:
    """Whose data it is, for one line."""
    return f"{victims.data} #{', '.join(map(str, victims.people))}"
