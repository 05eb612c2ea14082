"""Rehearse: be the client on public inputs, attack that, and see which search brings them back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from seepage.attacks.labels._count_labels import estimate_batch_size
from seepage.core import Observation, Reconstruction
from seepage.core._checkpoint import checkpoints
from seepage.core._digest import digest, stable_repr
from seepage.core._progress import staged, time_left
from seepage.core._reconstruction import Forecast, Race, Rule, Trial
from seepage.core._scale import Scale
from seepage.core._schema import from_plain, to_plain
from seepage.core.errors import MissingKnowledge, SeepageError, line_to_store
from seepage.rehearsal._combine import combine
from seepage.rehearsal._simulated_clients import Rehearsal, is_lost_in_noise
from seepage.threats._threat import Threat

if TYPE_CHECKING:
    from seepage.data._public_data import PublicData
    from seepage.rehearsal._effort_plan import Rung
    from seepage.rehearsal._portfolio import Contender

# The gain of a doubling is expected for at most so many more.
_AHEAD = 3.0


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a race decided.

    Args:
        contenders: The attacks that go on, the best first.
        race: How it went.
        spare: Those that could be tried if all of these fail, the best first.
        spent: Seconds that its searches took in all; 0 if the race was stored.
        each: Seconds that a step of the chosen searches took in the last round, likewise.
    """

    contenders: tuple[Contender, ...]
    race: Race
    spare: tuple[Contender, ...] = ()
    spent: float = 0.0
    each: float = 0.0

    @classmethod
    def of(cls, race: Race, contenders: Sequence[Contender]) -> Chosen:
        """Find the contenders of a race by their names."""
        starts = {trial.steps for trial in race.trials}
        several = [replace(one, start_steps=steps) for one in contenders for steps in starts]
        by_name = {str(one): one for one in (*several, *contenders)}
        means = {trial.attack: trial.mean for trial in race.trials if trial.scores}
        others = sorted(means.keys() - set(race.chosen), key=lambda name: -means[name])
        return cls(
            tuple(by_name[name] for name in race.chosen),
            race,
            tuple(by_name[name] for name in others),
        )


def rehearse(
    seen: Observation,
    contenders: Sequence[Contender],
    public: PublicData,
    rungs: Sequence[Rung],
    *,
    chosen: int,
    steps: int,
) -> Chosen:
    """Let contenders race on rehearsed clients, and drop the slower ones after every rung.

    From the second rung on, half of what the last doubling of its steps gained is expected of
    each doubling that is left: a search with a weak prior starts slowly, and gets further with more
    steps. Who is clearly behind does not race on, even if there is a place.

    The result depends on the network, the client, the threat, the batch size, the public inputs and
    the rungs, and of the update only on whether it stands out from noise, so that it is computed
    once or twice for all updates of a kind. With `checkpointing` it is stored, and found again by
    the next audit in the same folder.

    Args:
        seen: What the adversary sees.
        contenders: Who races; the first ones if there are too many.
        public: What is rehearsed on.
        rungs: The rounds of the race.
        chosen: How many are chosen at most.
        steps: Steps that these have together for the update itself.
    """
    size = seen.batch_size or estimate_batch_size(seen)
    if size is None:
        raise MissingKnowledge("batch size", needed_by="a rehearsal")
    effort = (contenders, rungs, chosen, steps)
    kind = (seen.simulate.client or seen.simulate, Threat.of(seen), size, is_lost_in_noise(seen))
    key = (*kind, *effort)
    name = "race-" + digest(seen.task.digest, public.digest, stable_repr(key))
    stored = _load(name, contenders)
    if stored is None:
        most = max(rung.batches for rung in rungs)
        rehearsal = Rehearsal.of(seen, public, batches=most, size=size)
        stored = _run(
            rehearsal, contenders, rungs, chosen=chosen, steps=steps, made_up=public.made_up
        )
        if time_left() <= 0:
            note = "; ".join(
                filter(None, ("was rehearsed for as long as there was time", stored.race.note))
            )
            return replace(stored, race=replace(stored.race, cut=True, note=note))
        _store(name, stored)
    return stored


