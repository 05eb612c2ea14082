"""Running one case: share, attack, score; or compute a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from seepage.attacks.certify import residual
from seepage.audit.bound_case import BoundCase
from seepage.audit.case import Case
from seepage.audit.outcome import Outcome
from seepage.audit.record import Record
from seepage.audit.run_bound import bounded, failed_bound
from seepage.core import ActiveAttack, Certificate, Observation, Reconstruction, Rng, SideBySide
from seepage.core.checkpoint import until_done
from seepage.core.domain import said
from seepage.core.errors import SeepageError
from seepage.core.partly import PartlyFailed
from seepage.vetting import vet


def run_case(case: Case | BoundCase) -> Outcome:
    """Run a case; a failure becomes a record with its reason, so that the rest can go on."""
    try:
        if isinstance(case, BoundCase):
            return Outcome(bounded(case), case.victims.truth, None)
        return _attacked(case, case.observe())
    except Exception as error:  # noqa: BLE001 - one case that breaks must not end the others
        return lost(case, _reason(error))


def run_together(cases: Sequence[Case | BoundCase]) -> list[Outcome]:
    """Run cases that are alike, side by side where the attack can."""
    attacks = [case for case in cases if isinstance(case, Case)]
    if not len(attacks) == len(cases) > 1 or not isinstance(attacks[0].attack, SideBySide):
        return [run_case(case) for case in cases]
    try:
        seen = [case.observe() for case in attacks]
    except Exception:  # noqa: BLE001 - whose update cannot be seen is found out one by one
        return [run_case(case) for case in cases]
    with until_done():
        return _side_by_side(attacks, seen)


def _side_by_side(cases: Sequence[Case], seen: Sequence[Observation]) -> list[Outcome]:
    """Attack all at once; where that fails, each half, down to the case that breaks it."""
    attack = cases[0].attack
    if len(cases) > 1 and isinstance(attack, SideBySide):
        try:
            guesses = _many(attack, seen, rngs=[_adversary(case) for case in cases])
            return [
                lost(case, _reason(guess))
                if isinstance(guess, Exception)
                else _scored(case, one, guess)
                for case, one, guess in zip(cases, seen, guesses, strict=True)
            ]
        except Exception:  # noqa: BLE001 - which of them breaks is found out half by half
            half = len(cases) // 2
            first = _side_by_side(cases[:half], seen[:half])
            return [*first, *_side_by_side(cases[half:], seen[half:])]
    try:
        return [_attacked(cases[0], seen[0])]
    except Exception as error:  # noqa: BLE001 - one case that breaks must not end the others
        return [lost(cases[0], _reason(error))]


def _many(
    attack: SideBySide, seen: Sequence[Observation], *, rngs: Sequence[Rng]
) -> Sequence[Reconstruction | Exception]:
    """What came back of each, or why nothing can."""
    try:
        return attack.many(seen, rngs=rngs)
    except PartlyFailed as some:
        # Of an attack within this one, nobody has finished what it found.
        if some.attack is not attack:
            raise
        known: dict[int, Reconstruction | Exception] = {**some.found, **some.failed}
        return [known[place] for place in range(len(seen))]


def _attacked(case: Case, seen: Observation) -> Outcome:
    return _scored(case, seen, case.attack(seen, rng=_adversary(case)))


def lost(case: Case | BoundCase, reason: str) -> Outcome:
    """What is kept of a case that gave no result."""
    record = (
        failed_bound(case, reason)
        if isinstance(case, BoundCase)
        else replace(_blank(case), error=reason)
    )
    return Outcome(record, case.victims.truth, None)


def _scored(case: Case, seen: Observation, guess: Reconstruction) -> Outcome:
    key = Rng(case.seed).fork("baseline")
    # Scored on the CPU, in the units and range of the data set.
    judged = case.victims.judge(_on_cpu(guess), metrics=case.metrics, rng=key)
    certificate = guess.certificate
    if certificate is None and case.victims.tapped is not None:
        certificate = _explained(seen, guess)
    record = replace(
        _blank(case),
        people=judged.people,
        scores=judged.scores,
        baselines=judged.baselines,
        certificate=None if certificate is None else asdict(certificate),
        effort=_effort(guess),
        vetted=_vetted(case),
    )
    words = said(case.task.domain, judged.guess)
    return Outcome(record, case.victims.truth, judged.guess, guess.trace.objective, words)


def _explained(seen: Observation, guess: Reconstruction) -> Certificate | None:
    """How well a guess explains a captured update, where the attack does not say so itself."""
    # Known labels are a multiset, which says whose they are only where there is one.
    known = seen.labels if len(guess.inputs) == 1 else None
    labels = known if guess.labels is None else guess.labels
    if labels is None:
        return None
    return Certificate(residual(seen, guess.inputs, labels))


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


def _vetted(case: Case) -> str:
    """What a client would have said of a planted network, had it looked."""
    if not isinstance(case.attack, ActiveAttack):
        return ""
    return vet(case.broadcast, case.private).judgement


def _adversary(case: Case) -> Rng:
    return Rng(case.seed).fork("adversary")


def _on_cpu(guess: Reconstruction) -> Reconstruction:
    labels = None if guess.labels is None else guess.labels.cpu()
    inputs = guess.inputs.cpu()
    return Reconstruction(inputs.float() if inputs.is_floating_point() else inputs, labels)


def _effort(guess: Reconstruction) -> dict[str, float | int | str]:
    trace = guess.trace
    return {
        "steps": trace.steps,
        "restarts": trace.restarts,
        "seconds": trace.seconds,
        "device": trace.device,
    }
