"""Checking a guess against the update, which needs no truth."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.jacobian import update_jacobian
from seepage.attacks.uniqueness import full_column_rank
from seepage.core import Certificate, Observation, Reconstruction
from seepage.core.errors import MissingKnowledge
from seepage.core.precision import precision

# Rounding in float32 leaves a residual of 1e-7 to 1e-5; a defense that hides anything, more.
EXPLAINED = 1e-3


def certify(observation: Observation, reconstruction: Reconstruction) -> Certificate:
    """Evidence that a guess is the private input: it explains the update, and alone does so nearby.

        residual = ||g(x, y) - g*|| / ||g*||,   unique: sigma_min(J) > 1e-6 sigma_max(J), J = dg/dx

    The residual is computed in the precision the client computed in, since that is what was
    observed. The Jacobian is computed in double precision, whatever that was: singular values far
    below the largest are the question, and float32 has no digits for them. It takes about two
    gradients for each unknown. Uniqueness is local: a guess far away may explain the update as
    well. It stays unknown where the residual exceeds 1e-3, since the guess is then no explanation,
    and behind a defense that rounds, whose slope is made up. Of tokens, which have no
    neighbours, it stays unknown as well.

    Args:
        observation: What was seen.
        reconstruction: Any attack's guess, with labels unless the observation has them.

    Example:
        >>> from seepage.clients import Client, Gradient
        >>> from seepage.core import Batch, rng
        >>> from seepage.domains import Signal
        >>> from seepage.threats import Threat
        >>> from seepage.zoo import mlp
        >>> batch = Batch(torch.linspace(0, 1, 20).reshape(1, 1, 20), torch.tensor([3]))
        >>> task = mlp(hidden=(8,), domain=Signal((1, 20)))
        >>> seen = Threat().observe(Client(Gradient()), task, batch, rng=rng(0))
        >>> certify(seen, Reconstruction(batch.inputs, batch.labels))
        Certificate(residual=0.0, unique=True)

    References:
        Chen and Campbell, 2022 (chen2022analysing) on rank deciding what can be recovered
    """
    inputs = reconstruction.inputs
    labels = _labels(observation, reconstruction)
    difference = residual(observation, inputs, labels)
    unique = _unique(observation, inputs, labels) if difference <= EXPLAINED else None
    return Certificate(difference, unique)


def _unique(observation: Observation, inputs: Tensor, labels: Tensor) -> bool | None:
    if not inputs.is_floating_point():
        return None
    jacobian = update_jacobian(observation, inputs, labels)
    return full_column_rank(jacobian) if jacobian is not None and jacobian.is_true() else None


def residual(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """Relative difference between the update simulated at a guess and the observed one.

    ||g(x, y) - g*|| / ||g*||
    """
    with torch.no_grad(), precision("float32"):
        simulated = observation.simulate(inputs, labels).flat()
    observed = observation.update.flat()
    return float((simulated - observed).norm() / observed.norm())


def _labels(observation: Observation, reconstruction: Reconstruction) -> Tensor:
    if reconstruction.labels is not None:
        return reconstruction.labels
    # Known labels are a multiset, which says whose they are only where there is one.
    if observation.labels is not None and len(reconstruction.inputs) == 1:
        return observation.labels
    raise MissingKnowledge(
        "labels", needed_by="a certificate", hint="give the reconstruction labels to be checked"
    )
