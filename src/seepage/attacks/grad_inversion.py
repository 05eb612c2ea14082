"""The search by squared distance with image priors and seeds that agree."""

from __future__ import annotations

from seepage.attacks.labels.infer_labels import InferLabels, YinMinimum
from seepage.core import Attack
from seepage.numerics.schedules import CosineDecay, WarmUp
from seepage.search.engine import Engine
from seepage.search.fidelity import L2
from seepage.search.matching import GradientMatching
from seepage.search.optimisers import Adam, Langevin
from seepage.search.priors import BatchNormStatistics, GroupConsistency, SquaredNorm, TotalVariation
from seepage.search.search import Search

_ENGINE = Engine()


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
