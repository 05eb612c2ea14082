"""Targets that are numbers: read off the last layer, or fitted to inputs that were recovered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from seepage.clients._gradient import Gradient
from seepage.core import Observation, Rng, Task
from seepage.core._client import Client
from seepage.core._observation import Simulate
from seepage.core.errors import NotApplicable
from seepage.probing._heads import Head, classifier_head

# Probabilities that miss one by less are those of classes.
_SURE = 1e-3
# Relative error up to which the slope of the loss at a target is the one that was seen.
_EXPLAINED = 1e-3
# Each costs one simulated update.
_MOST_NUMBERS = 512


def read_targets(observation: Observation) -> Tensor:
    """Return the targets `(B, *shape)`, which are numbers, as far as the update holds them.

    For one example and a head o = W h + b, the gradient of the bias is the slope dL/do, and
    dL/dW = (dL/do) h^T gives the features h, hence the outputs o. Where the slope is linear in the
    target, as for squared errors and binary cross-entropy, the target follows from two slopes:

        t = (dL/do - s(0)) / (s(1) - s(0)),   s(t) = dL(o, t)/do

    Where it is linear near the output alone, as for Huber's loss, two slopes there are tried too.
    Where it does not depend on the distance, as for absolute errors, a target on the right side is
    returned: it explains the update as well as the true one.

    Raises:
        NotApplicable: Several examples, a head without a bias, or another kind of loss. A search
            then looks for the targets together with the inputs.

    Example:
        >>> import seepage as sp
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> task = sp.Task(model, nn.MSELoss(), sp.domains.Signal((1, 16)))
        >>> batch = sp.Batch(torch.rand(1, 1, 16), torch.tensor([[3.0, -2.0]]))
        >>> seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        >>> read_targets(seen).round(decimals=3)
        tensor([[ 3., -2.]])
    """
    task, shape = observation.task, observation.task.target_shape
    size = observation.require_batch_size("reading targets")
    reference = next(iter(observation.update))
    if shape == (0,):
        return reference.new_zeros(size, 0)
    if size != 1:
        raise NotApplicable(
            f"the last layer holds a mixture of {size} targets, which no closed form takes apart; "
            "use Threat(knows_labels=True), or a search that looks for them"
        )
    head = classifier_head(task)
    if head.bias is None or shape != task.output_shape:
        raise NotApplicable(
            f"expected the last layer of {task.name} to have a bias and a target for each output, "
            "from which the target follows; use Threat(knows_labels=True)"
        )
    slope, outputs = _read_head(observation, head)
    targets = _invert_slopes(task, outputs, slope)
    found = _differentiate(task, outputs, targets)
    if not bool((found - slope).norm() <= _EXPLAINED * slope.norm()):
        raise NotApplicable(
            f"the slope of the loss of {task.name} does not tell the target; use "
            "Threat(knows_labels=True)"
        )
    return targets.to(reference)


def _invert_slopes(task: Task, outputs: Tensor, slopes: Tensor) -> Tensor:
    """Targets `(B, ...)` that cause these slopes at the outputs, as well as they can be found.

    Losses of this kind compare entry by entry, so the best option of each entry is taken.
    """
    options = torch.stack([*_list_options(task, outputs, slopes)])
    try:
        _differentiate(task, outputs, options[-1])
    except (RuntimeError, ValueError):
        # A loss of probabilities refuses other numbers, if only by rounding.
        options = options.nan_to_num().clamp(0, 1)
    caused = torch.stack([_differentiate(task, outputs, option) for option in options])
    best = (caused - slopes).abs().nan_to_num(nan=math.inf).argmin(0, keepdim=True)
    return options.gather(0, best)[0]


def _list_options(task: Task, outputs: Tensor, slope: Tensor) -> Iterator[Tensor]:
    """Targets `(B, ...)` that may have caused the slopes."""
    zero, step = torch.zeros_like(outputs), 1e-3 * outputs.abs().clamp(min=1)
    for first, second in ((zero, zero + 1), (outputs, outputs + step)):
        at_first = _differentiate(task, outputs, first)
        change = _differentiate(task, outputs, second) - at_first
        yield first + (second - first) * (slope - at_first) / change
    yield outputs - outputs.abs().clamp(min=1) * slope.sign()
    yield outputs - 100 * outputs.abs().clamp(min=1) * slope.sign()


def fit_targets(observation: Observation, inputs: Tensor) -> Tensor | None:
    """Targets `(B, *shape)` with which given inputs explain the update; None if none are found.

    The update is linear in the slopes at the outputs, whatever the loss. So these solve a linear
    system, and the targets follow as in `read_targets`. Probabilities of classes solve one
    themselves, as far as the update is linear in them, and sum up to one; classes come back as
    their numbers. Behind clipping the update is not, and many probabilities explain it: those are
    taken whose update needs no clipping.
    """
    task, shape = observation.task, observation.task.target_shape
    if shape == (0,):
        return task.blank_labels(len(inputs))
    size = len(inputs) * math.prod(task.output_shape)
    if shape not in (None, task.output_shape) or size > _MOST_NUMBERS:
        return None
    wanted = observation.update.flat().double()
    for fit in (_fit_slopes, _fit_probabilities, _fit_without_defense):
        targets = fit(observation, inputs, wanted)
        if targets is None:
            continue
        off = (observation.simulate(inputs, targets).flat().detach().double() - wanted).norm()
        if bool(off <= _EXPLAINED * wanted.norm()):
            return targets
    return None


def _fit_slopes(observation: Observation, inputs: Tensor, wanted: Tensor) -> Tensor | None:
    task, shape = observation.task, observation.task.target_shape
    if shape is None:
        return None
    # A loss with given slopes.
    sloped = replace(task, loss=lambda o, t: (o * t).flatten(1).sum(1), target_shape=shape)
    columns = _list_columns(observation.simulate.with_task(sloped), inputs, shape)
    solved = torch.linalg.lstsq(columns, wanted[:, None]).solution[:, 0]
    if not bool(solved.isfinite().all()):
        return None
    with torch.no_grad():
        outputs = task.outputs(task.parameters, inputs).double()
    return _invert_slopes(task, outputs, solved.reshape(outputs.shape)).to(inputs)


def _fit_probabilities(observation: Observation, inputs: Tensor, wanted: Tensor) -> Tensor | None:
    shape, size = observation.task.output_shape, len(inputs)
    if len(shape) != 1:
        return None
    try:
        at_zero = observation.simulate(inputs, inputs.new_zeros(size, *shape)).flat().detach()
        columns = _list_columns(observation.simulate, inputs, shape) - at_zero.double()[:, None]
    except Exception:  # noqa: BLE001 - the loss of a user may refuse such targets by any error
        return None
    sums = torch.eye(size).repeat_interleave(shape[0], dim=1).to(columns) * columns.norm()
    system = torch.cat([columns, sums])
    right = torch.cat([wanted - at_zero, sums[:, 0].max().expand(size)])
    solved: Tensor = torch.linalg.lstsq(system, right[:, None]).solution
    shares = solved.reshape(size, *shape).clamp(0, 1).to(inputs)
    is_sure = bool((shares.amax(1) > 1 - _SURE).all())
    return shares.argmax(1) if is_sure and observation.task.target_shape is None else shares


def _fit_without_defense(observation: Observation, inputs: Tensor, wanted: Tensor) -> Tensor | None:
    client = observation.simulate.client
    if client is None or not client.chain.links:
        return None
    bare = observation.simulate.with_client(Client(client.local))
    return _fit_probabilities(replace(observation, simulate=bare), inputs, wanted)


def _list_columns(simulate: Simulate, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The update for each unit vector of targets, `(P, B * K)`."""
    size = len(inputs) * math.prod(shape)
    units = torch.eye(size, device=inputs.device).reshape(size, len(inputs), *shape).to(inputs)
    return torch.stack([simulate(inputs, one).flat().detach().double() for one in units], dim=1)


