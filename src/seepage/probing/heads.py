"""Find the classifier head: the linear layer that gives the logits, and the one before it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seepage.core import Observation, Task
from seepage.core.errors import NotApplicable
from seepage.core.rng import Rng
from seepage.probing.activations import HeadActivation, recognise_head_activation
from seepage.probing.first_layer import input_readers, noise
from seepage.probing.hooks import Visit, visits
from seepage.probing.usable_update import require_continuous, require_usable

PROBES = 16


@dataclass(frozen=True, eq=False)
class Head:
    """The classifier head, and what it does on the adversary's own noise.

    Args:
        weight: Name of its matrix, `(K, d)`.
        bias: Name of its bias `(K,)`, or None if there is none that is trained.
        offset: What is added to the logits and not trained, `(K,)`.
        features: What it reads when the network runs on noise, `(M, d)`.
        logits: What it gives then, `(M, K)`.
    """

    weight: str
    bias: str | None
    offset: Tensor = field(repr=False)
    features: Tensor = field(repr=False)
    logits: Tensor = field(repr=False)

    def without_bias(self, task: Task) -> Head:
        """The same head with its bias as a fixed offset."""
        if self.bias is None:
            return self
        return replace(self, bias=None, offset=task.parameters[self.bias])


def classifier_head(task: Task) -> Head:
    """Return the linear layer whose outputs are what the network returns.

    Found by running noise and comparing what layers give with what the network gives, so it works
    for any module, not only for `nn.Sequential`.

    Example:
        >>> from seepage.zoo import lenet
        >>> classifier_head(lenet())
        Head(weight='head.weight', bias='head.bias')

    Raises:
        NotApplicable: There is no such layer, or its weight is not trained.
    """
    seen, logits = _probed(task)
    heads = [name for name, (_, given) in seen.items() if torch.equal(given, logits)]
    if not heads:
        raise NotApplicable(
            f"expected {task.name} to end in a linear layer, whose gradient holds the labels, got "
            "none whose outputs are the logits; use Threat(knows_labels=True)"
        )
    prefix = f"{heads[-1]}." if heads[-1] else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in task.parameters:
        raise NotApplicable(
            f"expected the classifier head of {task.name} to be trained, got {weight!r} frozen, so "
            "that the update does not hold it; use Threat(knows_labels=True)"
        )
    trained = bias in task.parameters
    frozen = None if trained else dict(task.model.named_parameters()).get(bias)
    offset = logits.new_zeros(logits.shape[1]) if frozen is None else frozen.detach()
    return Head(weight, bias if trained else None, offset, seen[heads[-1]][0], logits)


def _probed(task: Task) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """Input and output of every linear layer on noise, and the output of the network."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (arguments[0].detach(), output.detach())

        return hook

    linear = {n: m for n, m in task.network.named_modules() if isinstance(m, nn.Linear)}
    handles = [module.register_forward_hook(watch(name)) for name, module in linear.items()]
    noise = task.move_inputs(task.domain.sample(PROBES, rng=Rng(0).fork("probes")))
    try:
        with torch.no_grad():
            return seen, task.outputs(task.parameters, noise)
    finally:
        for handle in handles:
            handle.remove()


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
    activation: HeadActivation
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
    activation: HeadActivation
    reads_input: bool


# Copying and running a network takes longer than all the rest does for one update of it.
_places: WeakKeyDictionary[nn.Module, _Place] = WeakKeyDictionary()


def _place(task: Task) -> _Place:
    if task.model not in _places:
        first, last, activation = _located(task)
        reads_input = first.name in input_readers(task)
        _places[task.model] = _Place(first.name, last.name, activation, reads_input)
    return _places[task.model]


def _located(task: Task) -> tuple[Visit, Visit, HeadActivation]:
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
    activation = (
        recognise_head_activation(first.outputs, last.inputs) if first.inputs.ndim == 2 else None
    )
    if activation is None:
        raise NotApplicable(
            f"what lies between {first.name!r} and {last.name!r} of {task.name} is none of the "
            "element-wise activations that feature recovery knows; use gradient matching"
        )
    return first, last, activation


def head_of(task: Task, *, needed_by: object) -> tuple[str, nn.Linear]:
    """The last fully connected layer, by name.

    Example:
        >>> from seepage import zoo
        >>> head_of(zoo.mlp(hidden=(8,)), needed_by="this example")[1]
        Linear(in_features=8, out_features=10, bias=True)
    """
    named = task.network.named_modules()
    linear = [(name, module) for name, module in named if isinstance(module, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise NotApplicable(
            f"{needed_by} works at the last of several layers, a fully connected one, which "
            f"{task.name} has not"
        )
    return linear[-1]


def representation(task: Task, inputs: Tensor, head: nn.Linear) -> Tensor:
    """What the head is given for these inputs, `(B, D)`, differentiable in them."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        task.outputs(task.parameters, inputs)
    finally:
        handle.remove()
    return seen[-1]
