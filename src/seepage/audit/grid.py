"""The grid: every combination of task, client, threat, attack and seed, and the bounds on each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean

from seepage.attacks.adaptive import adaptive, without_adaptation
from seepage.audit.case import BoundCase, Case, known, require_permission
from seepage.audit.record import UNAWARE, Outcome, Record
from seepage.audit.run_case import AnyCase, Executor, run_case, serial, unannounced
from seepage.audit.targets import Strangers, Victims
from seepage.bounds import Bound
from seepage.clients import Client, Gradient
from seepage.core import Attack, LocalComputation, Metric, Protection, Task
from seepage.core.construct import Component
from seepage.core.digest import stable_repr
from seepage.core.progress import listen
from seepage.defenses import chain
from seepage.threats import Threat

Name = str | Component
Adversary = tuple[Threat, Name, Attack]


def adversaries(
    threats: Sequence[Threat],
    attacks: Mapping[str, Attack] | Mapping[Component, Attack],
    client: Client,
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
    named: list[tuple[Name, Attack]] = [*attacks.items()]
    listed = [(threat, name, attack) for threat, (name, attack) in product(threats, named)]
    if client.chain == chain():
        return listed
    names = {stable_repr(attack): name for name, attack in named}
    every = {(threat, name): (threat, name, attack) for threat, name, attack in listed}
    for threat, name, attack in listed:
        unaware, plain = threat.unaware(), without_adaptation(attack)
        # Where the threat withholds the defense, an adapted attack is already the plain one, unless
        # it is adapted to one defense alone and refuses.
        already = unaware in threats and attack == adaptive(plain)
        if plain is not attack and not already:
            called = names.setdefault(stable_repr(plain), _name_unaware(name))
            every[unaware, called] = unaware, called, plain
    return list(every.values())


def _name_unaware(name: Name) -> Name:
    if isinstance(name, Component):
        return replace(name, name=UNAWARE + name.name)
    return UNAWARE + name


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
    attacks: Mapping[str, Attack] | Mapping[Component, Attack]
    locals: Sequence[LocalComputation] = (Gradient(),)
    defenses: Sequence[Protection] = (chain(),)
    threats: Sequence[Threat] = (Threat(knows_labels=True),)
    metrics: Sequence[Metric] | None = None
    seeds: Sequence[int] = (0,)
    bounds: Mapping[str, Bound] | Mapping[Component, Bound] = field(default_factory=dict)

    def permitted(self) -> None:
        """Raise `InvalidValue` if an attack plants and one of the threats has an honest server."""
        for name, attack in self.attacks.items():
            for threat in self.threats:
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


STEPS = 3


class _Enough(BaseException):
    """Raised inside an attack that has shown how fast it is; no handler of errors stops it."""


@dataclass
class _Stopwatch:
    """Times the steps of an attack, and stops it."""

    first: tuple[int, float] | None = None
    seconds: float | None = None

    def heard(self, step: int, steps: int, objective: float) -> None:
        del objective
        now = time.perf_counter()
        if self.first is None:
            self.first = step, now
            return
        began, at = self.first
        if step - began >= min(STEPS, steps - began):
            self.seconds = (now - at) / (step - began) * steps
            raise _Enough


def estimate(cases: Sequence[AnyCase], records: Iterable[Record] = ()) -> float:
    """Seconds that these cases would take one after the other in this process.

    Args:
        cases: What is to run.
        records: Of cases that have run; what is like them takes as long as they took.
    """
    known = _recorded(records)
    for case in cases:
        if _kind(case) not in known:
            known[_kind(case)] = _measured(case)
    return sum(known[_kind(case)] for case in cases)


def _recorded(records: Iterable[Record]) -> dict[tuple[str, ...], float]:
    seconds: Mapping[tuple[str, ...], list[float]] = defaultdict(list)
    for r in records:
        if r.error is None:
            kind = (str(r.attack), r.model, str(r.local), r.data, str(r.batch_size))
            seconds[kind].append(float(r.effort["seconds"]))
    return {kind: fmean(values) for kind, values in seconds.items()}


def _kind(case: AnyCase) -> tuple[str, ...]:
    who = case.victims
    local = str(Component.of(case.client.local))
    return str(case.name), case.task.name, local, who.data, str(len(who.people))


def _measured(case: AnyCase) -> float:
    watch = _Stopwatch()
    began = time.perf_counter()
    try:
        with listen(watch.heard):
            run_case(case)
    except _Enough:
        pass
    return watch.seconds or time.perf_counter() - began
