"""`seepage audit`: run a spec and show what leaked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from seepage.audit import AuditStore, Outcome, environment, load_spec, run_case
from seepage.audit.database import NAME as DATABASE
from seepage.audit.store import SHEET
from seepage.cli.progress import Display
from seepage.cli.report import PAGE, save_page
from seepage.core.errors import InvalidValue
from seepage.report import leak_table, save_contact_sheet, summarise


def audit(
    spec: Path | None, *, out: Path, device: str, overwrite: bool, quiet: bool, console: Console
) -> bool:
    """Run every case of a spec; tell whether all of them gave a result."""
    chosen = pick_device(device)
    loaded = load_spec(spec, device=chosen)
    cases = loaded.cases
    total = len(cases)
    store = AuditStore.create(
        out,
        title=loaded.title,
        spec=loaded.text,
        environment=environment(chosen),
        cases=cases,
        overwrite=overwrite,
    )
    console.print(f"[bold]{escape(loaded.title)}[/bold]: {total} cases on {chosen}")
    progress = Console(quiet=True) if quiet else console
    outcomes: list[Outcome] = []
    try:
        with store, Display(progress, total).showing() as display:
            for case in cases:
                display.started(case)
                outcome = run_case(case)
                store.add(case, outcome)
                outcomes.append(outcome)
                display.finished(outcome)
    except KeyboardInterrupt:
        console.print(
            f"interrupted after {len(outcomes)} of {total} cases; they are in {out}",
            markup=False,
            soft_wrap=True,
        )
        raise
    finally:
        if outcomes:
            save_contact_sheet(outcomes, out / SHEET)
            save_page(out)
    _show(outcomes, out, console)
    return all(outcome.record.error is None for outcome in outcomes)


def pick_device(device: str) -> str:
    """Resolve "auto", and refuse a device that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidValue("no CUDA device is available here; use --device cpu or auto")
    return device


def _show(outcomes: Sequence[Outcome], out: Path, console: Console) -> None:
    rows = summarise(outcome.record for outcome in outcomes)
    console.print(leak_table(rows, width=console.width))
    reasons = dict.fromkeys(o.record.error for o in outcomes if o.record.error)
    for reason in reasons:
        console.print(f"failed: {reason}", style="yellow", markup=False)
    kept = {"report": out / PAGE, "pictures": out / SHEET, "records": out / DATABASE}
    written = "   ".join(f"{what}: {path}" for what, path in kept.items() if path.exists())
    console.print(written, markup=False, soft_wrap=True)
