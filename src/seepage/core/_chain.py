"""Composition: a chain of defenses is again a defense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, ClassVar, cast, overload

from seepage.core._batch import Batch
from seepage.core._observation import PreparedBatch
from seepage.core._protocols import Aggregation, Defense, InputDefense, Protection, Stage
from seepage.core._rng import Rng
from seepage.core._task import Task
from seepage.core._update import Granularity, Update
from seepage.core.errors import InvalidValue

# The order of the data flow. Mixing and aggregation may occur only once.
_MIXING, _DATA, _NETWORK, _UPDATE, _AGGREGATION = range(5)
_STAGES = {"mixing": _MIXING, "data": _DATA, "network": _NETWORK}


@dataclass(frozen=True)
class Chain:
    """Defenses applied from left to right; built by `chain`."""

    links: tuple[Protection, ...] = ()

    def __post_init__(self) -> None:
        for link in self.links:
            _require_defense(link)
        for first, then in pairwise(self.links):
            once = _rank(first) in (_MIXING, _AGGREGATION)
            if _rank(then) < _rank(first) + once:
                raise InvalidValue(
                    f"{then} cannot come after {first}; the order is: mix the data (once), add to "
                    "it, change the network, change the update, aggregate several clients (once)"
                )
        for first, then in pairwise(self.update_defenses):
            if first.produces != then.consumes:
                raise InvalidValue(
                    f"{then} takes {then.consumes} updates, but {first} before it gives "
                    f"{first.produces} ones; per-example links come first, then Mean(), then "
                    "the rest"
                )

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.links))})"

    @classmethod
    def of(cls, defense: Protection) -> Chain:
        """Wrap any defense in a chain."""
        return defense if isinstance(defense, Chain) else cls((defense,))

    @cached_property
    def input_defenses(self) -> tuple[InputDefense, ...]:
        """The links that act before the update."""
        return tuple(link for link in self.links if isinstance(link, InputDefense))

    @cached_property
    def update_defenses(self) -> tuple[Defense, ...]:
        """The links that act on the update."""
        return tuple(link for link in self.links if isinstance(link, Defense))

    @cached_property
    def aggregation(self) -> Aggregation | None:
        """The link that hides the client among others, if there is one."""
        last = self.links[-1] if self.links else None
        return last if isinstance(last, Aggregation) else None

    @property
    def consumes(self) -> Granularity:
        """Granularity that the first link on the update takes."""
        return self.update_defenses[0].consumes if self.update_defenses else "aggregate"

    @property
    def produces(self) -> Granularity:
        """Granularity that the last link on the update gives."""
        return self.update_defenses[-1].produces if self.update_defenses else "aggregate"

    @property
    def only_changes_update(self) -> bool:
        """Whether every link acts on one client's finished update."""
        return not self.input_defenses and self.consumes == "aggregate" and self.aggregation is None

    @property
    def keeps_gradient(self) -> bool:
        """Whether closed forms can read the update; a link that does not say so prevents it."""
        return all(getattr(link, "keeps_gradient", False) for link in self.links)

    @property
    def noise(self) -> float:
        """Standard deviation of what all links together add to every entry of the update."""
        return math.hypot(*(getattr(link, "noise", 0.0) for link in self.links))

    @property
    def only_scales(self) -> bool:
        """Whether all entries of an update are multiplied by one number, if anything is done."""
        return all(getattr(link, "only_scales", False) for link in self.links)

    @property
    def repeatable_links(self) -> int:
        """How many of the last links whoever sees an update can apply to it as well."""
        return sum(1 for _ in takewhile(_is_repeatable, reversed(self.links)))

    def broadcast(self, task: Task) -> Task:
        """Return the network that server and clients hold."""
        for link in self.input_defenses:
            task = link.broadcast(task)
        return task

    def split(self, batch: Batch) -> list[Batch]:
        """Split the data among the clients; without aggregation there is only one."""
        return [batch] if self.aggregation is None else self.aggregation.split(batch)

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Apply every link that acts before the update."""
        for link, key in self._keyed(rng):
            if isinstance(link, InputDefense):
                prepared = link.prepare(prepared, rng=key)
        return prepared

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """Apply the deterministic part of every link that acts before the update."""
        for link in self.input_defenses:
            prepared = link.prepare_expected(prepared)
        return prepared

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Apply every link that acts on the update, each with its own key."""
        for link, key in self._keyed(rng):
            if isinstance(link, Defense):
                update = link(update, rng=key)
        return update

    def expected(self, update: Update) -> Update:
        """Apply the deterministic part of every link that acts on the update."""
        for link in self.update_defenses:
            update = link.expected(update)
        return update

    def combine(self, updates: Sequence[Update], sizes: Sequence[int]) -> Update:
        """Combine the updates of all clients into what the server sees."""
        return updates[0] if self.aggregation is None else self.aggregation.combine(updates, sizes)

    def _keyed(self, rng: Rng) -> list[tuple[Protection, Rng]]:
        """Pair every link with its key; a chain of one draws the same as its link alone."""
        keys = [rng] if len(self.links) == 1 else [rng.fork(i) for i in range(len(self.links))]
        return list(zip(self.links, keys, strict=True))


