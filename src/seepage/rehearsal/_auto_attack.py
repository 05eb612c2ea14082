"""`auto`, the attack with nothing to tune. It computes what it can, and rehearses the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from seepage.attacks import ATTACKS
from seepage.attacks._agreement import EXPLAINED, residual
from seepage.attacks._applicability import Applicability, check_applicability, explain_refusals
from seepage.attacks.labels._read_targets import fit_targets
from seepage.core import Attack, Certificate, Observation, Reconstruction, Rng, SideBySideAttack
from seepage.core._attack import Result, attack_many
from seepage.core._batch import are_numbers
from seepage.core._digest import digest, stable_repr
from seepage.core._plugins import Catalogue
from seepage.core._progress import Pace, limited, listen, measure_pace, spanning, staged, time_left
from seepage.core._reconstruction import Race
from seepage.core.errors import (
    InvalidValue,
    NotApplicable,
    SeepageError,
    UnknownName,
    line_to_store,
)
from seepage.data._public_data import PublicData, make_up
from seepage.rehearsal._attack_protocols import Rehearses
from seepage.rehearsal._combine import combine, keep_sure
from seepage.rehearsal._effort_plan import EFFORTS, Effort, EffortName
from seepage.rehearsal._portfolio import Contender, is_defended, is_hidden, list_contenders
from seepage.rehearsal._rehearse import Chosen, count_steps, rehearse
from seepage.threats._threat import Threat

# More steps than this go into further restarts.
_LONGEST = 8_000
_MADE_UP = 64
# Without a defense a guess that leaves more of the update than this is of somebody else.
_UNLIKE = 0.5
# People in a batch, and the mean confidence in a guess, from which on no search comes near it.
_CROWD, _SURE_OF_MOST = 4, 0.5
# The share of the time that is planned.
_PLANNED = 0.95
# The share of what is left that a rehearsal may take; about half of it is planned.
_REHEARSED = 0.6


@dataclass(frozen=True)
class Auto(SideBySideAttack):
    """Computes what can be computed, and searches for the rest as rehearsals recommend.

    The arguments are those of `auto`; without `closed_forms` it only searches.
    """

    effort: Effort
    public: PublicData | None = None
    seconds: float | None = None
    closed_forms: bool = True

    def with_public(self, public: PublicData) -> Auto:
        """The same attack with public inputs to rehearse on; its own are kept if it has some."""
        return self if self.public is not None else replace(self, public=public)

    def search_alone(self, seen: Observation) -> Auto | None:
        """The attack without closed forms; None if it only computes or only searches anyway."""
        searches = {bool(option.options) for option in check_applicability(seen).chosen}
        return replace(self, closed_forms=False) if len(searches) == 2 else None

    def run_many(self, observations: Sequence[Observation], rngs: Sequence[Rng]) -> list[Result]:
        """Attack several updates; the searches run side by side."""
        seconds = None if self.seconds is None else self.seconds * len(observations)
        with limited(seconds), spanning(self.effort.steps * len(observations)):
            return self._attack_all(observations, rngs)

    def _attack_all(self, observations: Sequence[Observation], rngs: Sequence[Rng]) -> list[Result]:
        found: dict[int, Result] = {}
        searched: dict[int, _Searched] = {}
        for place, (seen, rng) in enumerate(zip(observations, rngs, strict=True)):
            try:
                solved, search = self._compute(seen, rng)
            except SeepageError as error:
                found[place] = error
                continue
            if search is None:
                assert solved is not None
                found[place] = solved
            else:
                searched[place] = search
        found |= self._search(searched, rngs)
        return [found[place] for place in range(len(observations))]

    def _compute(
        self, seen: Observation, rng: Rng
    ) -> tuple[Reconstruction | None, _Searched | None]:
        """What a closed form gives, or the search that is left to do."""
        found = check_applicability(seen)
        computed, refused = self._solve(seen, found, rng)
        for guess in computed.values():
            if _is_settled(seen, guess) or _tells_most(guess):
                return guess, None
        searches = list_contenders(seen, found)
        if searches:
            closed = [
                Contender(name, searches=False)
                for name, guess in computed.items()
                if is_defended(seen) or not _contradicts(guess)
            ]
            effort = self._fit(seen, searches)
            chosen = self._choose(seen, [*closed, *searches], effort)
            rehearsed = count_steps(chosen.race, effort.plan(seen.batch_size or 1)[0])
            steps = self._fit_search(chosen, effort.steps, rehearsed)
            if (taken := rehearsed + steps) < self.effort.steps:
                note = f"took {taken} of {self.effort.steps} steps, as many as fit into the time"
                note = "; ".join(filter(None, (note, chosen.race.note)))
                chosen = replace(chosen, race=replace(chosen.race, cut=True, note=note))
            return None, _Searched(seen, chosen, computed, steps)
        if computed:
            return max(computed.values(), key=_weigh), None
        raise NotApplicable(explain_refusals(refused))

    def prove(self, seen: Observation, *, rng: Rng) -> Reconstruction | None:
        """What a closed form settles; None if that is left to a search."""
        computed, _ = self._solve(seen, check_applicability(seen), rng)
        return next((guess for guess in computed.values() if _is_settled(seen, guess)), None)

    def _solve(
        self, seen: Observation, found: Applicability, rng: Rng
    ) -> tuple[dict[str, Reconstruction], dict[str, str]]:
        """The guesses of closed forms, none after a settled one, and why others have none."""
        computed, refused = dict[str, Reconstruction](), dict(found.refused)
        for option in found.chosen:
            if option.options or not self.closed_forms:
                continue
            if computed and time_left() <= 0:
                refused[option.name] = "no time was left for it"
                continue
            attack = option.attack
            if self.public is not None and isinstance(attack, Rehearses):
                attack = attack.with_public(self.public)
            try:
                # Only steps of searches count.
                with listen(lambda *_: None):
                    guess = attack(seen, rng=rng.fork(option.name))
            except SeepageError as error:
                refused[option.name] = line_to_store(error)
                continue
            guess = computed[option.name] = _name(_fit_labels(seen, guess), option.name)
            if _is_settled(seen, guess) or _tells_most(guess):
                break
        return computed, refused

    def has_time_to_rehearse(self, seen: Observation) -> bool:
        """Whether so many steps fit into the time that some are rehearsed."""
        searches = list_contenders(seen, check_applicability(seen))
        return bool(searches and self._fit(seen, searches).plan(seen.batch_size or 1)[0])

    def _fit(self, seen: Observation, searches: Sequence[Contender]) -> Effort:
        """The effort, cut to what fits into the time."""
        seconds = min(time_left(), math.inf if self.seconds is None else self.seconds)
        if seconds <= 0:
            return replace(self.effort, steps=1)
        if seconds == math.inf:
            return self.effort
        pace = _measure_pace(seen, searches[0], min(self.effort.steps, _LONGEST))
        if pace is None:
            return self.effort
        return self.effort.fit(pace, _PLANNED * seconds, seen.batch_size or 1)

    def _fit_search(self, chosen: Chosen, planned: int, rehearsed: int) -> int:
        """Steps for the update: all that are left, or as many as the time still allows."""
        if planned == 1 and 0 < time_left() < math.inf:
            # Too slow to be timed: what is left of the time ends it.
            return self.effort.steps
        if self.seconds is None or not chosen.each:
            return max(1, planned - rehearsed)
        left = max(_PLANNED * self.seconds - chosen.spent, self.seconds / 4)
        left = max(0.0, min(left, _PLANNED * time_left()))
        return max(1, min(self.effort.steps - rehearsed, int(left / chosen.each)))

    def _choose(self, seen: Observation, contenders: Sequence[Contender], effort: Effort) -> Chosen:
        """Rehearse; where that cannot be done, take the closed forms and the first search."""
        rungs, steps = effort.plan(seen.batch_size or 1)
        note = f"{effort.steps} steps are too few to rehearse"
        try:
            if rungs and (left := time_left()) > 0:
                public = self.public or make_up(
                    seen.task.domain, _MADE_UP, rng=Rng(0).fork("made up")
                )
                with limited(_REHEARSED * left):
                    return rehearse(
                        seen, contenders, public, rungs, chosen=effort.chosen, steps=steps
                    )
        except SeepageError as error:
            note = f"nothing could be rehearsed: {line_to_store(error)}"
        first = next(number for number, one in enumerate(contenders) if one.searches)
        chosen = tuple(contenders[: first + 1])
        race = Race("", chosen=tuple(map(str, chosen)), rule="residual", note=note)
        return Chosen(chosen, race)

    def _search(self, searched: dict[int, _Searched], rngs: Sequence[Rng]) -> dict[int, Result]:
        """Attack with the chosen contenders, updates with the same choice side by side."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, one in searched.items():
            groups.setdefault((one.steps, *one.chosen.race.chosen), []).append(place)
        found: dict[int, Result] = {}
        for places in groups.values():
            chosen = searched[places[0]].chosen
            updates = {place: (searched[place], rngs[place].fork("search")) for place in places}
            guesses = [_attack(contender, updates) for contender in chosen.contenders]
            found |= {
                place: searched[place].combine([each[place] for each in guesses])
                for place in places
            }
            for contender in chosen.spare:
                failed = [place for place in places if isinstance(found[place], SeepageError)]
                if not failed:
                    break
                again = _attack(contender, {place: updates[place] for place in failed})
                found |= {place: searched[place].combine([again[place]]) for place in failed}
        return found


