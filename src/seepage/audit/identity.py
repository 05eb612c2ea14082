"""Where a cell of the grid stands: what attacks and bounds share of all that decides them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims
from seepage.clients import Client
from seepage.core import Task
from seepage.core.digest import digest
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
    }


def hash_of(identity: Mapping[str, str]) -> str:
    """Equal for equal identities in every process and on every machine."""
    return digest(json.dumps(identity))


def named(victims: Victims | Strangers) -> str:
    """Whose data it is, for one line."""
    return f"{victims.data} #{', '.join(map(str, victims.people))}"
