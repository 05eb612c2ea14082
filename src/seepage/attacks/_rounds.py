"""Several rounds against one batch: matched together, or inverted exactly."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch._exact_batch import (
    DirectionSearch,
    KernelSampling,
    find_labels,
    select_searches,
    separate_batch,
)
from seepage.attacks.exact_batch._separation import ReLULayer
from seepage.attacks.exact_batch._span_factors import factorise_gradient
from seepage.attacks.exact_batch._sparse_directions import SparseDirections
from seepage.attacks.labels._infer_labels import recover_labels
from seepage.core import (
    Observation,
    OwnSimulation,
    Reconstruction,
    Rng,
    Statistics,
    Task,
    Trace,
    Update,
)
from seepage.core._device import precision
from seepage.core._rng import require_key
from seepage.core._usable_update import require_usable
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.probing._first_layer import rectified_layer


class _Rounds(nn.Module):
    """The networks of all rounds on the same inputs: `(B, ...) -> (B, R, K)`."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.round = nn.ModuleList(networks)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([network(inputs) for network in self.round], 1)


def stack_rounds(observations: Sequence[Observation]) -> Observation:
    """Join what was seen of one batch in several rounds, so that a search matches all of it.

    The update has the tensors of every round, and so has the simulation, which runs each round's
    client with its own network, defense and, if it is known, mixing. Noise that is drawn anew in
    every round averages out; and what one network hides, another may tell. Labels are those of the
    first round that has them, or recovered from the first.

    Args:
        observations: One for each round of one model, of clients with the same batch.

    Returns:
        An observation for attacks that match updates, such as `inverting_gradients`. Its network
        stands for all rounds, so attacks that read single layers do not apply.

    Raises:
        InvalidValue: No rounds, or rounds of different models, batch sizes or labels, or with
            flipped signs (`unmix_rounds` takes these).

    Example:
        >>> import seepage as sp
        >>> task, batch = sp.zoo.lenet(), sp.data.bundled("photos", size=1)
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(0.01))
        >>> threat = sp.Threat(knows_labels=True)
        >>> rounds = [threat.observe(client, task, batch, rng=sp.rng(i)) for i in range(3)]
        >>> seen = stack_rounds(rounds)
        >>> len(seen.update.tensors) == 3 * len(rounds[0].update.tensors)
        True
        >>> sp.attacks.inverting_gradients(steps=2, restarts=1)(seen, rng=sp.rng(0)).inputs.shape
        torch.Size([1, 3, 32, 32])
    """
    rounds = tuple(observations)
    if not rounds:
        raise InvalidValue("expected at least one observation, got none")
    first = rounds[0]
    for number, seen in enumerate(rounds[1:], start=2):
        require_same_batch(first, seen, number)
    if any(seen.mixing is not None and seen.mixing.flipped_about is not None for seen in rounds):
        raise InvalidValue(
            "expected rounds in which one candidate is simulated, but signs were flipped at random "
            "in each; unmix_rounds attacks them one by one and decodes what it finds"
        )
    told = next((seen.labels for seen in rounds if seen.labels is not None), None)
    loss = first.task.loss
    task = Task(
        # Copies, since a server may broadcast the same network twice.
        _Rounds([copy.deepcopy(seen.task.model) for seen in rounds]),
        lambda outputs, labels: torch.stack([loss(one, labels) for one in outputs.unbind(1)]).sum(
            0
        ),
        first.task.domain,
        mode=first.task.mode,
        name=f"{first.task.name}, {len(rounds)} rounds",
        target_shape=first.task.target_shape,
    )
    labels = recover_labels(first) if told is None else told
    return replace(
        first,
        task=task,
        update=_join_updates([seen.update for seen in rounds]),
        simulate=OwnSimulation(
            lambda inputs, labels: _join_updates([s.simulate(inputs, labels) for s in rounds]), task
        ),
        batch_size=len(labels),
        labels=labels,
        statistics=_join_statistics(rounds),
        mixing=None,
        others=(),
    )


def require_same_batch(first: Observation, seen: Observation, number: int) -> None:
    """Raise `InvalidValue` if a round is of another model, batch or knowledge than the first."""
    shapes = [{name: t.shape for name, t in one.update.tensors.items()} for one in (first, seen)]
    if shapes[0] != shapes[1] or first.update.kind != seen.update.kind:
        raise InvalidValue(
            f"expected rounds of one model, but the update of observation {number} has other "
            "tensors than the first; attack them apart"
        )
    if (first.mixing is None) != (seen.mixing is None):
        raise InvalidValue(
            f"expected the mixing of all rounds or of none, but that of observation {number} or of "
            "the first is not known; leave out the rounds without it"
        )
    # Labels of encodings are mixed anew in every round.
    mixed = seen.mixing is not None and seen.mixing.flipped_about is not None
    labels = [one.labels.tolist() for one in (first, seen) if one.labels is not None and not mixed]
    if first.batch_size != seen.batch_size or any(some != labels[0] for some in labels):
        raise InvalidValue(
            f"expected rounds of one batch, but observation {number} has another batch size or "
            "other labels than the first; attack them apart"
        )


def _join_updates(updates: Sequence[Update]) -> Update:
    tensors = {
        f"round.{number}.{name}": tensor
        for number, update in enumerate(updates)
        for name, tensor in update.tensors.items()
    }
    return replace(updates[0], tensors=tensors)


def _join_statistics(rounds: Sequence[Observation]) -> dict[str, Statistics] | None:
    if any(seen.statistics is None for seen in rounds):
        return None
    return {
        f"round.{number}.{name}": measured
        for number, seen in enumerate(rounds)
        for name, measured in (seen.statistics or {}).items()
    }


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
    factors = factorise_gradient(weight, bias, batch_size=first.batch_size)
    separation, trail = separate_batch(
        select_searches(searches, factors), factors, stacked, rng=rng
    )
    task = first.task
    inputs = task.to_inputs(separation.inputs).to(task.parameters[names[0]].dtype)
    own = separation.gradients[:, : len(task.parameters[names[1]])]
    rows, labels = find_labels(first, layer, inputs, own, noise=factors.noise)
    seconds = time.perf_counter() - began
    trace = Trace(trail, trail[-1:], seconds=seconds, device=str(inputs.device))
    return Reconstruction(inputs[rows], labels, trace)
