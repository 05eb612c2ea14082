"""One function per paper, of those that search: the bibliography in code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from seepage.attacks.gradient_matching import (
    L2,
    LBFGS,
    Adam,
    BatchNormStatistics,
    Constant,
    Cosine,
    CosineDecay,
    Decaying,
    Engine,
    GradientDescent,
    GradientMatching,
    GroupConsistency,
    Langevin,
    LayerwiseCosine,
    Optimiser,
    Orthogonality,
    Search,
    SoftmaxCategories,
    SquaredNorm,
    StepDecay,
    Term,
    TotalVariation,
    UniformStart,
    WarmUp,
)
from seepage.attacks.labels import IDLG, InferLabels, YinMinimum
from seepage.attacks.tabular import PooledEnsemble
from seepage.core import Attack
from seepage.core.errors import InvalidValue, UnknownName

_ENGINE = Engine()
# Squared distances fall by twelve orders of magnitude, which TF32 cannot follow.
_EXACT = Engine(precision="float32")

# Members of an ensemble on a small network: together they are faster on a CPU as well.
_TOGETHER = Engine(precision="float32", rows=64)

# torch.optim.LBFGS makes up to 20 steps in what papers count as one iteration.
_STEPS_PER_ITERATION = 20

# How often a regulariser that fades falls to a tenth, at least: after that it has no say left.
_FALLS = 10


def dlg(
    *,
    iterations: int = 300,
    restarts: int = 1,
    line_search: bool = True,
    engine: Engine = _EXACT,
) -> Attack:
    """Deep leakage from gradients: squared distance, L-BFGS, labels searched for jointly.

    Args:
        iterations: Of L-BFGS as torch counts them, 20 steps each.
        restarts: Random starts, of which the one with the lowest objective is kept.
        line_search: Whether L-BFGS searches along its directions.
        engine: How it is computed.

    Deviations:
        The line search is ours: with the paper's fixed steps many starts stall or diverge. A
        start whose objective stops being finite goes back to its best point; the paper's ends.

    References:
        Zhu et al., 2019, Algorithm 1 (zhu2019deep)
    """
    search = _least_squares(iterations, restarts, line_search, seek_labels=True)
    return GradientMatching(search, engine)


def idlg(
    *,
    iterations: int = 300,
    restarts: int = 1,
    line_search: bool = True,
    engine: Engine = _EXACT,
) -> Attack:
    """Improved deep leakage: the label is read off the head, then DLG searches the input.

    Args:
        iterations: Of L-BFGS as torch counts them, 20 steps each.
        restarts: Random starts, of which the one with the lowest objective is kept.
        line_search: Whether L-BFGS searches along its directions.
        engine: How it is computed.

    References:
        Zhao et al., 2020 (zhao2020idlg)
    """
    search = _least_squares(iterations, restarts, line_search, seek_labels=False)
    return InferLabels(GradientMatching(search, engine), rule=IDLG())


def _least_squares(
    iterations: int, restarts: int, line_search: bool, *, seek_labels: bool
) -> Search:
    return Search(
        terms=(L2(),),
        optimiser=LBFGS(line_search=line_search),
        schedule=Constant(),
        steps=iterations * _STEPS_PER_ITERATION,
        restarts=restarts,
        boxed=False,
        seek_labels=seek_labels,
    )


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
    layerwise: float | None = None,
    distance: Literal["cosine", "l2"] = "cosine",
    optimiser: Literal["adam", "descent", "lbfgs"] = "adam",
    signed: bool = True,
    boxed: bool = True,
    median_every: int | None = None,
    engine: Engine = _ENGINE,
) -> Attack:
    """Cosine matching with total variation and signed Adam.

    Args:
        setting: The paper's Table 2; C is B on a network trained for ten epochs. What is given
            besides overrides it.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Step size, in normalised coordinates.
        tv: Weight of the total variation.
        layerwise: Compare tensor by tensor, weighted by the observed norm to this power, instead
            of all tensors jointly. Not in the paper: on an untrained ConvNet-64 a power of 2.5
            raises the PSNR by more than ten decibels; on small inputs it may lower it.
        distance: "l2" compares updates by their squared distance instead, as the paper's ablation
            does; then neither the setting's choice of tensors nor `layerwise` applies.
        optimiser: "descent" and "lbfgs" are of the ablation too; L-BFGS has no schedule.
        signed: Whether Adam sees only the sign of the gradient.
        boxed: Whether candidates stay valid images.
        median_every: Median-filter the candidates every so many steps, as the paper does on
            untrained ImageNet networks; its code takes 500.
        engine: How it is computed.

    Deviations:
        Restarts are chosen by the whole objective; the paper takes the cosine alone.

    References:
        Geiping et al., 2020, Eq. 4, Eq. 7 and Table 2 (geiping2020inverting)
    """
    if setting not in _SETTINGS:
        raise UnknownName("setting", setting, _SETTINGS)
    chosen = _SETTINGS[setting]
    joint = Cosine(top=chosen.top)
    distances: dict[str, Term] = {
        "cosine": joint if layerwise is None else LayerwiseCosine(weighting=layerwise),
        "l2": L2(),
    }
    rules: dict[str, Optimiser] = {
        "adam": Adam(step_size=step_size, sign="hard" if signed else "none"),
        "descent": GradientDescent(step_size=step_size),
        "lbfgs": LBFGS(step_size=step_size),
    }
    if distance not in distances:
        raise UnknownName("distance", distance, distances)
    if optimiser not in rules:
        raise UnknownName("optimiser", optimiser, rules)
    search = Search(
        terms=(distances[distance], TotalVariation(weight=chosen.tv if tv is None else tv)),
        optimiser=rules[optimiser],
        schedule=Constant() if optimiser == "lbfgs" else StepDecay(),
        steps=chosen.steps if steps is None else steps,
        restarts=chosen.restarts if restarts is None else restarts,
        boxed=boxed,
        median_every=median_every,
    )
    exact = replace(engine, precision="float32")
    return GradientMatching(search, engine if distance == "cosine" else exact)


def learn_from_gradients(
    *,
    regulariser: Literal["norm", "orthogonality", "none"] = "norm",
    weight: float = 0.1,
    factor: float = 0.1,
    every: int | None = None,
    optimiser: Literal["lbfgs", "adam"] = "adam",
    step_size: float | None = None,
    line_search: bool = False,
    steps: int = 10_000,
    restarts: int = 1,
    engine: Engine = _EXACT,
) -> Attack:
    """Squared distance from a uniform start, with a fading regulariser; labels are searched for.

    Args:
        regulariser: "norm" for one input; "orthogonality" keeps the inputs of a batch apart.
        weight: Of the regulariser at the start.
        factor: What it is multiplied by when it falls.
        every: Steps after which it falls; a tenth of `steps` if not given, and at most 20 for
            L-BFGS, one iteration as torch counts them. At a fall L-BFGS learns nothing, so that 1
            makes plain gradient descent of it.
        optimiser: L-BFGS as in the paper's comparison with DLG, or Adam, which it calls more
            stable in high dimension.
        step_size: Of the optimiser; 1 for L-BFGS and 0.01 for Adam if not given.
        line_search: Whether L-BFGS searches along its directions; Adam has none.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        engine: How it is computed.

    Deviations:
        The norm is squared, so that its gradient exists at zero. The paper gives no step size.
        Its listing multiplies the weight by 0.9 and its text lets it decay "90% after 2k
        iterations"; for L-BFGS it prints no number. In a search of some hundred steps, nine tenths
        every 2000 leave the regulariser as it was, and what is found is black rather than private.
        Hence a tenth, ten times or more in a search: chosen on people that no reproduced figure
        is about.

    References:
        Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """
    if every is None:
        longest = _STEPS_PER_ITERATION if optimiser == "lbfgs" else steps
        every = max(2, min(steps // _FALLS, longest))
    priors: dict[str, tuple[Term, ...]] = {
        "norm": (Decaying(SquaredNorm(weight=weight), factor=factor, every=every),),
        "orthogonality": (Decaying(Orthogonality(weight=weight), factor=factor, every=every),),
        "none": (),
    }
    rules: dict[str, Optimiser] = {
        "lbfgs": LBFGS(step_size=1.0 if step_size is None else step_size, line_search=line_search),
        "adam": Adam(step_size=0.01 if step_size is None else step_size, sign="none"),
    }
    if regulariser not in priors:
        raise UnknownName("regulariser", regulariser, priors)
    if optimiser not in rules:
        raise UnknownName("optimiser", optimiser, rules)
    if line_search and optimiser != "lbfgs":
        raise InvalidValue(
            f"expected optimiser='lbfgs' for line_search=True, got {optimiser!r}, which searches "
            "along no lines; set the one or leave the other"
        )
    search = Search(
        terms=(L2(), *priors[regulariser]),
        optimiser=rules[optimiser],
        schedule=Constant(),
        steps=steps,
        restarts=restarts,
        start=UniformStart(),
        boxed=False,
        seek_labels=True,
    )
    return GradientMatching(search, engine)


def grad_inversion(
    *,
    steps: int = 20_000,
    restarts: int = 8,
    fidelity: float = 1e-3,
    tv: float = 1e-4,
    norm: float = 1e-6,
    batchnorm: float = 0.1,
    group: float = 0.01,
    noise: float = 1e-4,
    engine: Engine = _ENGINE,
) -> Attack:
    """See through gradients: squared distance, image priors, batch statistics, a group of seeds.

    Args:
        steps: Steps of each seed.
        restarts: Seeds in the group, which pull each other towards their mean.
        fidelity: Weight of the squared distance.
        tv: Weight of the total variation.
        norm: Weight of the squared norm.
        batchnorm: Weight of the batch-normalisation statistics.
        group: Weight of the distance from the mean of the group.
        noise: Deviation of the Langevin noise, which is added to the gradient.
        engine: How it is computed; all seeds of a case run in one chunk, to see each other.

    Deviations:
        The group mean is taken pixel by pixel, without registration of the images. The paper's
        noise of 0.2 is added to the inputs, times the step size; as noise of the gradient it would
        drown it, hence the smaller default. Labels must be unique within the batch, as in the
        paper.

    References:
        Yin et al., 2021 (yin2021see)
    """
    search = Search(
        terms=(
            L2(weight=fidelity),
            TotalVariation(weight=tv),
            SquaredNorm(weight=norm),
            BatchNormStatistics(weight=batchnorm),
            GroupConsistency(weight=group),
        ),
        optimiser=Langevin(Adam(step_size=0.1, sign="none"), std=noise),
        schedule=WarmUp(CosineDecay(), steps=50),
        steps=steps,
        restarts=restarts,
    )
    return InferLabels(GradientMatching(search, engine), rule=YinMinimum())


def gradattack_strongest(
    *,
    tv: float = 1e-2,
    batchnorm: float = 1e-3,
    layerwise: float | None = None,
    steps: int = 10_000,
    restarts: int = 1,
    engine: Engine = _ENGINE,
) -> Attack:
    """Cosine matching with total variation and batch statistics, labels and statistics known.

    Meant for `Threat(knows_labels=True, batchnorm="exact")`.

    Args:
        tv: Weight of the total variation.
        batchnorm: Weight of the batch-normalisation statistics.
        layerwise: Compare tensor by tensor, weighted by the observed norm to this power, instead
            of all tensors jointly as in the paper.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        engine: How it is computed.

    References:
        Huang et al., 2021, Sec. 3 and A.1-A.2 (huang2021evaluating)
    """
    search = Search(
        terms=(
            Cosine() if layerwise is None else LayerwiseCosine(weighting=layerwise),
            TotalVariation(weight=tv),
            BatchNormStatistics(weight=batchnorm),
        ),
        optimiser=Adam(step_size=0.1),
        schedule=StepDecay(),
        steps=steps,
        restarts=restarts,
    )
    return GradientMatching(search, engine)


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