@overload
def chain(*defenses: Defense) -> Defense: ...
@overload
def chain(*defenses: Protection) -> Protection: ...
def chain(*defenses: Protection) -> Protection:
    """Compose defenses; nested chains are flattened, and a single defense is returned as it is.

    Example:
        >>> from seepage.defenses import AddGaussian, ClipEach, Mean
        >>> chain(ClipEach(1.0), Mean(), AddGaussian(0.1))  # DP-SGD
        chain(ClipEach(1.0), Mean(), AddGaussian(0.1))
        >>> chain(Mean(), ClipEach(1.0))
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: ClipEach(1.0) takes per_example updates, but \
Mean() before it gives aggregate ones; per-example links come first, then Mean(), then the rest
    """
    links: list[Protection] = []
    for defense in defenses:
        _require_defense(defense)
        links.extend(defense.links if isinstance(defense, Chain) else [defense])
    return links[0] if len(links) == 1 else Chain(tuple(links))


def _require_defense(link: object) -> None:
    if isinstance(link, type) or not isinstance(link, InputDefense | Defense | Aggregation):
        raise InvalidValue(f"expected a defense such as Prune(0.9), got {link!r}")


def _is_repeatable(link: Protection) -> bool:
    finished = isinstance(link, Defense) and link.consumes == link.produces == "aggregate"
    return finished and bool(getattr(link, "repeatable", False))


def _rank(link: Protection) -> int:
    """Return the position of a link in the data flow."""
    if isinstance(link, InputDefense):
        return _STAGES[link.stage]
    return _UPDATE if isinstance(link, Defense) else _AGGREGATION


class Link:
    """Abstract: a frozen value whose `repr` is the shortest call that builds it.

    What a defense says of itself, where it is not what is usual:

    - `label`: what people read, such as "Prune {ratio:g}"; otherwise the call.
    - `keeps_gradient`: the update stays a multiple of a gradient, but for noise or rounding.
    - `only_scales`: all entries of the update are multiplied by one number.
    - `repeatable`: it is a function of one finished update, without randomness or a secret, so that
      whoever sees an update can do the same to it.
    - `noise`: standard deviation of what it adds to every entry.

    Example:
        >>> from seepage.defenses import Prune
        >>> Prune(0.9), Prune(0.9, scope="update")
        (Prune(0.9), Prune(0.9, scope='update'))
    """

    label: ClassVar[str] = ""
    keeps_gradient: ClassVar[bool] = False
    only_scales: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    @property
    def noise(self) -> float:
        """By default there is none."""
        return 0.0

    def describe(self) -> str:
        """A few words for tables, with every argument that is not at its default."""
        if not self.label:
            return repr(self)
        values = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        more = [
            f"{f.name}={values[f.name]}"
            for f in fields(cast(Any, self))
            if f"{{{f.name}" not in self.label and values[f.name] != f.default
        ]
        return " ".join([self.label.format(**values), *more])

    def __repr__(self) -> str:
        """Write positional arguments bare, and leave out arguments that equal their default."""
        pairs = [(f, getattr(self, f.name)) for f in fields(cast(Any, self))]
        arguments = [
            f"{f.name}={item!r}" if f.kw_only else repr(item)
            for f, item in pairs
            if f.default is MISSING or item != f.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"


class OnUpdate(Link):
    """Abstract: a defense that acts on the update; deterministic unless it overrides `__call__`."""

    consumes: ClassVar[Granularity]
    produces: ClassVar[Granularity]

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Defend; by default there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """The deterministic part, differentiable."""
        raise NotImplementedError


class OnAggregate(OnUpdate):
    """Abstract: a defense that acts on the combined update."""

    consumes: ClassVar[Granularity] = "aggregate"
    produces: ClassVar[Granularity] = "aggregate"


class OnInputs(Link):
    """Abstract: a defense that acts before the update; by default it changes nothing."""

    stage: ClassVar[Stage]

    def broadcast(self, task: Task) -> Task:
        """Return the network that server and clients hold."""
        return task

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Prepare the client's batch; by default there is no randomness."""
        return self.prepare_expected(prepared)

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """Prepare the candidate of an informed adversary."""
        return prepared
