"""One client's update as it crossed the wire, with what is known of how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from seepage.capture.setting import Setting, fitted, trained
from seepage.clients import Client, FedAvg, Gradient
from seepage.core import LocalComputation, Observation, Protection, Task, Update
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue
from seepage.core.update import Kind
from seepage.defenses import chain
from seepage.threats import Simulation

Form = Literal["gradient", "difference", "weights_after"]


@dataclass(frozen=True, eq=False)
class Capture:
    """What somebody on the wire holds: tensors by name, and words about them.

    Args:
        update: One floating-point tensor per parameter; what it is, `form` says.
        form: "gradient"; "difference", parameters after minus before; or "weights_after".
        parameters: What was broadcast, by name; needed where the update is "weights_after".
        buffers: What was broadcast beside it, such as running statistics.
        setting: How the client computed.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> model(torch.ones(1, 4)).logsumexp(1).sum().backward()
        >>> gradient = {name: p.grad for name, p in model.named_parameters()}
        >>> Capture.of(model, gradient, form="gradient")
        Capture(gradient of 2 tensors, parameters before, 0 buffers)
    """

    update: Mapping[str, Tensor]
    form: Form
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        """Freeze the mappings, and refuse numbers that no client computes."""
        if self.form not in get_args(Form):
            raise InvalidValue(
                f"expected form {', '.join(map(repr, get_args(Form)))}, got {self.form!r}"
            )
        if not self.update:
            raise InvalidValue("expected a capture of at least one tensor, got none")
        if self.form == "weights_after" and not self.parameters:
            raise InvalidValue(
                "weights after say nothing without those before; capture the parameters too"
            )
        if self.form != "gradient" and self.setting.lr is None:
            raise InvalidValue(
                f"a {self.form} needs the local learning rate, which is not known; give lr"
            )
        for group in ("update", "parameters", "buffers"):
            tensors = _tensors(group, getattr(self, group))
            _require_finite(group, tensors)
            object.__setattr__(self, group, MappingProxyType(tensors))

    @classmethod
    def of(
        cls,
        model: nn.Module,
        update: Mapping[str, Tensor],
        *,
        form: Form,
        setting: Setting | None = None,
    ) -> Capture:
        """Capture an update together with the network that was broadcast.

        Args:
            model: As it was before the client trained; its tensors are copied.
            update: By parameter name; of a whole state dict after training, all of it.
            form: What it is.
            setting: How it was computed.
        """
        parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        state = model.state_dict()
        buffers = {name: t.detach().clone() for name, t in state.items() if name not in parameters}
        return cls(update, form, parameters, buffers, setting or Setting())

    def __repr__(self) -> str:
        """Summarise."""
        before = "parameters before" if self.parameters else "no parameters before"
        return (
            f"Capture({self.form} of {len(self.update)} tensors, {before}, "
            f"{len(self.buffers)} buffers)"
        )

    @property
    def digest(self) -> str:
        """A hash of everything in it."""
        groups = (self.update, self.parameters, self.buffers)
        tensors = [part for group in groups for n in sorted(group) for part in (n, group[n])]
        return digest(self.form, repr(self.setting), *tensors)

    @property
    def local(self) -> LocalComputation:
        """What the client computed, as far as the setting tells."""
        known = self.setting
        if self.form == "gradient" or known.lr is None:
            return Gradient(reduction=known.reduction)
        return FedAvg(
            lr=known.lr,
            steps=None if known.epochs else known.steps or 1,
            epochs=known.epochs,
            local_batch_size=known.local_batch_size,
            momentum=known.momentum,
        )

    def observation(
        self, task: Task, *, labels: Tensor | None = None, defense: Protection | None = None
    ) -> Observation:
        """What `Threat.observe` would have given for this update: the way into every attack.

        Args:
            task: The network, its loss and the domain of its inputs; its weights are replaced by
                those of the capture where it has them.
            labels: Those of the batch in any order, `(B,)`, where they are known.
            defense: What the client did besides, where that is known.

        Raises:
            InvalidValue: Names or shapes are not those of the task, or labels no class numbers.
        """
        client = Client(self.local, chain() if defense is None else defense)
        task = fitted(client.broadcast(task.in_mode(self.setting.mode)).upcast(), self)
        size = self.setting.batch_size
        if labels is not None and labels.ndim != 1:
            raise InvalidValue(f"expected class numbers (B,), got shape {tuple(labels.shape)}")
        if labels is not None and size not in (None, len(labels)):
            raise InvalidValue(f"expected {size} labels, as the capture says, got {len(labels)}")
        if labels is not None and not bool(((labels >= 0) & (labels < task.classes)).all()):
            raise InvalidValue(
                f"expected labels in 0..{task.classes - 1}, the classes of {task.name}, got "
                f"{labels.tolist()}"
            )
        return Observation(
            task=task,
            update=self._update(task),
            simulate=Simulation(client, task),
            batch_size=size if labels is None else len(labels),
            labels=None if labels is None else labels.sort().values,
        )

    def _update(self, task: Task) -> Update:
        before, seen = task.parameters, trained(self.update, task)
        if self.form == "weights_after":
            # In the precision that was sent: rounding first would lose the digits of a small step.
            sent = trained(self.parameters, task)
            seen = {name: after.double() - sent[name].double() for name, after in seen.items()}
        kind: Kind = "gradient" if self.form == "gradient" else "difference"
        return Update({name: t.to(before[name]) for name, t in seen.items()}, kind=kind)


def _tensors(group: str, given: object) -> dict[str, Tensor]:
    if not isinstance(given, Mapping):
        raise InvalidValue(
            f"expected the {group} as a mapping of names to tensors, got {type(given).__name__}"
        )
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise InvalidValue(
                f"expected a tensor at {name!r} of the {group}, got {type(tensor).__name__}; leave "
                "out what was not trained"
            )
    return {name: tensor.detach() for name, tensor in given.items()}


def _require_finite(group: str, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if group != "buffers" and not tensor.is_floating_point():
            raise InvalidValue(
                f"expected {group} as floating-point numbers, got {tensor.dtype} at {name!r}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidValue(
                f"expected finite numbers, got NaN or infinity in the {group} at {name!r}; capture "
                "a step that did not diverge"
            )
