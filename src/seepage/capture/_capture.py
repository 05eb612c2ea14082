"""One client's update as it crossed the wire, with what is known about how it was made."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from seepage.clients import Client, FedAvg, Gradient
from seepage.core import LocalComputation, Observation, Protection, Task, Update
from seepage.core._construct import construct
from seepage.core._digest import digest
from seepage.core._task import Mode, Reduction, name_unwrapped
from seepage.core.errors import InvalidValue
from seepage.defenses import chain
from seepage.domains import domain_of_shape
from seepage.threats import Simulation
from seepage.threats._threat import sort_labels
from seepage.zoo._weights import COUNTER, list_misfits

if TYPE_CHECKING:
    from seepage.core import Domain


_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST_WORD = 200
_COUNTS = ("steps", "epochs", "local_batch_size", "batch_size")
# Far beyond what can be attacked, so that a file cannot ask for endless memory or time.
MOST = 1_000_000
MOST_ENTRIES = 2**28


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a client computed what it shared; None or empty where that is not known.

    Args:
        steps: Local steps; one if neither `steps` nor `epochs` is given.
        epochs: Passes over the data instead of steps.
        local_batch_size: Examples per step; None takes all at every step.
        lr: Local learning rate, which sets the scale of a difference of parameters.
        momentum: Momentum of local SGD.
        reduction: Whether a gradient is the mean over the examples, or their sum.
        mode: How batch normalisation ran: "train" by the batch, "eval" by running statistics.
        batch_size: How many examples the client has.
        shape: Shape of one input, `(C, H, W)` or `(C, L)`.
        mean: Per channel, subtracted before the network.
        std: Per channel, divided by before the network.
        bounds: Lowest and highest value of an input before that.
        framework: Where the update comes from, e.g. "flower 1.17".
        round: Round of the federation.
        client: Hash of the client's name, from `hashed`; never the name itself.

    Example:
        >>> Setting(lr=0.1, batch_size=8, client=hashed("ward 3", salt=b"of this study")).round
    """

    steps: int | None = None
    epochs: int | None = None
    local_batch_size: int | None = None
    lr: float | None = None
    momentum: float = 0.0
    reduction: Reduction = "mean"
    mode: Mode = "eval"
    batch_size: int | None = None
    shape: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    framework: str = ""
    round: int | None = None
    client: str = ""

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "std", "bounds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not (_is_whole(value) and 1 <= value <= MOST):
                raise InvalidValue(f"expected {name} as a whole number in 1..{MOST}, got {value!r}")
        if self.steps is not None and self.epochs is not None:
            raise InvalidValue(f"expected steps or epochs, got {self.steps} and {self.epochs}")
        if self.lr is not None and not (_is_number(self.lr) and self.lr > 0):
            raise InvalidValue(f"expected lr > 0, got {self.lr!r}")
        if not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise InvalidValue(f"expected 0 <= momentum < 1, got {self.momentum!r}")
        if self.reduction not in get_args(Reduction) or self.mode not in get_args(Mode):
            raise InvalidValue(
                "expected reduction 'mean' or 'sum' and mode 'eval' or 'train', got "
                f"{self.reduction!r} and {self.mode!r}"
            )
        if self.round is not None and not (_is_whole(self.round) and self.round >= 0):
            raise InvalidValue(f"expected round as a whole number >= 0, got {self.round!r}")
        if not isinstance(self.framework, str) or len(self.framework) > _LONGEST_WORD:
            raise InvalidValue(f"expected framework as at most {_LONGEST_WORD} characters")
        if self.client and not (isinstance(self.client, str) and _HASH.fullmatch(self.client)):
            raise InvalidValue(
                "expected client as a hash, since a capture must not name anybody; use "
                "sp.capture.hashed(name)"
            )
        _ = self.domain

    @property
    def domain(self) -> Domain | None:
        """The space of the inputs, or None if the shape is not known."""
        if not self.shape:
            return None
        numbers = (*self.mean, *self.std, *self.bounds)
        sizes_fit = len(self.shape) in (1, 2, 3) and all(map(_is_whole, self.shape))
        if not sizes_fit or not all(map(_is_number, numbers)) or len(self.bounds) != 2:
            raise InvalidValue(
                "expected a shape (C, H, W), (C, L) or (D,) with finite mean, std and bounds, got "
                f"shape={self.shape!r}, mean={self.mean!r}, std={self.std!r}, "
                f"bounds={self.bounds!r}"
            )
        if math.prod(self.shape) * (self.batch_size or 1) > MOST_ENTRIES:
            raise InvalidValue(
                f"expected at most {MOST_ENTRIES} entries in all inputs together, got "
                f"{self.batch_size or 1} of shape {self.shape!r}"
            )
        return domain_of_shape(self.shape, self.mean, self.std, self.bounds)

    def plain(self) -> dict[str, Any]:
        """The setting as data that JSON can hold, without the values that are at their default."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Setting:
        """Read the plain form; lists become tuples."""
        words = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return construct("a capture", cls, words)


def hashed(client: str, *, salt: bytes | None = None) -> str:
    """Hash the name of a client, SHA-256 of salt and name, so that it does not tell who it is.

    Args:
        client: The client's name in its framework.
        salt: A secret; use the same one for captures whose clients you compare. By default it is
            drawn and thrown away, so that nobody can try out names against the hash.

    Example:
        >>> hashed("7", salt=b"secret") == hashed("7", salt=b"secret")
        True
        >>> hashed("7") == hashed("7")
        False
    """
    grain = secrets.token_bytes(32) if salt is None else salt
    # The length of the salt goes first, so that ("a", "bc") and ("ab", "c") differ.
    return hashlib.sha256(len(grain).to_bytes(8, "big") + grain + client.encode()).hexdigest()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # Compared, not converted: a whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


Form = Literal["gradient", "difference", "weights_after"]
# What wrappers put before every name: data-parallel training, per-example gradients.
_PREFIXES = ("module.", "_module.")


@dataclass(frozen=True, eq=False)
class Capture:
    """The tensors that somebody on the wire holds, and how they were made.

    Args:
        update: One floating-point tensor per parameter; a whole state dict is fine.
        form: What the update is: "gradient"; "difference", parameters after minus before; or
            "weights_after".
        parameters: The parameters that were broadcast; required for "weights_after".
        buffers: Other tensors that were broadcast, such as running statistics.
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
        """Freeze the mappings, and reject numbers that no client computes."""
        if self.form not in get_args(Form):
            raise InvalidValue(
                f"expected form {', '.join(map(repr, get_args(Form)))}, got {self.form!r}"
            )
        if not self.update:
            raise InvalidValue("expected a capture of at least one tensor, got none")
        if self.form == "weights_after" and not self.parameters:
            raise InvalidValue(
                "expected the parameters from before beside the weights after, got none; capture "
                "them too"
            )
        if self.form != "gradient" and self.setting.lr is None:
            raise InvalidValue(
                f"a {self.form} needs the local learning rate, which is not known; give lr"
            )
        for group in ("update", "parameters", "buffers"):
            tensors = _check_tensors(group, getattr(self, group))
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
        """Capture an update together with the network before training, whose tensors are copied.

        The update has a tensor for each parameter, or is a whole state dict, or a difference of
        two; how many batches a normalisation has counted is left out of it.
        """
        parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        state = model.state_dict()
        buffers = {name: t.detach().clone() for name, t in state.items() if name not in parameters}
        return cls(update, form, parameters, buffers, setting or Setting())

    def __repr__(self) -> str:
        before = "parameters before" if self.parameters else "no parameters before"
        return (
            f"Capture({self.form} of {len(self.update)} tensors, {before}, "
            f"{len(self.buffers)} buffers)"
        )

    @property
    def digest(self) -> str:
        """A hash of the whole capture."""
        groups = (self.update, self.parameters, self.buffers)
        tensors = [part for group in groups for n in sorted(group) for part in (n, group[n])]
        return digest(self.form, repr(self.setting), *tensors)

    @property
    def local(self) -> LocalComputation:
        """What the client computed, as far as the setting says."""
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
        """What `Threat.observe` would have given for this update; every attack takes it.

        Args:
            task: The network, its loss and the domain of its inputs. The weights of the capture
                replace its own.
            labels: Labels of the batch in any order, `(B,)`, or targets, if they are known.
            defense: The client's defense, if it is known.

        Raises:
            InvalidValue: If names or shapes do not fit the task, or labels not its loss.
        """
        client = Client(self.local, chain() if defense is None else defense)
        task = self._fit(client.broadcast(task.in_mode(self.setting.mode)).upcast())
        size = self.setting.batch_size
        if labels is not None and size not in (None, len(labels)):
            raise InvalidValue(f"expected {size} labels, as the capture says, got {len(labels)}")
        if labels is not None:
            task.check_labels(labels)
        return Observation(
            task=task,
            update=self._update(task),
            simulate=Simulation(client, task),
            batch_size=size if labels is None else len(labels),
            labels=None if labels is None else labels[sort_labels(labels)],
        )

    def _update(self, task: Task) -> Update:
        before, seen = task.parameters, select_trained(self.update, task)
        if self.form == "weights_after":
            # Subtract in double precision: rounding first would lose the digits of a small step.
            sent = select_trained(self.parameters, task)
            seen = {name: after.double() - sent[name].double() for name, after in seen.items()}
        return Update(
            {name: t.to(before[name]) for name, t in seen.items()},
            kind="gradient" if self.form == "gradient" else "difference",
        )

    def _fit(self, task: Task) -> Task:
        """The task with the weights that were broadcast, if these are known."""
        shape, expected = self.setting.shape, tuple(task.domain.shape)
        if shape and shape != expected:
            raise InvalidValue(
                f"the capture is of inputs {shape}, but {task.name} is for inputs {expected}; give "
                "it the domain of the capture"
            )
        if not self.parameters:
            return task
        model = copy.deepcopy(task.model)
        own, came = model.state_dict(), strip_prefixes({**self.parameters, **self.buffers})
        # Missing buffers stay as the model has them; parameters must not be missing.
        required = [name for name, _ in model.named_parameters()]
        _require_match(task, came, required=required, what="the parameters")
        model.load_state_dict({**own, **{n: t.to(own[n]) for n, t in came.items() if n in own}})
        return replace(task, model=model)


