"""Certify a guess: compare its simulated update with the observed one. No truth is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks._agreement import (
    EXPLAINED,
    FLOAT32_ALONE,
    Agreement,
    compare_updates,
    fits_as_well,
)
from seepage.attacks._jacobian import (
    davidson_smallest,
    lanczos_smallest,
    smallest_singular_value,
    update_jacobian,
)
from seepage.clients import Local
from seepage.core import Certificate, Observation, Reconstruction, Rng
from seepage.core._batch import are_numbers
from seepage.core.errors import MissingKnowledge
from seepage.defenses._clip import AddGaussian, AddLaplace, Clip, ClipEach, Mean
from seepage.numerics._least_squares import Linear
from seepage.probing._first_layer import input_layer

# Largest error of an entry of an input that is called unique: half a step of 8 bits, as a share of
# the range of its entries.
LARGEST_ERROR = 0.5 / 255
# Unknowns up to which an attack that solved its equations may take all eigenvalues.
QUICK = 1_024
# Defenses that scale the update of an example or add to it, and leave it otherwise as it is.
_SCALING = (AddGaussian, AddLaplace, Clip, ClipEach, Mean)

# The largest error of a normalised input, given by how much each tensor may be off.
ErrorBound = Callable[[Mapping[str, float]], float]


def certify(observation: Observation, reconstruction: Reconstruction) -> Certificate:
    """Collect evidence that a guess is the private input: it alone, nearby, explains the update.

        residual  =  max_l ||g_l(x, y) - g_l*|| / ||g_l*||
        error     =  sqrt(L) / sigma_min(J),   J_l = (dg_l/dx) / e_l,
                     e_l = ||g_l(x, y) - g_l*|| + the rounding or the known noise of g_l
        locally unique:  error <= half a step of 8 bits

    Every tensor l of the L in the update counts by itself: in a deep network the layer that holds
    the input may be a millionth of the update, and would not show in the residual of the whole.
    Tensors that are zero, or that rounding changes by more than 1e-3 of their length, are left out
    of the residual. The error bounds every entry of the inputs, in their units. One example behind
    a fully connected layer with a bias needs no Jacobian: that layer's gradient is the input, times
    the gradient of the bias. Such a guess is `unique`, the only one of all inputs.

    The residual is computed in the client's precision, since that is what was observed. Rounding is
    measured against double precision. An update, or parameters, that float16 or bfloat16 can hold
    are taken to be computed so, and an update whose entries lie on a grid to be rounded to it. The
    Jacobian is always computed in double precision: the question is about singular values far below
    the largest, and float32 has no digits for them. It takes about two gradients for each unknown.

    A Jacobian proves less: the guess is `locally_unique`, and an input far away may explain the
    update as well. If the first thing that a network does is x -> (x - 1/2)^2, the negative of an
    image does. Such images of the guess are tried: mirrored in their range and about zero, and
    flipped along each axis. If one of them is a valid input that fits as well, `unique` is False.

    The error also takes for granted that the client did what the adversary simulates. Uniqueness
    stays unknown, and the error None,
    in five cases: the residual exceeds 1e-3, so the guess is no explanation; a defense takes signs,
    so the slope is made up; the client mixed its inputs and the simulation does not, so that
    encodings come back instead of inputs; the client, given this guess, would share another update
    than its input defenses tell those who simulate them; the inputs are tokens, which have no
    neighbours.

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
        >>> found = certify(seen, Reconstruction(batch.inputs, batch.labels))
        >>> found.residual, found.unique, found.error < 1e-5
        (0.0, True, True)

    References:
        Chen and Campbell, 2022 (chen2022analysing) on rank deciding what can be recovered
    """
    inputs, labels = reconstruction.inputs, reconstruction.labels
    # Known labels are a multiset; only with one input they tell which input has which label.
    if labels is None and len(inputs) == 1:
        labels = observation.labels
    if labels is None:
        raise MissingKnowledge(
            "labels", needed_by="a certificate", hint="give the reconstruction labels to be checked"
        )
    found = compare_updates(observation, inputs, labels)
    error, everywhere = None, True
    told = found.proves() and _prepares_as_told(observation, inputs, labels)
    if told and _simulates_inputs(observation, inputs, labels):
        error = _bound_by_layer(observation, inputs, found)
        if error is None:
            error, everywhere = _bound_by_slopes(observation, inputs, labels, found), False
    issued = _issue(observation, found, error)
    if issued.unique and _has_twin(observation, inputs, labels, found):
        return replace(issued, unique=False)
    return issued if everywhere or not issued.unique else replace(issued, unique=None)


def certify_solved(
    observation: Observation,
    inputs: Tensor,
    labels: Tensor,
    *,
    read: Collection[str],
    alone: bool,
    bound: ErrorBound | None = None,
    inverse: Callable[[Tensor], Linear | None] | None = None,
) -> Certificate:
    """Certify an attack that solved equations which have one solution.

    Args:
        observation: What was seen.
        inputs: The solution.
        labels: Of the inputs.
        read: Names of the tensors that make up the equations.
        alone: Whether they have no other solution.
        bound: The largest error of the solution, normalised, given by how much each tensor may be
            off; None computes it as `certify` does. It is not used behind a defense that does more
            than scale the update.
        inverse: Given the inputs `(n,)`, multiplies by a matrix near the inverse of J^T J, if there
            is one; it speeds up the answer. Not used behind such a defense either.
    """
    found = compare_updates(observation, inputs, labels)
    if not (alone and found.proves(*read) and _prepares_as_told(observation, inputs, labels)):
        return Certificate(found.residual)
    if observation.task.domain.discrete:
        return Certificate(found.residual, unique=True)
    error = None
    if _simulates_inputs(observation, inputs, labels):
        if bound is not None and _only_scales(observation):
            error = _largest_scale(observation) * bound(found.errors)
        else:
            error = _bound_by_layer(observation, inputs, found)
        if error is None:
            try:
                error = _bound_by_slopes(
                    observation, inputs, labels, found, quick=True, inverse=inverse
                )
            except FLOAT32_ALONE:
                error = None
    issued = _issue(observation, found, error)
    alone = bool(issued.unique) and not _has_twin(observation, inputs, labels, found)
    return issued if alone else replace(issued, unique=None)


def _issue(observation: Observation, found: Agreement, error: float | None) -> Certificate:
    """A certificate that says unique if the error is below half a step of 8 bits."""
    low, high = observation.task.domain.bounds
    if error is None or math.isnan(error):
        return Certificate(found.residual)
    if math.isinf(error):
        return Certificate(found.residual, unique=False, locally_unique=False)
    small = True if error <= LARGEST_ERROR * (high - low) else None
    return Certificate(found.residual, unique=small, error=error, locally_unique=small)


def _has_twin(observation: Observation, inputs: Tensor, labels: Tensor, found: Agreement) -> bool:
    """Whether a mirrored or flipped guess is another valid input, and fits the update as well."""
    domain = observation.task.domain
    low, high = domain.bounds
    same = LARGEST_ERROR * (high - low)
    images = [
        low + high - inputs,
        -inputs,
        domain.denormalise(-domain.normalise(inputs)),
        *(inputs.flip(axis) for axis in range(2, inputs.ndim)),
    ]
    return any(
        float((image - inputs).abs().max()) > same
        and torch.allclose(domain.project(image), image, atol=same)
        and fits_as_well(observation, image, labels, errors=found.errors)
        for image in images
    )


def _simulates_inputs(observation: Observation, inputs: Tensor, labels: Tensor) -> bool:
    """Whether the simulation starts from private inputs (not encodings), which are continuous."""
    simulation = observation.simulate
    if observation.task.domain.discrete:
        return False
    if simulation.mixing is not None:
        return True
    known = () if simulation.client is None else simulation.client.chain.input_defenses
    mixes = observation.mixing is not None or any(link.stage == "mixing" for link in known)
    # Labels that are shared out among classes tell of mixed inputs as well.
    shared = observation.task.target_shape is None and are_numbers(labels)
    soft = shared and labels.ndim == 2 and bool((labels.amax(-1) < 1 - EXPLAINED).any())
    return not (mixes or soft)


def _prepares_as_told(observation: Observation, inputs: Tensor, labels: Tensor) -> bool:
    """Whether the client would prepare this guess as it is simulated; else nothing is proved.

    The adversary knows the client's code, and so can run it on its own guess.
    """
    simulation = observation.simulate
    client, task = simulation.client, simulation.task
    return client is None or client.prepares_as_told(task, inputs, labels, rng=Rng(0))


def _only_scales(observation: Observation) -> bool:
    """Whether the client is known, sends gradients, and its defense only scales or adds to them.

    Sums of gradients count as well, but no steps of Adam.
    """
    client = observation.simulate.client
    if client is None or (isinstance(client.local, Local) and not client.local.adds_gradients):
        return False
    return all(isinstance(link, _SCALING) for link in client.chain.links)


def _largest_scale(observation: Observation) -> float:
    """The largest factor from a normalised entry to one in the units of the input."""
    domain = observation.task.domain
    one = torch.ones(1, *domain.shape, dtype=torch.float64)
    return float((domain.denormalise(one) - domain.denormalise(0 * one)).abs().max())


def _bound_by_layer(observation: Observation, inputs: Tensor, found: Agreement) -> float | None:
    """Bound the error of one input by the fully connected layer with a bias that reads it.

    For every entry of the input, dL/dW* = (dL/db*) x*^T gives

        |x - x*| <= (||dL/dW* - (dL/db*) x^T|| + rounding) / ||dL/db*||

    None if there is no such layer in the update, or if a defense may have changed the equation.
    """
    if len(inputs) != 1 or not _only_scales(observation):
        return None
    layer = input_layer(observation.task)
    prefix = f"{layer}." if layer else ""
    names = f"{prefix}weight", f"{prefix}bias"
    tensors = observation.update.tensors
    if layer is None or not all(name in tensors for name in names):
        return None
    weight, delta = (tensors[name].double() for name in names)
    x = observation.task.domain.normalise(inputs.double()).flatten()
    rounding = found.errors[names[0]] + found.errors[names[1]] * float(x.abs().max())
    off = float((weight - torch.outer(delta, x)).norm()) + rounding
    steep = float(delta.norm())
    return _largest_scale(observation) * off / steep if steep else math.inf


def _bound_by_slopes(
    observation: Observation,
    inputs: Tensor,
    labels: Tensor,
    found: Agreement,
    *,
    quick: bool = False,
    inverse: Callable[[Tensor], Linear | None] | None = None,
) -> float | None:
    """Bound the error by the smallest singular value of the Jacobian of the update.

    Infinite if some direction changes nothing; None if there is no Jacobian, or it is made up, or
    its smallest singular value is not found.
    """
    weights = {name: 1 / error for name, error in found.errors.items() if error > 0}
    jacobian = update_jacobian(observation, inputs, labels, weights=weights)
    if jacobian is None or not jacobian.is_true():
        return None
    smallest = None
    if inverse is not None and _only_scales(observation) and (near := inverse(jacobian.at)):
        smallest = davidson_smallest(jacobian, near)
    if smallest is None:
        many = quick and jacobian.equations >= jacobian.unknowns > QUICK
        smallest = lanczos_smallest(jacobian) if many else smallest_singular_value(jacobian)
    if smallest is None:
        return None
    return math.sqrt(len(weights)) / smallest if smallest else math.inf
