"""One function per paper: the bibliography in code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seepage.attacks.gradient_matching import (
    Adam,
    Cosine,
    GradientMatching,
    StepDecay,
    TotalVariation,
)
from seepage.attacks.linear_systems import AnalyticFC
from seepage.core import Attack
from seepage.core.errors import UnknownName


def analytic_fc() -> Attack:
    """Closed-form input of a first fully connected layer with bias.

    Example:
        >>> analytic_fc()
        AnalyticFC()

    References:
        Geiping et al., 2020, Proposition 1 (geiping2020inverting)
    """
    return AnalyticFC()


@dataclass(frozen=True)
class _Setting:
    steps: int
    restarts: int
    tv: float
    top: int | None


_SETTINGS = {
    "A": _Setting(steps=4_000, restarts=32, tv=1e-8, top=None),
    "B": _Setting(steps=12_000, restarts=16, tv=1e-4, top=10),
    "C": _Setting(steps=12_000, restarts=16, tv=1e-4, top=10),
}


def inverting_gradients(
    *,
    setting: Literal["A", "B", "C"] = "A",
    steps: int | None = None,
    restarts: int | None = None,
    step_size: float = 0.1,
    tv: float | None = None,
    signed: bool = True,
    boxed: bool = True,
) -> Attack:
    """Cosine matching with total variation and signed Adam.

    Args:
        setting: The paper's Table 2; C is B on a network trained for ten epochs. What is given
            besides overrides it.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Step size, in normalised coordinates.
        tv: Weight of the total variation.
        signed: Whether Adam sees only the sign of the gradient.
        boxed: Whether candidates stay valid images.

    Deviations:
        Restarts are chosen by the whole objective; the paper takes the cosine alone.

    References:
        Geiping et al., 2020, Eq. 4, Eq. 7 and Table 2 (geiping2020inverting)
    """
    if setting not in _SETTINGS:
        raise UnknownName("setting", setting, _SETTINGS)
    chosen = _SETTINGS[setting]
    return GradientMatching(
        terms=(
            Cosine(top=chosen.top),
            TotalVariation(weight=chosen.tv if tv is None else tv),
        ),
        optimiser=Adam(step_size=step_size, signed=signed),
        schedule=StepDecay(),
        steps=chosen.steps if steps is None else steps,
        restarts=chosen.restarts if restarts is None else restarts,
        boxed=boxed,
    )
