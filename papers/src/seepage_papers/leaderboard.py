"""`seepage leaderboard`: defenses at equal utility, against `auto` at a fixed effort."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

import seepage as sp
from seepage._options import RunOptions
from seepage.audit import AuditResult, Spec, load_audit
from seepage.audit._plan import PLAN
from seepage.audit._run_spec import pick_device
from seepage.audit._words import count_noun, write_duration
from seepage.cli._console import print_line, write_file
from seepage.cli._run_audit import CASE_FAILED, DONE, perform
from seepage.core.errors import Diverged, InvalidValue, UnreadableFile
from seepage.data import Dataset
from seepage.report import as_json
from seepage.utility import OneCycle, Training, train
from seepage_papers.board import (
    BOARD,
    SMOKE,
    Board,
    Line,
    choose_lines,
    find_sizes,
    list_lines,
    write_spec,
)
from seepage_papers.board_chart import draw_board
from seepage_papers.leaderboard_command import Leaderboard
from seepage_papers.reproduce import make_folder, preparing
from seepage_papers.standing import judge
from seepage_papers.standings import Standings

AUDIT, UTILITY = "audit", "utility.json"
# Steps that are timed for an estimate.
_TIMED = 10

Trained = dict[str, dict[str, Any]]


def make_leaderboard(request: Leaderboard, console: Console, *, board: Board | None = None) -> int:
    """Train and attack behind every defense that has no result yet, and show the board."""
    board = _choose_board(request) if board is None else board
    out = request.out
    device = pick_device(request.device)
    trained = _read_trained(request, board)
    # Lines that were added before stay on the board.
    added = [*(text for text in trained if text != "[]"), *request.add]
    every = list_lines(added, size=board.batch_size)
    lines = choose_lines(every, request.only)
    people = board.load_people()
    task = board.build_network(people)
    known = [line for line in every if line in lines or line.text in trained]
    reasons = find_sizes(board, known, people, task)
    spec = write_spec(board, {line: reasons[line] for line in lines}, device=device)
    if request.shown.dry_run:
        trainings = sum(line.text not in trained for line in lines) * len(board.rates)
        _show_plan(request, board, spec, trainings, _label_defenses(board, lines), console)
        print_line(console, _estimate(request, board, spec, trainings, task, people))
        return DONE
    make_folder(out)
    shown = Console(quiet=True) if request.shown.quiet else console

    def keep(line: Line, row: dict[str, Any]) -> None:
        trained[line.text] = row
        write_file(out / UTILITY, as_json({"setting": board.plain(), "rows": trained}))

    with preparing(shown, plain=request.shown.plain) as announce:
        for number, line in enumerate(lines, 1):
            if line.text not in trained:
                announce(f"[{number}/{len(lines)}] training behind {line.label}")
                keep(line, measure_utility(board, line, task.to(device=device), people))
    found = _run_audit(request, spec, shown)
    # Whoever asks for some lines sees those of an earlier run beside them, if they are whole.
    places = [
        place
        for line, place in judge(board, reasons, found.records, found.controls, trained).items()
        if line in lines or place.is_whole(board)
    ]
    _write(Standings(board, places, request.points, device), out, console)
    asked = {case.id for case in spec.cases}
    every_record = (*found.records, *found.controls)
    failed = any(record.failed for record in every_record if record.case in asked)
    return CASE_FAILED if failed else DONE


def _choose_board(request: Leaderboard) -> Board:
    base = SMOKE if request.smoke else BOARD
    steps = base.steps if request.steps is None else request.steps
    return replace(base, effort=request.effort, steps=steps)


def measure_utility(board: Board, line: Line, task: sp.Task, people: Dataset) -> dict[str, Any]:
    """Train behind the defense at every learning rate; the lowest training loss counts."""
    alike = board.train_split == "test"
    seen = people if alike else sp.data.load(board.data, split=board.train_split)
    tried: list[dict[str, Any]] = []
    began = time.perf_counter()
    for rate in board.rates:
        plan = Training(
            steps=board.training_steps, batch_size=board.batch_size, lr=rate, schedule=OneCycle()
        )
        try:
            got = train(
                task,
                seen.batch(board.examples),
                held_out=people.batch(board.held_out, start=board.held_start),
                plan=plan,
                defense=line.build(board.batch_size),
                delta=None,
                rng=sp.rng(board.seed),
            )
        except Diverged as error:
            tried.append({"lr": rate, "accuracy": None, "training_loss": None, "why": str(error)})
            continue
        row = {"accuracy": got.accuracy[-1], "training_loss": got.training_loss}
        tried.append({"lr": rate, **row})
    ended = [one for one in tried if one["accuracy"] is not None]
    best = min(ended, key=lambda one: float(one["training_loss"]), default={})
    return {
        "defense": line.label,
        **{key: best.get(key) for key in ("accuracy", "training_loss", "lr")},
        "tried": tried,
        "seconds": round(time.perf_counter() - began, 1),
        "device": str(next(iter(task.parameters.values())).device),
    }


def _read_trained(request: Leaderboard, board: Board) -> Trained:
    """The trainings that are done, if there is a board of the same setting to go on with."""
    out, path = request.out, request.out / UTILITY
    begun = path.is_file() or (out / AUDIT / PLAN).is_file()
    if begun and not (request.resume or request.overwrite or request.shown.dry_run):
        raise InvalidValue(
            f"{str(out)!r} already holds a leaderboard; --resume it, --overwrite it, or choose "
            "another --out"
        )
    if not (request.resume and path.is_file()):
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        setting, rows = kept["setting"], dict(kept["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} cannot be read ({error}); delete it to train again"
        ) from error
    now = board.plain()
    changed = [name for name in now if setting.get(name) != now[name]]
    if changed:
        told = ", ".join(f"{n} was {setting.get(n)!r} and is now {now[n]!r}" for n in changed)
        raise InvalidValue(
            f"the leaderboard in {str(out)!r} has another setting: {told}; choose another --out"
        )
    return rows


def _run_audit(request: Leaderboard, spec: Spec, console: Console) -> AuditResult:
    settings = RunOptions(
        out=request.out / AUDIT,
        device=spec.source.device,
        workers=request.workers,
        resume=request.resume,
        overwrite=request.overwrite,
        extend=True,
    )
    again = f"seepage leaderboard --out {request.out} --resume, with the same options"
    return perform(settings, spec, console, request.shown, again=again)


def _write(standings: Standings, out: Path, console: Console) -> None:
    files = {
        "leaderboard.md": standings.markdown(),
        "leaderboard.json": as_json(standings.plain()),
        "leaderboard.svg": draw_board(standings),
    }
    for name, content in files.items():
        write_file(out / name, content)
    console.print(standings.shown())
    print_line(console, "   ".join(str(out / name) for name in files))


Kind = tuple[str, int]


def _count_missing(request: Leaderboard, spec: Spec) -> Counter[Kind]:
    """How many cases have no result yet, by defense and batch size."""
    audit, done = request.out / AUDIT, set[str]()
    if request.resume and (audit / PLAN).is_file():
        begun = load_audit(audit)
        done = {record.case for record in (*begun.records, *begun.controls)}
    missing = (case for case in spec.cases if case.id not in done)
    return Counter((repr(case.client.defense), len(case.target.people)) for case in missing)


def _count_steps(board: Board, kinds: Mapping[Kind, int]) -> dict[Kind, int]:
    """Steps of their searches: half for each update, and half for a rehearsal of each kind."""
    half = board.attack_steps // 2
    return {kind: half * (count + 1) for kind, count in kinds.items()}


def _label_defenses(board: Board, lines: Sequence[Line]) -> dict[Kind, str]:
    """The line that a client's defense belongs to, at each batch size."""
    return {
        (repr(line.build(size)), size): line.label for line in lines for size in board.batch_sizes
    }


