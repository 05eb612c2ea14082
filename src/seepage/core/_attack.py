"""Base classes of attacks: checked calls, wrappers, and several observations side by side."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

from seepage.core._device import precision
from seepage.core._protocols import Attack, SideBySide, needs_labels
from seepage.core._reconstruction import Reconstruction
from seepage.core._rng import Rng, require_key
from seepage.core._usable_update import require_usable
from seepage.core.errors import NotApplicable, SeepageError

if TYPE_CHECKING:
    from seepage.core._observation import Observation

# A guess, or the error that says why there is none.
Result: TypeAlias = Reconstruction | SeepageError


class BaseAttack(ABC):
    """An attack on one observation: a subclass writes `run`, and the call around it is final.

    The call requires a key, an update that can be attacked and the knowledge that the class
    declares. It runs at full float32 precision, since layers are recognised by what they compute,
    and TF32 rounding on a GPU would hide that. It projects the guess into the domain, and states
    its time and device.
    """

    # Whether the attack takes one input only.
    one_input: ClassVar[bool] = False

    @property
    def needs_labels(self) -> bool:
        """Whether the attack cannot begin without the labels; a class may say `= True`."""
        return False

    def check(self, observation: Observation) -> None:
        """Raise `NotApplicable` where the attack does not apply, whatever the adversary knows."""
        del observation

    @abstractmethod
    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Make the guess, in natural units."""

    @final
    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Check, run and time the attack."""
        require_key(rng)
        began = time.perf_counter()
        require_usable(observation.update, observation.task)
        self.check(observation)
        if self.needs_labels:
            observation.require_labels(type(self).__name__)
        if self.one_input and observation.batch_size not in (None, 1):
            raise NotApplicable(
                f"{type(self).__name__} takes the update of one input, got one of "
                f"{observation.batch_size}, which mixes them; use gradient matching, or isolate "
                "one by class_fishing"
            )
        with precision("float32"):
            guess = self.run(observation, rng)
        if not observation.task.domain.discrete:
            guess = replace(guess, inputs=observation.task.domain.project(guess.inputs))
        return _state_effort(guess, time.perf_counter() - began)


class SideBySideAttack(ABC):
    """An attack on several observations at once: a subclass writes `run_many`.

    The calls require keys and updates that can be attacked, and state time and device.
    """

    @abstractmethod
    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[Rng]
    ) -> Sequence[Result]:
        """Attack all of them, or raise the error of any."""

    @final
    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack one observation."""
        return _raise_error(self.many((observation,), rngs=(rng,)))

    @final
    def many(self, observations: Sequence[Observation], *, rngs: Sequence[Rng]) -> list[Result]:
        """Attack several observations, with the result of one by one; time is shared equally."""
        require_key(*rngs)
        began = time.perf_counter()
        found: dict[int, Result] = {}
        places = []
        for place, observation in enumerate(observations):
            try:
                require_usable(observation.update, observation.task)
            except SeepageError as error:
                found[place] = error
            else:
                places.append(place)
        if places:
            chosen, keys = [observations[p] for p in places], [rngs[p] for p in places]
            found |= zip(places, self.run_many(chosen, keys), strict=True)
        share = (time.perf_counter() - began) / max(1, len(observations))
        results = [found[place] for place in range(len(observations))]
        return [
            _state_effort(result, share) if isinstance(result, Reconstruction) else result
            for result in results
        ]


