"""Running one case: share, attack, score; or compute a bound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from seepage.attacks._agreement import EXPLAINED, residual
from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._case import (
    BoundCase,
    Case,
    client_key,
    describe_defense,
    describe_threat,
    is_own,
)
from seepage.audit._record import Ceiling, EffortSpent, Outcome, Record
from seepage.bounds._dp_limits import read_guaranteed_noise
from seepage.core import ActiveAttack, Certificate, Observation, Reconstruction, Rng, SideBySide
from seepage.core._checkpoint import until_done
from seepage.core._construct import Component
from seepage.core._device import convert, upcast
from seepage.core._digest import digest
from seepage.core._domain import describe_inputs
from seepage.core._grouping import group_by
from seepage.core._once import computing_once
from seepage.core._progress import time_left
from seepage.core.errors import (
    InvalidValue,
    MissingKnowledge,
    NotApplicable,
    SeepageError,
    UnreadableFile,
    line_to_store,
    summarise_error,
)
from seepage.exposure._vet import vet
from seepage.threats._threat import sort_labels

AnyCase = Case | BoundCase
# Claims a case; False if it is not to be run, since another process has it.
Started = Callable[[AnyCase], bool]
Executor = Callable[[Sequence[AnyCase], Started], Iterable[Outcome]]

# Results are stored group by group; larger groups hardly use a GPU better.
TOGETHER = 64
# A guess explains an update badly if it leaves this much, and so many times what the truth leaves.
LEFT, FAR = 0.05, 4.0


def run_case(case: AnyCase) -> Outcome:
    """Run a case; a failure becomes a record with its reason, so that the rest can go on."""
    try:
        with computing_once():
            if isinstance(case, BoundCase):
                return Outcome(_compute_bound(case), case.target.truth, None)
            seen = case.observe()
            return _score(case, seen, case.attack(seen, rng=_adversary_key(case)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others must go on
        return _refuse_case(case, error)


def fail_case(case: AnyCase, reason: str) -> Outcome:
    """Return the outcome of a case that gave no result."""
    return Outcome(replace(begin_record(case), error=reason), case.target.truth, None)


def _refuse_case(case: AnyCase, error: BaseException) -> Outcome:
    """Turn an error into an outcome: the attack does not apply, or the case failed."""
    stored = line_to_store(error)
    said = str(error) if isinstance(error, SeepageError) else summarise_error(error)
    shown = "".join(said.splitlines()[:1])
    # They are written as UTF-8, and may quote a file name that is none.
    stored, shown = (text.encode(errors="replace").decode() for text in (stored, shown))
    failed = fail_case(case, stored)
    applicable = not isinstance(error, NotApplicable | MissingKnowledge)
    record = replace(failed.record, applicable=applicable)
    return replace(failed, record=record, shown="" if shown == stored else shown)


def begin_record(case: AnyCase) -> Record:
    """Make the record of a case, with everything but its result."""
    return Record(
        data=case.target.data,
        people=case.target.people,
        model=case.task.name,
        local=Component.of(case.client.local),
        defense=describe_defense(case.client),
        readable=case.client.chain.keeps_gradient,
        repeatable=case.client.chain.repeatable_links,
        threat=describe_threat(case.threat) if isinstance(case, Case) else None,
        attack=Component.of(case.attack_name if isinstance(case, Case) else case.name),
        seed=case.seed,
        case=case.id,
        control_kind=(case.control or "") if isinstance(case, Case) else "",
        truth=case.target.digest,
        sampling=case.target.sampling,
        known_as=case.target.known_as,
        sent=case.target.sent,
        kind=case.task.domain.kind,
        bound=_begin_ceiling(case) if isinstance(case, BoundCase) else None,
    )


def _begin_ceiling(case: BoundCase) -> Ceiling:
    low, high = case.target.bounds
    entries = case.target.require_batch().inputs[0].numel()
    return Ceiling((), "lower", "", peak=high - low, entries=entries, mode=case.task.mode)


def _compute_bound(case: BoundCase) -> Record:
    batch, task = case.private, case.client.broadcast(case.task)
    began = time.perf_counter()
    key = client_key(case.seed, case.client, case.target)
    found = case.bound(case.client, task, batch, rng=key.fork("bound"))
    if len(found.value) != len(batch):
        raise InvalidValue(
            f"expected {case.name} to give a number for each of {len(batch)} people, got "
            f"{len(found.value)}"
        )
    ceiling = replace(
        _begin_ceiling(case),
        values=tuple(found.value.tolist()),
        side=found.side,
        metric=found.metric,
        assumptions=found.assumptions,
        remark=found.remark,
    )
    seconds, device = time.perf_counter() - began, str(batch.inputs.device)
    effort = EffortSpent(seconds=seconds, device=device)
    return _require_readable(replace(begin_record(case), bound=ceiling, effort=effort), case)


def _require_readable(record: Record, case: AnyCase) -> Record:
    """Return the record; raise if it could not be read back from its file."""
    try:
        Record.from_plain(json.loads(json.dumps(record.plain(), allow_nan=False)))
    except (UnreadableFile, TypeError, ValueError) as error:
        raise InvalidValue(f"{case.name} gave a result that cannot be stored: {error}") from error
    return record


def _run_together(cases: Sequence[AnyCase]) -> list[Outcome]:
    """Run cases of one batch: side by side if the attack can, else one after the other.

    If all at once fail, each half is tried, down to the case that breaks.
    """
    attacks = [case for case in cases if isinstance(case, Case)]
    attack = attacks[0].attack if len(attacks) > 1 else None
    if not isinstance(attack, SideBySide):
        return [run_case(case) for case in cases]
    try:
        with until_done(), computing_once():
            seen = [case.observe() for case in attacks]
            guesses = attack.many(seen, rngs=[_adversary_key(case) for case in attacks])
            return [
                _refuse_case(case, guess)
                if isinstance(guess, SeepageError)
                else _score(case, one, guess)
                for case, one, guess in zip(attacks, seen, guesses, strict=True)
            ]
    except (Exception, SystemExit):  # noqa: BLE001 - alone, the case that breaks says why
        half = len(cases) // 2
        return [*_run_together(cases[:half]), *_run_together(cases[half:])]


def _adversary_key(case: Case) -> Rng:
    return Rng(case.seed).fork("adversary")


def _score(case: Case, seen: Observation, guess: Reconstruction) -> Outcome:
    cut = guess.trace.steps > 0 and time_left() <= 0
    # Scored on the CPU, in the units and range of the data set.
    labels = None if guess.labels is None else guess.labels.cpu()
    moved = Reconstruction(convert(guess.inputs.cpu(), torch.float32), labels)
    key = Rng(case.seed).fork("baseline")
    scored = case.target.score_guess(moved, metrics=case.metrics, rng=key)
    negatives = [
        found
        for other in case.others
        for found in other.identify(moved, without=case.target.people)
    ]
    certificate = _find_certificate(case, seen, guess)
    # Whether a client that vets the planted network would have noticed.
    planted = isinstance(case.attack, ActiveAttack)
    record = replace(
        begin_record(case),
        people=scored.people,
        scores=scored.scores,
        baselines=scored.baselines,
        identification=scored.identification,
        columns=scored.columns,
        label_chance=_find_label_chance(case),
        negatives=tuple(negatives),
        certificate=None if certificate is None else certificate.plain(),
        effort=_describe_effort(case, seen, guess, cut=cut),
        race=guess.trace.race,
        vetted=vet(case.broadcast, case.private).judgement if planted else "",
    )
    _require_readable(record, case)
    words = describe_inputs(case.task.domain, scored.guess)
    return Outcome(record, case.target.truth, scored.guess, guess.trace.objective, words)


def _find_certificate(case: Case, seen: Observation, guess: Reconstruction) -> Certificate | None:
    """What the attack proved, which is less if the truth does not explain the update."""
    certificate = guess.certificate
    if certificate is None and case.target.captured is not None:
        certificate = _certify(seen, guess)
    if certificate is not None and certificate.unique and not _explains_truth(case, seen):
        return Certificate(certificate.residual, certain=certificate.certain)
    return certificate


def _describe_effort(
    case: Case, seen: Observation, guess: Reconstruction, *, cut: bool
) -> EffortSpent:
    trace = guess.trace
    effort = EffortSpent(
        steps=trace.steps, restarts=trace.restarts, seconds=trace.seconds, device=trace.device
    )
    if cut or (trace.race is not None and trace.race.cut):
        effort["cut"] = 1
    if trace.simulates:
        effort["simulates"] = 1
    if _is_misled(case, seen, guess):
        effort["misled"] = 1
    if not _is_simulated(case, seen, guess):
        effort["unsimulated"] = 1
    if sure := _count_sure(seen, guess):
        effort["sure"] = sure
    if noise := _find_guaranteed_noise(case, seen):
        effort["guaranteed_noise"] = noise
    return effort


def _find_guaranteed_noise(case: Case, seen: Observation) -> float:
    """The noise, in units of the clipping norm, that hides each person from any attack; 0 if none.

    Every assumption of `IdentificationLimit` is checked: Seepage itself clipped and added the
    noise, to one update of different people, and an honest server has nothing else of theirs.
    Numbers that overflow would get past the clipping.
    """
    target, threat, links = case.target, case.threat, case.client.chain.links
    own = any(map(is_own, (case.client.local, *links)))
    told = threat.server != "honest" or threat.batchnorm == "exact" or threat.rounds > 1
    if own or told or target.batch is None or isinstance(target.captured, CapturedUpdate):
        return 0.0
    different = len({digest(one) for one in target.batch.inputs}) == len(target.batch)
    if not different or not bool(seen.update.flat().isfinite().all()):
        return 0.0
    examples = min(map(len, case.client.chain.split(target.batch)))
    return read_guaranteed_noise(links, case.client.local, examples)


def _count_sure(seen: Observation, guess: Reconstruction) -> int:
    """How many inputs the equations of one layer determine, as the attack says."""
    if guess.confidence is None or seen.task.domain.discrete:
        return 0
    return int((guess.confidence >= 1).flatten(1).all(1).sum())


def _is_misled(case: Case, seen: Observation, guess: Reconstruction) -> bool:
    """Whether a user's own defense misled the attack: the truth explains the update, not the guess.

    This is asked after the attack; the adversary does not have the truth.
    """
    chain = case.client.chain
    own = any(is_own(link) for link in (*chain.input_defenses, *chain.update_defenses))
    labels = guess.labels if seen.labels is None else seen.labels
    if not own or case.target.batch is None or labels is None:
        return False
    truth = case.private
    fits = seen.task.domain.is_known(guess.inputs) and len(guess.inputs) == len(labels)
    left = _find_unexplained(seen, guess.inputs, labels) if fits else 1.0
    return left > LEFT and left > FAR * _find_unexplained(seen, truth.inputs, truth.labels)


def _is_simulated(case: Case, seen: Observation, guess: Reconstruction) -> bool:
    """Whether a user's own input defenses do what they tell, to the truth or else to the guess."""
    if not any(is_own(link) for link in case.client.chain.input_defenses):
        return True
    inputs, labels = guess.inputs, guess.labels
    if case.target.batch is not None:
        inputs, labels = upcast(case.private.inputs), upcast(case.private.labels)
    if labels is None or len(labels) != len(inputs) or not seen.task.domain.is_known(inputs):
        return False
    return case.client.prepares_as_told(seen.task, inputs, labels, rng=Rng(case.seed))


