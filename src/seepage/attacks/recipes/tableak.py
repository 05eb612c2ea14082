"""The search for rows of a table, by an ensemble."""

from __future__ import annotations

from seepage.attacks.gradient_matching import (
    Adam,
    Constant,
    Cosine,
    Engine,
    Search,
    SoftmaxCategories,
)
from seepage.attacks.tabular import PooledEnsemble
from seepage.core import Attack

# Members of an ensemble on a small network: together they are faster on a CPU as well.
_TOGETHER = Engine(precision="float32", rows=64)


def tableak(
    *,
    steps: int = 1_500,
    members: int = 30,
    step_size: float = 0.06,
    engine: Engine = _TOGETHER,
) -> Attack:
    """Rows of a table: a softmax of the categories, and the pooled median of an ensemble.

    Args:
        steps: Steps of each member.
        members: Random starts whose results are pooled; none is chosen.
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
    return PooledEnsemble(search, engine)
