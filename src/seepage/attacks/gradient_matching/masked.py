"""Comparing updates only where something was shared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.term import Term
from seepage.core import Observation


@dataclass(frozen=True)
class Masked:
    """Another term, seeing only the entries at which the observed update is not zero.

    For updates that were pruned or dropped out: what the client removed says nothing about the
    value it had.

    Args:
        term: The fidelity to restrict.

    Example:
        >>> from seepage.attacks.gradient_matching.fidelity import Cosine
        >>> Masked(Cosine(weight=2.0)).weight
        2.0
    """

    term: Term

    @property
    def weight(self) -> float:
        """That of the term."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Zero the simulated update where the observed one is zero, and delegate."""
        observed = observation.update.tensors
        seen = {
            name: torch.where(observed[name] != 0, ours, 0)
            for name, ours in candidate.update.tensors.items()
        }
        masked = replace(candidate, update=replace(candidate.update, tensors=seen))
        return self.term(masked, observation)
