"""Rehearse: be the client on public inputs, attack that, and see which search brings them back."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from seepage.attacks.labels.count_labels import estimate_batch_size
from seepage.core import Attack, Batch, Domain, Metric, Observation, Reconstruction, Rng
from seepage.core.checkpoint import checkpoints
from seepage.core.digest import digest, stable_repr
from seepage.core.errors import MissingKnowledge, SeepageError, summarise_error
from seepage.core.progress import staged
from seepage.core.race import Forecast, Race, Trial
from seepage.domains import Tabular
from seepage.rehearsal.combine import combine
from seepage.scoring import score
from seepage.scoring.accuracy import FeatureAccuracy
from seepage.scoring.entrywise import PSNR
from seepage.search.many import attack_many
from seepage.threats.threat import Threat, sort_labels

if TYPE_CHECKING:
    from seepage.rehearsal.portfolio import Contender
    from seepage.rehearsal.public_data import PublicData

# Above this a reconstruction is exact to 8 bits and more.
_HIGHEST = 60.0
# A doubling of the steps that gains less than this, in dB or as a share of a row, is a plateau.
_PLATEAU = {"psnr": 0.5, "feature_accuracy": 0.01}
# Ignoring a defense recovers this much more if the defense only misleads the search.
_MASKED = {"psnr": 3.0, "feature_accuracy": 0.1}
# Who is further behind than this after a round leaves the race.
_CLEARLY_BEHIND = {"psnr": 3.0, "feature_accuracy": 0.15}
# The deviation of people's scores that is assumed before any is seen, as if from so many people.
_SPREAD, _SEEN = {"psnr": 3.0, "feature_accuracy": 0.15}, 3
# Share of the forecast's interval on either side.
_TAIL = 0.05


@dataclass(frozen=True)
class Rung:
    """One round of a race: so many contenders, each on so many batches, for so many steps."""

    contenders: int
    batches: int
    steps: int


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
        by_name = {str(contender): contender for contender in contenders}
        means = {trial.attack: trial.mean for trial in race.trials if trial.scores}
        others = sorted(means.keys() - set(race.chosen), key=lambda name: -means[name])
        return cls(
            tuple(by_name[name] for name in race.chosen),
            race,
            tuple(by_name[name] for name in others),
        )


def simulate_client(seen: Observation, batch: Batch, *, rng: Rng) -> Observation:
    """What the adversary would see if the client had this batch.

    Args:
        seen: What the adversary sees of the client; neither its update nor its labels are used.
        batch: Public inputs.
        rng: Randomness of the rehearsed client, which the real one does not share.
    """
    client, threat = seen.simulate.client, Threat.of(seen)
    if client is not None:
        return threat.observe_broadcast(client, seen.task, batch, rng=rng)
    update = seen.simulate(batch.inputs, batch.labels).detach()
    labels = batch.labels[sort_labels(batch.labels)] if threat.knows_labels else None
    return replace(seen, update=update, labels=labels)


def _give_known_targets(seen: Observation, batch: Batch) -> Batch:
    """Replace targets by known ones if no network predicts such, as labels with weights."""
    known, task = seen.labels, seen.task
    if (
        known is None
        or known.ndim == 1
        or known.shape[1:] in (task.target_shape, task.output_shape)
    ):
        return batch
    return Batch(batch.inputs, known[torch.arange(len(batch)) % len(known)])


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Updates that the adversary made itself, of people whom it knows.

    Args:
        seen: What it sees of each.
        people: Their inputs.
        domain: What an input is.
    """

    seen: tuple[Observation, ...]
    people: tuple[Batch, ...]
    domain: Domain

    @classmethod
    def of(cls, seen: Observation, public: PublicData, *, batches: int, size: int) -> Rehearsal:
        """Draw batches of public inputs, and be the client of each."""
        key, domain = Rng(0).fork("rehearsal"), seen.task.domain
        people = tuple(
            _give_known_targets(seen, public.draw(size, seen.task, rng=key.fork("people", i)))
            for i in range(batches)
        )
        updates = (
            simulate_client(seen, batch, rng=key.fork("client", i))
            for i, batch in enumerate(people)
        )
        return cls(tuple(updates), people, domain)

    @property
    def metric(self) -> Metric:
        """How much of an input came back."""
        return FeatureAccuracy() if isinstance(self.domain, Tabular) else PSNR()

    def attack(self, attack: Attack, batches: int) -> list[Reconstruction | SeepageError]:
        """Attack the first batches; whatever fails is an error of this attack alone."""
        keys = [Rng(0).fork("rehearsal", "attack", i) for i in range(batches)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return attack_many(attack, self.seen[:batches], rngs=keys)
            except Exception as error:  # noqa: BLE001 - the others race on
                known = isinstance(error, SeepageError)
                failed = error if known else SeepageError(summarise_error(error))
                return [failed] * batches  # type: ignore[list-item]

    def score(self, guesses: Sequence[Reconstruction]) -> tuple[float, ...]:
        """How much of each person came back, at most 60 dB."""
        pairs = zip(guesses, self.people, strict=False)
        return tuple(value for guess, batch in pairs for value in self._score(guess, batch))

    def _score(self, guess: Reconstruction, batch: Batch) -> list[float]:
        low, high = getattr(self.domain, "bounds", (0.0, 1.0))
        own = Reconstruction(guess.inputs.cpu().float())
        truth = Batch(batch.inputs.cpu().float(), batch.labels.cpu())
        metric, domain = self.metric, self.domain
        found = score(own, truth, metrics=(metric,), low=low, peak=high - low, domain=domain)
        return (
            found[metric.name]
            .double()
            .nan_to_num(nan=0.0, posinf=_HIGHEST)
            .clamp(max=_HIGHEST)
            .tolist()
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

    From the second rung on, half of what the last doubling of its steps gained is expected once
    more: a search with a weak prior starts slowly, and gets further with more steps. Who is clearly
    behind does not race on, even if there is a place.

    The result depends on the network, the client, the threat, the batch size, the public inputs and
    the rungs alone, so that it is computed once for all updates of a kind. With `checkpointing` it
    is stored, and found again by the next audit in the same folder.

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
        raise MissingKnowledge(
            "batch size", needed_by="a rehearsal", hint="use Threat(knows_batch_size=True)"
        )
    effort = (contenders, rungs, chosen, steps)
    key = (seen.simulate.client or seen.simulate, Threat.of(seen), *effort, size)
    name = "race-" + digest(seen.task.digest, public.digest, stable_repr(key))
    stored = _load(name, contenders)
    if stored is None:
        most = max(rung.batches for rung in rungs)
        rehearsal = Rehearsal.of(seen, public, batches=most, size=size)
        stored = _run(
            rehearsal, contenders, rungs, chosen=chosen, steps=steps, made_up=public.made_up
        )
        _store(name, stored)
    return stored


def _run(
    rehearsal: Rehearsal,
    contenders: Sequence[Contender],
    rungs: Sequence[Rung],
    *,
    chosen: int,
    steps: int,
    made_up: bool,
) -> Chosen:
    trials: list[Trial] = []
    guesses: dict[str, list[Reconstruction]] = {}
    # Of the searches, by round.
    seconds: list[dict[Contender, float]] = []
    metric = rehearsal.metric.name
    computed = [contender for contender in contenders if not contender.searches]
    left = [contender for contender in contenders if contender.searches]
    latest: dict[Contender, Trial] = {}
    for before, rung in zip((None, *rungs), rungs, strict=False):
        # Closed forms take no steps, so they go on as they were while the people are the same.
        if before is None or rung.batches != before.batches:
            latest = {
                one: _try(rehearsal, one, replace(rung, steps=0), guesses) for one in computed
            }
        latest = {one: latest[one] for one in computed}
        seconds.append({})
        for contender in left[: rung.contenders]:
            began = time.perf_counter()
            latest[contender] = _try(rehearsal, contender, rung, guesses)
            seconds[-1][contender] = time.perf_counter() - began
        trials += latest.values()
        more = min(1.0, max(0.0, _doublings(steps, rung))) / 2
        expected = _expect_scores(latest, trials, metric, more=more)
        best, limit = max(expected.values()), _CLEARLY_BEHIND[metric]
        # Of equal ones what is computed comes first.
        keys = {one: (-expected[one], one.searches) for one in latest}
        ranked = sorted(latest, key=keys.__getitem__)
        left = [one for one in ranked if one.searches and latest[one].scores] or left[:1]
        near = [left[0], *(one for one in left[1:] if expected[one] >= best - limit)]
        if rung is rungs[0] and len(rungs) > 1:
            # A slow one may be three times as far behind.
            able = [one for one in left if expected[one] >= best - 3 * limit]
            near = _keep_a_slow_one(able, near[: rungs[1].contenders], rungs[1].contenders)
        left = near
        computed = [one for one in computed if latest[one].scores]
    able = [one for one in ranked if latest[one].scores][:chosen] or left[:1]
    team = _choose_team(rehearsal, able, guesses, trials, _doublings(steps, rungs[-1]))
    left, scores = able[: team.size], team.scores
    gain = max(0.0, _measure_gain(str(left[0]), trials))
    race = Race(
        metric=metric,
        trials=tuple(trials),
        chosen=tuple(map(str, left)),
        rule=team.rule,
        forecast=make_forecast(scores, metric, gain=gain * team.doublings) if scores else None,
        rising=gain > _PLATEAU[metric],
        masked=_is_masked(trials, contenders, metric),
        made_up=made_up,
    )
    # On a GPU the batches of a round are attacked side by side.
    rows = 1 if next(iter(rehearsal.seen[0].update)).is_cuda else rungs[-1].batches
    each = [seconds[-1][one] / (rows * rungs[-1].steps) for one in left if one.searches]
    return replace(
        Chosen.of(race, contenders),
        spent=sum(sum(one.values()) for one in seconds),
        each=fmean(each) if each else 0.0,
    )


def _expect_scores(
    latest: Mapping[Contender, Trial], trials: Sequence[Trial], metric: str, *, more: float
) -> dict[Contender, float]:
    """What each would reach with more doublings of its steps, `more` of the last one's gain each.

    A search that whitens gets nowhere with some people and far with others, so one that is not far
    behind with a few rehearsed people counts as ahead.
    """
    return {
        one: trial.mean
        + more * _measure_gain(str(one), trials)
        + one.whitens * _CLEARLY_BEHIND[metric] / 3
        for one, trial in latest.items()
    }


def _keep_a_slow_one(
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
        return Trial(name, rung.steps, error=str(errors[0]).splitlines()[0])
    return Trial(name, rung.steps, rehearsal.score(guesses[name]))


@dataclass(frozen=True)
class _Team:
    """So many of the best, how their guesses are combined, and how that went in rehearsal."""

    size: int
    rule: str
    scores: tuple[float, ...]
    doublings: float


def _choose_team(
    rehearsal: Rehearsal,
    ranked: Sequence[Contender],
    guesses: Mapping[str, Sequence[Reconstruction]],
    trials: Sequence[Trial],
    doublings: float,
) -> _Team:
    """Choose how many of the best attack the update, and how their guesses are combined.

    Where nothing comes back clearly, the mean of several guesses is nearer than each of them. But
    they share the steps, and half of what a doubling of the steps gains is lost with each halving.
    What that is a single round does not tell, so searches do not share then.
    """
    rounds = {trial.steps for trial in trials if trial.steps}
    gain = max(0.0, _measure_gain(str(ranked[0]), trials)) / 2
    best, highest = _Team(1, "first", (), doublings), -math.inf
    for size in range(1, len(ranked) + 1):
        searches = sum(one.searches for one in ranked[:size])
        if searches > 1 and len(rounds) < 2:
            break
        shared = doublings - math.log2(max(1, searches))
        columns = list(zip(*(guesses.get(str(one), ()) for one in ranked[:size]), strict=False))
        for rule in ("residual", "mean") if size > 1 else ("first",):
            pairs = zip(rehearsal.seen, columns, strict=False)
            scores = rehearsal.score([combine(rule, seen, each) for seen, each in pairs])
            expected = fmean(scores) + gain * shared if scores else -math.inf
            if expected > highest:
                best, highest = _Team(size, rule, scores, max(0.0, shared)), expected
    return best


def _measure_gain(attack: str, trials: Sequence[Trial]) -> float:
    """What the last doubling of its steps gained for an attack, on the same people."""
    own = [trial for trial in trials if trial.attack == attack and trial.scores and trial.steps]
    if len(own) < 2 or own[-1].steps <= own[-2].steps:
        return 0.0
    shared = min(len(own[-1].scores), len(own[-2].scores))
    gained = fmean(own[-1].scores[:shared]) - fmean(own[-2].scores[:shared])
    return gained / math.log2(own[-1].steps / own[-2].steps)


def _is_masked(trials: Sequence[Trial], contenders: Sequence[Contender], metric: str) -> bool:
    ignoring = {str(one) for one in contenders if one.knowledge == "ignores"}
    searches = [trial for trial in trials if trial.steps and trial.scores]
    first = [trial for trial in searches if trial.steps == searches[0].steps]
    without = [trial.mean for trial in first if trial.attack in ignoring]
    knowing = [trial.mean for trial in first if trial.attack not in ignoring]
    return bool(without) and max(without) > max(knowing, default=-math.inf) + _MASKED[metric]


def make_forecast(scores: Sequence[float], metric: str, *, gain: float = 0.0) -> Forecast:
    """Predict the score of one more person, with an interval that covers 90 %.

    Scores are taken as normal, with a mean and a deviation that the rehearsal tells. A deviation of
    3 dB, or of 0.15 for shares, is assumed as if three more people had shown it.

    Args:
        scores: Of rehearsed people.
        metric: Its name.
        gain: What more steps than were rehearsed may add.
    """
    from scipy.special import stdtrit

    count, mean = len(scores), fmean(scores)
    freedom = count - 1 + _SEEN
    squares = sum((value - mean) ** 2 for value in scores) + _SEEN * _SPREAD[metric] ** 2
    half = float(stdtrit(freedom, 1 - _TAIL)) * math.sqrt(squares / freedom * (1 + 1 / count))
    most = 1.0 if metric == "feature_accuracy" else math.inf
    middle = min(most, mean + gain / 2)
    return Forecast(max(0.0, mean - half), middle, min(most, mean + gain + half))


@lru_cache(maxsize=128)
def _remembered(name: str) -> list[Chosen]:
    """What was stored under a name in this process: one race, or none."""
    return []


def _load(name: str, contenders: Sequence[Contender]) -> Chosen | None:
    held, folder = _remembered(name), checkpoints()
    if held or folder is None:
        return held[0] if held else None
    stored = folder.load(name)
    if stored is None:
        return None
    return Chosen.of(Race.from_plain(json.loads(bytes(stored[0].tolist()))), contenders)


def _store(name: str, chosen: Chosen) -> None:
    _remembered(name).append(chosen)
    folder = checkpoints()
    if folder is not None:
        text = json.dumps(asdict(chosen.race)).encode()
        folder.save(name, [torch.tensor(list(text), dtype=torch.uint8)])
