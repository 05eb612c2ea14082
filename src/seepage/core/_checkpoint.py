"""Checkpoints of long work, without a parameter in every signature.

    with checkpointing(folder, every=500):
        attack(observation, rng=rng)

If it is interrupted and called again with the same arguments, the attack goes on where it was. A
checkpoint is named by a fingerprint of everything that decides the result, so another attack never
loads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.core._whole_file import PRIVATE_FOLDER, read_plain, seal, unpack, unseal, write_whole
from seepage.core.errors import UnreadableFile, require_at_least


class CheckpointWarning(UserWarning):
    """A checkpoint was altered and is not used."""


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one file per fingerprint."""

    folder: Path
    every: int = 500

    def __post_init__(self) -> None:
        require_at_least(1, every=self.every)

    def load(self, fingerprint: str) -> list[Tensor] | None:
        """Load the tensors saved under this fingerprint, or None.

        A checkpoint that was altered is discarded with a warning, and the work starts anew.
        """
        path = self._path(fingerprint)
        if not (path.exists() or path.is_symlink()):
            return None
        try:
            return self._read(fingerprint)
        except OSError as error:
            warnings.warn(
                f"the checkpoint {str(path)!r} is damaged ({error}); the work starts anew",
                CheckpointWarning,
                stacklevel=2,
            )
            self.discard(fingerprint)
            return None

    def is_whole(self, fingerprint: str) -> bool:
        """Whether a checkpoint is there as it was saved."""
        try:
            self._read(fingerprint)
        except OSError:
            return False
        return True

    def _read(self, fingerprint: str) -> list[Tensor]:
        data = read_plain(self._path(fingerprint))
        if unseal(data).get("name") != fingerprint:
            raise UnreadableFile("it is the checkpoint of other work")
        named, _ = unpack(data)
        # By number, of which there may be more than three digits.
        return [named[name] for name in sorted(named, key=lambda name: (len(name), name))]

    def save(self, fingerprint: str, tensors: Sequence[Tensor]) -> None:
        """Save tensors, whole or not at all."""
        # Not what is above it, which somebody may have moved away or removed in the meantime.
        self.folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        # Copies, since an optimiser may hold one tensor under two names.
        own = [t.detach().cpu().clone(memory_format=torch.contiguous_format) for t in tensors]
        named = {f"{index:03d}": t for index, t in enumerate(own)}
        write_whole(self._path(fingerprint), seal(named, {"name": fingerprint}))

    def finish(self, fingerprint: str, tensors: Sequence[Tensor]) -> None:
        """Remove the checkpoint of finished work; inside `until_done`, save its end instead."""
        done = _done.get()
        if done is None:
            self.discard(fingerprint)
            return
        self.save(fingerprint, tensors)
        done.append((self, fingerprint))

    def discard(self, fingerprint: str) -> None:
        """Remove a checkpoint that is no longer needed."""
        self._path(fingerprint).unlink(missing_ok=True)

    def _path(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint}.safetensors"


_current: ContextVar[Checkpoints | None] = ContextVar("seepage_checkpoints", default=None)
_done: ContextVar[list[tuple[Checkpoints, str]] | None] = ContextVar("seepage_done", default=None)


def checkpoints() -> Checkpoints | None:
    """The checkpoints of the block we are in, if any."""
    return _current.get()


@contextmanager
def checkpointing(folder: Path | str, *, every: int = 500, inside: bool = False) -> Iterator[None]:
    """Save the state of attacks made inside the block, and continue from what is there.

    Args:
        folder: Where states are saved.
        every: Steps between two states.
        inside: The folder lies in one that is there, and that is not made again if it is not.
    """
    folder = Path(folder)
    if not inside:
        folder.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    token = _current.set(Checkpoints(folder, every))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def until_done() -> Iterator[None]:
    """Keep the last states of all work inside the block until the block itself is done.

    Work that consists of several searches is stored at its end. If it is interrupted in the third
    search, the first two are already done when it is called again.
    """
    done: list[tuple[Checkpoints, str]] = []
    token = _done.set(done)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):  # an interrupt, after which the work is resumed
            done.clear()
        raise
    finally:
        _done.reset(token)
        for saved, fingerprint in done:
            saved.discard(fingerprint)
