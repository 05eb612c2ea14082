"""`seepage sweep`: one setting at several values, leakage beside accuracy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console

from seepage._options import RunOptions
from seepage.audit._audit_result import AuditResult
from seepage.audit._case import describe_defense
from seepage.audit._run_spec import pick_device
from seepage.audit._spec import Spec, build_spec
from seepage.audit._spec_entries import find_dataset
from seepage.audit._spec_text import SpecSource, write_toml
from seepage.cli._commands import Audit, New, Sweep
from seepage.cli._console import print_line, write_file
from seepage.cli._run_audit import CASE_FAILED, DONE, perform, show_plan
from seepage.cli._written_specs import write_scenario
from seepage.core import Protection, Rng, Task
from seepage.core._client import Client
from seepage.core.errors import Diverged, InvalidValue
from seepage.defenses._clip import dp_sgd, gaussian_epsilon, noise_multiplier
from seepage.report import as_csv, audit_verdict
from seepage.report._terminal_tables import start_table
from seepage.report.page._sweep_page import SweepPoint, sweep_page, sweep_rows, tabulate_sweep
from seepage.utility import Training, Utility, train

# Of one update; what epsilon is stated for.
DELTA = 1e-5
# The norm to which DP-SGD clips.
_CLIP = 1.0
# The part of a data set on which accuracy is measured.
_HELD_OUT = 0.2
# The option of each setting.
_KNOBS = {
    "noise": "--noise",
    "epsilon": "--epsilon",
    "prune": "--prune",
    "batch_size": "--batch-sizes",
}


@dataclass(frozen=True, kw_only=True)
class _Knob:
    """What is swept, and over what."""

    name: str
    values: tuple[float, ...]
    asked: Sweep

    @classmethod
    def of(cls, asked: Sweep) -> _Knob:
        """The one setting that the options sweep."""
        written = (asked.noise, asked.epsilon, asked.prune, asked.batch_sizes)
        given = dict(zip(_KNOBS, written, strict=True))
        chosen = [(name, values) for name, values in given.items() if values is not None]
        if len(chosen) != 1:
            raise InvalidValue(
                "expected one of --noise, --epsilon, --prune and --batch-sizes, got "
                + (f"{len(chosen)}; sweep one at a time" if chosen else "none")
            )
        [(name, values)] = chosen
        return cls(name=name, values=read_values(name, values), asked=asked)

    def write_spec(self) -> str:
        """The spec of the audit behind the sweep."""
        asked, sizes = self.asked, (self.asked.batch_size,)
        new = New(
            data=asked.data,
            model=asked.model,
            option=asked.option,
            people=asked.people,
            batch_size=tuple(map(int, self.values)) if self.name == "batch_size" else sizes,
            attack=asked.attack,
            knows_labels=asked.knows_labels,
        )
        scenario = write_scenario(new)
        if self.name != "batch_size":
            scenario["defenses"] = [self._write_defense(value) for value in self.values]
        title = f"{asked.model} on {asked.data}, by {self.name}"
        return write_toml({"title": title, "scenario": scenario})

    def _write_defense(self, value: float) -> list[Mapping[str, Any]]:
        if self.name == "noise":
            return [{"name": "AddGaussian", "std": value}] if value else []
        if self.name == "prune":
            return [{"name": "Prune", "ratio": value}] if value else []
        sigma, size = _find_noise(value), self.asked.batch_size
        options = {"max_norm": _CLIP, "noise_multiplier": sigma, "batch_size": size}
        return [{"name": "dp_sgd", **options}]


def read_values(knob: str, written: str) -> tuple[float, ...]:
    """Read the values of a knob.

    Example:
        >>> read_values("noise", "0,0.01,0.1")
        (0.0, 0.01, 0.1)
    """
    try:
        values = tuple(float(word) for word in written.split(","))
    except ValueError:
        values = ()
    least = {"noise": 0.0, "prune": 0.0, "epsilon": 1e-3, "batch_size": 1.0}[knob]
    whole = knob != "batch_size" or all(value.is_integer() for value in values)
    fits = all(least <= value < 1e6 for value in values) and len(set(values)) == len(values)
    if not values or not fits or not whole:
        raise InvalidValue(
            f"expected {_KNOBS[knob]} as different numbers from {least:g} on, such as 1,2,4, got "
            f"{written!r}"
        )
    return values


def _find_noise(epsilon: float) -> float:
    """The noise multiplier at which one update is (epsilon, 1e-5)-DP.

    Example:
        >>> from seepage.defenses._clip import gaussian_epsilon
        >>> round(gaussian_epsilon(noise_multiplier=_find_noise(4.0), delta=1e-5), 3)
        4.0
    """
    low, high = 1e-3, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        private = gaussian_epsilon(noise_multiplier=middle, delta=DELTA) <= epsilon
        low, high = (low, middle) if private else (middle, high)
    return high


def run_sweep(asked: Sweep, console: Console) -> int:
    """Audit and train at every value, and write the page; returns the exit code."""
    knob = _Knob.of(asked)
    settings = RunOptions(
        out=asked.out, device=asked.device, workers=asked.workers, overwrite=asked.overwrite
    )
    spec = build_spec(SpecSource("the sweep", knob.write_spec(), pick_device(asked.device)))
    if asked.shown.dry_run:
        return show_plan(settings, spec, console)
    again = Audit(out=asked.out, settings=settings, shown=asked.shown).resuming()
    found = perform(settings, spec, console, asked.shown, again=shlex.join(again))
    points = [_measure(knob, spec, found, number, console) for number in range(len(knob.values))]
    name = knob.name.replace("_", " ")
    _print_points(name, points, console)
    judged = audit_verdict(found)
    page = sweep_page(found.title, name, points, judged)
    write_file(found.path / "sweep.html", page)
    write_file(found.path / "sweep.csv", as_csv(sweep_rows(name, points)))
    print_line(console, f"sweep: {found.path / 'sweep.html'}   rows: {found.path / 'sweep.csv'}")
    return CASE_FAILED if any(record.failed for record in found.records) else DONE


def _measure(
    knob: _Knob, spec: Spec, found: AuditResult, number: int, console: Console
) -> SweepPoint:
    by_size = knob.name == "batch_size"
    audit = spec.parts[number if by_size else 0].audit
    defense = audit.defenses[0 if by_size else number]
    size = int(knob.values[number]) if by_size else knob.asked.batch_size
    links = describe_defense(Client(audit.locals[0], defense))
    people = found.results.where(defense=links, batch_size=size).strongest()
    shares = bool(people) and all(row.is_share for row in people)
    scores = [row.measured if shares else row.psnr for row in people]
    sigma = noise_multiplier(defense)
    trained, wanted = None, knob.asked.train_steps != 0
    if wanted:
        print_line(console, f"training with {knob.name} {knob.values[number]:g}", style="dim")
        trained = _train(knob.asked, audit.tasks[0], defense, size if by_size else None)
    return SweepPoint(
        value=knob.values[number],
        people=len(people),
        identified=people.identified,
        conclusive=not people.unclear,
        worst=max(scores, default=None),
        median=median(scores) if scores else None,
        unit="%" if shares else "dB",
        accuracy=trained.accuracy[-1] if trained else None,
        held_out=trained.held_out if trained else None,
        chance=trained.chance if trained else None,
        luck=trained.luck if trained else 1.0 if wanted else None,
        epsilon=gaussian_epsilon(noise_multiplier=sigma, delta=DELTA) if sigma else None,
    )


def _train(asked: Sweep, task: Task, defense: Protection, size: int | None) -> Utility | None:
    """Train in batches of their own size, unless that is swept; None if the training diverged."""
    dataset = find_dataset(asked.data)
    order = Rng(0).fork("held out").permutation(len(dataset))
    kept = max(size or 1, round((1 - _HELD_OUT) * len(dataset)))
    learnt, unseen = dataset.take(order[:kept]), dataset.take(order[kept:])
    if not len(unseen):
        raise InvalidValue(f"{dataset.name} has too few people to train on; use --train-steps 0")
    plan = Training.usual(len(learnt), batch_size=size, steps=asked.train_steps)
    if (sigma := noise_multiplier(defense)) is not None:
        # The noise multiplier and so the epsilon of one update are the same for any batch size.
        options = {"max_norm": _CLIP, "noise_multiplier": sigma}
        defense = dp_sgd(**options, batch_size=plan.batch_size)
    try:
        return train(task, learnt, held_out=unseen, plan=plan, defense=defense, rng=Rng(0))
    except Diverged:
        return None


def _print_points(knob: str, points: Sequence[SweepPoint], console: Console) -> None:
    table = start_table(f"Leakage against {knob}", None)
    titles, rows, said = tabulate_sweep(knob, points)
    for column in titles:
        table.add_column(column, justify="right", no_wrap=column == knob)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    if said:
        print_line(console, said)
