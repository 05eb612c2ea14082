"""How well a membership test did, once it is known who was a member."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.inference.membership import Membership
from seepage.numerics.binomial import Rate

LEVELS = (0.001, 0.01)


@dataclass(frozen=True, eq=False)
class Detection:
    """The receiver operating characteristic of a membership test, with exact intervals.

    Args:
        members: Scores of those who were members, `(m,)`.
        strangers: Scores of those who were not, `(n,)`.
        member_p: p-values of the members, `(m,)`.
        stranger_p: p-values of the others, `(n,)`.

    Example:
        >>> from seepage.inference.membership import Membership
        >>> p = torch.tensor([0.01, 0.01, 0.6, 0.3])
        >>> found = Membership(p, 1 / p, -p, ("a test",), strangers=99)
        >>> told = Detection.of(found, torch.tensor([True, True, False, False]))
        >>> told.auc
        1.0
        >>> print(told.found_at(0.01), told.false_alarms(0.01))
        100.0 % [15.8, 100.0] 0.0 % [0.0, 84.2]
    """

    members: Tensor
    strangers: Tensor
    member_p: Tensor
    stranger_p: Tensor

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
        scores, p = found.scores, found.p_values
        return cls(scores[is_member], scores[~is_member], p[is_member], p[~is_member])

    @property
    def auc(self) -> float:
        """Probability that a member scores above a stranger; ties count half."""
        ordered = self.strangers.sort().values
        below = torch.searchsorted(ordered, self.members.contiguous())
        up_to = torch.searchsorted(ordered, self.members.contiguous(), right=True)
        return float((below + up_to).double().mean() / (2 * len(ordered)))

    def found_at(self, level: float) -> Rate:
        """The share of members with a p-value of at most `level`."""
        return _at_most(self.member_p, level)

    def false_alarms(self, level: float) -> Rate:
        """The share of strangers with a p-value of at most `level`, which `level` should bound."""
        return _at_most(self.stranger_p, level)

    def tpr_at(self, level: float) -> Rate | None:
        """The true-positive rate at the threshold that lets this share of strangers through.

        None if there are fewer than `1 / level` strangers.
        """
        let_through = int(level * len(self.strangers))
        if let_through < 1:
            return None
        threshold = self.strangers.sort(descending=True).values[let_through]
        return Rate(int((self.members > threshold).sum()), len(self.members))

    def curve(self) -> list[tuple[float, float]]:
        """False- and true-positive rates at every threshold."""
        thresholds = torch.unique(torch.cat([self.members, self.strangers])).flip(0)
        return [(0.0, 0.0)] + [
            (
                float((self.strangers >= t).double().mean()),
                float((self.members >= t).double().mean()),
            )
            for t in thresholds
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
