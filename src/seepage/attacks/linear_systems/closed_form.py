"""The input of any fully connected layer, read off the update of one example."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seepage.attacks.linear_systems.input_layer import reads_one_vector
from seepage.attacks.linear_systems.layer import Layer
from seepage.attacks.linear_systems.stack import read_stack
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Task, Update
from seepage.core.errors import NotApplicable, UnknownName


def features(observation: Observation, *, layer: str) -> Tensor:
    """What a fully connected layer read, `(n,)`, in closed form; for one private example.

    For z = A v + b every row gives dL/dA_i = (dL/dz_i) v. All rows are used at once, weighted by
    how much they say, which is least squares:

        v = (dL/dA)^T (dL/dz) / ||dL/dz||^2

    A bias holds dL/dz itself. Without one it is computed from the nearest layer above that has
    one, through fully connected layers with activations that can be undone:

        dL/dz_i = alpha'(z_i) (A_{i+1}^T dL/dz_{i+1}),   alpha(z_i) = v_{i+1}

    The sign and the scale of the update cancel, so clipping does not matter, and with a bias a
    FedAvg difference of several steps gives its input all the same.

    Args:
        observation: Of a batch of one, or of unknown size, which is then taken for one.
        layer: Name of the module, as `Task.model.named_modules()` has it.

    Deviations:
        The propositions take any one row; weighting all is the same without noise and better with
        it. Proposition 2 asks for dL/dz_i > 0 behind the ReLU; what it needs is that unit i is
        active, which the features above show.

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
    _require_one_vector(task, layer)
    weight, bias = layer_gradients(update, layer)
    if bias is not None:
        return layer_input(weight, bias, name=layer)
    return _below_a_bias(task, update, layer).to(weight.dtype)


def layer_gradients(update: Update, name: str) -> tuple[Tensor, Tensor | None]:
    """The gradients dL/dA and, if the update holds it, dL/db of a layer."""
    of_weight, of_bias = layer_parameters(name)
    weight = update.tensors.get(of_weight)
    if weight is None:
        raise NotApplicable(f"the layer {name!r} is frozen, so the update does not hold it")
    return weight, update.tensors.get(of_bias)


def layer_parameters(name: str) -> tuple[str, str]:
    """What an update calls the weight and the bias of a layer."""
    prefix = f"{name}." if name else ""
    return f"{prefix}weight", f"{prefix}bias"


def layer_input(weight: Tensor, delta: Tensor, *, name: str) -> Tensor:
    """The vector v that explains dL/dA = (dL/dz) v^T best.

    Args:
        weight: dL/dA `(m, n)`.
        delta: dL/dz `(m,)`, to any factor that it shares with dL/dA.
        name: Of the layer, for messages.

    Example:
        >>> layer_input(torch.tensor([[2.0, 4.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0]), name="")
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


def _require_one_vector(task: Task, name: str) -> None:
    modules = dict(task.model.named_modules())
    if name not in modules:
        known = [n for n, module in modules.items() if isinstance(module, nn.Linear)]
        raise UnknownName("layer", name, known, where=f"in {task.name}")
    if not reads_one_vector(task, name):
        raise NotApplicable(
            f"expected {name!r} of {task.name} to be a fully connected layer that reads one vector "
            "per example; choose another layer, or use gradient matching"
        )


def _below_a_bias(task: Task, update: Update, name: str) -> Tensor:
    """Corollary 1: from the nearest layer with a bias down to one without."""
    layers = read_stack(task).layers
    lowest = [layer.name for layer in layers].index(name)
    *below, highest = _up_to_a_bias(task, update, layers[lowest:])
    exact = update.map(Tensor.double)
    weight, delta = layer_gradients(exact, highest.name)
    assert delta is not None
    vector = layer_input(weight, delta, name=highest.name)
    above = highest
    for layer in reversed(below):
        slope = layer.activation.derivative(layer.activation.inverse(vector))
        # Where the activation forgot z, as a ReLU does, its slope would be a guess.
        seen = layer.activation.known(vector)
        delta = torch.where(seen, slope * (above.weight.T @ delta), 0.0)
        vector = layer_input(layer_gradients(exact, layer.name)[0], delta, name=layer.name)
        above = layer
    return vector


def _up_to_a_bias(task: Task, update: Update, layers: Sequence[Layer]) -> Sequence[Layer]:
    for count, layer in enumerate(layers, start=1):
        if layer.convolutional:
            break
        if layer_gradients(update, layer.name)[1] is not None:
            return layers[:count]
    raise NotApplicable(
        f"expected a bias in {layers[0].name!r} of {task.name}, or in a fully connected layer that "
        "only fully connected layers separate from it, got none; use gradient matching"
    )
