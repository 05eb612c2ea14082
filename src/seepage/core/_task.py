"""What is trained and broadcast: a network, its loss, the space of its inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.core._batch import are_numbers, are_probabilities
from seepage.core._device import convert, differentiable_twice, is_recurrent, upcast
from seepage.core._digest import content, digest
from seepage.core._loss import (
    ELEMENTWISE,
    Loss,
    TrainingLoss,
    Unreduced,
    adapt_loss,
    move_loss,
    require_loss,
)
from seepage.core.errors import InvalidValue, summarise_error

if TYPE_CHECKING:
    from seepage.core._batch import Batch
    from seepage.core._domain import Domain


Mode = Literal["eval", "train"]
# The name under which torch.compile keeps the network.
_COMPILED = "_orig_mod"
# How the losses of a batch become one number.
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class Task:
    """A snapshot of the network every client receives.

    Mode "eval" normalises with the broadcast running statistics; mode "train" normalises each
    batch with its own. It governs batch normalisation alone: other layers are deterministic in
    both modes, so that a client's update can be recomputed.

    Args:
        model: The network; it is copied, so later changes to it do not reach the task. Wrappers of
            torch.compile and data-parallel training are left out.
        loss: One value per example, unreduced: `(B, K), (B,) -> (B,)`; or a loss of torch with any
            reduction.
        domain: The space of the inputs.
        mode: How batch normalisation behaves.
        name: What records call this task.
        target_shape: Shape of one target if targets are numbers and not classes: `()` for one
            number, `(0,)` if there is none. It is known already for losses such as `nn.MSELoss`,
            which want a number for each output.
    """

    model: nn.Module
    loss: Loss
    domain: Domain
    mode: Mode = "eval"
    name: str = ""
    target_shape: tuple[int, ...] | None = None
    _owned: nn.Module | None = field(default=None, repr=False)
    # Pure copies of the model by mode, shared by all tasks of one model.
    _networks: dict[Mode, nn.Module] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InvalidValue(f"expected a torch.nn.Module, got {type(self.model).__name__}")
        if self._owned is not self.model:
            object.__setattr__(self, "model", copy_unwrapped(self.model))
            object.__setattr__(self, "_owned", self.model)
            object.__setattr__(self, "_networks", {})
        if not self.name:
            object.__setattr__(self, "name", type(self.model).__name__.lower())
        object.__setattr__(self, "loss", adapt_loss(self.loss))
        # Computed now, since a copy made inside a torch.func transform ends with it.
        _ = self.parameters, self.network
        if self.target_shape is None and _wants_numbers(self.loss):
            object.__setattr__(self, "target_shape", self.output_shape)

    def __repr__(self) -> str:
        return f"Task({self.name}, {self.domain}, mode={self.mode!r})"

    def in_mode(self, mode: Mode) -> Task:
        """Return the same task with batch normalisation in another mode."""
        return self if mode == self.mode else replace(self, mode=mode)

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Task:
        """Return the task on another device or in another precision."""
        model = copy.deepcopy(self.model).to(device=device, dtype=dtype)
        return replace(self, model=model, loss=move_loss(self.loss, device=device, dtype=dtype))

    def upcast(self) -> Task:
        """Return the task in float32 if any parameter has a lower precision, else itself."""
        narrow = any(upcast(p) is not p for p in self.model.parameters())
        return self.to(dtype=torch.float32) if narrow else self

    @cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name, detached."""
        named = self.model.named_parameters()
        trainable = {name: p.detach() for name, p in named if p.requires_grad}
        if not trainable:
            raise InvalidValue(f"{self.name} has no trainable parameter, so no update to share")
        return trainable

    @property
    def reference(self) -> Tensor:
        """A parameter, whose device and precision stand for those of the network."""
        return next(iter(self.parameters.values()))

    @cached_property
    def digest(self) -> str:
        """A hash of the layers, the loss, every tensor of the network and which are trained."""
        return digest(*content(self.model), *content(self.loss))

    @cached_property
    def network(self) -> nn.Module:
        """The model made pure: nothing in it changes when it runs."""
        if self.mode not in self._networks:
            network = copy.deepcopy(self.model).eval()
            for module in batchnorm_layers(network).values() if self.mode == "train" else ():
                # Without running statistics torch normalises by the batch and updates nothing.
                module.running_mean = module.running_var = module.num_batches_tracked = None
                module.track_running_stats = False
            self._networks[self.mode] = network
        return self._networks[self.mode]

    @cached_property
    def mixes_examples(self) -> bool:
        """Whether batches are normalised by their own statistics, which depend on all examples.

        Second derivatives under torch's `vmap` then have three digits only.
        """
        return self.mode == "train" and bool(batchnorm_layers(self.model))

    @cached_property
    def _recurrent(self) -> bool:
        return is_recurrent(self.model)

    @cached_property
    def classes(self) -> int:
        """Number of outputs, found by running one blank input."""
        if len(self.output_shape) != 1:
            raise InvalidValue(
                f"expected {self.name} to return logits (B, K), got (1, "
                f"{', '.join(map(str, self.output_shape))})"
            )
        return self.output_shape[0]

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of what the network returns for one input, found by running a blank one."""
        blank = self.move_inputs(self.domain.project(torch.zeros(1, *self.domain.shape)))
        try:
            # Evaluation statistics: a batch of one has no variance to normalise by.
            outputs = functional_call(
                self.in_mode("eval").network, dict(self.parameters), (self.domain.normalise(blank),)
            )
        except (RuntimeError, TypeError, IndexError) as error:
            raise InvalidValue(
                f"{self.name} does not accept inputs of shape {self.domain.shape}: "
                f"{summarise_error(error)}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim == 0:
            came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise InvalidValue(f"expected {self.name} to return logits (B, K), got {came}")
        return tuple(outputs.shape[1:])

    def blank_labels(self, size: int) -> Tensor:
        """Labels that the loss can read: the first class, or zeros where targets are numbers."""
        if self.target_shape is not None:
            return self.reference.new_zeros(size, *self.target_shape)
        return torch.zeros(size, dtype=torch.long, device=self.reference.device)

    def move_inputs(self, inputs: Tensor) -> Tensor:
        """Move inputs to the device and precision of the network; tokens stay integers."""
        return convert(inputs, self.reference)

    def move_batch(self, batch: Batch) -> Batch:
        """Move a batch to the device of the network, and its floats to the precision there."""
        return batch.to(device=self.reference.device, dtype=self.reference.dtype)

    def to_inputs(self, normalised: Tensor) -> Tensor:
        """Turn normalised vectors `(B, n)` into valid inputs `(B, ...)` in natural units."""
        shaped = normalised.reshape(-1, *self.domain.shape)
        return self.domain.project(self.domain.denormalise(shaped))

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Run the network at these parameters on inputs in natural units."""
        normalised = self.domain.normalise(inputs)
        with differentiable_twice(recurrent=self._recurrent):
            outputs: Tensor = functional_call(self.network, dict(parameters), (normalised,))
            return outputs

    def losses(self, parameters: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example, `(B,)`."""
        losses = require_loss(self.loss(self.outputs(parameters, inputs), labels))
        if losses.shape != inputs.shape[:1]:
            remedy = "use reduction='none'" if losses.ndim < 2 else "average over the other axes"
            raise InvalidValue(
                f"expected the loss to give one value per example, shape {tuple(inputs.shape[:1])},"
                f" got {tuple(losses.shape)}; {remedy}"
            )
        return losses

    def batch_loss(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Loss of the batch, with the loss's own mean if it has one."""
        if reduction == "mean" and isinstance(self.loss, TrainingLoss):
            return self.loss.mean(self.outputs(parameters, inputs), labels)
        losses = self.losses(parameters, inputs, labels)
        return losses.mean() if reduction == "mean" else losses.sum()

    def check(self, batch: Batch) -> None:
        """Raise `InvalidValue` unless this batch can be trained on."""
        self.domain.check(batch.inputs)
        self.check_labels(batch.labels)

    def check_labels(self, labels: Tensor) -> None:
        """Raise `InvalidValue` unless the loss can read these labels."""
        if self.target_shape is not None:
            _check_numbers(labels, self.target_shape)
        elif not isinstance(self.loss, TrainingLoss) or labels.ndim == 1:
            self._check_classes(labels)

    def _check_classes(self, labels: Tensor) -> None:
        if are_numbers(labels) and labels.ndim != 2:
            raise InvalidValue(
                f"expected class numbers (B,) as int64, got {labels.dtype} {tuple(labels.shape)}; "
                "use labels.long(), or give the task a target_shape if targets are numbers"
            )
        if labels.ndim == 2 and labels.shape[1] != self.classes:
            raise InvalidValue(
                f"expected label probabilities (B, {self.classes}), got {tuple(labels.shape)}"
            )
        if labels.ndim == 2 and not are_probabilities(labels):
            raise InvalidValue(
                "expected label probabilities that are not negative and sum to 1 in every row"
            )
        if labels.ndim == 1:
            require_class_numbers(labels, classes=self.classes, name=self.name)


def require_class_numbers(labels: Tensor, *, classes: int, name: str) -> None:
    """Raise `InvalidValue` unless all labels `(B, ...)` are numbers of classes.

    The sentence says whose label is wrong, and not which it is: labels are private.
    """
    outside = ((labels < 0) | (labels >= classes)).reshape(len(labels), -1).any(1)
    if bool(outside.any()):
        wrong, first = int(outside.sum()), int(outside.int().argmax())
        raise InvalidValue(
            f"expected labels in 0..{classes - 1} for {name}, got others in {wrong} of "
            f"{len(labels)} examples, the first at place {first} counted from 0, though the "
            f"network has {classes} classes; leave out examples whose label the loss ignores, such "
            "as -100, or build the model with more classes"
        )


def _wants_numbers(loss: Loss) -> bool:
    """Whether a loss of torch compares each output with a number."""
    alone = loss.alone if isinstance(loss, TrainingLoss) else loss
    return isinstance(alone, Unreduced) and isinstance(alone.loss, ELEMENTWISE)


def _check_numbers(targets: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(targets.shape[1:]) != shape or not are_numbers(targets):
        wanted = ", ".join(("B", *map(str, shape)))
        raise InvalidValue(
            f"expected targets ({wanted}) as floats, got {targets.dtype} {tuple(targets.shape)}; "
            "does the loss fit the data?"
        )
    if not bool(targets.isfinite().all()):
        raise InvalidValue("expected finite targets, got NaN or infinity; check the data")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside wrappers of torch.compile or data-parallel training.

    Example:
        >>> unwrap(nn.DataParallel(nn.Linear(2, 1)))
        Linear(in_features=2, out_features=1, bias=True)
    """
    while True:
        # By name, because importing the class of compiled modules takes seconds.
        inner = model._modules.get(_COMPILED)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def name_unwrapped(name: str) -> str:
    """Return the name of a parameter without the parts that torch.compile adds.

    Example:
        >>> name_unwrapped("_orig_mod.features._orig_mod.0.weight")
        'features.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def copy_unwrapped(model: nn.Module) -> nn.Module:
    """Copy a network without the wrappers around it or around any of its parts.

    Compiled code does not run the hooks that attacks use, and wrappers rename the parameters.
    Embeddings with sparse gradients get dense ones, which are the same numbers.
    """
    own = copy.deepcopy(unwrap(model))
    for parent in list(own.modules()):
        if isinstance(parent, nn.Embedding | nn.EmbeddingBag):
            parent.sparse = False
        for name, child in parent._modules.items():
            if child is not None:
                parent._modules[name] = unwrap(child)
    return own


def batchnorm_layers(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """The batch-normalisation layers of a network, by name."""
    named = model.named_modules()
    return {n: m for n, m in named if isinstance(m, nn.modules.batchnorm._BatchNorm)}


def trains_by_batch(model: nn.Module) -> bool:
    """Whether batch normalisation is by the batch, as while a network trains."""
    return any(layer.training for layer in batchnorm_layers(model).values())
