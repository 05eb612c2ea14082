"""The grid: every combination of task, client, threat, attack and seed, and the bounds on each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean

from seepage.attacks._adaptive import adaptive, without_adaptation
from seepage.audit._case import BoundCase, Case, require_permission
from seepage.audit._record import UNAWARE, Outcome, Record
from seepage.audit._run_case import AnyCase, Executor, announce_nothing, run_case, serial
from seepage.audit._targets import Target
from seepage.bounds._bound import Bound
from seepage.clients._gradient import Gradient
from seepage.core import Attack, LocalComputation, Metric, Protection, Task
from seepage.core._chain import chain
from seepage.core._client import Client
from seepage.core._construct import Component
from seepage.core._digest import stable_repr
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
    from which. It can run the attack without adaptation as well, and what a defense lets through is
    the lowest error over attacks. So knowing the defense never lowers the reported leakage.

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
    groups: dict[tuple[str, int], list[Target]] = {}
    for target in targets:
        groups.setdefault((target.data, len(target.people)), []).append(target)
    return list(groups.values())


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

    def cases(self, targets: Iterable[Target]) -> list[AnyCase]:
        """List every combination; an impossible client is refused here, before anything runs."""
        clients = [Client(local, defense) for local, defense in product(self.locals, self.defenses)]
        targets = tuple(targets)
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
            *(self._list_controls(clients, targets) if self.controls else ()),
            *bounds,
        ]

    def _list_controls(self, clients: Sequence[Client], targets: Sequence[Target]) -> list[Case]:
        """Every attack on canaries, with and without the defense, and on noise.

        The positive control tells whether an attack is strong enough to find anybody: it attacks
        people of the same data whom the audit chose itself, without the defense. The negative
        controls tell how often it finds people who are not there: in the guess for the canaries,
        and in a guess from noise of the same norms. Once for each data set and batch size, with
        the first seed. Without the defense there are canaries enough for a majority, in several
        batches where batches are small; with a defense and for noise there is one batch.
        Behind a defense that closed forms cannot read, a search is left. Canaries that a closed
        form found say nothing about it, so it attacks them once more alone.
        """
        unreadable = not all(client.chain.keeps_gradient for client in clients)
        bare = [Client(local, chain()) for local in self.locals]
        every = {stable_repr(client): client for client in [*bare, *clients]}.values()
        found: list[Case] = []
        public = _find_public(targets)
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
    seconds: Mapping[tuple[str, ...], list[float]] = defaultdict(list)
    for r in records:
        if r.error is None:
            kind = (str(r.attack), r.model, str(r.local), r.data, str(r.batch_size))
            seconds[kind].append(float(r.effort.get("seconds", 0)))
    for case in cases:
        if _kind(case) not in seconds:
            seconds[_kind(case)].append(_measure(case))
    return [fmean(seconds[_kind(case)]) for case in cases]


def _kind(case: AnyCase) -> tuple[str, ...]:
    who = case.target
    local = str(Component.of(case.client.local))
    return str(case.name), case.task.name, local, who.data, str(len(who.people))


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