def _explains_truth(case: Case, seen: Observation) -> bool:
    """Whether the truth explains the update, without which a certificate proves nothing.

    True if there is no truth to ask.
    """
    if case.target.batch is None:
        return True
    truth, mixing = case.private, seen.simulate.mixing
    order = sort_labels(truth.labels) if mixing is not None else slice(None)
    inputs, labels = upcast(truth.inputs)[order], upcast(truth.labels)[order]
    return residual(seen, inputs, labels) <= EXPLAINED


def _find_unexplained(seen: Observation, inputs: Tensor, labels: Tensor) -> float:
    """One minus the absolute cosine of the simulated update and the observed one."""
    with torch.no_grad():
        simulated, observed = seen.simulate(inputs, labels).flat(), seen.update.flat()
    return 1 - abs(float(cosine_similarity(simulated, observed, dim=0)))


def _find_label_chance(case: Case) -> float | None:
    """How often a guess of a label is right, by the labels of the data or the number of classes."""
    if case.target.batch is None or case.target.label_chance is not None:
        return case.target.label_chance
    if case.task.target_shape is not None:
        return None
    # The head comes last, with one row for each class.
    *_, head = case.task.parameters.values()
    return 1 / max(1, len(head))


def _certify(seen: Observation, guess: Reconstruction) -> Certificate | None:
    """Measure how well a guess explains a captured update, if the attack does not say so."""
    # Known labels have no order, so they can be used only for a batch of one.
    known = seen.labels if len(guess.inputs) == 1 else None
    labels = known if guess.labels is None else guess.labels
    return None if labels is None else Certificate(residual(seen, guess.inputs, labels))


def announce_nothing(case: AnyCase) -> bool:
    """Run every case, and tell nobody."""
    return case is not None


def serial(cases: Sequence[AnyCase], started: Started = announce_nothing) -> Iterator[Outcome]:
    """Run one case after the other, in this process."""
    for case in cases:
        if started(case):
            yield run_case(case)


def side_by_side(
    cases: Sequence[AnyCase], started: Started = announce_nothing
) -> Iterator[Outcome]:
    """Run cases together that can run as one batch, if the attack can do that."""
    for group in group_by(cases, lambda case: case.batch_key).values():
        for first in range(0, len(group), TOGETHER):
            yield from _run_together(list(filter(started, group[first : first + TOGETHER])))
