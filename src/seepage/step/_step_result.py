"""Run the attacks on a step, and tell training loops and people what it gave away."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from seepage.attacks._applicability import Applicability
from seepage.attacks.feature_recovery._features import NotToldApartWarning
from seepage.audit._case import Case
from seepage.audit._folder import PAGE, SHEET
from seepage.audit._record import CANARIES, Outcome, Record
from seepage.audit._run_case import run_case
from seepage.audit._run_spec import run
from seepage.audit._targets import Target
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._amount import amounts, most
from seepage.audit.results._controls import join_controls
from seepage.clients import Client
from seepage.core import _progress as progress
from seepage.core._batch import class_numbers
from seepage.core._whole_file import write_whole
from seepage.defenses import chain
from seepage.report._contact_sheet import save_contact_sheet
from seepage.report._verdict import verdict
from seepage.report.page._audit_page import audit_page
from seepage.step._real_step import RealStep
from seepage.step._step_attacks import StepAttack


@dataclass(frozen=True, eq=False, repr=False)
class StepAudit:
    """The result of `audit_step`; prints as sentences.

    Args:
        cases: What was tried.
        outcomes: What each gave, in the same order.
        refused: Attacks that do not apply, with the reason.
        notes: What was assumed, and what the audit leaves out.
        promise: What differential privacy promises, in words; empty where it does not.
        controls: The same attacks on others, without the defense; empty if none were given.
        difference: How the audited gradient differs from that of the training loop, in words; empty
            if it has the same bits.
    """

    cases: tuple[Case, ...]
    outcomes: tuple[Outcome, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...]
    promise: str = ""
    controls: tuple[tuple[Case, Outcome], ...] = ()
    difference: str = ""

    @property
    def records(self) -> tuple[Record, ...]:
        """One per attack, with how its control went."""
        every = (*self.outcomes, *(outcome for _, outcome in self.controls))
        return join_controls(outcome.record for outcome in every)

    @property
    def people(self) -> Mapping[int, Result]:
        """The strongest attack on each person, by their place in the batch, worst-off first."""
        return {row.person[1]: row for row in Results.of(self.records).strongest()}

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Metric to one value per person `(B,)`, each of the strongest attack on them."""
        ordered = [self.people[person] for person in sorted(self.people)]
        names = dict.fromkeys(name for attempt in ordered for name in attempt.record.scores)
        return {
            name: torch.tensor(
                [float("nan") if (v := a.score(name)) is None else v for a in ordered]
            )
            for name in names
        }

    @property
    def worst(self) -> int | None:
        """The worst-off person's place in the batch; None if no attack gave a result."""
        return next(iter(self.people), None)

    @property
    def recognisable(self) -> bool:
        """Whether anybody's input can be recognised in what came back, or came back exactly."""
        levels = {attempt.level for attempt in self.people.values()}
        return bool(levels & {Level.reconstructed, Level.recognisable})

    @property
    def identified(self) -> bool:
        """Whether anybody is singled out among strangers, or worse."""
        return any(attempt.level.identified for attempt in self.people.values())

    @property
    def guess(self) -> Tensor | None:
        """What came back of each person `(B, ...)`, in natural units."""
        if not self.people:
            return None
        chosen = [self.people[person] for person in sorted(self.people)]
        kept = [self.outcomes[attempt.number].guess for attempt in chosen]
        rows = [g[a.index] for a, g in zip(chosen, kept, strict=True) if g is not None]
        return torch.stack(rows)

    def report(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write records, tensors, pictures and the page into a directory.

        Args:
            path: The directory, new or empty.
            overwrite: Replace an earlier audit there.

        Returns:
            Where the page is.
        """
        path = Path(path)
        title = f"One training step of {self.cases[0].task.name}" if self.cases else "No attack"
        title = f"{title}: {self.promise}" if self.promise else title
        title = f"{title}; not exactly your step: {self.difference}" if self.difference else title
        told = "\n".join(f"# {line}" for line in self._tell().splitlines())
        controls, controlled = zip(*self.controls, strict=True) if self.controls else ((), ())
        outcomes = {outcome.record.case: outcome for outcome in (*self.outcomes, *controlled)}
        found = run(
            (*self.cases, *controls),
            path,
            executor=lambda cases, _: [outcomes[case.id] for case in cases],
            overwrite=overwrite,
            title=title,
            notes=f"# Made by sp.audit_step; call it again to run it again.\n{told}\n",
        )
        save_contact_sheet(list(found.outcomes()), path / SHEET)
        write_whole(path / PAGE, audit_page(found).encode())
        return path / PAGE

    def __str__(self) -> str:
        """Whether it is the user's own step, the verdict, what was tried, what was assumed."""
        shown = dict.fromkeys(outcome.shown for outcome in self.outcomes if outcome.shown)
        return "\n".join([self._tell(), *(f"raised: {said}" for said in shown)])

    def _tell(self) -> str:
        """All of it that may be stored."""
        judged = verdict(self.records)
        return "\n".join(
            [
                *([f"Not exactly your step: {self.difference}."] if self.difference else []),
                f"{judged.headline}." if self.records else _NO_ATTACK,
                *judged.details,
                *(_tried(record) for record in self.records),
                *(f"not tried: {name}: {reason}" for name, reason in self.refused.items()),
                *(f"note: {note}" for note in self.notes),
            ]
        )

    def __repr__(self) -> str:
        return str(self)


_MORE = "give more seconds before you rely on what it did not find"
_NO_ATTACK = (
    "No attack applies to this step, for the reasons below. That is no evidence that nothing leaks."
)


def _tried(record: Record) -> str:
    race = record.race
    chosen = f", which chose {', '.join(race.chosen)}" if race is not None else ""
    steps = record.effort.get("steps", 0)
    made = f"{steps} steps" if steps else "computed"
    effort = f"{made}, {record.effort.get('seconds', 0.0):.1f} s"
    best = most(amounts(record)).words()
    return f"tried: {record.attack}{chosen}: {record.error or f'at best {best} ({effort})'}"


def run_attacks(
    case: Callable[[StepAttack], Case],
    listed: Sequence[StepAttack],
    found: Applicability,
    *,
    canaries: Sequence[Target],
    notes: tuple[str, ...],
    promise: str,
    real: RealStep,
) -> StepAudit:
    """Run attacks, and each on canaries too, unless it proves its answer.

    Args:
        case: Makes a case from an attack.
        listed: What to run.
        found: Which attacks apply, and why the others do not.
        canaries: Batches of people who are attacked without the defense as a control: the first
            while there is time, the others if they decide whether somebody is said to be safe.
        notes: What was assumed.
        promise: What differential privacy promises; empty where it does not.
        real: How the audited gradient compares with that of the training loop.
    """
    cases: list[Case] = []
    outcomes: list[Outcome] = []
    controls: list[tuple[Case, Outcome]] = []
    refused = dict(found.refused)
    for one in listed:
        if cases and progress.time_left() <= 0:
            refused[one.name.name] = "no time was left for it; give more seconds"
            continue
        attempt, tried = case(one), list[tuple[Case, Outcome]]()
        with _show_progress(one.name.name), _collect_warnings() as said:
            outcome = run_case(attempt)
            for number, batch in enumerate(canaries):
                ended = _proven(outcome.record) or outcome.record.error is not None
                # The control of what is computed at once takes no time.
                late = progress.time_left() <= 0 and (number or outcome.record.effort.get("steps"))
                if ended or late or (number and not _clears(outcome, tried)):
                    break
                tried += _run_control(attempt, batch)
            controls += tried
        if outcome.record.error is not None and not outcome.record.applicable:
            refused[one.name.name] = outcome.record.error
            continue
        race = outcome.record.race
        if race is None:
            # Those of `auto` are mostly about its rehearsal.
            notes = (*notes, *(f"{one.name.name}: {sentence}" for sentence in dict.fromkeys(said)))
            if outcome.record.effort.get("cut"):
                notes = (*notes, f"{one.name.name} was out of time; {_MORE}")
        elif race.cut:
            notes = (*notes, f"{one.name.name} {race.note}; {_MORE}")
        if real.foreign:
            record = replace(outcome.record, effort={**outcome.record.effort, "foreign": 1})
            outcome = replace(outcome, record=record)
        cases.append(attempt)
        outcomes.append(outcome)
    audited = StepAudit(
        tuple(cases), tuple(outcomes), refused, notes, promise, tuple(controls), real.difference
    )
    return _explain_searches(audited, found)


def _run_control(attempt: Case, canaries: Target) -> list[tuple[Case, Outcome]]:
    """Attack a batch of canaries without the defense.

    The search is also run alone if a closed form found them that cannot read the update behind the
    defense. Canaries who have the targets of the private batch are no negative control: an update
    made of these tells of the people in it.
    """
    bare = Client(attempt.client.local, chain())
    others = () if _shares_targets(attempt.target) else (attempt.target,)
    control = replace(attempt, client=bare, control="canary", others=others, target=canaries)
    tried = [(control, run_case(control))]
    computed = not tried[0][1].record.effort.get("simulates")
    if computed and not attempt.client.chain.keeps_gradient:
        tried += [(alone, run_case(alone)) for alone in control.search_alone()]
    return tried


def _shares_targets(attacked: Target) -> bool:
    """Whether the canaries of a step have its targets, which are numbers and not classes."""
    gallery, labels = attacked.everybody, attacked.require_batch().labels
    unknown = gallery is not None and gallery.labels is None
    return unknown and labels.numel() > 0 and class_numbers(labels) is None


def _clears(outcome: Outcome, tried: Sequence[tuple[Case, Outcome]]) -> bool:
    """Whether somebody would be said to be safe if further controls went as those before."""
    records = join_controls(one.record for one in (outcome, *(each for _, each in tried)))
    supposed = [
        replace(record, control=replace(record.control, bare=(CANARIES, CANARIES, 0.01)))
        for record in records
        if record.control is not None and record.control.works
    ]
    return any(one.conclusive and not one.level.identified for one in Results.of(supposed))


def _explain_searches(audited: StepAudit, found: Applicability) -> StepAudit:
    """Say of every search that a proof made it needless."""
    proven = next((record for record in audited.records if _proven(record)), None)
    if proven is None:
        return audited
    name = proven.attack.name if proven.race is None else proven.race.chosen[0]
    reason = f"not needed, since {name} proved that what came back is right"
    searches = {option.name: reason for option in found.chosen if option.options}
    return replace(audited, refused={**audited.refused, **searches})


def _proven(record: Record) -> bool:
    return bool(record.certificate and record.certificate["unique"])


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Keep what attacks warn of, instead of showing it as Python does; others are shown after."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", NotToldApartWarning)
        yield said
    for one in heard:
        if issubclass(one.category, NotToldApartWarning):
            said.append(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@contextmanager
def _show_progress(name: str) -> Iterator[None]:
    """Show the steps of an attack on a terminal, unless somebody listens to them already."""
    if progress.has_listener() or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"auditing the step: {name}") as status:

        def tell(step: int, steps: int, objective: float) -> None:
            doing = escape(progress.stage() or name)
            status.update(
                f"auditing the step: {doing}, step {step}/{steps}, objective {objective:.3g}"
            )

        with progress.listen(tell):
            yield
