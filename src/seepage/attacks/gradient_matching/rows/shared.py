"""Gradients of many rows in one pass through one network with shared weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import one_hot

from seepage.attacks.gradient_matching.rows.layers import row_layer
from seepage.attacks.gradient_matching.rows.windows import laid_out, split_rows
from seepage.clients import Gradient
from seepage.core import Observation, Task, Update
from seepage.core.layer_inputs import layer_inputs
from seepage.core.precision import precision
from seepage.core.tuning import tuning
from seepage.threats import Simulation


@dataclass(frozen=True, eq=False)
class Shared:
    """Simulate FedSGD clients of all rows in one pass; made by `shared_simulation`."""

    simulation: Simulation
    network: nn.Module
    mean: bool
    # Whether it runs the network that was broadcast, which is the one that terms ask about.
    broadcast: bool

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What all rows share."""
        return self.defended(self.gradients(normalised, labels))

    def reading(
        self, normalised: Tensor, labels: Tensor, layers: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same, and what layers read on the way, `(R, B, ...)` each."""
        gradients, read = self.undefended(normalised, labels, layers)
        return self.defended(gradients), read

    def undefended(
        self, normalised: Tensor, labels: Tensor, layers: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradients of all rows, and what layers read on the way."""
        there = dict(self.network.named_modules()) if self.broadcast else {}
        with layer_inputs(self.network, [name for name in layers if name in there]) as read:
            gradients = self.gradients(normalised, labels)
        return gradients, {name: split_rows(t, len(normalised)) for name, t in read.items()}

    def gradients(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One forward and backward pass over the inputs of all rows."""
        task = self.simulation.task
        normalised, labels = self._mixed(normalised, labels)
        rows, size = normalised.shape[:2]
        leaves = {
            name: p.expand(rows, *p.shape).requires_grad_() for name, p in task.parameters.items()
        }
        outputs = functional_call(self.network, leaves, (laid_out(normalised.flatten(0, 1)),))
        losses = task.loss(outputs, labels.flatten(0, 1))
        total = losses.sum() / size if self.mean else losses.sum()
        gradients = torch.autograd.grad(
            total, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        return dict(zip(leaves, gradients, strict=True))

    def _mixed(self, normalised: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What the network sees of all rows, where the client mixes."""
        mixing = self.simulation.mixing
        if mixing is None:
            return normalised, labels
        # Coefficients sum to one, so that mixtures of normalised inputs are normalised mixtures.
        weights = mixing.coefficients.to(normalised)
        known = labels if labels.ndim == 3 else one_hot(labels, self.simulation.task.classes)
        return torch.einsum("eb,rb...->re...", weights, normalised), weights @ known.to(weights)

    def defended(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the defense leaves of every row's gradient."""
        defense = self.simulation.client.chain

        def one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(defense.expected(Update(tensors)).tensors)

        defended: dict[str, Tensor] = vmap(one)(gradients)
        return defended


def shared_simulation(observation: Observation) -> Shared | str:
    """The fast simulation of this client, or the reason why there is none."""
    simulation = observation.simulate
    if not isinstance(simulation, Simulation):
        return "the client is not one of ours"
    local = simulation.client.local
    if not isinstance(local, Gradient):
        return f"{local} takes local steps, after which rows no longer share weights"
    chain = simulation.client.chain
    if chain.consumes != "aggregate" or chain.aggregation is not None:
        return f"{simulation.client.defense} works on per-example updates, or on several clients'"
    made = _shared(simulation, broadcast=simulation.task is observation.task)
    if isinstance(made, str):
        return made
    return _disagreement(simulation, observation) or made


def _shared(simulation: Simulation, *, broadcast: bool) -> Shared | str:
    local = simulation.client.local
    assert isinstance(local, Gradient)
    network = _with_rows(simulation.task)
    if isinstance(network, str):
        return network
    return Shared(simulation, network, local.reduction == "mean", broadcast)


def _with_rows(task: Task) -> nn.Module | str:
    """The network with row layers in place of its own, or the layer that has none."""
    network = copy.deepcopy(task.network)
    for name, module in list(network.named_modules()):
        if next(module.parameters(recurse=False), None) is None:
            continue
        stand_in = row_layer(module)
        if stand_in is None:
            return f"no row form of {type(module).__name__} ({name or 'the network itself'})"
        if not name:
            return stand_in
        network.set_submodule(name, stand_in)
    if set(task.parameters) != {name for name, _ in network.named_parameters()}:
        return "some parameters are frozen or tied"
    return network


def _disagreement(simulation: Simulation, observation: Observation) -> str | None:
    """Why rows of noise together do not give what they give one by one; None if they do.

    Judged in double precision, whatever the search has: there a ReLU whose input is nearly zero
    does not switch by rounding, which deep networks amplify. Networks and losses that hold tensors
    of their own cannot all be doubled; those are judged as they are.
    """
    doubled = replace(simulation, task=simulation.task.to(dtype=torch.float64))
    for judge, slack in ((doubled, 1e-4), (simulation, 1e-2)):
        inputs, labels = _noise(judge.task, observation)
        # Once each: to time algorithms first would take longer than all of it.
        with precision("float32"), tuning(False):
            try:
                apart = [judge(x, labels) for x in judge.task.domain.denormalise(inputs)]
            except Exception:  # noqa: BLE001 - it may still run as it is
                continue
            made = _shared(judge, broadcast=False)
            assert isinstance(made, Shared)
            try:
                fast = made(inputs, labels.expand(2, *labels.shape))
            except Exception:  # noqa: BLE001 - what the stand-ins do not fit is no error
                return "its forward pass does not fit the rows' layers"
        rows = [{name: tensor[row] for name, tensor in fast.items()} for row in range(2)]
        if all(_close(ours, theirs, slack) for ours, theirs in zip(rows, apart, strict=True)):
            return None
        return "the client or its network mixes the examples"
    return "the client cannot be simulated on noise"


def _noise(task: Task, observation: Observation) -> tuple[Tensor, Tensor]:
    """Two rows of normalised inputs, and labels for either: known ones, where there are any."""
    reference = next(iter(task.parameters.values()))
    labels = observation.labels
    if labels is None:
        count = torch.arange(observation.batch_size or 2, device=reference.device)
        labels = count.remainder(observation.task.classes)
    shape = (2, len(labels), *task.domain.shape)
    noise = torch.linspace(-1, 1, prod(shape), dtype=torch.float64)
    inputs = noise.sin().mul(7919).sin().reshape(shape).to(reference)
    return inputs, labels.to(reference) if labels.is_floating_point() else labels


def _close(fast: dict[str, Tensor], slow: Update, slack: float) -> bool:
    ours = replace(slow, tensors={name: fast[name] for name in slow.tensors}).flat()
    theirs = slow.flat()
    rounding = 0.2 if theirs.dtype == torch.bfloat16 else slack
    return bool((ours - theirs).norm() <= rounding * theirs.norm())
