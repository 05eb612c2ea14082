"""Every bound by name."""

from __future__ import annotations

from collections.abc import Callable

from seepage.bounds.cramer_rao import CramerRao, CramerRaoRelaxed
from seepage.bounds.dp import RenyiError
from seepage.bounds.equations import EquationCount, RankDeficiency
from seepage.bounds.identifiability import Identifiability
from seepage.bounds.protocol import Bound
from seepage.bounds.van_trees import VanTrees
from seepage.core.plugins import Catalogue

_ALL: tuple[type[Bound], ...] = (
    CramerRao,
    CramerRaoRelaxed,
    EquationCount,
    Identifiability,
    RankDeficiency,
    RenyiError,
    VanTrees,
)
BOUNDS: Catalogue[Callable[..., Bound]] = Catalogue(
    "bound", "seepage.bounds", {b.__name__: b for b in _ALL}
)
