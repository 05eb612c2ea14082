"""What a client really trains, and on what, after the defenses that act before the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from seepage.core.batch import Batch
from seepage.core.task import Task


@dataclass(frozen=True, eq=False)
class Mixing:
    """How encodings were made from private inputs.

        e_j = sum_i W_ji x_i,   or   e_j = c +- (sum_i W_ji x_i - c)   with random signs per entry

    Args:
        coefficients: W, `(E, B)`: how much of each private input is in each encoding. Who was mixed
            with whom is where it is not zero.
        flipped_about: The value c that entries were mirrored at, or None if they were not.
    """

    coefficients: Tensor
    flipped_about: float | None = None


@dataclass(frozen=True, eq=False)
class Lesson:
    """A network and the data it is taught with.

    Args:
        task: The network.
        batch: What is trained on.
        sought: What a candidate of the adversary stands for: the encodings once data is mixed, and
            the private batch otherwise.
        mixing: How the encodings were made, if they were.
        masks: By parameter name, what its part of the update is multiplied with.
    """

    task: Task
    batch: Batch
    sought: Batch
    mixing: Mixing | None = None
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def plain(cls, task: Task, batch: Batch) -> Lesson:
        """The lesson of a client that prepares nothing."""
        return cls(task, batch, sought=batch)
