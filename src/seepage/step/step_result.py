"""What an audited step gave away, for training loops and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.audit.case import Case
from seepage.audit.folder import PAGE, SHEET
from seepage.audit.record import Outcome, Record, join_controls
from seepage.audit.run_spec import run
from seepage.core.whole_file import write_whole
from seepage.report.contact_sheet import save_contact_sheet
from seepage.report.leak import Attempt, Level, amounts, attempts, most, strongest
from seepage.report.page.audit_page import audit_page
from seepage.report.verdict import verdict


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
    def people(self) -> Mapping[int, Attempt]:
        """The strongest attack on each person, by their place in the batch, worst-off first."""
        found = strongest(attempts(self.records))
        return {person: attempt for (_, person), attempt in found.items()}

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
        told = "\n".join(f"# {line}" for line in str(self).splitlines())
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
        page = audit_page(found).encode()
        write_whole(path / PAGE, page, partial=path / f".{PAGE}.partial")
        return path / PAGE

    def __str__(self) -> str:
        """Whether it is the user's own step, the verdict, what was tried, what was assumed."""
        judged = verdict(self.records)
        return "\n".join(
            [
                *([f"Not exactly your step: {self.difference}."] if self.difference else []),
                f"{judged.headline}." if self.records else "No attack applies to this step.",
                *judged.details,
                *(_tried(record) for record in self.records),
                *(f"not tried: {name}: {reason}" for name, reason in self.refused.items()),
                *(f"note: {note}" for note in self.notes),
            ]
        )

    def __repr__(self) -> str:
        """The same."""
        return str(self)


def _tried(record: Record) -> str:
    race = record.race
    chosen = f", which chose {', '.join(race.chosen)}" if race is not None else ""
    effort = f"{record.effort.get('steps', 0)} steps, {record.effort.get('seconds', 0.0):.1f} s"
    best = most(amounts(record)).words()
    return f"tried: {record.attack}{chosen}: {record.error or f'at best {best} ({effort})'}"