@dataclass(eq=False)
class _Log:
    """What the rounds of a race brought so far; `seconds` says what each search took, by round."""

    rehearsal: Rehearsal
    trials: list[Trial] = field(default_factory=list)
    guesses: dict[str, list[Reconstruction]] = field(default_factory=dict)
    seconds: list[dict[Contender, float]] = field(default_factory=list)


def _run(
    rehearsal: Rehearsal,
    contenders: Sequence[Contender],
    rungs: Sequence[Rung],
    *,
    chosen: int,
    steps: int,
    made_up: bool,
) -> Chosen:
    log, scale = _Log(rehearsal), rehearsal.scale
    able = _run_rounds(log, contenders, rungs, steps)[:chosen]
    # Fewer rounds if time is over.
    rungs = rungs[: len(log.seconds)]
    best = _choose_ensemble(rehearsal, able, log.guesses, log.trials, _doublings(steps, rungs[-1]))
    began = time.perf_counter()
    if len(rungs) > 1 and len(best.members) == 1 and time_left() > 0:
        best = _try_several_starts(rehearsal, best, rungs[-1], log.guesses, log.trials, steps)
    starting = time.perf_counter() - began
    gain = max(0.0, _measure_gain(str(best.members[0]), log.trials))
    forecast = Forecast.of(best.scores, scale, gain=gain * best.doublings) if best.scores else None
    race = Race(
        metric=rehearsal.metric.name,
        trials=tuple(log.trials),
        chosen=tuple(map(str, best.members)),
        rule=best.rule,
        forecast=forecast,
        rising=gain > scale.plateau,
        masked=_is_masked(log.trials, contenders, scale),
        made_up=made_up,
    )
    # On a GPU the batches of a round are attacked side by side.
    rows = 1 if next(iter(rehearsal.seen[0].update)).is_cuda else rungs[-1].batches
    last = {str(one): spent for one, spent in log.seconds[-1].items()}
    searches = [str(replace(one, start_steps=0)) for one in best.members if one.searches]
    each = [last[one] / (rows * rungs[-1].steps) for one in searches]
    return replace(
        Chosen.of(race, contenders),
        spent=sum(sum(one.values()) for one in log.seconds) + starting,
        each=fmean(each) if each else 0.0,
    )


def _run_rounds(
    log: _Log, contenders: Sequence[Contender], rungs: Sequence[Rung], steps: int
) -> list[Contender]:
    """Let contenders race, write down what came of it, and return who is left, the best first."""
    rehearsal, scale = log.rehearsal, log.rehearsal.scale
    computed = [contender for contender in contenders if not contender.searches]
    left = [contender for contender in contenders if contender.searches]
    latest: dict[Contender, Trial] = {}
    for before, rung in zip((None, *rungs), rungs, strict=False):
        if before is not None and time_left() <= 0:
            break
        # Closed forms take no steps, so they go on as they were while the people are the same.
        if before is None or rung.batches != before.batches:
            still = replace(rung, steps=0)
            latest = {one: _try(rehearsal, one, still, log.guesses) for one in computed}
        latest = {one: latest[one] for one in computed}
        log.seconds.append({})
        for place, contender in enumerate(left[: rung.contenders]):
            if place and time_left() <= 0:
                break
            began = time.perf_counter()
            latest[contender] = _try(rehearsal, contender, rung, log.guesses)
            log.seconds[-1][contender] = time.perf_counter() - began
        log.trials += latest.values()
        more = min(_AHEAD, max(0.0, _doublings(steps, rung))) / 2
        expected = _expect_scores(latest, log.trials, scale, more=more)
        # Of equal ones what is computed comes first.
        keys = {one: (-expected[one], one.searches) for one in latest}
        ranked = _drop_equals(sorted(latest, key=keys.__getitem__), latest)
        left = [one for one in ranked if one.searches and latest[one].scores] or left[:1]
        best, limit = max(expected.values()), scale.behind
        near = [left[0], *(one for one in left[1:] if expected[one] >= best - limit)]
        if rung is rungs[0] and len(rungs) > 1:
            # A slow one may be three times as far behind.
            able = [one for one in left if expected[one] >= best - 3 * limit]
            near = _keep_slow_starter(able, near[: rungs[1].contenders], rungs[1].contenders)
        left = near
        computed = [one for one in computed if latest[one].scores]
    return [one for one in ranked if latest[one].scores] or left[:1]


