"""`seepage sweep`: one setting at several values, leakage beside accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console

from seepage.audit.audit_result import AuditResult
from seepage.audit.case import describe_defense
from seepage.audit.run_spec import pick_device
from seepage.audit.spec import Spec, build_spec
from seepage.audit.spec_entries import read_dataset
from seepage.audit.spec_text import SpecSource, write_toml
from seepage.cli.new_command import NewSpec
from seepage.cli.options import read_part
from seepage.cli.report_command import print_line, write
from seepage.cli.run_audit import CASE_FAILED, DONE, AuditRequest, perform, show_plan
from seepage.clients.client import Client
from seepage.core import Protection, Rng, Task
from seepage.core.errors import Diverged, InvalidValue
from seepage.defenses.clip import dp_sgd, gaussian_epsilon, noise_multiplier
from seepage.report import as_csv, audit_verdict
from seepage.report.leak_table import start_table
from seepage.report.page.sweep_page import SweepPoint, sweep_page, sweep_rows, tabulate_sweep
from seepage.utility import Training, Utility, train

KNOBS = ("noise", "epsilon", "prune", "batch_size")
# Of one update; what epsilon is stated for.
DELTA = 1e-5
# The part of a data set on which accuracy is measured.
_HELD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is swept, over what, and for how many steps it is trained: None for the usual ones."""

    knob: str
    values: tuple[float, ...]
    base: NewSpec
    train_steps: int | None
    clip: float = 1.0

    def text(self) -> str:
        """The spec of the audit behind it."""
        scenario = self.base.scenario()
        if self.knob == "batch_size":
            sizes = tuple(map(int, self.values))
            scenario["data"] = replace(self.base, batch_sizes=sizes).scenario()["data"]
        else:
            scenario["defenses"] = [self._write_defense(value) for value in self.values]
        title = f"{self.base.model} on {self.base.data}, by {self.knob}"
        return write_toml({"title": title, "scenario": scenario})

    def _write_defense(self, value: float) -> list[Mapping[str, Any]]:
        if self.knob == "noise":
            return [{"name": "AddGaussian", "std": value}] if value else []
        if self.knob == "prune":
            return [{"name": "Prune", "ratio": value}] if value else []
        sigma = _find_noise(value)
        size = self.base.batch_sizes[0]
        options = {"max_norm": self.clip, "noise_multiplier": sigma, "batch_size": size}
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
        option = {"batch_size": "--batch-sizes"}.get(knob, f"--{knob}")
        raise InvalidValue(
            f"expected {option} as different numbers from {least:g} on, such as 1,2,4, got "
            f"{written!r}"
        )
    return values


def _find_noise(epsilon: float) -> float:
    """The noise multiplier at which one update is (epsilon, 1e-5)-DP.

    Example:
        >>> from seepage.defenses.clip import gaussian_epsilon
        >>> round(gaussian_epsilon(noise_multiplier=_find_noise(4.0), delta=1e-5), 3)
        4.0
    """
    low, high = 1e-3, 1e6
    for _ in range(100):
        middle = (low * high) ** 0.5
        private = gaussian_epsilon(noise_multiplier=middle, delta=DELTA) <= epsilon
        low, high = (low, middle) if private else (middle, high)
    return high


def run_sweep(sweep: Sweep, request: AuditRequest, console: Console) -> int:
    """Audit and train at every value, and write the page; returns the exit code."""
    source = SpecSource("the sweep", sweep.text(), pick_device(request.device))
    spec = build_spec(source)
    if request.dry_run:
        return show_plan(request, spec, console)
    found = perform(request, spec, console)
    points = [_measure(sweep, spec, found, number, console) for number in range(len(sweep.values))]
    knob = sweep.knob.replace("_", " ")
    _print_points(knob, points, console)
    judged = audit_verdict(found)
    page = sweep_page(found.title, knob, points, judged)
    write(found.path / "sweep.html", page)
    write(found.path / "sweep.csv", as_csv(sweep_rows(knob, points)))
    print_line(console, f"sweep: {found.path / 'sweep.html'}   rows: {found.path / 'sweep.csv'}")
    return CASE_FAILED if any(record.failed for record in found.records) else DONE


def _measure(
    sweep: Sweep, spec: Spec, found: AuditResult, number: int, console: Console
) -> SweepPoint:
    by_size = sweep.knob == "batch_size"
    audit = spec.parts[number if by_size else 0].audit
    defense = audit.defenses[0 if by_size else number]
    size = int(sweep.values[number]) if by_size else sweep.base.batch_sizes[0]
    links = describe_defense(Client(audit.locals[0], defense))
    people = found.results.where(defense=links, batch_size=size).strongest()
    shares = bool(people) and all(row.is_share for row in people)
    scores = [row.measured if shares else row.psnr for row in people]
    sigma = noise_multiplier(defense)
    trained, wanted = None, sweep.train_steps != 0
    if wanted:
        print_line(console, f"training with {sweep.knob} {sweep.values[number]:g}", style="dim")
        trained = _train(sweep, audit.tasks[0], defense, size if by_size else None)
    return SweepPoint(
        value=sweep.values[number],
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


def _train(sweep: Sweep, task: Task, defense: Protection, size: int | None) -> Utility | None:
    """Train in batches of their own size, unless that is swept; None if the training diverged."""
    dataset = read_dataset(read_part(sweep.base.data, "data"))
    order = Rng(0).fork("held out").permutation(len(dataset))
    kept = max(size or 1, round((1 - _HELD_OUT) * len(dataset)))
    learnt, unseen = dataset.take(order[:kept]), dataset.take(order[kept:])
    if not len(unseen):
        raise InvalidValue(f"{dataset.name} has too few people to train on; use --train-steps 0")
    plan = Training.usual(len(learnt), batch_size=size, steps=sweep.train_steps)
    if (sigma := noise_multiplier(defense)) is not None:
        # The noise multiplier and so the epsilon of one update are the same for any batch size.
        options = {"max_norm": sweep.clip, "noise_multiplier": sigma}
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