def select_trained(update: Mapping[str, Tensor], task: Task) -> dict[str, Tensor]:
    """The tensors of trainable parameters, in the order of the task."""
    came = strip_prefixes(update)
    _require_match(task, came, required=task.parameters, what="the update")
    return {name: came[name] for name in task.parameters}


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors as the network itself names them.

    Example:
        >>> list(strip_prefixes({"_module.fc.weight": torch.zeros(1)}))
        ['fc.weight']
    """
    tensors = {name_unwrapped(name): t for name, t in tensors.items()}
    for prefix in _PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return strip_prefixes({name.removeprefix(prefix): t for name, t in tensors.items()})
    return tensors


def _require_match(
    task: Task, came: Mapping[str, Tensor], *, required: Iterable[str], what: str
) -> None:
    if misfits := list_misfits(came, task.model.state_dict(), required=required):
        raise InvalidValue(
            f"this capture does not fit {task.name}: in {what}, {misfits}; build the network that "
            "was trained"
        )


def _check_tensors(group: str, given: object) -> dict[str, Tensor]:
    """Detach a mapping of finite tensors; update and parameters must be floating-point.

    How many batches a normalisation has counted, which a state dict says, is neither.
    """
    if not isinstance(given, Mapping):
        raise InvalidValue(
            f"expected the {group} as a mapping of names to tensors, got {type(given).__name__}"
        )
    if group != "buffers":
        given = {name: t for name, t in given.items() if name.rpartition(".")[2] != COUNTER}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise InvalidValue(
                f"expected a tensor at {name!r} of the {group}, got {type(tensor).__name__}; leave "
                "out what was not trained"
            )
        if group != "buffers" and not tensor.is_floating_point():
            raise InvalidValue(
                f"expected {group} as floating-point numbers, got {tensor.dtype} at {name!r}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidValue(
                f"expected finite numbers, got NaN or infinity in the {group} at {name!r}; capture "
                "a step that did not diverge"
            )
    return {name: tensor.detach() for name, tensor in given.items()}
