"""Simulate many rows: in one pass with shared weights, by vmap, or in turn."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import one_hot

from seepage.clients._gradient import Gradient
from seepage.core import Observation, Simulate, Task, Update
from seepage.core._device import convert, precision, tuning
from seepage.core._loss import TrainingLoss
from seepage.core._update import join_rows
from seepage.core.errors import NotApplicable, UnknownName
from seepage.probing._hooks import layer_inputs
from seepage.search.fast._double_backward import use_double_backward
from seepage.search.fast._row_kernels import split_rows, use_channels_last
from seepage.search.fast._row_layers import make_row_layer

if TYPE_CHECKING:
    from seepage.core._chain import Chain
    from seepage.search._objective import RowSimulation


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """Simulate FedSGD clients of all rows in one pass; made by `shared_simulation`.

    Args:
        simulations: The client of each case, or one for all; they differ only in their defense.
        network: Their network, with row layers.
        mean: Whether the loss is a mean over the batch, not a sum.
        broadcast: Whether the network is the one that was broadcast, which terms ask about.
    """

    simulations: tuple[Simulate, ...]
    network: nn.Module
    mean: bool
    broadcast: bool

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Simulate the updates of all rows."""
        return self.simulate_and_record(normalised, labels, ())[0]

    def simulate_and_record(
        self, normalised: Tensor, labels: Tensor, layers: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Simulate the updates, and return what layers read on the way, `(R, B, ...)` each."""
        present = dict(self.network.named_modules()) if self.broadcast else {}
        with layer_inputs(self.network, [name for name in layers if name in present]) as read:
            gradients = self._gradients(normalised, labels)
        rows = {name: split_rows(t, len(normalised)) for name, t in read.items()}
        return self._defend(gradients), rows

    def _gradients(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One forward and backward pass over the inputs of all rows."""
        task = self.simulations[0].task
        normalised, labels = self._mix(normalised, labels)
        rows, size = normalised.shape[:2]
        leaves = {
            name: p.expand(rows, *p.shape).requires_grad_() for name, p in task.parameters.items()
        }
        outputs = functional_call(
            self.network, leaves, (use_channels_last(normalised.flatten(0, 1)),)
        )
        losses = task.loss(outputs, labels.flatten(0, 1))
        total = losses.sum() / size if self.mean else losses.sum()
        gradients = torch.autograd.grad(
            total, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        return dict(zip(leaves, gradients, strict=True))

    def _mix(self, normalised: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the examples of every row, if the client does."""
        mixing, task = self.simulations[0].mixing, self.simulations[0].task
        if mixing is None:
            return normalised, labels
        # Coefficients sum to one, so a mixture of normalised inputs is the normalised mixture.
        weights = mixing.coefficients.to(normalised)
        known = labels if labels.ndim == 3 else one_hot(labels, task.classes)
        return torch.einsum("eb,rb...->re...", weights, normalised), weights @ known.to(weights)

    def _defend(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply the expected defense of its case to the gradient of every row."""

        def defend_row(defense: Chain, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(defense.expected(Update(tensors)).tensors)

        count, defended = len(self.simulations), []
        for case, simulation in enumerate(self.simulations):
            assert simulation.client is not None
            # The derivative of a chunk copies, so a single case is not split.
            parts = {name: t.chunk(count)[case] for name, t in gradients.items() if count > 1}
            defended.append(vmap(partial(defend_row, simulation.client.chain))(parts or gradients))
        return join_rows(defended)


def shared_simulation(observation: Observation) -> SharedWeights | str:
    """Return the fast simulation of this client, or the reason why there is none."""
    simulation, client = observation.simulate, observation.simulate.client
    if client is None:
        return "the client is not known"
    if not isinstance(client.local, Gradient):
        return f"{client.local} takes local steps, after which rows no longer share weights"
    chain, loss = client.chain, simulation.task.loss
    if isinstance(loss, TrainingLoss) and loss.weighted:
        return "the loss weights each example by the others in the batch"
    if chain.consumes != "aggregate" or chain.aggregation is not None:
        return f"{client.defense} works on per-example updates, or on several clients'"
    mean = client.local.reduction == "mean"
    network = _use_row_layers(simulation.task)
    if isinstance(network, str):
        return network
    shared = SharedWeights((simulation,), network, mean, simulation.task is observation.task)
    return _find_disagreement(simulation, observation, mean=mean) or shared


def _use_row_layers(task: Task) -> nn.Module | str:
    """Replace the layers of the network by row layers; return why where that fails."""
    network = copy.deepcopy(task.network)
    for name, module in list(network.named_modules()):
        if next(module.parameters(recurse=False), None) is None:
            continue
        row_layer = make_row_layer(module)
        if row_layer is None:
            return f"no row form of {type(module).__name__} ({name or 'the network itself'})"
        if not name:
            return row_layer
        network.set_submodule(name, row_layer)
    if set(task.parameters) != {name for name, _ in network.named_parameters()}:
        return "some parameters are frozen or tied"
    return network


def _find_disagreement(simulation: Simulate, observation: Observation, *, mean: bool) -> str | None:
    """Say why rows of noise together do not give what they give one by one; None if they do.

    The check runs in double precision, so that no ReLU whose input is nearly zero switches by
    rounding. Some networks and losses hold tensors of their own and cannot be converted; those are
    checked as they are.
    """
    doubled = simulation.with_task(simulation.task.to(dtype=torch.float64))
    for judge, slack in ((doubled, 1e-4), (simulation, 1e-2)):
        inputs, labels = _noise(judge.task, observation)
        # Without timing algorithms first, which would take longer than the check.
        with precision("float32"), tuning(False):
            try:
                apart = [judge(x, labels) for x in judge.task.domain.denormalise(inputs)]
            except Exception:  # noqa: BLE001 - it may still run as it is
                continue
            network = _use_row_layers(judge.task)
            assert isinstance(network, nn.Module)
            shared = SharedWeights((judge,), network, mean, broadcast=False)
            try:
                fast = shared(inputs, labels.expand(2, *labels.shape))
            except Exception:  # noqa: BLE001 - the rows then run another way
                return "its forward pass does not fit the rows' layers"
        rows = [{name: tensor[row] for name, tensor in fast.items()} for row in range(2)]
        if all(_are_close(ours, theirs, slack) for ours, theirs in zip(rows, apart, strict=True)):
            return None
        return "the client or its network mixes the examples"
    return "the client cannot be simulated on noise"


def _noise(task: Task, observation: Observation) -> tuple[Tensor, Tensor]:
    """Two rows of normalised inputs, and labels for either: the known ones, if there are any."""
    labels = observation.labels
    if labels is None and task.target_shape is not None:
        labels = torch.zeros(observation.batch_size or 2, *task.target_shape)
    if labels is None:
        count = torch.arange(observation.batch_size or 2, device=task.reference.device)
        labels = count.remainder(observation.task.classes)
    shape = (2, len(labels), *task.domain.shape)
    noise = torch.linspace(-1, 1, prod(shape), dtype=torch.float64)
    inputs = noise.sin().mul(7919).sin().reshape(shape).to(task.reference)
    return inputs, convert(labels, inputs)


def _are_close(fast: dict[str, Tensor], slow: Update, slack: float) -> bool:
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
        """The client's own code, with layers that are cheaper to differentiate twice."""
        simulation = self.observation.simulate
        if simulation.client is None:
            return simulation
        return simulation.with_task(use_double_backward(simulation.task))

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Stack the updates of all rows."""
        inputs = self.observation.task.domain.denormalise(normalised)
        updates = [self.simulate(x, y).tensors for x, y in zip(inputs, labels, strict=True)]
        if len(updates) == 1:
            return {name: tensor.unsqueeze(0) for name, tensor in updates[0].items()}
        return {name: torch.stack([u[name] for u in updates]) for name in updates[0]}


@dataclass(frozen=True, eq=False)
class Vectorised:
    """Simulate all rows by vmap of the client's own code.

    Weight gradients then become grouped convolutions.
    """

    observation: Observation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Vectorise the client's own code."""
        inputs = self.observation.task.domain.denormalise(normalised)

        def one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return dict(self.observation.simulate(x, y).tensors)

        updates: dict[str, Tensor] = vmap(one)(inputs, labels)
        return updates


Strategy = Literal["auto", "in_turn", "vectorised", "shared"]
_STRATEGIES = get_args(Strategy)

log = logging.getLogger("seepage.engine")


def row_simulation(
    observation: Observation, *, rows: int, strategy: Strategy = "auto"
) -> RowSimulation:
    """Choose how all rows are simulated.

    Args:
        observation: What was observed; all rows share its task and client.
        rows: How many rows there will be.
        strategy: "shared" passes all rows through one network, "vectorised" uses vmap,
            "in_turn" loops; "auto" takes the fastest that works.
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