def _expect_scores(
    latest: Mapping[Contender, Trial], trials: Sequence[Trial], scale: Scale, *, more: float
) -> dict[Contender, float]:
    """What each would reach with more doublings of its steps, `more` of the last one's gain each.

    A search that whitens gets nowhere with some people and far with others, so one that is not far
    behind with a few rehearsed people counts as ahead.
    """
    return {
        one: trial.mean + more * _measure_gain(str(one), trials) + one.whitens * scale.behind / 3
        for one, trial in latest.items()
    }


def _drop_equals(ranked: Sequence[Contender], latest: Mapping[Contender, Trial]) -> list[Contender]:
    """Drop a search that ended exactly as one before it: it does the same, by another name."""
    first = {latest[one].scores: one for one in reversed(ranked)}
    return [one for one in ranked if not latest[one].scores or first[latest[one].scores] is one]


def _keep_slow_starter(
    ranked: Sequence[Contender], racing: Sequence[Contender], places: int
) -> list[Contender]:
    """Give the best search that starts slowly a place in the second round.

    Only there its gain is seen: on smooth networks it may end ahead although it begins behind.
    """
    slow = [one for one in ranked if one.starts_slowly][:1]
    if places < 2 or not slow or any(one.starts_slowly for one in racing):
        return list(racing)
    return [*racing[: places - 1], *slow]


def count_steps(race: Race, rungs: Sequence[Rung]) -> int:
    """Steps that a race of these rounds took, one step for each batch."""
    batches = {rung.steps: rung.batches for rung in rungs}
    return sum(trial.steps * batches[trial.steps] for trial in race.trials if trial.steps)


def _doublings(steps: int, rung: Rung) -> float:
    """How many times the steps of a round are doubled for the update itself."""
    return math.log2(max(1, steps) / rung.steps)


def _try(
    rehearsal: Rehearsal,
    contender: Contender,
    rung: Rung,
    guesses: dict[str, list[Reconstruction]],
) -> Trial:
    """Attack the batches of one round, keep the guesses, and score what came back."""
    name = str(contender)
    with staged(f"rehearsing {name}"):
        found = rehearsal.attack(contender.build(rung.steps), rung.batches)
    errors = [one for one in found if isinstance(one, SeepageError)]
    guesses[name] = [one for one in found if isinstance(one, Reconstruction) and not errors]
    if errors:
        return Trial(name, rung.steps, error=line_to_store(errors[0]))
    return Trial(name, rung.steps, rehearsal.score(guesses[name]))


@dataclass(frozen=True)
class _Ensemble:
    """An ensemble of contenders, its combination rule and its rehearsed scores."""

    members: tuple[Contender, ...]
    rule: Rule
    scores: tuple[float, ...]
    doublings: float


def _choose_ensemble(
    rehearsal: Rehearsal,
    ranked: Sequence[Contender],
    guesses: Mapping[str, Sequence[Reconstruction]],
    trials: Sequence[Trial],
    doublings: float,
) -> _Ensemble:
    """Choose how many of the best attack the update, and how their guesses are combined.

    Where nothing comes back clearly, the mean of several guesses is nearer than each of them. But
    they share the steps, and half of what a doubling of the steps gains is lost with each halving.
    What that is a single round does not tell, so searches do not share then.
    """
    rounds = {trial.steps for trial in trials if trial.steps}
    gain = max(0.0, _measure_gain(str(ranked[0]), trials)) / 2
    best, highest = _Ensemble((ranked[0],), "first", (), doublings), -math.inf
    for size in range(1, len(ranked) + 1):
        searches = sum(one.searches for one in ranked[:size])
        if searches > 1 and len(rounds) < 2:
            break
        shared = doublings - math.log2(max(1, searches))
        columns = list(zip(*(guesses.get(str(one), ()) for one in ranked[:size]), strict=False))
        rules: tuple[Rule, ...] = ("residual", "mean") if size > 1 else ("first",)
        for rule in rules:
            pairs = zip(rehearsal.seen, columns, strict=False)
            scores = rehearsal.score([combine(rule, seen, each) for seen, each in pairs])
            expected = fmean(scores) + gain * shared if scores else -math.inf
            if expected > highest:
                members = tuple(ranked[:size])
                best, highest = _Ensemble(members, rule, scores, max(0.0, shared)), expected
    return best


