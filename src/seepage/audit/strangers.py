"""Whose data is attacked, where nobody has the data to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from seepage.audit.judged import Judged
from seepage.audit.tapped import Tapped
from seepage.core import Metric, Reconstruction, Rng, Task


@dataclass(frozen=True, eq=False)
class Strangers:
    """The people behind a captured update, of whom nothing else is known.

    Args:
        data: What records call them.
        tapped: The update they shared.
    """

    data: str
    tapped: Tapped

    @property
    def people(self) -> tuple[int, ...]:
        """Numbers for as many as there are known to be; the order means nothing."""
        labels, size = self.tapped.labels, self.tapped.capture.setting.batch_size
        return tuple(range(size or (1 if labels is None else len(labels))))

    @property
    def digest(self) -> str:
        """A hash of everything here that decides a result."""
        return self.tapped.digest

    @property
    def truth(self) -> Tensor | None:
        """Nobody has it."""
        return None

    @property
    def said(self) -> tuple[tuple[str, ...], ...]:
        """Nobody can say what it was."""
        return ()

    def kept(self) -> dict[str, Tensor]:
        """Nothing is kept of them but what comes back."""
        return {}

    def check(self, task: Task) -> None:
        """Raise `InvalidValue` unless the update is of this task."""
        self.tapped.observe(task)

    def judge(self, guess: Reconstruction, *, metrics: Sequence[Metric] | None, rng: Rng) -> Judged:
        """No score without the truth: a guess stands as it is."""
        del metrics, rng
        return Judged(tuple(range(len(guess.inputs))), guess.inputs)
