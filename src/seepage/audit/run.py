"""Running one case: share, attack, score; or compute a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from seepage.audit.bound_case import BoundCase
from seepage.audit.case import Case
from seepage.audit.outcome import Outcome
from seepage.audit.record import Record
from seepage.audit.run_bound import bounded, failed_bound
from seepage.core import Observation, Reconstruction, Rng, SideBySide
from seepage.core.errors import SeepageError
from seepage.scoring import Scores, baseline_scores, score


def run_case(case: Case | BoundCase) -> Outcome:
    """Run a case; a failure becomes a record with its reason, so that the rest can go on."""
    try:
        if isinstance(case, BoundCase):
            return Outcome(bounded(case), case.victims.batch.inputs, None)
        return _scored(case, case.attack(_observe(case), rng=_adversary(case)))
    except Exception as error:  # noqa: BLE001 - one case that breaks must not end the others
        return lost(case, _reason(error))


def run_together(cases: Sequence[Case | BoundCase]) -> list[Outcome]:
    """Run cases that differ in people and seed alone, side by side where the attack can."""
    attacks = [case for case in cases if isinstance(case, Case)]
    if len(attacks) == len(cases) > 1 and isinstance(attack := attacks[0].attack, SideBySide):
        try:
            rngs = [_adversary(case) for case in attacks]
            guesses = attack.many([_observe(case) for case in attacks], rngs=rngs)
            return [_scored(case, guess) for case, guess in zip(attacks, guesses, strict=True)]
        except Exception:  # noqa: BLE001 - which of them breaks is found out one by one
            pass
    return [run_case(case) for case in cases]


def lost(case: Case | BoundCase, reason: str) -> Outcome:
    """What is kept of a case that gave no result."""
    record = (
        failed_bound(case, reason)
        if isinstance(case, BoundCase)
        else replace(_blank(case), error=reason)
    )
    return Outcome(record, case.victims.batch.inputs, None)


def _scored(case: Case, guess: Reconstruction) -> Outcome:
    # Scored on the CPU, in the units and range of the data set.
    scores = _score(case, _on_cpu(guess))
    record = replace(
        _blank(case),
        scores=_plain(scores),
        baselines={name: _plain(s) for name, s in _baselines(case, scores).items()},
        certificate=asdict(guess.certificate) if guess.certificate else None,
        effort=_effort(guess),
    )
    truth = case.victims.batch.inputs
    return Outcome(record, truth, scores.paired.guess, guess.trace.objective)


def _reason(error: Exception) -> str:
    """One line; an error that is not ours is named, since its words alone may say little."""
    lines = str(error).splitlines()
    if isinstance(error, SeepageError):
        return lines[0]
    return ": ".join([type(error).__name__, *lines[:1]])


def _blank(case: Case) -> Record:
    return Record(
        data=case.victims.data,
        people=case.victims.people,
        model=case.task.name,
        local=repr(case.client.local),
        defense=repr(case.client.defense),
        threat=repr(case.threat),
        attack=case.attack_name,
        seed=case.seed,
        case=case.id,
        truth=case.victims.digest,
    )


def _observe(case: Case) -> Observation:
    reference = next(iter(case.task.parameters.values()))
    batch = case.victims.batch.to(device=reference.device, dtype=reference.dtype)
    client_key = Rng(case.seed).fork("client")
    return case.threat.observe(case.client, case.task, batch, rng=client_key)


def _adversary(case: Case) -> Rng:
    return Rng(case.seed).fork("adversary")


def _on_cpu(guess: Reconstruction) -> Reconstruction:
    labels = None if guess.labels is None else guess.labels.cpu()
    return Reconstruction(guess.inputs.cpu().float(), labels)


def _score(case: Case, guess: Reconstruction) -> Scores:
    low, high = case.victims.bounds
    return score(guess, case.victims.batch, metrics=case.metrics, low=low, peak=high - low)


def _baselines(case: Case, scores: Scores) -> Mapping[str, Scores]:
    low, high = case.victims.bounds
    return baseline_scores(
        case.victims.batch,
        pool=case.victims.pool,
        metrics=scores.metrics,
        rng=Rng(case.seed).fork("baseline"),
        low=low,
        peak=high - low,
    )


def _plain(scores: Scores) -> dict[str, tuple[float | None, ...]]:
    """One value per person; NaN, which JSON cannot hold, becomes None."""
    return {
        name: tuple(None if math.isnan(v) else v for v in values.tolist())
        for name, values in scores.values.items()
    }


def _effort(guess: Reconstruction) -> dict[str, float | int | str]:
    trace = guess.trace
    return {
        "steps": trace.steps,
        "restarts": trace.restarts,
        "seconds": trace.seconds,
        "device": trace.device,
    }