def _try_several_starts(
    rehearsal: Rehearsal,
    best: _Ensemble,
    rung: Rung,
    guesses: Mapping[str, Sequence[Reconstruction]],
    trials: list[Trial],
    steps: int,
) -> _Ensemble:
    """Where little comes back and more steps gain nothing, see if the mean of starts is nearer.

    Behind noise a longer search fits the noise, from each start in another way. If starts err
    independently, and two halve that part of the squared error, more starts divide it further.
    """
    (leader,) = best.members
    gain, scale = _measure_gain(str(leader), trials), rehearsal.scale
    if scale.of or not leader.searches or not best.scores or gain > scale.plateau:
        return best
    # A search that gets so far does so from most starts, and one that does not would blur the mean.
    if fmean(best.scores) > scale.telling:
        return best
    several = replace(leader, start_steps=rung.steps)
    with staged(f"rehearsing {several}"):
        found = rehearsal.attack(leader.build(rung.steps), rung.batches, start=1)
    again = [guess for guess in found if isinstance(guess, Reconstruction)]
    if len(again) < len(found):
        return best
    pairs = zip(rehearsal.seen, guesses[str(leader)], again, strict=False)
    scores = rehearsal.score([combine("mean", seen, both) for seen, *both in pairs])
    trials.append(Trial(str(several), rung.steps, scores))
    starts = several.count_starts(steps)
    one, two = (10 ** (-fmean(each) / 10) for each in (best.scores, scores))
    error = max(one - 2 * (one - two) * (1 - 1 / starts), two / starts)
    gained = 10 * math.log10(one / error) - gain / 2 * math.log2(starts)
    return _Ensemble((several,), "first", scores, 0.0) if gained > 0 else best


def _measure_gain(attack: str, trials: Sequence[Trial]) -> float:
    """What the last doubling of its steps gained for an attack, on the same people."""
    own = [trial for trial in trials if trial.attack == attack and trial.scores and trial.steps]
    if len(own) < 2 or own[-1].steps <= own[-2].steps:
        return 0.0
    shared = min(len(own[-1].scores), len(own[-2].scores))
    gained = fmean(own[-1].scores[:shared]) - fmean(own[-2].scores[:shared])
    return gained / math.log2(own[-1].steps / own[-2].steps)


def _is_masked(trials: Sequence[Trial], contenders: Sequence[Contender], scale: Scale) -> bool:
    ignoring = {str(one) for one in contenders if one.knowledge == "ignores"}
    searches = [trial for trial in trials if trial.steps and trial.scores]
    first = [trial for trial in searches if trial.steps == searches[0].steps]
    without = [trial.mean for trial in first if trial.attack in ignoring]
    knowing = [trial.mean for trial in first if trial.attack not in ignoring]
    return bool(without) and max(without) > max(knowing, default=-math.inf) + scale.misled


@lru_cache(maxsize=128)
def _stored_races(name: str) -> list[Chosen]:
    """What was stored under a name in this process: one race, or none."""
    return []


def _load(name: str, contenders: Sequence[Contender]) -> Chosen | None:
    held, folder = _stored_races(name), checkpoints()
    if held or folder is None:
        return held[0] if held else None
    stored = folder.load(name)
    if stored is None:
        return None
    return Chosen.of(from_plain(Race, json.loads(bytes(stored[0].tolist()))), contenders)


def _store(name: str, chosen: Chosen) -> None:
    _stored_races(name).append(chosen)
    folder = checkpoints()
    if folder is not None:
        text = json.dumps(to_plain(chosen.race)).encode()
        folder.save(name, [torch.tensor(list(text), dtype=torch.uint8)])
