"""How well a membership test did, once it is known who was a member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.inference._membership import Membership
from seepage.numerics._significance import Rate

LEVELS = (0.001, 0.01)


@dataclass(frozen=True, eq=False)
class Detection:
    """The receiver operating characteristic of a membership test, with exact intervals.

    Args:
        found: What the test said of each candidate.
        is_member: Who was a member, `(N,)`.

    Example:
        >>> from seepage.inference._membership import Membership
        >>> p = torch.tensor([0.01, 0.01, 0.6, 0.3])
        >>> found = Membership(p, 1 / p, -p, ("a test",), strangers=99)
        >>> told = Detection.of(found, torch.tensor([True, True, False, False]))
        >>> told.auc
        1.0
        >>> print(told.found_at(0.01), told.false_alarms(0.01))
        100.0 % [15.8, 100.0] 0.0 % [0.0, 84.2]
    """

    kind: ClassVar[str] = "membership"
    found: Membership
    is_member: Tensor

    @classmethod
    def of(cls, found: Membership, is_member: Tensor) -> Detection:
        """Compare with the truth, one bool per candidate."""
        if is_member.shape != found.scores.shape or is_member.dtype != torch.bool:
            raise InvalidValue(
                f"expected one bool per candidate, shape {tuple(found.scores.shape)}, got "
                f"{is_member.dtype} {tuple(is_member.shape)}"
            )
        if bool(is_member.all()) or not bool(is_member.any()):
            raise InvalidValue("expected members and strangers among the candidates, got one kind")
        return cls(found, is_member)

    @property
    def members(self) -> Tensor:
        """Scores of those who were members, `(m,)`."""
        return self.found.scores[self.is_member]

    @property
    def strangers(self) -> Tensor:
        """Scores of those who were not, `(n,)`."""
        return self.found.scores[~self.is_member]

    def plain(self) -> dict[str, Any]:
        """The result and how often it is right, as data that JSON can hold."""
        told, level = self.found.plain(), self.found.level
        for one, member in zip(told["candidates"], self.is_member.tolist(), strict=True):
            one["member"] = member
        rates = {
            "false_positive_rate": level,
            "members": self.found_at(level).plain(),
            "strangers": self.false_alarms(level).plain(),
            "auc": self.auc,
        }
        return {**told, "detection": rates}

    @property
    def auc(self) -> float:
        """Probability that a member scores above a stranger; ties count half."""
        ordered, members = self.strangers.sort().values, self.members
        below = torch.searchsorted(ordered, members)
        up_to = torch.searchsorted(ordered, members, right=True)
        return float((below + up_to).double().mean() / (2 * len(ordered)))

    def found_at(self, level: float) -> Rate:
        """The share of members with a p-value of at most `level`."""
        return _at_most(self.found.p_values[self.is_member], level)

    def false_alarms(self, level: float) -> Rate:
        """The share of strangers with a p-value of at most `level`, which `level` should bound."""
        return _at_most(self.found.p_values[~self.is_member], level)

    def tpr_at(self, level: float) -> Rate | None:
        """The true-positive rate at the threshold that lets this share of strangers through.

        None if there are fewer than `1 / level` strangers.
        """
        members, strangers = self.members, self.strangers
        let_through = int(level * len(strangers))
        if let_through < 1:
            return None
        threshold = strangers.sort(descending=True).values[let_through]
        return Rate(int((members > threshold).sum()), len(members))

    def curve(self) -> list[tuple[float, float]]:
        """False- and true-positive rates at every threshold."""
        members, strangers = self.members, self.strangers
        return [(0.0, 0.0)] + [
            (float((strangers >= t).double().mean()), float((members >= t).double().mean()))
            for t in torch.unique(self.found.scores).flip(0)
        ]

    def __str__(self) -> str:
        """A table of rates, with 95 % intervals."""
        lines = [f"{'false-positive rate':20s} {'true-positive rate':24s} false alarms at p <= it"]
        for level in LEVELS:
            rate = self.tpr_at(level)
            words = f"needs {round(1 / level)} strangers" if rate is None else str(rate)
            lines.append(f"{level:<20.1%} {words:24s} {self.false_alarms(level)}")
        return "\n".join((*lines, f"area under the curve {self.auc:.3f}"))


def _at_most(p_values: Tensor, level: float) -> Rate:
    return Rate(int((p_values <= level).sum()), len(p_values))
