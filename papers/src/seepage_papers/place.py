"""Where a reproduction runs, and where trained networks are kept between runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from seepage.audit._spec_entries import Find, build_once, read_dataset
from seepage.core import Task

VARIABLE = "SEEPAGE_CACHE"


def cache_folder() -> Path:
    """The folder named by SEEPAGE_CACHE, or `seepage` in the user's folder for caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "seepage"


@dataclass(frozen=True)
class Trained:
    """What a training left.

    Args:
        path: The weights.
        accuracy: Share of held-out examples it gets right.
        training_loss: Mean loss on what it was trained on.
    """

    path: Path
    accuracy: float
    training_loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where a reproduction runs.

    Args:
        folder: Where trained networks are kept.
        device: Where to train and attack.
        find: What reads data sets, each a single time.
        trained: What was trained or read from the folder by now, by all that decides it.
        networks: The network that features are recovered from, where it runs.
    """

    folder: Path = field(default_factory=cache_folder)
    device: str = "cpu"
    find: Find = field(default_factory=lambda: build_once(read_dataset))
    trained: dict[str, Trained] = field(default_factory=dict)
    networks: dict[str, Task] = field(default_factory=dict)
