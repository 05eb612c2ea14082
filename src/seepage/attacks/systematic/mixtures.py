"""Mixtures of private inputs: what the network saw of a client that mixes, and the way back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import one_hot

from seepage.core import Mixing, Observation
from seepage.threats import Simulation


def of_mixtures(observation: Observation) -> tuple[Observation, Mixing | None]:
    """The observation of the mixtures that the network saw, and how the client made them.

    Features are the mixtures' and not the private inputs', so that they have to be recovered with
    the mixtures' labels. Where nothing is mixed, or encodings are searched for, the observation is
    returned as it is.
    """
    simulation, labels = observation.simulate, observation.labels
    if not isinstance(simulation, Simulation) or simulation.mixing is None or labels is None:
        return observation, None
    mixing = simulation.mixing
    known = one_hot(labels, observation.task.classes) if labels.ndim == 1 else labels
    weights = mixing.coefficients.to(next(iter(observation.update)))
    mixtures = replace(
        observation,
        labels=weights @ known.to(weights),
        simulate=replace(simulation, mixing=None),
    )
    return mixtures, mixing


def of_inputs(mixtures: Observation, mixing: Mixing) -> Observation | None:
    """The observation of private inputs that are mixed into these mixtures.

    Its labels are those that mixing turns into the mixtures', whatever they stand for.

    Returns:
        None where no labels do, since the coefficients are not of full rank.
    """
    simulation, labels = mixtures.simulate, mixtures.labels
    assert isinstance(simulation, Simulation)
    assert labels is not None
    weights, wanted = mixing.coefficients.double(), labels.double()
    before = torch.linalg.pinv(weights) @ wanted
    if not torch.allclose(weights @ before, wanted, rtol=1e-4, atol=1e-6 * float(wanted.norm())):
        return None
    return replace(mixtures, labels=before.to(labels), simulate=replace(simulation, mixing=mixing))
