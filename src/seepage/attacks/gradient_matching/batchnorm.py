"""What batch-normalisation layers know about plausible inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate, trained_on
from seepage.clients import batch_statistics
from seepage.clients.statistics import measured
from seepage.core import Observation, Statistics, Task
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.task import batchnorm_layers


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics:
    """How far the candidate's batch statistics are from those the adversary knows.

        sum_l  || mean_l(x) - mean*_l || + || var_l(x) - var*_l ||

    The known ones are the private batch's own where the threat grants them, else the running
    statistics of the broadcast network, which describe the data it was trained on.

    Args:
        weight: Factor in the objective.
        first_layer: Multiplier of the first layer's part, which is closest to the pixels.

    Deviations:
        Running variances are compared as broadcast. Torch accumulates them as unbiased estimates,
        n/(n-1) times the biased variance measured on the candidate.

    References:
        Yin et al., 2021, Sec. 3.3 (yin2021see); Huang et al., 2021, Sec. 3.2
        (huang2021evaluating)
    """

    weight: float
    first_layer: float = 1.0

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the distances over the layers, in the order they are run."""
        ours = self._measured(candidate, observation)
        if not ours:
            raise NotApplicable(
                f"{observation.task.name} runs no batch normalisation, so BatchNormStatistics has "
                "nothing to compare; leave it out"
            )
        known = _known(observation)
        apart = [_distance(found, known[layer]) for layer, found in ours.items()]
        return torch.stack([self.first_layer * apart[0], *apart[1:]]).sum()

    def reads(self, task: Task) -> list[str]:
        """Every batch-normalisation layer."""
        return list(batchnorm_layers(task.network))

    def _measured(self, candidate: Candidate, observation: Observation) -> dict[str, Statistics]:
        wanted = set(self.reads(observation.task))
        if read := {name: t for name, t in candidate.layers.items() if name in wanted}:
            return measured(read)
        return batch_statistics(observation.task, trained_on(candidate, observation))


def _distance(ours: Statistics, theirs: Statistics) -> Tensor:
    # Unlike a square root written out, its gradient is 0 and not NaN where the two agree.
    means: Tensor = torch.linalg.vector_norm(ours.mean - theirs.mean)
    variances: Tensor = torch.linalg.vector_norm(ours.variance - theirs.variance)
    return means + variances


def _known(observation: Observation) -> dict[str, Statistics]:
    if observation.statistics is not None:
        return dict(observation.statistics)
    known = {}
    for name, layer in batchnorm_layers(observation.task.model).items():
        if layer.running_mean is None or layer.running_var is None:
            raise MissingKnowledge(
                "batch statistics",
                needed_by="BatchNormStatistics",
                hint=f"{name} broadcasts no running ones either; use Threat(batchnorm='exact')",
            )
        known[name] = Statistics(layer.running_mean, layer.running_var)
    return known
