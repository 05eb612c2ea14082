"""Running one case: share, attack, score; or compute a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from seepage.attacks.certificate import residual
from seepage.audit.case import BoundCase, Case, client_key, describe_defense
from seepage.audit.record import Ceiling, Outcome, Record
from seepage.core import ActiveAttack, Certificate, Observation, Reconstruction, Rng, SideBySide
from seepage.core.checkpoint import until_done
from seepage.core.construct import Component
from seepage.core.errors import InvalidValue, SeepageError
from seepage.core.task import said
from seepage.exposure import vet


def bounded(case: BoundCase) -> Record:
    """Compute the bound."""
    reference = next(iter(case.task.parameters.values()))
    batch = case.victims.batch.to(device=reference.device, dtype=reference.dtype)
    task = case.client.broadcast(case.task)
    began = time.perf_counter()
    key = client_key(case.seed, case.client, case.victims)
    found = case.bound(case.client, task, batch, rng=key.fork("bound"))
    if len(found.value) != len(batch):
        raise InvalidValue(
            f"expected {case.name} to give a number for each of {len(batch)} people, got "
            f"{len(found.value)}"
        )
    ceiling = replace(
        _blank_bound(case),
        values=tuple(found.value.tolist()),
        side=found.side,
        metric=found.metric,
        assumptions=found.assumptions,
        remark=found.remark,
    )
    effort: dict[str, float | int | str] = {
        "seconds": time.perf_counter() - began,
        "device": str(reference.device),
    }
    return replace(_failed_bound(case, None), bound=ceiling, effort=effort)


def _failed_bound(case: BoundCase, reason: str | None) -> Record:
    """What is kept of a bound that gave no result."""
    return Record(
        data=case.victims.data,
        people=case.victims.people,
        model=case.task.name,
        local=Component.of(case.client.local),
        defense=describe_defense(case.client),
        threat=None,
        attack=Component.of(case.name),
        seed=case.seed,
        error=reason,
        case=case.id,
        truth=case.victims.digest,
        bound=_blank_bound(case),
    )


def _blank_bound(case: BoundCase) -> Ceiling:
    low, high = case.victims.bounds
    return Ceiling(
        values=(),
        side="lower",
        metric="",
        peak=high - low,
        entries=case.victims.batch.inputs[0].numel(),
        mode=case.task.mode,
    )


def run_case(case: Case | BoundCase) -> Outcome:
    """Run a case; a failure becomes a record with its reason, so that the rest can go on."""
    try:
        if isinstance(case, BoundCase):
            return Outcome(bounded(case), case.victims.truth, None)
        return _attacked(case, case.observe())
    except Exception as error:  # noqa: BLE001 - one case that breaks must not end the others
        return lost(case, _reason(error))


def _run_together(cases: Sequence[Case | BoundCase]) -> list[Outcome]:
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
            guesses = attack.many(seen, rngs=[_adversary(case) for case in cases])
            return [
                lost(case, _reason(guess))
                if isinstance(guess, SeepageError)
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


def _attacked(case: Case, seen: Observation) -> Outcome:
    return _scored(case, seen, case.attack(seen, rng=_adversary(case)))


def lost(case: Case | BoundCase, reason: str) -> Outcome:
    """What is kept of a case that gave no result."""
    record = (
        _failed_bound(case, reason)
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
        local=Component.of(case.client.local),
        defense=describe_defense(case.client),
        threat=Component.of(case.threat),
        attack=Component.of(case.attack_name),
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


AnyCase = Case | BoundCase
Started = Callable[[AnyCase], None]
Executor = Callable[[Sequence[AnyCase], Started], Iterable[Outcome]]

# Results are stored group by group: a larger one would show nothing for longer, and use a GPU
# hardly better.
TOGETHER = 64


def unannounced(case: AnyCase) -> None:
    """Tell nobody that a case begins."""
    del case


def serial(cases: Sequence[AnyCase], started: Started = unannounced) -> Iterator[Outcome]:
    """Run one case after the other, in this process."""
    for case in cases:
        started(case)
        yield run_case(case)


def side_by_side(cases: Sequence[AnyCase], started: Started = unannounced) -> Iterator[Outcome]:
    """Run cases that are alike together, where the attack can."""
    for group in _alike(cases):
        started(group[0])
        yield from _run_together(group)


def _alike(cases: Sequence[AnyCase]) -> Iterator[list[AnyCase]]:
    groups: dict[tuple[str, ...], list[AnyCase]] = {}
    for case in cases:
        groups.setdefault(case.alike, []).append(case)
    for group in groups.values():
        for first in range(0, len(group), TOGETHER):
            yield group[first : first + TOGETHER]