@dataclass(frozen=True, eq=False)
class _Searched:
    """An update that is searched for: with which attacks, and what was computed already."""

    seen: Observation
    chosen: Chosen
    computed: Mapping[str, Reconstruction]
    steps: int

    def build(self, contender: Contender) -> Attack:
        """A chosen search with its share of the steps; many steps are several restarts."""
        steps = self.steps // max(1, sum(one.searches for one in self.chosen.contenders))
        restarts = max(1, math.ceil(steps / _LONGEST))
        return contender.build(steps // restarts, restarts=restarts)

    def combine(self, guesses: Sequence[Result]) -> Result:
        """One guess of those that succeeded, with the race in its trace."""
        able = [guess for guess in guesses if not isinstance(guess, SeepageError)]
        able = able or list(self.computed.values())
        if not able:
            return guesses[0]
        best, race = combine(self.chosen.race.rule, self.seen, able), self.chosen.race
        for name, solved in self.computed.items():
            # A closed form that has a part of the batch leaves the rest to the search.
            if best is not solved and (whole := keep_sure(best, solved)) is not None:
                chosen = dict.fromkeys((name, *race.chosen))
                best, race = whole, replace(race, chosen=tuple(chosen))
        if time_left() <= 0 and not race.cut:
            note = f"was out of time after {best.trace.steps} of {self.steps} steps"
            note = "; ".join(filter(None, (note, race.note)))
            race = replace(race, cut=True, note=note)
        return replace(best, trace=replace(best.trace, race=race))


def _attack(
    contender: Contender, updates: Mapping[int, tuple[_Searched, Rng]]
) -> dict[int, Result]:
    """Attack updates side by side; a closed form has its answer already."""
    searched = [one for one, _ in updates.values()]
    if not contender.searches:
        refused = NotApplicable(f"{contender.recipe} does not apply to this update")
        computed = [one.computed.get(contender.recipe, refused) for one in searched]
        return dict(zip(updates, computed, strict=True))
    with staged(str(contender)):
        found = attack_many(
            searched[0].build(contender),
            [one.seen for one in searched],
            rngs=[key for _, key in updates.values()],
        )
    return dict(zip(updates, found, strict=True))


def _weigh(guess: Reconstruction) -> tuple[float, float]:
    """How much a closed form is worth that proves no whole input; the first of equal ones is taken.

    A guess that explains the update comes first, then the one that is sure of most features.
    """
    proof = guess.certificate
    explains = proof is not None and proof.residual <= EXPLAINED
    sure = 0.0 if guess.confidence is None else float(guess.confidence.sum())
    return float(explains), sure


def _fit_labels(seen: Observation, guess: Reconstruction) -> Reconstruction:
    """A closed form that read classes where there were probabilities gets these."""
    proof = guess.certificate
    explains = proof is None or proof.residual <= EXPLAINED
    if seen.labels is not None or explains or (is_hidden(seen) and not _contradicts(guess)):
        return guess
    known = seen.task.domain.is_known(guess.inputs)
    labels = fit_targets(seen, guess.inputs) if known else None
    if labels is None:
        return guess
    explained = Certificate(residual(seen, guess.inputs, labels))
    return replace(guess, labels=labels, certificate=explained)


def _is_settled(seen: Observation, guess: Reconstruction) -> bool:
    """Whether a closed form proves its guess, or explains an update that searches would not.

    Labels that are shares of classes allow no proof, since inputs may have been mixed. But searches
    and their rehearsals take a class for the label, so they are no match for an explanation.
    """
    proof, labels, client = guess.certificate, guess.labels, seen.simulate.client
    if proof is None or proof.unique:
        return proof is not None
    shared = labels is not None and are_numbers(labels) and seen.task.target_shape is None
    mixes = client is not None and bool(client.chain.input_defenses)
    return shared and not mixes and proof.residual <= EXPLAINED


def _tells_most(guess: Reconstruction) -> bool:
    """Whether a closed form is sure of most of a batch that no search takes apart as well."""
    sure = guess.confidence
    return sure is not None and len(sure) >= _CROWD and float(sure.mean()) > _SURE_OF_MOST


def _contradicts(guess: Reconstruction) -> bool:
    """Whether a closed form failed on this update, however well it does in rehearsal."""
    proof = guess.certificate
    return proof is not None and proof.residual > _UNLIKE


def _name(guess: Reconstruction, attack: str) -> Reconstruction:
    """Say in the trace which closed form it was."""
    race = Race("", chosen=(attack,), note="computed, not searched")
    return replace(guess, trace=replace(guess.trace, race=race))


@lru_cache(maxsize=128)
def _measured(kind: str) -> list[Pace | None]:
    """The pace of searches of a kind, measured once in this process."""
    return []


def _measure_pace(seen: Observation, contender: Contender, steps: int) -> Pace | None:
    """How fast a search is, or None if it fails: the run itself will fail as well, and say why."""
    client = seen.simulate.client or seen.simulate
    held = _measured(digest(seen.task.digest, stable_repr((client, Threat.of(seen), contender))))
    if held:
        return held[0]
    pace = None
    with limited(time_left() / 2):
        with suppress(Exception):
            contender.build(1)(seen, rng=Rng(0).fork("warm"))
            search = contender.build(steps)
            pace = measure_pace(lambda: search(seen, rng=Rng(0).fork("trial")))
        if pace is None and time_left() <= 0:
            return Pace(0.0, math.inf, steps)
    held.append(pace)
    return pace


def auto(
    *,
    effort: EffortName = "standard",
    budget: int | None = None,
    seconds: float | None = None,
    public: PublicData | Tensor | None = None,
) -> Auto:
    """The strongest attack for this update, chosen by rehearsing; there is nothing to tune.

    What can be computed is computed: if a closed form proves its answer, that is the answer.
    Otherwise the adversary plays the client on public inputs, attacks the updates that it made
    itself with many searches and settings, and keeps those that bring most back. With the best of
    them it attacks the update. It never sees the private batch.

    Args:
        effort: How hard to try: "quick" takes 3000 steps, "standard" eight times and "thorough"
            eighty times as many, the last for a GPU or a night.
        budget: Steps in all, at most six in ten for the rehearsal; by default those of the
            effort. The same budget gives the same result on every machine, up to rounding.
        seconds: About how long one update and its rehearsal may take at most. Fewer steps are
            taken if they do not fit, so that the result depends on the machine.
        public: Inputs of the kind that the client has. In an audit, people of the same data set
            whom nobody attacks; without any, inputs are made up.

    Example:
        >>> auto(effort="quick").effort.steps
        3000

    Deviations:
        Ours; no paper has it.

    References:
        Croce and Hein, 2020 (croce2020reliable), who do the same for adversarial examples
    """
    if str(effort) not in EFFORTS:
        raise UnknownName("effort", str(effort), EFFORTS)
    chosen = EFFORTS[effort]
    if budget is not None:
        if type(budget) is not int or budget < 1:
            raise InvalidValue(f"expected budget >= 1 whole steps, got {budget!r}")
        chosen = replace(chosen, steps=budget)
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise InvalidValue(f"expected seconds > 0, got {seconds!r}")
    held = PublicData(public) if isinstance(public, Tensor) else public
    if not isinstance(held, PublicData | None):
        kind = type(public).__name__
        raise InvalidValue(f"expected public to be a tensor or PublicData, got a {kind}")
    return Auto(chosen, held, seconds)


ALL_ATTACKS: Catalogue[Callable[..., Attack]] = Catalogue(
    "attack", "seepage.attacks", {"auto": auto, **ATTACKS.built_in}
)
"""What a spec can name: `auto`, the attacks it chooses from, and those of other packages."""
