"""The two-layer head A sigma(W z + c) + b at the end of a network, and its share of the update."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seepage.attacks.feature_recovery.activation import Activation, recognise
from seepage.attacks.linear_systems.input_layer import input_readers, noise
from seepage.attacks.linear_systems.watch import Visit, visits
from seepage.attacks.usable import require_continuous, require_usable
from seepage.core import Observation, Task
from seepage.core.errors import NotApplicable

NOTHING = (
    "the gradient of the last layer is zero, so it gives nothing away: the network is sure of "
    "everybody, or no neuron of the layer before answers; attack a network that still learns"
)


@dataclass(frozen=True, eq=False)
class TwoLayerHead:
    """What the server knows of the head, and what the update says of it, in float64.

    With the features Z `(B, d)` that the head reads, S = sigma(Z W^T + c) and R = dL/dlogits
    `(B, K)`:

        dL/dA = R^T S,   dL/dW = ((R A) * sigma'(Z W^T + c))^T Z

    Args:
        layer: Name of the first of the two, whose inputs are sought.
        weight: W, `(m, d)`.
        bias: c, `(m,)`, zero where there is none.
        above: A, `(K, m)`.
        offset: b, `(K,)`, zero where there is none.
        activation: sigma.
        first: dL/dW, `(m, d)`, or None if it is not in the update.
        last: dL/dA, `(K, m)`.
        reads_input: Whether Z is the flattened, normalised input itself.
    """

    layer: str
    weight: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    above: Tensor = field(repr=False)
    offset: Tensor = field(repr=False)
    activation: Activation
    first: Tensor | None = field(repr=False)
    last: Tensor = field(repr=False)
    reads_input: bool

    def hidden(self, features: Tensor) -> Tensor:
        """Z W^T + c, `(B, m)`."""
        return features @ self.weight.T + self.bias


def two_layer_head(observation: Observation) -> TwoLayerHead:
    """Find the last two fully connected layers and the activation between them.

    The network runs once for all updates, in double precision, on noise; layers are known by what
    they read and give, so it works for any module.

    Raises:
        NotApplicable: The network does not end like this, or the update does not hold it.
    """
    task = observation.task
    require_usable(observation.update, task)
    require_continuous(task)
    place = _place(task)
    gradient = observation.update.descent().tensors
    if f"{place.last}.weight" not in gradient:
        raise NotApplicable(
            f"the last layer {place.last!r} of {task.name} is frozen, so the update does not hold "
            "the gradient that features are read from"
        )
    tensors = {name: p.detach() for name, p in task.model.named_parameters()}
    weight = tensors[f"{place.first}.weight"].double()
    above = tensors[f"{place.last}.weight"].double()
    given = gradient.get(f"{place.first}.weight")
    return TwoLayerHead(
        layer=place.first,
        weight=weight,
        bias=tensors.get(f"{place.first}.bias", weight.new_zeros(len(weight))).double(),
        above=above,
        offset=tensors.get(f"{place.last}.bias", above.new_zeros(len(above))).double(),
        activation=place.activation,
        first=None if given is None else given.double(),
        last=gradient[f"{place.last}.weight"].double(),
        reads_input=place.reads_input,
    )


@dataclass(frozen=True)
class _Place:
    """Where the head of a network is: its layers' names, what lies between, what it reads."""

    first: str
    last: str
    activation: Activation
    reads_input: bool


# Copying and running a network takes longer than all the rest does for one update of it.
_places: WeakKeyDictionary[nn.Module, _Place] = WeakKeyDictionary()


def _place(task: Task) -> _Place:
    if task.model not in _places:
        first, last, activation = _located(task)
        reads_input = first.name in input_readers(task)
        _places[task.model] = _Place(first.name, last.name, activation, reads_input)
    return _places[task.model]


def _located(task: Task) -> tuple[Visit, Visit, Activation]:
    network = copy.deepcopy(task.in_mode("eval").network).double()
    seen, logits = visits(network, noise(task).double())
    linear = [visit for visit in seen if isinstance(visit.module, nn.Linear)]
    if len(linear) < 2 or not torch.equal(linear[-1].outputs, logits):
        raise NotApplicable(
            f"expected {task.name} to end in two fully connected layers, got "
            f"{min(len(linear), 1)} at its end; feature recovery needs a head such as that of "
            "wide_head_resnet18 or two_layer"
        )
    first, last = linear[-2:]
    activation = recognise(first.outputs, last.inputs) if first.inputs.ndim == 2 else None
    if activation is None:
        raise NotApplicable(
            f"what lies between {first.name!r} and {last.name!r} of {task.name} is none of the "
            "element-wise activations that feature recovery knows; use gradient matching"
        )
    return first, last, activation
