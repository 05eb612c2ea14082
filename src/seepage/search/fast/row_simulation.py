"""Simulate many rows: in one pass with shared weights, by vmap, or in turn."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import one_hot

from seepage.clients.gradient import Gradient
from seepage.core import Observation, Simulate, Task, Update
from seepage.core.device import precision, tuning
from seepage.core.errors import NotApplicable, UnknownName
from seepage.probing.hooks import layer_inputs
from seepage.search.fast.double_backward import use_double_backward
from seepage.search.fast.row_kernels import laid_out, split_rows
from seepage.search.fast.row_layers import row_layer
from seepage.search.objective import RowSimulation


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """Simulate FedSGD clients of all rows in one pass; made by `shared_simulation`."""

    simulation: Simulate
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
        client = self.simulation.client
        assert client is not None
        defense = client.chain

        def one(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(defense.expected(Update(tensors)).tensors)

        defended: dict[str, Tensor] = vmap(one)(gradients)
        return defended


def shared_simulation(observation: Observation) -> SharedWeights | str:
    """The fast simulation of this client, or the reason why there is none."""
    simulation, client = observation.simulate, observation.simulate.client
    if client is None:
        return "the client is not known"
    if not isinstance(client.local, Gradient):
        return f"{client.local} takes local steps, after which rows no longer share weights"
    chain = client.chain
    if chain.consumes != "aggregate" or chain.aggregation is not None:
        return f"{client.defense} works on per-example updates, or on several clients'"
    mean = client.local.reduction == "mean"
    made = _shared(simulation, mean=mean, broadcast=simulation.task is observation.task)
    if isinstance(made, str):
        return made
    return _disagreement(simulation, observation, mean=mean) or made


def _shared(simulation: Simulate, *, mean: bool, broadcast: bool) -> SharedWeights | str:
    network = _with_rows(simulation.task)
    return (
        network if isinstance(network, str) else SharedWeights(simulation, network, mean, broadcast)
    )


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


def _disagreement(simulation: Simulate, observation: Observation, *, mean: bool) -> str | None:
    """Why rows of noise together do not give what they give one by one; None if they do.

    Judged in double precision, whatever the search has: there a ReLU whose input is nearly zero
    does not switch by rounding, which deep networks amplify. Networks and losses that hold tensors
    of their own cannot all be doubled; those are judged as they are.
    """
    doubled = simulation.with_task(simulation.task.to(dtype=torch.float64))
    for judge, slack in ((doubled, 1e-4), (simulation, 1e-2)):
        inputs, labels = _noise(judge.task, observation)
        # Once each: to time algorithms first would take longer than all of it.
        with precision("float32"), tuning(False):
            try:
                apart = [judge(x, labels) for x in judge.task.domain.denormalise(inputs)]
            except Exception:  # noqa: BLE001 - it may still run as it is
                continue
            made = _shared(judge, mean=mean, broadcast=False)
            assert isinstance(made, SharedWeights)
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


@dataclass(frozen=True, eq=False)
class InTurn:
    """Simulate row after row."""

    observation: Observation

    @cached_property
    def simulate(self) -> Simulate:
        """The client's own code, on a GPU with layers that are cheaper there."""
        simulation = self.observation.simulate
        on_gpu = next(iter(self.observation.update)).is_cuda
        if on_gpu and simulation.client is not None:
            return simulation.with_task(use_double_backward(simulation.task))
        return simulation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Stack the updates of all rows."""
        inputs = self.observation.task.domain.denormalise(normalised)
        updates = [self.simulate(x, y).tensors for x, y in zip(inputs, labels, strict=True)]
        if len(updates) == 1:
            return {name: tensor.unsqueeze(0) for name, tensor in updates[0].items()}
        return {name: torch.stack([u[name] for u in updates]) for name in updates[0]}


@dataclass(frozen=True, eq=False)
class Vectorised:
    """Simulate all rows by vmap, which turns weight gradients into grouped convolutions."""

    observation: Observation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Vectorise the client's own code."""
        inputs = self.observation.task.domain.denormalise(normalised)

        def one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return dict(self.observation.simulate(x, y).tensors)

        updates: dict[str, Tensor] = vmap(one)(inputs, labels)
        return updates


Strategy = Literal["auto", "in_turn", "vectorised", "shared"]
_STRATEGIES = ("auto", "in_turn", "vectorised", "shared")

log = logging.getLogger("seepage.engine")


def row_simulation(
    observation: Observation, *, rows: int, strategy: Strategy = "auto"
) -> RowSimulation:
    """The simulation of all rows at once.

    Args:
        observation: What was seen; all rows share its task and client.
        rows: How many rows there will be.
        strategy: "shared" passes all rows through one network, "vectorised" uses vmap,
            "in_turn" loops; "auto" takes the first that works and pays.
    """
    if strategy not in _STRATEGIES:
        raise UnknownName("strategy", strategy, _STRATEGIES)
    on_gpu = next(iter(observation.update)).is_cuda
    if strategy == "in_turn" or (strategy == "auto" and rows == 1 and not on_gpu):
        return InTurn(observation)
    if strategy == "vectorised":
        return Vectorised(observation)
    shared = shared_simulation(observation)
    if not isinstance(shared, str):
        return shared
    if strategy == "shared":
        raise NotApplicable(f"rows cannot share one network: {shared}; use strategy='vectorised'")
    log.info("simulating rows apart: %s", shared)
    pays = rows > 1 and on_gpu and not observation.task.mixes_examples
    return Vectorised(observation) if pays else InTurn(observation)
