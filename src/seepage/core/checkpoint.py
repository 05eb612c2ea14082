"""Checkpoints of long work, without a parameter in every signature.

    with checkpointing(folder, every=500):
        attack(observation, rng=rng)

If it is interrupted and called again with the same arguments, the attack goes on where it was. A
checkpoint is named by a fingerprint of everything that decides the result, so another attack never
loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue, UnreadableFile


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one file per fingerprint.

    Args:
        folder: Where.
        every: Steps between two checkpoints.
    """

    folder: Path
    every: int = 500

    def __post_init__(self) -> None:
        """Check the interval."""
        if self.every < 1:
            raise InvalidValue(f"expected every >= 1, got {self.every!r}")

    def load(self, fingerprint: str) -> list[Tensor] | None:
        """Load the tensors saved under this fingerprint, or None."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._path(fingerprint)
        if not path.is_file():
            return None
        try:
            named = load_file(path)
        except (SafetensorError, OSError) as error:
            raise UnreadableFile(
                f"the checkpoint {str(path)!r} cannot be read ({error}); delete it to start anew"
            ) from error
        return [named[f"{index:03d}"] for index in range(len(named))]

    def save(self, fingerprint: str, tensors: Sequence[Tensor]) -> None:
        """Save tensors, whole or not at all."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(fingerprint)
        partial = path.with_suffix(".partial")
        # Copies, since an optimiser may hold one tensor under two names.
        own = [t.detach().cpu().clone(memory_format=torch.contiguous_format) for t in tensors]
        save_file({f"{index:03d}": t for index, t in enumerate(own)}, partial)
        partial.replace(path)

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
def checkpointing(folder: Path | str, *, every: int = 500) -> Iterator[None]:
    """Save the state of attacks made inside the block, and continue from what is there."""
    token = _current.set(Checkpoints(Path(folder), every))
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
