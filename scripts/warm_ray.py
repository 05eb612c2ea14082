"""A Ray cluster on this machine whose workers are forks of a process that has imported everything.

Ray starts a new interpreter for every worker of every driver, which takes most of the time of a
small audit. Here the interpreter that Ray is told to start asks a process for a fork of itself
instead, so that audits on Ray can be ended and gone on with many times a minute.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import stat
import sys
import time
from collections.abc import Collection
from pathlib import Path

# Orphans of a process that dies come to this one.
_ADOPT_ORPHANS = 36
_ASK = """import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
asked = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(link, [len(asked).to_bytes(8, "big")], [0, 1, 2])
link.sendall(asked)
link.recv(1)
"""
_CHOOSE = """#!/bin/sh
case "$*" in
*setup_worker.py*) exec {python} -S -E {ask} "$@" ;;
*) exec {python} "$@" ;;
esac
"""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died."""
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


class WarmRay:
    """A cluster, named by `RAY_ADDRESS`."""

    def __init__(self, place: Path, workers: int) -> None:
        """Start the cluster."""
        self._place, self._workers = place, workers
        address = str(place / "nursery")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address)
        listening.listen()
        self.nursery, self.pid = os.fork(), 0
        if not self.nursery:
            _serve(listening)
        listening.close()
        self._python, ask = place / "python", place / "ask.py"
        ask.write_text(_ASK.format(address=address))
        self._python.write_text(_CHOOSE.format(python=sys.executable, ask=ask))
        self._python.chmod(stat.S_IRWXU)
        # Only now, since Ray reads its settings from the environment when it is imported.
        import ray  # noqa: F401

        self.start()

    def start(self) -> None:
        """Start it, or start it anew."""
        self.stop()
        os.environ.pop("RAY_ADDRESS", None)
        told = self._place / "ray-address"
        told.unlink(missing_ok=True)
        self.pid = os.fork()
        if not self.pid:
            try:
                self._run(told)
            finally:
                os._exit(1)
        while not told.exists():
            if os.waitpid(self.pid, os.WNOHANG) != (0, 0):
                raise SystemExit("Ray does not start here")
            time.sleep(0.1)
        os.environ["RAY_ADDRESS"] = told.read_text()

    def stop(self) -> None:
        """End every process of it but the one that is forked."""
        if self.pid:
            for one in (self.pid, *find_started(self.pid), *find_started(self.nursery)):
                _kill(one)
            os.waitpid(self.pid, 0)

    def end(self) -> None:
        """End all of it."""
        self.stop()
        _kill(self.nursery)

    def lose(self, choice: int) -> bool:
        """Kill the raylet if the choice is 0, else a worker; return whether there was one."""
        parts = [one for one in find_started(self.pid) if _read_name(one) == "raylet"]
        held = find_started(self.nursery) if choice else parts
        if held:
            _kill(held[choice % len(held)])
        return bool(held)

    def mend(self) -> None:
        """Start it anew if its raylet is lost."""
        if not any(_read_name(one) == "raylet" for one in find_started(self.pid)):
            self.start()

    def _run(self, told: Path) -> None:
        adopt_orphans()
        said = os.open(self._place / "ray.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        sys.executable = str(self._python)
        ray.init(num_cpus=self._workers, include_dashboard=False, _node_ip_address="127.0.0.1")
        part = told.with_suffix(".partial")
        part.write_text(ray.get_runtime_context().gcs_address)
        part.rename(told)
        while True:
            signal.pause()


def _serve(listening: socket.socket) -> None:
    """Fork a worker for everyone who asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        link, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            _become_worker(link)


def _become_worker(link: socket.socket) -> None:
    """Run what Ray wanted to run in a new interpreter."""
    head, files, _, _ = socket.recv_fds(link, 8, 3)
    size, asked = int.from_bytes(head, "big"), b""
    while len(asked) < size:
        asked += link.recv(size - len(asked))
    words, environment, folder = json.loads(asked)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    from ray._private.runtime_env.context import RuntimeEnvContext

    def run_here(context: RuntimeEnvContext, words: list[str], _: object) -> None:
        os.environ.update(context.env_vars)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")

    RuntimeEnvContext.exec_worker = run_here
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        os._exit(0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _read_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return Path(words[0].decode(errors="replace")).name


def find_started(pid: int, *, besides: Collection[int] = ()) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    kept = [child for child in map(int, children) if child not in besides]
    return [one for child in kept for one in (child, *find_started(child))]