def _read_head(observation: Observation, head: Head) -> tuple[Tensor, Tensor]:
    """The slope dL/do and the outputs o of one example, each `(1, K)`, in double precision."""
    assert head.bias is not None
    task, shared = observation.task, observation.update.descent().tensors
    weight, bias = shared[head.weight].double(), shared[head.bias].double()
    if not bool(bias.any()):
        raise NotApplicable(f"the bias of {task.name} is not in the update, or does not move")
    features = weight.T @ bias / bias.square().sum()
    held = {name: task.parameters[name].double() for name in (head.weight, head.bias)}
    outputs = held[head.weight] @ features + held[head.bias]
    return bias[None] / _measure_scale(observation, head), outputs[None]


def _measure_scale(observation: Observation, head: Head) -> float:
    """Length of the shared update relative to a plain gradient, measured on noise."""
    task, shape = observation.task, observation.task.target_shape or ()
    key = Rng(0).fork("scale")
    inputs = task.move_inputs(task.domain.sample(1, rng=key))
    # Any targets will do, and a loss of probabilities takes these alone.
    targets = key.fork("targets").uniform((1, *shape), like=inputs)
    assert head.bias is not None
    shared = observation.simulate(inputs, targets).descent().tensors[head.bias].double()
    plain = Gradient()(task, inputs, targets).tensors[head.bias].double()
    scale = float((shared * plain).sum() / plain.square().sum())
    if not scale > 0:
        raise NotApplicable("the client's update of noise is zero, so its scale is not known")
    return scale


def _differentiate(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    leaf = outputs.detach().to(task.reference.dtype).requires_grad_()
    (slope,) = torch.autograd.grad(task.loss(leaf, targets.to(leaf)).sum(), leaf)
    return slope.double()