def _show_plan(
    request: Leaderboard,
    board: Board,
    spec: Spec,
    trainings: int,
    labels: Mapping[Kind, str],
    console: Console,
) -> None:
    """Tell how much there is to do for every line."""
    kinds = _count_missing(request, spec)
    steps = _count_steps(board, kinds)
    for label in dict.fromkeys(labels[kind] for kind in kinds):
        own = [kind for kind in kinds if labels[kind] == label]
        cases, taken = sum(kinds[kind] for kind in own), sum(steps[kind] for kind in own)
        told = f"{count_noun(cases, 'case')}, {count_noun(taken, 'step')} of searches"
        print_line(console, f"{label}: {told}")
    print_line(
        console,
        f"{count_noun(trainings, 'training')} of "
        f"{count_noun(board.training_steps, 'step')}, {count_noun(kinds.total(), 'case')} "
        f"with {count_noun(sum(steps.values()), 'step')} of searches",
    )


def _estimate(
    request: Leaderboard,
    board: Board,
    spec: Spec,
    trainings: int,
    task: sp.Task,
    people: Dataset,
) -> str:
    """Say how long that takes here."""
    steps = _count_steps(board, _count_missing(request, spec))
    training = trainings * board.training_steps * _time_training(board, task, people)
    searches = 0.0
    for size in board.batch_sizes:
        count = sum(taken for (_, own), taken in steps.items() if own == size)
        searches += count * _time_search(size, task, people) if count else 0.0
    return (
        f"about {write_duration(training)} of training and {write_duration(searches)} of attacks "
        "here: an estimate from a few steps without a defense; some "
        "defenses take several times as long"
    )


def _time_training(board: Board, task: sp.Task, people: Dataset) -> float:
    """Seconds of one step of training."""
    plan = Training(steps=_TIMED, batch_size=board.batch_size)
    few = people.batch(board.batch_size)
    return train(task, few, held_out=few, plan=plan, delta=None, rng=sp.rng(0)).seconds / _TIMED


def _time_search(size: int, task: sp.Task, people: Dataset) -> float:
    """Seconds of one step of a search for a batch of this size, without what it takes to begin."""
    threat = sp.Threat(knows_labels=True)
    seen = threat.observe(sp.Client(sp.Gradient()), task, people.batch(size), rng=sp.rng(0))

    def run(steps: int) -> float:
        began = time.perf_counter()
        sp.attacks.inverting_gradients(steps=steps, restarts=1)(seen, rng=sp.rng(0))
        return time.perf_counter() - began

    run(_TIMED)
    short, long = run(_TIMED), run(4 * _TIMED)
    return max(0.0, long - short) / (3 * _TIMED)
