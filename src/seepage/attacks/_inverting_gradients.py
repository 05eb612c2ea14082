"""Inverting Gradients: search by the angle between gradients, with total variation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from seepage.attacks._applicability import applies_to, require_searchable
from seepage.core import Attack
from seepage.core.errors import UnknownName
from seepage.numerics._schedules import Constant, CosineDecay, Schedule, StepDecay
from seepage.search._engine import Engine
from seepage.search._fidelity import L2, Cosine, LayerwiseCosine, Whitened
from seepage.search._lbfgs import LBFGS
from seepage.search._matching import GradientMatching
from seepage.search._objective import Term
from seepage.search._optimisers import Adam, GradientDescent, Optimiser
from seepage.search._priors import BatchNormStatistics, TotalVariation, weigh_variation
from seepage.search._search import NormalStart, Search, pick_setting

_ENGINE = Engine()


# Steps, restarts, weight of the total variation, and how many of the largest tensors to compare.
# The default is A with fewer steps, which end in minutes.
_SHORT: tuple[int, int, float, int | None] = (1_000, 1, 1e-8, None)
_SETTINGS: dict[str, tuple[int, int, float, int | None]] = {
    "A": (4_000, 32, 1e-8, None),
    "B": (12_000, 16, 1e-4, 10),
    "C": (12_000, 16, 1e-4, 10),
}


@applies_to(
    require=require_searchable,
    needs_labels=True,
    rank=1,
    options=lambda steps: {"steps": steps, "restarts": 1, "tv": 1e-4},
)
def inverting_gradients(
    *,
    setting: Literal["A", "B", "C"] | None = None,
    steps: int | None = None,
    restarts: int | None = None,
    step_size: float = 0.1,
    schedule: Literal["step", "cosine"] = "step",
    tv: float | Sequence[float] | None = None,
    absolute: bool = False,
    layerwise: float | None = None,
    distance: Literal["cosine", "l2", "whitened"] = "cosine",
    optimiser: Literal["adam", "descent", "nesterov", "lbfgs", "torch_lbfgs"] = "adam",
    signed: bool = True,
    spread: float = 1.0,
    boxed: bool = True,
    median_every: int | None = None,
    engine: Engine = _ENGINE,
) -> Attack:
    """Cosine matching with total variation and signed Adam.

    Args:
        setting: "A", "B" or "C" for a row of the paper's Table 2: 4000 steps from 32 starts, or
            12000 from 16. The default has the weights of A, and 1000 steps from one start. Other
            arguments override it. C is B on a network trained for ten epochs.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Step size, in normalised coordinates.
        schedule: How the step size falls: to a tenth three times, or along a cosine (not in the
            paper), with which a step size of 0.2 got further in trials.
        tv: Weight of the total variation; a pair falls from the first to the second (not in the
            paper).
        absolute: As for `gradattack_strongest`, against InstaHide.
        layerwise: Compare tensor by tensor, weighted by the observed norm to this power, instead
            of all tensors jointly. Not in the paper: on an untrained ConvNet-64 a power of 2.5
            raises the PSNR by more than ten decibels; on small inputs it may lower it.
        distance: "l2" compares updates by their squared distance, as in the paper's ablation;
            "whitened" makes the weak directions of each tensor count too (`Whitened`; not in the
            paper), for transformers, with `optimiser="lbfgs"`, `step_size=1.0`, `spread=0.1` and a
            falling `tv`. With either, neither the setting's choice of tensors nor `layerwise`
            applies.
        optimiser: The others are from the ablation too. "nesterov" has the momentum of the paper's
            code, whose step size is 0.01, and "torch_lbfgs" the tolerance at which torch stops.
            L-BFGS has no schedule, and searches along its lines only if the distance is whitened.
        signed: Whether Adam sees only the sign of the gradient.
        spread: Standard deviation of the random start around the mean image; 1 in the paper.
        boxed: Whether candidates stay valid images.
        median_every: Median-filter the candidates every so many steps, as the paper does on
            untrained ImageNet networks; its code takes 500.
        engine: How it is computed.

    Deviations:
        Restarts are chosen by the whole objective; the paper takes the cosine alone.

    References:
        Geiping et al., 2020, Eq. 4, Eq. 7 and Table 2 (geiping2020inverting)
    """
    usual_steps, usual_restarts, usual_tv, top = pick_setting(setting, _SETTINGS, default=_SHORT)
    distances: dict[str, Term] = {
        "cosine": Cosine(top=top) if layerwise is None else LayerwiseCosine(weighting=layerwise),
        "l2": L2(),
        "whitened": Whitened(),
    }
    rules: dict[str, Optimiser] = {
        "adam": Adam(step_size=step_size, sign="hard" if signed else "none"),
        "descent": GradientDescent(step_size=step_size),
        "nesterov": GradientDescent(step_size=step_size, momentum=0.9),
        "lbfgs": LBFGS(step_size=step_size, line_search=distance == "whitened"),
        "torch_lbfgs": LBFGS(step_size=step_size, tolerance=1e-9),
    }
    if distance not in distances:
        raise UnknownName("distance", distance, distances)
    if optimiser not in rules:
        raise UnknownName("optimiser", optimiser, rules)
    schedules: dict[str, Schedule] = {"step": StepDecay(), "cosine": CosineDecay()}
    if schedule not in schedules:
        raise UnknownName("schedule", schedule, schedules)
    steps = usual_steps if steps is None else steps
    variation = weigh_variation(usual_tv if tv is None else tv, steps=steps, absolute=absolute)
    search = Search(
        terms=(distances[distance], variation),
        optimiser=rules[optimiser],
        schedule=Constant() if optimiser.endswith("lbfgs") else schedules[schedule],
        steps=steps,
        restarts=usual_restarts if restarts is None else restarts,
        start=NormalStart(spread=spread),
        boxed=boxed,
        median_every=median_every,
    )
    exact = replace(engine, precision="float32")
    return GradientMatching(search, engine if distance == "cosine" else exact)


_LONG = {"paper": 10_000}


def gradattack_strongest(
    *,
    setting: Literal["paper"] | None = None,
    tv: float = 1e-2,
    batchnorm: float = 1e-3,
    absolute: bool = False,
    layerwise: float | None = None,
    steps: int | None = None,
    restarts: int = 1,
    engine: Engine = _ENGINE,
) -> Attack:
    """Cosine matching with total variation and batch statistics, labels and statistics known.

    Meant for `Threat(knows_labels=True, batchnorm="exact")`.

    Candidates are normalised by their own batch, as the client does and as the released code does
    too: its "exact" statistics enter by the term alone. Its examples for 16 images have weights of
    0.1 and 0.005 where the paper names 0.01 and 0.001.

    Args:
        setting: "paper" takes its 10000 steps; the default is 1000.
        tv: Weight of the total variation.
        batchnorm: Weight of the batch-normalisation statistics.
        absolute: Take the total variation of |x - c|, c the middle of the range, as the paper does
            against InstaHide, whose encodings are mirrored at c at random.
        layerwise: Compare tensor by tensor, weighted by the observed norm to this power, instead
            of all tensors jointly as in the paper.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        engine: How it is computed.

    References:
        Huang et al., 2021, Sec. 3 and A.1-A.2 (huang2021evaluating)
    """
    if steps is None:
        steps = pick_setting(setting, _LONG, default=1_000)
    search = Search(
        terms=(
            Cosine() if layerwise is None else LayerwiseCosine(weighting=layerwise),
            TotalVariation(weight=tv, absolute=absolute),
            BatchNormStatistics(weight=batchnorm),
        ),
        optimiser=Adam(step_size=0.1),
        schedule=StepDecay(),
        steps=steps,
        restarts=restarts,
    )
    return GradientMatching(search, engine)
