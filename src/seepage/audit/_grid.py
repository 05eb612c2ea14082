"""The grid: every combination of task, client, threat, attack and seed, and the bounds on each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean

from seepage.attacks._adaptive import adaptive, without_adaptation
from seepage.audit._case import BoundCase, Case, require_permission
from seepage.audit._record import UNAWARE, Outcome, Record
from seepage.audit._run_case import (
    AnyCase,
    Executor,
    announce_nothing,
    begin_record,
    run_case,
    serial,
)
from seepage.audit._targets import Target
from seepage.audit.results._columns import read_columns
from seepage.bounds._bound import Bound
from seepage.clients._gradient import Gradient
from seepage.core import Attack, LocalComputation, Metric, Protection, Task
from seepage.core._chain import chain
from seepage.core._client import Client
from seepage.core._construct import Component
from seepage.core._digest import stable_repr
from seepage.core._grouping import group_by
from seepage.core._progress import measure_pace
from seepage.core._protocols import needs_labels
from seepage.core.errors import MissingKnowledge, error_path
from seepage.data._public_data import PublicData
from seepage.rehearsal._attack_protocols import Rehearses
from seepage.threats._threat import Threat

# Seconds from which a case that cannot be stopped early is timed only once.
_ONCE = 20.0
# Batches of people that each control looks for where they are not.
NEGATIVES = 4

Name = str | Component
Adversary = tuple[Threat, Name, Attack]


def _list_adversaries(
    threats: Sequence[Threat],
    attacks: Mapping[str, Attack] | Mapping[Component, Attack],
    client: Client,
) -> list[Adversary]:
    """Combine every threat with every attack; add each adapted attack without its adaptation.

    Adapting recovers more on average, but not from every example, and the adversary cannot tell
    from which. It can run both, and what counts is the lowest error over attacks. So knowing the
    defense never lowers the reported leakage.

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
        unaware, plain = threat.forget_defense(), without_adaptation(attack)
        # If the threat withholds the defense, an adapted attack is already the plain one, unless it
        # is adapted to a single defense and refuses.
        already = unaware in threats and attack == adaptive(plain)
        if plain is not attack and not already:
            own = Component.of(name)
            called = names.setdefault(stable_repr(plain), replace(own, name=UNAWARE + own.name))
            every[unaware, called] = unaware, called, plain
    return list(every.values())


def _group_targets(targets: Sequence[Target]) -> list[list[Target]]:
    """Targets of the same data and batch size."""
    return list(group_by(targets, lambda target: (target.data, len(target.people))).values())


def _choose_canaries(group: Sequence[Target]) -> Sequence[Target]:
    return group[0].choose_canaries({p for target in group for p in target.people})


def _find_public(targets: Sequence[Target]) -> dict[str, PublicData]:
    """People of each data set whom no case attacks, neither as a target nor as a canary."""
    taken: dict[str, set[int]] = {}
    held: dict[str, Target] = {}
    for group in _group_targets(targets):
        for target in (*group, *_choose_canaries(group)):
            taken.setdefault(target.data, set()).update(target.people)
            held[target.data] = target
    found = {name: target.choose_public(taken[name]) for name, target in held.items()}
    return {name: public for name, public in found.items() if public is not None}


