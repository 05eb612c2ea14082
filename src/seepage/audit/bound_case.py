"""A bound as a cell of the grid: what theory allows where attacks show what is reached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seepage.audit.identity import hash_of, named, standing
from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims
from seepage.bounds import Bound
from seepage.clients import Client
from seepage.core import Task
from seepage.core.digest import lasting
from seepage.core.errors import InvalidValue


def known(victims: Victims | Strangers) -> Victims:
    """Raise `InvalidValue` unless the private batch is at hand, where bounds are evaluated."""
    if isinstance(victims, Strangers):
        raise InvalidValue(
            f"a bound is evaluated at the private inputs, which nobody has for {victims.data}; "
            "leave bounds out, or give the truth"
        )
    return victims


@dataclass(frozen=True, eq=False)
class BoundCase:
    """One bound on all attacks on one client's update.

    Args:
        task: What was broadcast, in the mode the client runs it.
        client: Who shares, and behind which defense.
        bound: What is computed.
        name: What records call it.
        victims: Whose data is private.
        seed: Of the directions that some bounds sample.
    """

    task: Task
    client: Client
    bound: Bound
    name: str
    victims: Victims
    seed: int

    @cached_property
    def identity(self) -> dict[str, str]:
        """Everything that decides the result, by name, as words."""
        return {
            **standing(self.task, self.client, self.victims),
            "bound": self.name,
            "options": lasting(self.bound),
            "seed": str(self.seed),
        }

    @cached_property
    def id(self) -> str:
        """A hash of the identity: equal for equal cases in every process and on every machine."""
        return hash_of(self.identity)

    @property
    def alike(self) -> tuple[str, ...]:
        """What cases must share to run together: nothing runs together with a bound."""
        return (self.id,)

    @property
    def description(self) -> str:
        """One line that says more, for plans."""
        return f"{self} ({self.task.name}, {self.client.local}, seed {self.seed})"

    def __str__(self) -> str:
        """One line for progress."""
        return f"bound {self.name} for {named(self.victims)} behind {self.client.defense}"
