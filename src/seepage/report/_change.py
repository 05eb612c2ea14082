"""Compare two audits: who leaks more and who less, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from seepage.audit._record import Defense, Record
from seepage.audit._words import Setup, decibels, label_setups
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._amount import SATURATED
from seepage.audit.results._intervals import Interval, join_shared, mean_interval
from seepage.audit.results._judge import NOTICED
from seepage.audit.results._result import Person, name_person
from seepage.core._construct import Component
from seepage.core._grouping import group_by
from seepage.core.errors import InvalidValue
from seepage.report._finding import Verdict, find
from seepage.report.wording import Kind


class Direction(StrEnum):
    """How a person, or the people of a setup, changed."""

    worse = "worse"
    better = "better"
    noise = "within noise"
    same = "same"
    appeared = "only in the second"
    vanished = "only in the first"


class Attacked(NamedTuple):
    """What was attacked, apart from the person and the defense: cases that can be compared.

    An attack that is adapted to a defense also runs without knowing it, so `knowledge` is what the
    adversary knew besides the defense.
    """

    data: str
    model: str
    local: Component
    batch_size: int
    knowledge: str


@dataclass(frozen=True)
class Change:
    """One person in one setup: the strongest result of either audit.

    Args:
        victim: The person.
        attacked: The rest of what was attacked.
        defenses: Those of the first and of the second audit; the same where one has none.
        before: The strongest result of the first audit; None if it has none.
        after: That of the second.
    """

    victim: Person
    attacked: Attacked
    defenses: tuple[Defense, Defense]
    before: Result | None
    after: Result | None

    @property
    def setups(self) -> tuple[Setup, Setup]:
        """Defense, local computation and batch size, in the first audit and in the second."""
        first, second = self.defenses
        local, size = self.attacked.local, self.attacked.batch_size
        return Setup(first, local, size), Setup(second, local, size)

    @property
    def name(self) -> str:
        """What reports call the person."""
        return name_person(self.victim)

    def words(self, labels: Mapping[Setup, str]) -> str:
        """The setup in words; both, if the defense is another one now."""
        return ", now ".join(dict.fromkeys(labels[setup] for setup in self.setups))

    def cells(self, labels: Mapping[Setup, str]) -> list[str]:
        """The person, the setup, the attacks, what came back before and now, and the direction."""
        psnrs = [None if row is None else row.psnr for row in (self.before, self.after)]
        shown = map(decibels, psnrs)
        return [self.name, self.words(labels), self.attacks, *shown, str(self.direction)]

    @property
    def attacks(self) -> str:
        """Names of the attacks that showed most, before and now."""
        names = [a.record.attack.name for a in (self.before, self.after) if a is not None]
        return ", now ".join(dict.fromkeys(names))

    @property
    def difference(self) -> float:
        """How much more came back, in dB up to saturation; zero if only one audit has a result."""
        if self.before is None or self.after is None:
            return 0.0
        before, after = (min(max(a.psnr, 0.0), SATURATED) for a in (self.before, self.after))
        return after - before

    @property
    def identified(self) -> int:
        """1 if the person is newly identified, -1 if no longer, else 0."""
        if self.before is None or self.after is None:
            return 0
        return self.after.level.identified - self.before.level.identified

    @property
    def weight(self) -> tuple[int, float]:
        """The order of changes: by the change of reading, then by the difference."""
        if self.before is None or self.after is None:
            return 0, 0.0
        return abs(_rank(self.before) - _rank(self.after)), abs(self.difference)

    @property
    def direction(self) -> Direction:
        """Whether the change is worse or better for the person."""
        if self.before is None:
            return Direction.appeared
        if self.after is None:
            return Direction.vanished
        if _rank(self.before) == _rank(self.after) and abs(self.difference) < NOTICED:
            return Direction.same
        worse = (_rank(self.before), self.difference) > (_rank(self.after), 0.0)
        return Direction.worse if worse else Direction.better


def _rank(result: Result) -> int:
    """The order of levels; inconclusive and not shown count as the same."""
    return min(result.level.rank, Level.inconclusive.rank)


def changes(before: Results | Sequence[Record], after: Results | Sequence[Record]) -> list[Change]:
    """List every person of either audit in every setup, worst first.

    Two cases are compared if data, person, network, batch size, local computation and threat are
    the same, whichever attacks were run. A defense is compared with the same one, else with one of
    the same kind, else, where each audit has one left, with that.

    Raises:
        InvalidValue: The audits have nothing in common.
    """
    old, new = (_judge(records) for records in (before, after))
    found = [
        Change(victim, attacked, defenses, first.get(victim), second.get(victim))
        for attacked in dict.fromkeys([*old, *new])
        for defenses, first, second in _pair(old.get(attacked, {}), new.get(attacked, {}))
        for victim in dict.fromkeys([*first, *second])
    ]
    if not any(change.before and change.after for change in found):
        raise InvalidValue(
            "the two audits have nothing in common: no person was attacked in both with the same "
            "data, network, batch size, local computation and threat"
        )
    ordered = sorted(found, key=lambda change: change.weight, reverse=True)
    return [change for kind in Direction for change in ordered if change.direction is kind]


People = Mapping[Person, Result]


def _judge(records: Results | Sequence[Record]) -> dict[Attacked, dict[Defense, People]]:
    """The strongest result on each person, for each defense."""
    return {
        Attacked(*attacked): {
            # By their place in the data, since two audits may know different updates of somebody.
            defense: {row.victim: row for row in group.strongest()}
            for defense, group in cases.by("defense").items()
            if group
        }
        for attacked, cases in Results.of(records).by(*Attacked._fields).items()
        if cases
    }


def _pair(
    old: Mapping[Defense, People], new: Mapping[Defense, People]
) -> Iterator[tuple[tuple[Defense, Defense], People, People]]:
    """Defenses that are compared, each with its people in the two audits."""
    left, right = list(old), list(new)
    rules: tuple[Callable[[Defense], object], ...] = (tuple, lambda d: [link.name for link in d])
    for rule in rules:
        for first in tuple(left):
            second = next((d for d in right if rule(d) == rule(first)), None)
            if second is not None:
                yield (first, second), old[first], new[second]
                left.remove(first)
                right.remove(second)
    if len(left) == len(right) == 1:
        yield (left[0], right[0]), old[left[0]], new[right[0]]
        return
    for defense in left:
        yield (defense, defense), old[defense], {}
    for defense in right:
        yield (defense, defense), {}, new[defense]


@dataclass(frozen=True, eq=False)
class Shift:
    """How the people of one setup changed together."""

    changes: tuple[Change, ...]

    @property
    def direction(self) -> Direction:
        """Whether more or less leaks than before, beyond noise.

        Updates count as a sample: the change is noise unless the 95 % interval of its mean over
        people lies on one side of zero, for the share of people who are identified, or else for
        the PSNR, whose mean must also change by `NOTICED`.
        """
        shares = self._mean_over_people([float(change.identified) for change in self.changes])
        levels = self._mean_over_people([change.difference for change in self.changes])
        if shares.low <= 0 <= shares.high and abs(levels.middle) >= NOTICED:
            shares = levels
        if shares.low > 0:
            return Direction.worse
        if shares.high < 0:
            return Direction.better
        still = all(change.direction is Direction.same for change in self.changes)
        return Direction.same if still else Direction.noise

    def _mean_over_people(self, values: Sequence[float]) -> Interval:
        """The mean of one value per change; changes with an update in common depend on it."""
        sides = [
            [(number, side.update) for number, side in enumerate((c.before, c.after)) if side]
            for c in self.changes
        ]
        return mean_interval(values, join_shared(sides))

    def count(self, labels: Mapping[Setup, str], *, place: bool) -> dict[str, object]:
        """How many people are identified and what came back, before and now."""
        before, now = (
            sum(row.level.identified for row in side if row is not None)
            for side in zip(*((c.before, c.after) for c in self.changes), strict=True)
        )
        gained = self._mean_over_people([change.difference for change in self.changes])
        where = self.changes[0].words(labels)
        attacked = self.changes[0].attacked
        where += f" on {attacked.model} and {attacked.data}" if place else ""
        counts = {"before": before, "now": now, "people": len(self.changes)}
        return {"where": where, "gained": gained, **counts}


def shifts(found: Sequence[Change]) -> list[Shift]:
    """The changes of each setup that both audits have."""
    both = (change for change in found if change.before and change.after)
    groups = group_by(both, lambda change: (change.attacked, change.defenses))
    return [Shift(tuple(group)) for group in groups.values()]


def comparison_verdict(found: Sequence[Change]) -> Verdict:
    """Say what changed, over the people of each setup together."""
    moved = {shift: shift.direction for shift in shifts(found)}
    labels = label_setups(setup for change in found for setup in change.setups)
    both = [change for change in found if change.before and change.after]
    place = len({(change.attacked.data, change.attacked.model) for change in both}) > 1
    ways: dict[Direction, list[dict[str, object]]] = {way: [] for way in Direction}
    for shift, way in moved.items():
        ways[way].append(shift.count(labels, place=place))
    level = Level.recognisable if ways[Direction.worse] else Level.not_shown
    main = find(Kind.noise_only if ways[Direction.noise] else Kind.nothing_changed, level)
    for way, kind in ((Direction.better, Kind.less_leaks), (Direction.worse, Kind.more_leaks)):
        if ways[way]:
            main = find(kind, level, more=len(ways[way]) - 1, **ways[way][0])
    worse, better = (
        sum(c.direction is w for c in both) for w in (Direction.worse, Direction.better)
    )
    most = both[:1] if worse or better else []
    findings = (
        *(find(Kind.within_noise, **counts) for counts in ways[Direction.noise]),
        *(find(Kind.most_changed, change=change, where=change.words(labels)) for change in most),
        find(
            Kind.compared,
            people=len(both),
            setups=len(moved),
            worse=worse,
            better=better,
            noticed=NOTICED,
            alone=len(found) - len(both),
        ),
    )
    return Verdict(level, main, findings)
