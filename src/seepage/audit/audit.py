"""The grid: every combination of task, client, threat, attack and seed, and the bounds on each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from seepage.audit.bound_case import BoundCase, known
from seepage.audit.case import Case, require_permission
from seepage.audit.execution import AnyCase, Executor, serial, unannounced
from seepage.audit.outcome import Outcome
from seepage.audit.strangers import Strangers
from seepage.audit.unaware import adversaries
from seepage.audit.victims import Victims
from seepage.bounds import Bound
from seepage.clients import Client, Gradient
from seepage.core import Attack, LocalComputation, Metric, Protection, Task
from seepage.defenses import chain
from seepage.threats import Threat


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """What to combine; `run` does it.

    An attack that is adapted to a defense the threat knows is run unaware of it as well, so that
    knowing a defense never lowers the leakage that is reported of it.

    Args:
        tasks: Networks to broadcast.
        attacks: By the name that records use.
        locals: What clients compute.
        defenses: What they do before sharing.
        threats: What the adversary knows.
        metrics: What to measure; None takes all that fit the inputs.
        seeds: Repetitions.
        bounds: What theory is asked about every task and client, by the name that records use;
            once, with the first seed.

    Example:
        >>> import seepage as sp
        >>> from seepage.audit import Audit, victims
        >>> photos = sp.data.load("photos")
        >>> audit = Audit(
        ...     tasks=[sp.zoo.mlp(hidden=(16,), domain=photos.domain)],
        ...     attacks={"analytic_fc": sp.attacks.analytic_fc()},
        ... )
        >>> [outcome] = audit.run(victims(photos, people=1, batch_size=1))
        >>> outcome.record.scores["psnr"][0] > 60
        True
    """

    tasks: Sequence[Task]
    attacks: Mapping[str, Attack]
    locals: Sequence[LocalComputation] = (Gradient(),)
    defenses: Sequence[Protection] = (chain(),)
    threats: Sequence[Threat] = (Threat(knows_labels=True),)
    metrics: Sequence[Metric] | None = None
    seeds: Sequence[int] = (0,)
    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def permitted(self) -> None:
        """Raise `InvalidValue` if an attack plants and one of the threats has an honest server."""
        for threat, (name, attack) in product(self.threats, self.attacks.items()):
            require_permission(name, attack, threat)

    def cases(self, batches: Iterable[Victims | Strangers]) -> list[AnyCase]:
        """List every combination; an impossible client is refused here, before anything runs."""
        clients = [Client(local, defense) for local, defense in product(self.locals, self.defenses)]
        batches = tuple(batches)
        attacks = [
            Case(task, client, threat, attack, name, who, seed, self.metrics)
            for task, client in product(self.tasks, clients)
            for threat, name, attack in adversaries(self.threats, self.attacks, client)
            for who, seed in product(batches, self.seeds)
        ]
        return [*attacks, *self._bounds(clients, batches)]

    def _bounds(
        self, clients: Sequence[Client], batches: Sequence[Victims | Strangers]
    ) -> list[BoundCase]:
        """What theory is asked: once for each mode in which a client runs a network."""
        modes = dict.fromkeys(threat.mode for threat in self.threats)
        grid = product(self.tasks, modes, clients, self.bounds.items(), batches)
        return [
            BoundCase(task.in_mode(mode), client, bound, name, known(who), self.seeds[0])
            for task, mode, client, (name, bound), who in grid
        ]

    def run(
        self, batches: Iterable[Victims | Strangers], *, executor: Executor = serial
    ) -> Iterator[Outcome]:
        """Run every case, yielding outcomes as they come."""
        yield from executor(self.cases(batches), unannounced)
