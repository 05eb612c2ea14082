"""An update that was captured, in the place of one that is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from seepage.capture import Capture
from seepage.core import Observation, Protection, Task
from seepage.core.digest import digest
from seepage.defenses import chain
from seepage.threats import Threat


@dataclass(frozen=True, eq=False)
class Tapped:
    """What the adversary got hold of.

    Args:
        capture: The update, as it crossed the wire.
        labels: Those of the batch, where the adversary knows them.
    """

    capture: Capture
    labels: Tensor | None = field(default=None)

    @cached_property
    def digest(self) -> str:
        """A hash of all of it."""
        known = () if self.labels is None else (self.labels,)
        return digest(self.capture.digest, *known)

    @property
    def threat(self) -> Threat:
        """What the adversary knows, as records say it."""
        setting = self.capture.setting
        return Threat(
            knows_labels=self.labels is not None,
            knows_batch_size=setting.batch_size is not None or self.labels is not None,
            batchnorm="running" if setting.mode == "eval" else "unknown",
        )

    def observe(self, task: Task, *, defense: Protection | None = None) -> Observation:
        """The adversary's view."""
        reference = next(iter(task.parameters.values()))
        labels = None if self.labels is None else self.labels.to(reference.device)
        known = chain() if defense is None else defense
        return self.capture.observation(task, labels=labels, defense=known)
