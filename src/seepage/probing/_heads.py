"""Find the classifier head: the linear layer that gives the logits, and the one before it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seepage.core._observation import Observation
from seepage.core._once import once
from seepage.core._rng import Rng
from seepage.core._task import Task
from seepage.core._usable_update import require_continuous, require_usable
from seepage.core.errors import NotApplicable
from seepage.probing._activations import HeadActivation, recognise_head_activation
from seepage.probing._first_layer import draw_noise, input_readers, watch_linear_layers
from seepage.probing._hooks import record_visits

PROBES = 16
# Fewer probes of large inputs do: they hold at most so many entries, and are two at least.
_ENTRIES = 2**22


@dataclass(frozen=True, eq=False)
class Head:
    """The classifier head, with what it reads and returns when the network runs on noise.

    Args:
        weight: Name of its matrix, `(K, d)`.
        bias: Name of its bias `(K,)`; None if it has no trained bias.
        offset: The part of the logits that is added and not trained, `(K,)`.
        features: What it reads, `(M, d)`.
        logits: What it returns, `(M, K)`.
    """

    weight: str
    bias: str | None
    offset: Tensor = field(repr=False)
    features: Tensor = field(repr=False)
    logits: Tensor = field(repr=False)

    @property
    def layer(self) -> str:
        """Its name, as in `named_modules`."""
        return self.weight.removesuffix("weight").removesuffix(".")

    def without_bias(self, task: Task) -> Head:
        """Turn the bias into a fixed offset."""
        if self.bias is None:
            return self
        return replace(self, bias=None, offset=task.parameters[self.bias])


def _are_logits(returned: Tensor, outputs: Tensor) -> bool:
    """Whether a layer returns what the network does, or what a log-softmax makes that of."""
    return returned.shape == outputs.shape and any(
        torch.equal(each, outputs) for each in (returned, returned.log_softmax(-1))
    )


@once
def classifier_head(task: Task) -> Head:
    """Find the linear layer whose outputs are what the network returns, or before a log-softmax.

    It is found by running noise and comparing outputs, so any module will do. Logarithms of
    probabilities are logits too: a softmax of them gives the probabilities.

    Example:
        >>> from seepage.zoo import lenet
        >>> classifier_head(lenet())
        Head(weight='head.weight', bias='head.bias')

    Raises:
        NotApplicable: There is no such layer, or its weight is not trained.
    """
    count = max(2, min(PROBES, _ENTRIES // math.prod(task.domain.shape)))
    probes = task.move_inputs(task.domain.sample(count, rng=Rng(0).fork("probes")))
    with watch_linear_layers(task.network) as passes, torch.no_grad():
        logits = task.outputs(task.parameters, probes)
    heads = [name for name, one in passes.items() if _are_logits(one.returned, logits)]
    if not heads:
        raise NotApplicable(
            f"expected {task.name} to end in a linear layer, whose gradient holds the labels, got "
            "none whose outputs are the logits; use Threat(knows_labels=True)"
        )
    prefix = f"{heads[-1]}." if heads[-1] else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in task.parameters:
        raise NotApplicable(
            f"expected the classifier head of {task.name} to be trained, but {weight!r} is frozen "
            "and not in the update; use Threat(knows_labels=True)"
        )
    trained = bias in task.parameters
    frozen = None if trained else dict(task.model.named_parameters()).get(bias)
    offset = logits.new_zeros(logits.shape[1]) if frozen is None else frozen.detach()
    return Head(weight, bias if trained else None, offset, passes[heads[-1]].read, logits)


NOTHING = (
    "the gradient of the last layer is zero, so it gives nothing away: the network is sure of all "
    "examples, or no neuron of the layer before is active; attack a network that still learns"
)


@dataclass(frozen=True, eq=False)
class TwoLayerHead:
    """The parameters of the last two layers and their gradients, in float64.

    With the features Z `(B, d)` that the head reads, S = sigma(Z W^T + c) and R = dL/dlogits
    `(B, K)`:

        dL/dA = R^T S,   dL/dW = ((R A) * sigma'(Z W^T + c))^T Z

    Args:
        layer: Name of the first layer, whose inputs are to be recovered.
        weight: W, `(m, d)`.
        bias: c, `(m,)`, zero if there is none.
        above: A, `(K, m)`.
        offset: b, `(K,)`, zero if there is none.
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
    activation: HeadActivation
    first: Tensor | None = field(repr=False)
    last: Tensor = field(repr=False)
    reads_input: bool

    def hidden(self, features: Tensor) -> Tensor:
        """Z W^T + c, `(B, m)`."""
        return features @ self.weight.T + self.bias


def two_layer_head(observation: Observation) -> TwoLayerHead:
    """Find the last two fully connected layers and the activation between them.

    The network runs once for all updates, in double precision, on noise. Layers are recognised by
    what they read and return, so any module will do.

    Raises:
        NotApplicable: The network does not end like this, or the update does not hold it.
    """
    task = observation.task
    require_usable(observation.update, task)
    require_continuous(task)
    if task.model not in _places:
        _places[task.model] = _find_place(task)
    place = _places[task.model]
    gradient = observation.update.descent().tensors
    if f"{place.last}.weight" not in gradient:
        raise NotApplicable(
            f"the last layer {place.last!r} of {task.name} is frozen, so the update does not hold "
            "the gradient that features are recovered from"
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
    """The names of the last two layers, the activation between, and what the first one reads."""

    first: str
    last: str
    activation: HeadActivation
    reads_input: bool


# Copying and running the network takes longer than the rest of an attack on one update.
_places: WeakKeyDictionary[nn.Module, _Place] = WeakKeyDictionary()


def _find_place(task: Task) -> _Place:
    network = copy.deepcopy(task.in_mode("eval").network).double()
    seen, logits = record_visits(network, draw_noise(task).double())
    linear = [visit for visit in seen if isinstance(visit.module, nn.Linear)]
    if len(linear) < 2 or not _are_logits(linear[-1].outputs, logits):
        raise NotApplicable(
            f"expected {task.name} to end in two fully connected layers, got "
            f"{min(len(linear), 1)} at its end; feature recovery needs a head such as that of "
            "wide_head_resnet18 or two_layer"
        )
    first, last = linear[-2:]
    flat = first.inputs.ndim == 2
    activation = recognise_head_activation(first.outputs, last.inputs) if flat else None
    if activation is None:
        raise NotApplicable(
            f"the part between {first.name!r} and {last.name!r} of {task.name} is none of the "
            "element-wise activations that feature recovery knows; use gradient matching"
        )
    return _Place(first.name, last.name, activation, first.name in input_readers(task))


def head_of(task: Task, *, needed_by: object) -> tuple[str, nn.Linear]:
    """The last fully connected layer and its name.

    Example:
        >>> from seepage import zoo
        >>> head_of(zoo.mlp(hidden=(8,)), needed_by="this example")[1]
        Linear(in_features=8, out_features=10, bias=True)
    """
    named = task.network.named_modules()
    linear = [(name, module) for name, module in named if isinstance(module, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise NotApplicable(
            f"{needed_by} needs a network of several layers that ends in a fully connected one, "
            f"unlike {task.name}"
        )
    return linear[-1]


def representation(task: Task, inputs: Tensor, head: nn.Linear) -> Tensor:
    """What the head reads for these inputs, `(B, D)`, differentiable in them."""
    seen: list[Tensor] = []
    with head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0])):
        task.outputs(task.parameters, inputs)
    return seen[-1]
