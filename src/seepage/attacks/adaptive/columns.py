"""Which features Soteria pruned: their columns of the last layer's gradient are zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from seepage.attacks.reading.plan import Plan
from seepage.core import Lesson
from seepage.core.protocols import Stage
from seepage.defenses import Soteria
from seepage.defenses.head import head_of
from seepage.defenses.link import OnLesson


@dataclass(frozen=True, eq=False, repr=False)
class KnownColumns(OnLesson):
    """Multiply the gradient of one parameter with a mask that is known.

    Args:
        parameter: Its name.
        mask: One factor for each column, `(D,)`.
    """

    stage: ClassVar[Stage] = "network"

    parameter: str
    mask: Tensor

    def rehearse(self, lesson: Lesson) -> Lesson:
        """Mask, which the client does as well."""
        return replace(lesson, masks={**lesson.masks, self.parameter: self.mask})


def read_columns(link: Soteria, plan: Plan) -> Plan:
    """Simulate the pruning that the client did; behind noise no column is zero, and none is lost.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian), who leave the whole layer out
    """
    name, _ = head_of(plan.observation.task, needed_by=link)
    weight = plan.observation.update.tensors.get(f"{name}.weight")
    if weight is None:  # frozen, so that there was nothing to prune
        return plan
    mask = (weight != 0).any(0).to(weight.dtype)
    return plan.standing_in(link, KnownColumns(f"{name}.weight", mask))
