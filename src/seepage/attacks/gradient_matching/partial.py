"""Comparing updates on chosen layers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.term import Term
from seepage.core import Observation, Update
from seepage.core.errors import InvalidValue, UnknownName


@dataclass(frozen=True)
class OnLayers:
    """Another term, seeing only some tensors of the update.

    Args:
        term: The fidelity to restrict.
        names: Tensors (`"conv1.weight"`) or whole modules (`"conv1"`, which is not `"conv10"`).

    Example:
        >>> from seepage.attacks.gradient_matching.fidelity import Cosine
        >>> OnLayers(Cosine(), names=("conv1", "head.bias")).names
        ('conv1', 'head.bias')
    """

    term: Term
    names: tuple[str, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        """Check that there are names."""
        if isinstance(self.names, str) or not self.names:
            raise InvalidValue(f"expected a tuple of tensor or module names, got {self.names!r}")

    @property
    def weight(self) -> float:
        """That of the term."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Leave out the other tensors, and delegate."""
        return self.term(
            replace(candidate, update=self._kept(candidate.update)),
            replace(observation, update=self._kept(observation.update)),
        )

    def _kept(self, update: Update) -> Update:
        for name in self.names:
            if not any(_within(tensor, name) for tensor in update.tensors):
                raise UnknownName("tensor", name, update.tensors, where="of the update")
        kept = {n: t for n, t in update.tensors.items() if any(_within(n, m) for m in self.names)}
        return replace(update, tensors=kept)


def _within(tensor: str, name: str) -> bool:
    return tensor == name or tensor.startswith(f"{name}.")
