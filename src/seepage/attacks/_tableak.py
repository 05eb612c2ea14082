"""TabLeak: search for the rows of a table with an ensemble, and pool its members."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks._agreement import residual
from seepage.attacks._applicability import applies_to
from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng
from seepage.core.errors import NotApplicable
from seepage.domains import Categorical, Tabular
from seepage.numerics._schedules import Constant
from seepage.search._engine import Engine
from seepage.search._fidelity import Cosine
from seepage.search._generator import SoftmaxCategories
from seepage.search._matching import GradientMatching
from seepage.search._optimisers import Adam
from seepage.search._search import Search


def align_members(members: Tensor, labels: Tensor, *, reference: int) -> Tensor:
    """Order every member's rows like those of one member, since a batch has no order.

    Rows are matched so that their summed squared distance is least. Only rows of one label are
    matched, since all labels are known.

    Args:
        members: Normalised rows `(R, B, D)`.
        labels: `(B,)`, or `(B, K)` probabilities; the same for every member.
        reference: The member whose order is kept.

    References:
        Vero et al., 2023, Sec. 4.2 (vero2023tableak); Kuhn, 1955 (kuhn1955hungarian)
    """
    codes = labels[:, None] if labels.ndim == 1 else labels
    forbidden = (codes[:, None] != codes[None]).any(-1).cpu()
    kept = members[reference].double().cpu()
    ordered = []
    for member in members:
        costs = (kept[:, None] - member.double().cpu()[None]).square().sum(-1)
        # More than any assignment within labels can cost.
        costs = costs.masked_fill(forbidden, float(costs.sum()) + 1)
        ordered.append(member[match_one_to_one(-costs).to(member.device)])
    return torch.stack(ordered)


def _pool_members(members: Tensor) -> Tensor:
    """Return the median over members, entry by entry: `(R, B, D)` to `(B, D)`."""
    return members.quantile(0.5, dim=0)


def _measure_confidence(members: Tensor, domain: Tabular) -> Tensor:
    """Return how far members agree on each column, from 0 for not at all to 1: `(B, F)`.

        categories: 1 - H(p) / log K,       p the mean of the members' probabilities
        numbers:    1 - exp(h) / exp(h0),   h the entropy of a Gaussian fitted to the members,
                                            h0 that of the population

    Compare it only within one kind of column: numbers and categories have different scales. With
    noise, members agree on what the noise says, so agreement tells nothing.

    Args:
        members: Aligned normalised rows `(R, B, D)`.
        domain: The table.

    Example:
        >>> table = Tabular((Categorical(name="vote", categories=("no", "yes")),))
        >>> agreed, split = [[[0.0, 1.0]]] * 2, [[[0.0, 1.0]], [[1.0, 0.0]]]
        >>> [_measure_confidence(torch.tensor(m), table).item() for m in (agreed, split)]
        [1.0, 0.0]

    Deviations:
        The paper gives the entropies themselves, which have another scale for numbers.

    References:
        Vero et al., 2023, Sec. 4.3 (vero2023tableak)
    """
    parts = []
    for column, place in zip(domain.columns, domain.places, strict=True):
        if isinstance(column, Categorical):
            probabilities = members[..., place].mean(0)
            entropy = torch.special.entr(probabilities).sum(-1)
            parts.append(1 - entropy / math.log(probabilities.shape[-1]))
        else:
            # Numbers are standardised: the deviation of the population is 1.
            parts.append(1 - members[..., place.start].std(0, correction=0))
    return torch.stack(parts, dim=1).clamp(0, 1)


@dataclass(frozen=True)
class TabLeak(BaseAttack):
    """Gradient matching on a table: every restart is a member, and their median is the guess.

    A search for mixed numbers and categories can end in many places. What the members agree on is
    likely to be right, and how far they agree tells how likely.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)

    # The search begins with them.
    needs_labels = True

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Search with every member, and pool what they find."""
        task, domain = observation.task, observation.task.domain
        labels = observation.require_labels("tableak")
        if not isinstance(domain, Tabular):
            raise NotApplicable(
                f"tableak searches rows of a table, but the inputs of {task.name} are "
                f"{domain!r}; use inverting_gradients"
            )
        best, members = GradientMatching(self.search, self.engine).ensemble(observation, rng=rng)
        finals = best.trace.finals
        ordered = align_members(members, labels, reference=finals.index(min(finals)))
        inputs = task.to_inputs(_pool_members(ordered))
        return replace(
            best,
            inputs=inputs,
            confidence=_measure_confidence(ordered, domain),
            certificate=Certificate(residual(observation, inputs, labels)),
        )


# The members of an ensemble on a small network run faster together, also on a CPU.
_TOGETHER = Engine(precision="float32", rows=64)


@applies_to(Tabular)
def tableak(
    *,
    steps: int = 1_500,
    members: int = 30,
    step_size: float = 0.06,
    engine: Engine = _TOGETHER,
) -> Attack:
    """Recover rows of a table: a softmax of the categories, and the median of an ensemble.

    Args:
        steps: Steps of each member.
        members: Random starts, whose results are pooled.
        step_size: Of Adam, in normalised coordinates.
        engine: How it is computed.

    Example:
        >>> tableak(members=5).search.restarts
        5

    Deviations:
        Rows of members are matched within their label, which the paper's server knows as well.

    References:
        Vero et al., 2023 (vero2023tableak)
    """
    search = Search(
        terms=(Cosine(),),
        optimiser=Adam(step_size=step_size, sign="none"),
        schedule=Constant(),
        steps=steps,
        restarts=members,
        generator=SoftmaxCategories(),
    )
    return TabLeak(search, engine)
