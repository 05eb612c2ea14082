"""Searches by squared distance: DLG, and the attacks built on it."""

from __future__ import annotations

from typing import Literal

import torch

from seepage.attacks._applicability import applies_to, require_searchable
from seepage.attacks.labels._infer_labels import IDLG, InferLabels, YinMinimum
from seepage.core import Attack, Observation, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.numerics._schedules import Constant, CosineDecay, WarmUp
from seepage.search._engine import Engine
from seepage.search._fidelity import L2
from seepage.search._lbfgs import LBFGS
from seepage.search._matching import GradientMatching
from seepage.search._objective import Term
from seepage.search._optimisers import Adam, Langevin, Optimiser
from seepage.search._priors import (
    BatchNormStatistics,
    Decaying,
    GroupConsistency,
    Orthogonality,
    SquaredNorm,
    TotalVariation,
)
from seepage.search._search import Search, UniformStart, pick_setting

# Squared distances fall by twelve orders of magnitude, which TF32 cannot follow.
_EXACT = Engine(precision="float32")

# torch.optim.LBFGS makes up to 20 steps in what papers count as one iteration.
_STEPS_PER_ITERATION = 20

# The papers' iterations of L-BFGS; and steps and seeds of GradInversion.
_ITERATIONS = {"paper": 300}
_GROUPS = {"paper": (20_000, 8)}

# A fading regulariser falls to a tenth at least this often; after that it has no effect.
_FALLS = 10

# L-BFGS pays off for few unknowns.
_FEW = 4_096

_ENGINE = Engine()


def _require_few_smooth_unknowns(observation: Observation) -> None:
    entries = observation.task.domain.sample(1, rng=Rng(0)).numel()
    if observation.batch_size != 1 or entries > _FEW:
        raise NotApplicable(f"it is for one input of at most {_FEW} entries")
    if not _has_curvature(observation.task):
        raise NotApplicable(
            "the network is piecewise linear, as with ReLU, so its second derivative is zero, and "
            "this search needs one"
        )
    require_searchable(observation)


def _has_curvature(task: Task) -> bool:
    """Whether the logits have a second derivative that is not zero everywhere."""
    task = task.in_mode("eval")
    probes = task.domain.sample(2, rng=Rng(0)).to(task.reference).requires_grad_()
    outputs = task.outputs(task.parameters, probes)
    direction = Rng(1).normal(outputs.shape, like=outputs)
    (slope,) = torch.autograd.grad((outputs * direction).sum(), probes, create_graph=True)
    if not slope.requires_grad:
        return False
    (bend,) = torch.autograd.grad(slope.square().sum(), probes, allow_unused=True)
    return bend is not None and bool(bend.any())


@applies_to(
    require=_require_few_smooth_unknowns,
    rank=2,
    options=lambda steps: {"iterations": max(1, steps // 20)},
)
def dlg(
    *,
    setting: Literal["paper"] | None = None,
    iterations: int | None = None,
    restarts: int = 1,
    line_search: bool = True,
    engine: Engine = _EXACT,
) -> Attack:
    """Deep leakage from gradients: squared distance, L-BFGS, labels searched for jointly.

    Args:
        setting: "paper" takes its 300 iterations; the default is 100.
        iterations: Iterations of L-BFGS as torch counts them, 20 steps each.
        restarts: Random starts, of which the one with the lowest objective is kept.
        line_search: Whether L-BFGS searches along its directions.
        engine: How it is computed.

    Deviations:
        The line search is ours: with the paper's fixed steps many starts stall or diverge. If the
        objective of a start stops being finite, it goes back to its best point; the paper's ends.

    References:
        Zhu et al., 2019, Algorithm 1 (zhu2019deep)
    """
    return _match_squares(setting, iterations, restarts, line_search, engine, seek_labels=True)


def idlg(
    *,
    setting: Literal["paper"] | None = None,
    iterations: int | None = None,
    restarts: int = 1,
    line_search: bool = True,
    engine: Engine = _EXACT,
) -> Attack:
    """Improved deep leakage: the label is read off the head, then DLG searches the input.

    Arguments as for `dlg`.

    References:
        Zhao et al., 2020 (zhao2020idlg)
    """
    matching = _match_squares(setting, iterations, restarts, line_search, engine, seek_labels=False)
    return InferLabels(matching, rule=IDLG())


def _match_squares(
    setting: str | None,
    iterations: int | None,
    restarts: int,
    line_search: bool,
    engine: Engine,
    *,
    seek_labels: bool,
) -> GradientMatching:
    if iterations is None:
        iterations = pick_setting(setting, _ITERATIONS, default=100)
    search = Search(
        terms=(L2(),),
        optimiser=LBFGS(line_search=line_search),
        schedule=Constant(),
        steps=iterations * _STEPS_PER_ITERATION,
        restarts=restarts,
        boxed=False,
        seek_labels=seek_labels,
    )
    return GradientMatching(search, engine)


def learn_from_gradients(
    *,
    regulariser: Literal["norm", "orthogonality", "none"] = "norm",
    weight: float = 0.1,
    factor: float = 0.1,
    every: int | None = None,
    optimiser: Literal["lbfgs", "adam"] = "adam",
    step_size: float | None = None,
    line_search: bool = False,
    steps: int = 2_000,
    restarts: int = 1,
    engine: Engine = _EXACT,
) -> Attack:
    """Squared distance from a uniform start, with a fading regulariser; labels are searched for.

    Args:
        regulariser: "norm" for one input; "orthogonality" keeps the inputs of a batch apart.
        weight: Weight of the regulariser at the start.
        factor: Its factor at each fall.
        every: Steps between falls. The default is a tenth of `steps`, and at most 20 for L-BFGS,
            one iteration as torch counts them. L-BFGS learns nothing in the step of a fall, so 1
            turns it into plain gradient descent.
        optimiser: L-BFGS as in the paper's comparison with DLG, or Adam, which it calls more
            stable in high dimension.
        step_size: Step size; the default is 1 for L-BFGS and 0.01 for Adam.
        line_search: Whether L-BFGS searches along its directions; Adam has none.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        engine: How it is computed.

    Deviations:
        The norm is squared, so that its gradient exists at zero. The paper gives no step size.
        Its listing multiplies the weight by 0.9 and its text lets it decay "90% after 2k
        iterations"; for L-BFGS it prints no number. In a search of a few hundred steps, a decay
        every 2000 leaves the regulariser as it was, and the result is black. Hence a tenth, ten
        times or more in a search: chosen on images that no reproduced figure uses.

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
            f"expected optimiser='lbfgs' for line_search=True, got {optimiser!r}, which has no "
            "line search; change one of them"
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
    setting: Literal["paper"] | None = None,
    steps: int | None = None,
    restarts: int | None = None,
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
        setting: "paper" takes its 20000 steps of 8 seeds; the default is 1000 of 2.
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
        The group mean is taken pixel by pixel, without registration of the images. The paper adds
        noise of 0.2 times the step size to the inputs. Here it is added to the gradient, which it
        would drown, so the default is smaller. Labels must be unique within the batch, as in the
        paper.

    References:
        Yin et al., 2021 (yin2021see)
    """
    usual_steps, usual_restarts = pick_setting(setting, _GROUPS, default=(1_000, 2))
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
        steps=usual_steps if steps is None else steps,
        restarts=usual_restarts if restarts is None else restarts,
    )
    return InferLabels(GradientMatching(search, engine), rule=YinMinimum())
