"""Compute the input of a network that begins with fully connected layers from its gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks._agreement import EXPLAINED
from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._read_targets import fit_targets
from seepage.attacks.linear_systems._input_front import find_front
from seepage.attacks.linear_systems._input_length import FoundLength, find_length
from seepage.core import Attack, BaseAttack, Observation, Reconstruction, Rng, Task, Update
from seepage.core._usable_update import require_usable
from seepage.core.errors import NotApplicable, UnknownName
from seepage.numerics._row_span import main_direction
from seepage.probing._first_layer import input_layer, input_readers, reads_one_vector
from seepage.probing._layer_stack import Layer, read_stack


def features(observation: Observation, *, layer: str) -> Tensor:
    """The input `(n,)` of a fully connected layer in closed form, for one private example.

    For z = A v + b every row gives dL/dA_i = (dL/dz_i) v. Least squares uses all rows at once:

        v = (dL/dA)^T (dL/dz) / ||dL/dz||^2

    The gradient of a bias is dL/dz itself. Without a bias it is computed from the nearest layer
    above that has one, through fully connected layers with activations that can be inverted:

        dL/dz_i = alpha'(z_i) (A_{i+1}^T dL/dz_{i+1}),   alpha(z_i) = v_{i+1}

    The sign and the scale of the update cancel, so clipping does not matter. With a bias, a FedAvg
    difference of several steps works as well.

    Args:
        observation: Of a batch of one; an unknown batch size is taken for one.
        layer: Name of the module, as in `Task.model.named_modules()`.

    Deviations:
        The propositions take any one row; weighting all is the same without noise and better with
        it. Proposition 2 asks for dL/dz_i > 0 behind the ReLU; it only needs unit i to be active,
        which the features above show.

    Example:
        >>> from seepage.clients import Client, Gradient
        >>> from seepage.core import rng
        >>> from seepage.data import bundled
        >>> from seepage.threats import Threat
        >>> from seepage.zoo import lenet
        >>> photo, task = bundled("photos", size=1), lenet()
        >>> seen = Threat().observe(Client(Gradient()), task, photo, rng=rng(0))
        >>> read = features(seen, layer="head")
        >>> truth = task.model[:-1](task.domain.normalise(photo.inputs))[0]
        >>> bool((read - truth).norm() < 1e-5 * truth.norm())
        True

    References:
        Geiping et al., 2020, Propositions 1 and 2, Corollary 1 (geiping2020inverting)
    """
    task, update = observation.task, observation.update
    require_usable(update, task)
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"each row of {layer!r} holds a mixture of {observation.batch_size} inputs, so "
            "the closed form does not apply; it needs a batch of one"
        )
    modules = dict(task.model.named_modules())
    if layer not in modules:
        known = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
        raise UnknownName("layer", layer, known, where=f"in {task.name}")
    if not reads_one_vector(task, layer):
        raise NotApplicable(
            f"expected {layer!r} of {task.name} to be a fully connected layer that reads one "
            "vector per example; choose another layer, or use gradient matching"
        )
    weight, bias = _find_gradients(update, layer)
    if bias is not None:
        return _solve_layer_input(weight, bias, name=layer)
    return _features_below_bias(task, update, layer).to(weight.dtype)


def _find_gradients(update: Update, name: str) -> tuple[Tensor, Tensor | None]:
    """The gradients dL/dA and, if the update holds it, dL/db."""
    of_weight, of_bias = _layer_parameters(name)
    weight = update.tensors.get(of_weight)
    if weight is None:
        raise NotApplicable(f"the layer {name!r} is frozen, so the update does not hold it")
    return weight, update.tensors.get(of_bias)


def _layer_parameters(name: str) -> tuple[str, str]:
    """Names of a layer's weight and bias in an update."""
    prefix = f"{name}." if name else ""
    return f"{prefix}weight", f"{prefix}bias"


def _solve_layer_input(weight: Tensor, delta: Tensor, *, name: str) -> Tensor:
    """Solve dL/dA = (dL/dz) v^T for v by least squares.

    Args:
        weight: dL/dA `(m, n)`.
        delta: dL/dz `(m,)`, up to a factor that it shares with dL/dA.
        name: Of the layer, for messages.

    Example:
        >>> weight, delta = torch.tensor([[2.0, 4.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0])
        >>> _solve_layer_input(weight, delta, name="first")
        tensor([1., 2.])
    """
    largest = delta.abs().max()
    if float(largest) == 0:
        raise NotApplicable(
            f"the gradient at the output of {name!r} is zero, so no row can be solved"
        )
    # Scaling first keeps the squares of tiny gradients from underflowing in float32.
    share = delta / largest
    return (weight.T / largest @ share) / share.square().sum()


def _features_below_bias(task: Task, update: Update, name: str) -> Tensor:
    """Corollary 1: walk down from the nearest layer with a bias to a layer without one."""
    layers = read_stack(task).layers
    exact = update.map(Tensor.double)
    below: list[Layer] = []
    for above in layers[[layer.name for layer in layers].index(name) :]:
        weight, delta = _find_gradients(exact, above.name)
        if above.convolutional or delta is not None:
            break
        below.append(above)
    if above.convolutional or delta is None:
        raise NotApplicable(
            f"expected a bias in {name!r} of {task.name}, or in a fully connected layer that only "
            "fully connected layers separate from it, got none; use gradient matching"
        )
    vector = _solve_layer_input(weight, delta, name=above.name)
    for layer in reversed(below):
        slope = layer.activation.derivative(layer.activation.inverse(vector))
        # Where the activation lost z, as a ReLU does, its slope is unknown.
        seen = layer.activation.known(vector)
        delta = torch.where(seen, slope * (above.weight.T @ delta), 0.0)
        vector = _solve_layer_input(_find_gradients(exact, layer.name)[0], delta, name=layer.name)
        above = layer
    return vector


