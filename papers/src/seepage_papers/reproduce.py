"""`seepage reproduce`: a table of a paper, made again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage._options import RunOptions
from seepage.audit import Spec, SpecSource, build_spec, load_audit
from seepage.audit._run_spec import pick_device
from seepage.cli._console import write_file
from seepage.cli._run_audit import CASE_FAILED, DONE, perform, show_plan
from seepage.core._progress import listen
from seepage.core.errors import UnreadableFile
from seepage.report import as_json
from seepage_papers.command import Reproduce
from seepage_papers.cost import cost
from seepage_papers.figure import page
from seepage_papers.pictures import save_pictures
from seepage_papers.place import Place
from seepage_papers.reading import load_table, names
from seepage_papers.reproduction import Reproduction
from seepage_papers.run import Announce, reproduction, source
from seepage_papers.sources import Audited
from seepage_papers.table import SCALES, PaperTable

AUDIT, SPEC, PICTURES = "audit", "spec.toml", "pictures.png"
_SECONDS_PER_LINE = 10.0


def list_tables(console: Console) -> None:
    """Every name, what it is, and what it costs at each scale."""
    table = Table(
        box=None,
        show_header=False,
        pad_edge=False,
        caption="Cost: attacks on one update each, gradients of one image that their searches "
        "take, and epochs of networks to be trained first. --dry-run estimates the time here.",
        caption_justify="left",
    )
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    last = ""
    for name in names():
        told = load_table(name)
        if told.citation != last:
            last = told.citation
            table.add_row("", Text(last, style="bold"))
        costs = "; ".join(f"{scale}: {cost(told, scale)}" for scale in SCALES)
        what = f"{told.title} ({told.place})"
        table.add_row(name, Text.assemble(what, "\n", (costs, "dim")))
    console.print(table)


def reproduce(wish: Reproduce, console: Console) -> int:
    """Prepare, audit, and put what was found beside what was published; or list every table."""
    if wish.listed or not wish.name:
        list_tables(console)
        return DONE
    table = _choose_table(wish)
    place = Place(device=pick_device(wish.device))
    shown = Console(quiet=True) if wish.shown.quiet else console
    with preparing(shown, plain=wish.shown.plain) as announce:
        made = source(
            table, wish.scale, place=None if wish.shown.dry_run else place, announce=announce
        )
    spec = None if made is None else build_spec(made)
    if wish.shown.dry_run:
        return _show_plan(wish, table, spec, console)
    make_folder(wish.folder)
    found = None
    if spec is not None:
        write_file(wish.folder / SPEC, spec.source.text)
        again = f"seepage reproduce {wish.name} --scale {wish.scale} --out {wish.folder} --resume"
        found = perform(_settings(wish, spec), spec, console, wish.shown, again=again)
    with preparing(shown, plain=wish.shown.plain) as announce:
        result = reproduction(
            table, wish.scale, spec=spec, found=found, place=place, announce=announce
        )
    pictured = found is not None and spec is not None and _draw(table, wish, Audited(found, spec))
    _keep(result, wish.folder, console, pictured=pictured)
    return DONE if result.complete else CASE_FAILED


def what_is_done(wish: Reproduce, console: Console) -> int:
    """Make the table of an audit that was interrupted, from the cells that are done."""
    table = _choose_table(wish)
    spec = build_spec(SpecSource.read(wish.folder / SPEC, device=pick_device(wish.device)))
    found = load_audit(wish.folder / AUDIT)
    place = Place(device=spec.source.device)
    result = reproduction(table, wish.scale, spec=spec, found=found, place=place)
    _keep(result, wish.folder, console, pictured=_draw(table, wish, Audited(found, spec)))
    return DONE if result.complete else CASE_FAILED


def _show_plan(wish: Reproduce, table: PaperTable, spec: Spec | None, console: Console) -> int:
    if spec is not None:
        return show_plan(_settings(wish, spec), spec, console)
    todo = cost(table, wish.scale)
    console.print(f"{table.name} ({wish.scale}): {todo}; it needs no audit", highlight=False)
    return DONE


def make_folder(folder: Path) -> None:
    """Make the directory that results go to, or raise with the reason why it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreadableFile(
            f"cannot write to {str(folder)!r}: {error.strerror}; choose another --out"
        ) from error


def _draw(table: PaperTable, wish: Reproduce, audited: Audited) -> bool:
    path = wish.folder / PICTURES
    try:
        return save_pictures(table, wish.scale, audited, path)
    except OSError as error:
        raise UnreadableFile(
            f"cannot draw {str(path)!r}: {error.strerror or error}; the records are stored"
        ) from error


def _keep(result: Reproduction, out: Path, console: Console, *, pictured: bool) -> None:
    files = {
        "table.md": result.markdown(),
        "table.json": as_json(result.plain()),
        "figure.html": page(result),
    }
    for name, content in files.items():
        write_file(out / name, content)
    console.print(result.shown())
    written = "   ".join(str(out / name) for name in (*files, *[PICTURES] * pictured))
    console.print(written, markup=False, highlight=False, soft_wrap=True)


def _choose_table(wish: Reproduce) -> PaperTable:
    """What is to be made."""
    table = load_table(wish.name).with_values(wish.scale, wish.values)
    return table.only(wish.row, wish.scale, columns=wish.column)


def _settings(wish: Reproduce, spec: Spec) -> RunOptions:
    return RunOptions(
        out=wish.folder / AUDIT,
        device=spec.source.device,
        workers=wish.workers,
        resume=wish.resume,
        overwrite=wish.overwrite,
    )


@contextmanager
def preparing(console: Console, *, plain: bool) -> Iterator[Announce]:
    """Show what is prepared, and how far it is; a log gets a line now and then."""
    with console.status("") as status:
        said, told = "", 0.0

        def announce(words: str) -> None:
            nonlocal said
            said = words
            if plain:
                console.print(words, markup=False, highlight=False)
            status.update(words)

        def heard(step: int, steps: int, value: float) -> None:
            nonlocal told
            words = f"{said}: step {step} of {steps}, at {value:.3g}"
            if plain and time.monotonic() > told + _SECONDS_PER_LINE:
                told = time.monotonic()
                console.print(words, markup=False, highlight=False)
            status.update(words)

        with listen(heard):
            yield announce
