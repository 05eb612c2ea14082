"""A process that runs cases for another: ids come in, outcomes go out, all of it plain bytes."""

from __future__ import annotations

import json
import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from seepage.audit.run import run_case
from seepage.audit.source import Source
from seepage.audit.spec import build_spec
from seepage.core.checkpoint import checkpointing
from seepage.core.progress import listen

# The first byte of a message says what follows.
PROGRESS, OUTCOME = b"p", b"o"


def work(link: Connection, source: Source, *, threads: int, checkpoints: Path) -> None:
    """Run the case of every id that comes, until nobody is left to ask."""
    # Ctrl-C reaches the whole group; whoever started us decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_parent, daemon=True).start()
    torch.set_num_threads(threads)
    cases = {case.id: case for case in build_spec(source).cases}

    def heard(step: int, steps: int, objective: float) -> None:
        link.send_bytes(PROGRESS + json.dumps([step, steps, objective]).encode())

    with checkpointing(checkpoints), listen(heard):
        while True:
            try:
                case = cases[link.recv_bytes().decode()]
                link.send_bytes(OUTCOME + run_case(case).packed())
            except (EOFError, BrokenPipeError):
                return


def _die_with_the_parent() -> None:
    """Else an orphan would go on writing where the resumed audit writes."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