def _give_public(attack: Attack, target: Target, public: Mapping[str, PublicData]) -> Attack:
    """Give an attack that rehearses the people of the data set whom nobody attacks."""
    if not isinstance(attack, Rehearses) or target.data not in public:
        return attack
    return attack.with_public(public[target.data])


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """What to combine; `run` does it.

    An attack that is adapted to a known defense also runs without the adaptation, so that knowing a
    defense never lowers the reported leakage.

    Args:
        tasks: Networks to broadcast.
        attacks: By the name that records use.
        locals: What clients compute.
        defenses: What they do before sharing.
        threats: What the adversary knows.
        metrics: What to measure besides what verdicts read; None takes all that fit the inputs.
        seeds: Repetitions.
        bounds: Bounds to compute for every task and client, by the name that records use; once,
            with the first seed.
        controls: Whether every attack is also run on canaries and on noise; see `list_controls`.

    Example:
        >>> import seepage as sp
        >>> from seepage.audit import Audit, select_targets
        >>> photos = sp.data.load("photos")
        >>> audit = Audit(
        ...     tasks=[sp.zoo.mlp(hidden=(16,), domain=photos.domain)],
        ...     attacks={"analytic_fc": sp.attacks.analytic_fc()},
        ... )
        >>> [outcome] = audit.run(select_targets(photos, people=1, batch_size=1))
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
    controls: bool = False

    def require_permitted(self) -> None:
        """Raise `InvalidValue` if an attack plants a network and a threat has an honest server."""
        for name, attack in self.attacks.items():
            for threat in self.threats:
                require_permission(name, attack, threat)

    def require_knowledge(self, *, hint: str) -> None:
        """Raise `MissingKnowledge`, with a hint, if every threat withholds labels of an attack.

        Targets that are numbers are searched for, and autoencoders have none.
        """
        searched = all(task.target_shape is not None for task in self.tasks)
        if searched or any(threat.knows_labels for threat in self.threats):
            return
        for number, (name, attack) in enumerate(self.attacks.items()):
            if needs_labels(attack):
                called = name.name if isinstance(name, Component) else name
                with error_path(number):
                    raise MissingKnowledge("labels", needed_by=called, hint=hint)

    def make_clients(self) -> list[Client]:
        """Combine local computations and defenses; an impossible combination is refused."""
        return [Client(local, defense) for local, defense in product(self.locals, self.defenses)]

    def cases(self, targets: Iterable[Target]) -> list[AnyCase]:
        """List every combination."""
        clients, targets = self.make_clients(), tuple(targets)
        public = _find_public(targets)
        attacks = [
            Case(
                *(task, client, threat, _give_public(attack, target, public)),
                *(name, target, seed, self.metrics),
            )
            for task, client in product(self.tasks, clients)
            for threat, name, attack in _list_adversaries(self.threats, self.attacks, client)
            for target, seed in product(targets, self.seeds)
        ]
        # Once for each mode in which a client runs a network.
        modes = dict.fromkeys(threat.mode for threat in self.threats)
        grid = product(self.tasks, modes, clients, self.bounds.items(), targets)
        bounds = [
            BoundCase(task.in_mode(mode), client, bound, name, target, self.seeds[0])
            for task, mode, client, (name, bound), target in grid
        ]
        return [
            *attacks,
            *(self._list_controls(clients, targets, public) if self.controls else ()),
            *bounds,
        ]

    def _list_controls(
        self,
        clients: Sequence[Client],
        targets: Sequence[Target],
        public: Mapping[str, PublicData],
    ) -> list[Case]:
        """Every attack on canaries, with and without the defense, and on noise.

        Positive controls tell whether an attack is strong enough to find anybody: people of the
        same data whom the audit chose itself, without the defense, and enough for a majority.
        Negative controls tell how often it finds people who are not there: in the guesses for
        canaries, and in one from noise of the same norms. Once for each data set and batch size,
        with the first seed. Behind a defense that closed forms cannot read, a search is left;
        canaries that a closed form found say nothing about it, so it attacks them alone as well.
        """
        unreadable = not all(client.chain.keeps_gradient for client in clients)
        bare = [Client(local, chain()) for local in self.locals]
        every = {stable_repr(client): client for client in [*bare, *clients]}.values()
        found: list[Case] = []
        for group in _group_targets(targets):
            canaries = _choose_canaries(group)
            if not canaries:
                continue
            others = tuple(group[:NEGATIVES])
            for task, client in product(self.tasks, every):
                shown = canaries[:1] if client.chain.links else canaries
                for threat, name, attack in _list_adversaries(self.threats, self.attacks, client):
                    given = _give_public(attack, group[0], public)
                    cases = [
                        Case(task, client, threat, given, name, who, self.seeds[0], self.metrics)
                        for who in shown
                    ]
                    found += [replace(case, control="canary", others=others) for case in cases]
                    found += [replace(case, control="noise", others=others) for case in cases[:1]]
                    if unreadable and not client.chain.links:
                        alone = cases[0].search_alone()
                        found += [replace(a, target=c.target) for c in cases for a in alone]
        return found

    def run(self, targets: Iterable[Target], *, executor: Executor = serial) -> Iterator[Outcome]:
        """Run every case, yielding outcomes as they come."""
        yield from executor(self.cases(targets), announce_nothing)


def estimate(cases: Sequence[AnyCase], records: Iterable[Record] = ()) -> list[float]:
    """Estimate the seconds that each of these cases takes in this process.

    Args:
        cases: What is to run.
        records: Of cases that have run; similar cases are assumed to take as long.
    """
    kind = read_columns("attack", "model", "local", "data", "batch_size")
    done = group_by((record for record in records if record.error is None), kind)
    seconds = {key: fmean(r.effort.get("seconds", 0) for r in group) for key, group in done.items()}
    for key, group in group_by(cases, lambda case: kind(begin_record(case))).items():
        if key not in seconds:
            seconds[key] = _measure(group[0])
    return [seconds[kind(begin_record(case))] for case in cases]


def _measure(case: AnyCase) -> float:
    """Time a few steps of an attack and extrapolate; time anything else whole."""
    spent, stopped = _time_case(case)
    # The first run of a closed form also imports and prepares what the others share.
    return spent if stopped or spent > _ONCE else _time_case(case)[0]


def _time_case(case: AnyCase) -> tuple[float, bool]:
    """Seconds that a case takes, and whether that is extrapolated from its first steps."""
    began = time.perf_counter()
    pace = measure_pace(lambda: run_case(case))
    return (time.perf_counter() - began, False) if pace is None else (pace.seconds, True)