# Entries of a row that are so near those of its bias are signs, and how many must not be.
_NEAR_SIGN, _MOSTLY = 0.1, 0.8


@dataclass(frozen=True)
class AnalyticFC(BaseAttack):
    """Closed-form inversion of a network whose first layer is fully connected.

    `features` solves for one input, if the first layer or a fully connected layer above it has a
    bias. Without, every row of the first layer's gradient is a multiple of the input, and which one
    a search over one number tells, as long as the network does not take the length away. An affine
    map before the layer, such as batch normalisation in evaluation, is undone. For a batch each row
    holds a mixture of the inputs, and the rows of the B largest bias gradients are returned. The
    guess is clamped to the domain, in which the truth lies.
    """

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        task = observation.task
        size = observation.batch_size or 1
        layer, front = _find_reader(task, biased=size > 1), None
        if layer is None:
            front = find_front(task)
            layer = front.layer
        labels, scale = None, None
        if size > 1:
            vectors = _pick_strongest_rows(observation, layer, size)
        else:
            labels = observation.labels
            try:
                vectors = features(observation, layer=layer)
            except NotApplicable as reason:
                if front is not None:
                    raise
                vectors, scale = _read_direction(observation, layer, reason)
            vectors = vectors if front is None else front.undo(vectors)
        inputs = task.to_inputs(vectors)
        if labels is None and size == 1:
            labels = fit_targets(observation, inputs)
        sure = None
        if size == 1 and front is None and _agrees(observation, layer, vectors, inputs):
            sure = torch.ones_like(inputs).flatten(1)
        if labels is None:
            return Reconstruction(inputs, confidence=sure)
        # The layer's equations leave no other input that explains them, or one of another length.
        read = [name for name in _layer_parameters(layer) if name in observation.update.tensors]
        alone = scale is None or scale.alone
        certificate = certify_solved(observation, inputs, labels, read=read, alone=alone)
        if scale is not None and scale.lost:
            certificate = replace(certificate, unique=False)
        return Reconstruction(inputs, labels, certificate=certificate, confidence=sure)


def _read_direction(
    observation: Observation, layer: str, reason: NotApplicable
) -> tuple[Tensor, FoundLength]:
    """What a layer without a bias reads: its direction by the gradient, its length by a search."""
    weight, bias = _find_gradients(observation.update, layer)
    labels = observation.labels
    if bias is not None or labels is None or not bool(weight.any()):
        raise reason
    direction = main_direction(weight)
    found = find_length(observation, direction, labels)
    return found.length * direction, found


def _agrees(observation: Observation, layer: str, vector: Tensor, inputs: Tensor) -> bool:
    """Whether all rows of the layer have the same input, however the network goes on above it.

    This holds for a step that the adversary cannot simulate, such as one with dropout. Signs, of a
    defense or of an optimizer, agree as well, but they are all of one size: the rows, or after
    several steps the entries of each row.
    """
    weight, bias = _find_gradients(observation.update, layer)
    client, domain = observation.simulate.client, observation.task.domain
    rounded = client is not None and not client.chain.keeps_gradient
    if bias is None or rounded or observation.batch_size != 1:
        return False
    lengths = bias.abs()[bias != 0]
    if len(lengths) < 2 or float(lengths.max()) < 2 * float(lengths.min()):
        return False
    if float(((vector.abs() - 1).abs() < _NEAR_SIGN).float().mean()) > _MOSTLY:
        return False
    largest = lengths.max()
    apart = (weight / largest - torch.outer(bias / largest, vector)).norm()
    outside = domain.normalise(inputs).flatten() - vector
    limit = EXPLAINED * float(vector.norm())
    return float(apart) <= EXPLAINED * float((weight / largest).norm()) and (
        float(outside.norm()) <= limit
    )


def _find_reader(task: Task, *, biased: bool) -> str | None:
    """The fully connected layer that reads the input; one with a bias if there is one.

    None if there is none, and one behind an affine map would do.
    """
    layer = input_layer(task)
    if layer is None and not biased:
        return next(iter(input_readers(task)), None)
    if layer is None:
        raise NotApplicable(
            f"{task.name} has no fully connected layer with a bias that reads its input, so the "
            "closed form does not apply; use gradient matching"
        )
    return layer


def _pick_strongest_rows(observation: Observation, layer: str, size: int) -> Tensor:
    weight, bias = _find_gradients(observation.update, layer)
    if bias is None:
        raise NotApplicable(f"the bias of {layer!r} is frozen, so the update does not hold it")
    if size > len(bias):
        raise NotApplicable(
            f"the first layer has {len(bias)} rows, too few for {size} inputs; "
            "closed-form inversion needs at least one row per input"
        )
    rows = bias.abs().topk(size).indices
    ratios = torch.einsum("rn,r->rn", weight[rows], 1 / bias[rows])
    # A row that was pruned entirely gives 0 / 0.
    return torch.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)


def _require_one_input(observation: Observation) -> None:
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"a row of the first layer's gradient mixes all {observation.batch_size} inputs"
        )
    if not input_readers(observation.task):
        find_front(observation.task)


@applies_to(require=_require_one_input, needs_labels=True)
def analytic_fc() -> Attack:
    """Closed-form input of a network that begins with a fully connected layer.

    Without a bias in any fully connected layer the input's length and sign are searched for, one
    number, by simulating the client. That needs the label. The layer may also read an affine map of
    the input that keeps as many entries.

    Example:
        >>> analytic_fc()
        AnalyticFC()

    References:
        Geiping et al., 2020, Propositions 1 and 2, Corollary 1 (geiping2020inverting); Phong et
        al., 2018 (phong2018privacy)
    """
    return AnalyticFC()
