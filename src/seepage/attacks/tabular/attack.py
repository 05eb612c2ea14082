"""Rows of a table, by an ensemble of searches whose members are pooled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from seepage.attacks.certify import residual
from seepage.attacks.gradient_matching import Engine, GradientMatching, Search
from seepage.attacks.tabular.pooling import aligned, confidence, pooled
from seepage.attacks.usable import require_usable
from seepage.core import Certificate, Observation, Reconstruction, Rng
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.rng import require_key
from seepage.domains import Tabular


@dataclass(frozen=True)
class PooledEnsemble:
    """Gradient matching on a table: every restart is a member, and their median is the guess.

    One search for mixed numbers and categories ends in one of many places; what the members agree
    on is likely to be right, and how far they agree tells how likely.

    Args:
        search: With a softmax of categories; its restarts are the members.
        engine: How it is computed.

    References:
        Vero et al., 2023 (vero2023tableak)
    """

    search: Search
    engine: Engine = field(default_factory=Engine)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Run every member and pool them."""
        require_key(rng)
        domain, labels = observation.task.domain, observation.labels
        require_usable(observation.update, observation.task)
        if not isinstance(domain, Tabular):
            raise NotApplicable(
                f"tableak searches rows of a table, but the inputs of {observation.task.name} are "
                f"{domain!r}; use inverting_gradients"
            )
        if labels is None:
            raise MissingKnowledge(
                "labels", needed_by="tableak", hint="use Threat(knows_labels=True)"
            )
        matching = GradientMatching(self.search, self.engine)
        best, members = matching.ensemble(observation, rng=rng)
        finals = best.trace.finals
        ordered = aligned(members, labels, reference=finals.index(min(finals)))
        inputs = domain.project(domain.denormalise(pooled(ordered)))
        return replace(
            best,
            inputs=inputs,
            confidence=confidence(ordered, domain),
            certificate=_certificate(observation, inputs, labels),
        )


def _certificate(observation: Observation, inputs: Tensor, labels: Tensor) -> Certificate:
    return Certificate(residual(observation, inputs, labels))