def _keep(guess: Reconstruction) -> Reconstruction:
    return guess


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a wrapper has the inner attack do, and what becomes of its guess.

    Args:
        seen: What the inner attack sees.
        finish: Turns its guess into that of the wrapper; of several runs, all their guesses.
        explain: Turns its error into that of the wrapper.
        attack: Runs in place of the inner attack.
        rngs: Keys of several runs; none for one run with the key of the wrapper.
        kind: Only observations of one kind are attacked side by side. Those with other attacks,
            batch sizes or forms of labels never are.
    """

    seen: Observation
    finish: Callable[..., Reconstruction] = _keep
    explain: Callable[[SeepageError], SeepageError] | None = None
    attack: Attack | None = None
    rngs: tuple[Rng, ...] = ()
    kind: Hashable = None


@dataclass(frozen=True)
class AttackWrapper(ABC):
    """An attack around another one: a subclass writes `prepare`.

    Args:
        attack: The inner attack.
    """

    attack: Attack

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Say what the inner attack sees and what becomes of its guess; by default, nothing new."""
        return Prepared(seen)

    @property
    def needs_labels(self) -> bool:
        """If the inner attack does."""
        return needs_labels(self.attack)

    @final
    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Prepare one observation, attack it and finish the guess."""
        return _raise_error(self.many((observation,), rngs=(rng,)))

    @final
    def many(self, observations: Sequence[Observation], *, rngs: Sequence[Rng]) -> list[Result]:
        """Prepare each observation, and attack side by side those that allow it."""
        require_key(*rngs)
        found: dict[int, Result] = {}
        prepared: dict[int, Prepared] = {}
        for place, (seen, rng) in enumerate(zip(observations, rngs, strict=True)):
            try:
                prepared[place] = self.prepare(seen, rng)
            except SeepageError as error:
                found[place] = error
        for attack, places in _group_by_attack(self.attack, prepared):
            runs = [
                (place, key) for place in places for key in prepared[place].rngs or (rngs[place],)
            ]
            results = attack_many(
                attack, [prepared[place].seen for place, _ in runs], rngs=[key for _, key in runs]
            )
            for place in places:
                own = [result for (of, _), result in zip(runs, results, strict=True) if of == place]
                found[place] = _finish(prepared[place], own)
        return [found[place] for place in range(len(observations))]


def attack_many(
    attack: Attack, observations: Sequence[Observation], *, rngs: Sequence[Rng]
) -> list[Result]:
    """Attack observations side by side if the attack can, else one after the other.

    The observations have the same batch size, task, client and threat; each has its own key.
    Clients whose mixing is simulated are attacked one by one, since each mixes in its own way.

    Returns:
        One reconstruction for each observation, or the error that says why it cannot be attacked.
    """
    mixed = any(seen.simulate.mixing is not None for seen in observations)
    if len(observations) < 2 or mixed or not isinstance(attack, SideBySide):
        return [_attack_or_refuse(attack, *pair) for pair in zip(observations, rngs, strict=True)]
    try:
        return list(attack.many(observations, rngs=rngs))
    except SeepageError:
        # Of one of them; each half is tried, down to the one that cannot be attacked.
        half = len(observations) // 2
        return [
            *attack_many(attack, observations[:half], rngs=rngs[:half]),
            *attack_many(attack, observations[half:], rngs=rngs[half:]),
        ]


def _attack_or_refuse(attack: Attack, observation: Observation, rng: Rng) -> Result:
    try:
        return attack(observation, rng=rng)
    except SeepageError as error:
        return error


def _raise_error(results: Iterable[Result]) -> Reconstruction:
    (found,) = results
    if isinstance(found, SeepageError):
        raise found
    return found


def _state_effort(guess: Reconstruction, seconds: float) -> Reconstruction:
    trace = replace(guess.trace, seconds=seconds, device=str(guess.inputs.device))
    return replace(guess, trace=trace)


def _group_by_attack(
    inner: Attack, prepared: dict[int, Prepared]
) -> list[tuple[Attack, list[int]]]:
    """The places whose observations one call of an attack can take."""
    groups: list[tuple[Attack, Hashable, list[int]]] = []
    for place, one in prepared.items():
        attack, labels = one.attack or inner, one.seen.labels
        form = None if labels is None else (tuple(labels.shape), labels.dtype)
        kind = one.kind, one.seen.batch_size, form
        for other, of, places in groups:
            if of == kind and (other is attack or other == attack):
                places.append(place)
                break
        else:
            groups.append((attack, kind, [place]))
    return [(attack, places) for attack, _, places in groups]


def _finish(prepared: Prepared, results: Sequence[Result]) -> Result:
    """The guess that the wrapper makes of those that there are, or the first error."""
    guesses = [result for result in results if isinstance(result, Reconstruction)]
    try:
        if guesses:
            return prepared.finish(*guesses)
        (first, *_) = [result for result in results if isinstance(result, SeepageError)]
        return first if prepared.explain is None else prepared.explain(first)
    except SeepageError as error:
        return error
