"""Run the attacks on a step, and tell training loops and people what it gave away."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
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
from seepage.core._construct import Component
from seepage.core._whole_file import write_whole
from seepage.defenses import chain
from seepage.report._contact_sheet import save_contact_sheet
from seepage.report._verdict import verdict
from seepage.report.page._audit_page import audit_page
from seepage.step._real_step import RealStep


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

    @cached_property
    def results(self) -> Results:
        """What the attacks found, with a row for each attack and person, as an audit judges it."""
        tried = (*self.outcomes, *(outcome for _, outcome in self.controls))
        return Results.of(join_controls(outcome.record for outcome in tried))

    @property
    def records(self) -> tuple[Record, ...]:
        """One per attack, with how its control went."""
        return self.results.records

    @cached_property
    def people(self) -> Mapping[int, Result]:
        """The strongest attack on each person, by their place in the batch, worst-off first."""
        return {row.person[1]: row for row in self.results.strongest()}

    @property
    def _rows(self) -> list[Result]:
        return [self.people[person] for person in sorted(self.people)]

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Metric to one value per person `(B,)`, each of the strongest attack on them."""
        names = dict.fromkeys(name for row in self._rows for name in row.record.scores)
        found = {name: [row.score(name) for row in self._rows] for name in names}
        return {n: torch.tensor([nan if v is None else v for v in found[n]]) for n in names}

    @property
    def worst(self) -> int | None:
        """The worst-off person's place in the batch; None if no attack gave a result."""
        return next(iter(self.people), None)

    @property
    def recognisable(self) -> bool:
        """Whether anybody's input can be recognised in what came back, or came back exactly."""
        return any(row.level.rank <= Level.recognisable.rank for row in self.people.values())

    @property
    def identified(self) -> bool:
        """Whether anybody is singled out among strangers, or worse."""
        return any(row.level.identified for row in self.people.values())

    @property
    def guess(self) -> Tensor | None:
        """What came back of each person `(B, ...)`, in natural units."""
        kept = [(row, self.outcomes[row.number].guess) for row in self._rows]
        found = [guess[row.index] for row, guess in kept if guess is not None]
        return torch.stack(found) if found else None

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
        judged = verdict(self.results)
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
    cases: Sequence[Case],
    canaries: Sequence[Target],
    found: Applicability,
    *,
    notes: tuple[str, ...],
    promise: str,
    real: RealStep,
) -> StepAudit:
    """Run every attack, and its control.

    Args:
        cases: The attacks on the people of the step.
        canaries: Batches of people who are attacked without the defense as a control: the first
            while there is time, the others if they decide whether somebody is said to be safe.
        found: Which attacks apply, and why the others do not.
        notes: What was assumed.
        promise: What differential privacy promises; empty where it does not.
        real: How the audited gradient compares with that of the training loop.
    """
    attacked: list[tuple[Case, Outcome]] = []
    controls: list[tuple[Case, Outcome]] = []
    refused = dict(found.refused)
    for case in cases:
        name = Component.of(case.attack_name).name
        if attacked and progress.time_left() <= 0:
            refused[name] = "no time was left for it; give more seconds"
            continue
        with _show_progress(name), _collect_warnings() as said:
            (_, outcome), *tried = _run_controlled(case, canaries)
        record, race = outcome.record, outcome.record.race
        controls += tried
        if record.error is not None and not record.applicable:
            refused[name] = record.error
            continue
        if race is not None:
            # Warnings of `auto` are mostly about its rehearsal.
            notes += (f"{name} {race.note}; {_MORE}",) if race.cut else ()
        else:
            notes += tuple(f"{name}: {sentence}" for sentence in dict.fromkeys(said))
            notes += (f"{name} was out of time; {_MORE}",) if record.effort.get("cut") else ()
        if real.foreign:
            record = replace(record, effort={**record.effort, "foreign": 1})
        attacked.append((case, replace(outcome, record=record)))
        if _is_proven(record):
            winner = record.attack.name if race is None else race.chosen[0]
            reason = f"not needed, since {winner} proved that what came back is right"
            refused |= {option.name: reason for option in found.chosen if option.options}
    ran, outcomes = zip(*attacked, strict=True) if attacked else ((), ())
    return StepAudit(ran, outcomes, refused, notes, promise, tuple(controls), real.difference)


def _run_controlled(case: Case, canaries: Sequence[Target]) -> list[tuple[Case, Outcome]]:
    """Attack the people of a step, then canaries as long as that may clear somebody."""
    outcome = run_case(case)
    tried = [(case, outcome)]
    if _is_proven(outcome.record) or outcome.record.error is not None:
        return tried
    for number, batch in enumerate(canaries):
        # The control of what is computed at once takes no time.
        late = progress.time_left() <= 0 and (number or outcome.record.effort.get("steps"))
        if late or (number and not _clears(tried)):
            break
        tried += _run_control(case, batch)
    return tried


def _run_control(case: Case, canaries: Target) -> list[tuple[Case, Outcome]]:
    """Attack a batch of canaries without the defense.

    The search is also run alone if a closed form found them that cannot read the update behind the
    defense. Canaries who have the targets of the private batch are no negative control: an update
    made of these tells of the people in it.
    """
    bare = Client(case.client.local, chain())
    others = () if _shares_targets(case.target) else (case.target,)
    control = replace(case, client=bare, control="canary", others=others, target=canaries)
    outcome, alone = run_case(control), list[Case]()
    if not (outcome.record.effort.get("simulates") or case.client.chain.keeps_gradient):
        alone = control.search_alone()
    return [(control, outcome), *((one, run_case(one)) for one in alone)]


def _shares_targets(attacked: Target) -> bool:
    """Whether the canaries of a step have its targets, which are numbers and not classes."""
    gallery, labels = attacked.everybody, attacked.require_batch().labels
    unknown = gallery is not None and gallery.labels is None
    return unknown and labels.numel() > 0 and class_numbers(labels) is None


def _clears(tried: Sequence[tuple[Case, Outcome]]) -> bool:
    """Whether somebody would be said to be safe if further controls went as those before."""
    supposed = [
        replace(record, control=replace(record.control, bare=(CANARIES, CANARIES, 0.01)))
        for record in join_controls(outcome.record for _, outcome in tried)
        if record.control is not None and record.control.works
    ]
    return any(row.conclusive and not row.level.identified for row in Results.of(supposed))


def _is_proven(record: Record) -> bool:
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
