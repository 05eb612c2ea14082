"""Exact inversion of a batch that a client trained on in several rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from seepage.attacks.exact_batch.exact_batch import (
    DirectionSearch,
    ReLULayer,
    find_labels,
    select_searches,
    separate_batch,
)
from seepage.attacks.exact_batch.kernel_sampling import KernelSampling
from seepage.attacks.exact_batch.span_factors import factorise
from seepage.attacks.exact_batch.sparse_directions import SparseDirections
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key
from seepage.probing.first_layer import rectified_layer
from seepage.probing.usable_update import require_usable


def exact_rounds(
    observations: Sequence[Observation],
    *,
    searches: Sequence[DirectionSearch] = (SparseDirections(), KernelSampling()),
    rng: Rng,
) -> Reconstruction:
    """Recover a batch exactly from several rounds, through a first layer too narrow for one.

    In round r the gradient of the first layer is D_r X, with the same inputs X and a D_r that is
    zero where a neuron of this round is silent. Stacked, the rounds are one layer with the neurons
    of all of them, and `ExactBatch` separates that. Labels are read off the first round.

    Args:
        observations: One for each round of one model, of clients with the same batch.
        searches: For the directions that belong to one example, as for `ExactBatch`.
        rng: Of the searches.

    Raises:
        InvalidValue: No rounds, or rounds of different models.
        NotApplicable: All rounds together have too few neurons for the batch.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear), for one round
    """
    require_key(rng)
    if not observations:
        raise InvalidValue("expected at least one observation, got none")
    with precision("float32"):
        return _invert(observations, searches, rng)


def _invert(
    rounds: Sequence[Observation], searches: Sequence[DirectionSearch], rng: Rng
) -> Reconstruction:
    began = time.perf_counter()
    first = rounds[0]
    layer = rectified_layer(first.task).layer
    names = [f"{layer}.{part}" for part in ("weight", "bias")]
    for number, seen in enumerate(rounds, start=1):
        require_usable(seen.update, seen.task)
        shapes = [getattr(seen.task.parameters.get(name), "shape", None) for name in names]
        if shapes != [first.task.parameters[name].shape for name in names]:
            raise InvalidValue(
                f"expected rounds of one model, but observation {number} is of {seen.task.name} "
                f"with another first layer than {first.task.name}; attack them apart"
            )
        if any(name not in seen.update.tensors for name in names):
            raise NotApplicable(
                f"the first layer {layer!r} is frozen in observation {number}, so that its update "
                "does not hold it"
            )
    weight, bias = (
        torch.cat([seen.update.descent().tensors[name] for seen in rounds]) for name in names
    )
    stacked = ReLULayer(
        *(torch.cat([seen.task.parameters[name].double() for seen in rounds]) for name in names)
    )
    factors = factorise(weight, bias, batch_size=first.batch_size)
    separation, trail = separate_batch(
        select_searches(searches, factors), factors, stacked, rng=rng
    )
    task = first.task
    natural = task.domain.denormalise(separation.inputs.reshape(-1, *task.domain.shape))
    inputs = task.domain.project(natural).to(task.parameters[names[0]].dtype)
    own = separation.gradients[:, : len(task.parameters[names[1]])]
    rows, labels = find_labels(first, layer, inputs, own, noise=factors.noise)
    seconds = time.perf_counter() - began
    trace = Trace(trail, trail[-1:], seconds=seconds, device=str(inputs.device))
    return Reconstruction(inputs[rows], labels, trace)
