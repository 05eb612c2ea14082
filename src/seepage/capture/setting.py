"""What is said of an update beside its numbers: how it was computed, on what kind of input."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol, get_args

from torch import Tensor

from seepage.clients.gradient import Reduction
from seepage.core import Domain, Task
from seepage.core.construct import construct
from seepage.core.errors import InvalidValue
from seepage.core.task import Mode, name_unwrapped
from seepage.domains import Image, Signal

_HASH = re.compile(r"[0-9a-f]{64}")
_LONGEST_WORD = 200
_COUNTS = ("steps", "epochs", "local_batch_size", "batch_size")
# Far beyond what can be attacked, so that a file cannot ask for more memory or time than there is.
MOST = 1_000_000
MOST_ENTRIES = 2**28


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a client computed what it shared; None, or nothing, where that is not known.

    Args:
        steps: Local steps between before and after; one if neither these nor `epochs` are given.
        epochs: Passes over the data instead of steps.
        local_batch_size: Examples per step; None takes all at every step.
        lr: Local learning rate, without which a difference of parameters has no scale.
        momentum: Of local SGD.
        reduction: Whether a gradient is the mean over the examples, or their sum.
        mode: How batch normalisation ran: "train" by the batch, "eval" by running statistics.
        batch_size: How many examples the client has.
        shape: Of one input, `(C, H, W)` or `(C, L)`.
        mean: Per channel, subtracted before the network.
        std: Per channel, divided by before the network.
        bounds: Lowest and highest value of an input before that.
        framework: Where the update comes from, e.g. "flower 1.17".
        round: Of the federation.
        client: Who shared it, as `hashed` writes it; never the name itself.

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
        """Refuse what no client could have done."""
        for name in ("shape", "mean", "std", "bounds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not (_whole(value) and 1 <= value <= MOST):
                raise InvalidValue(f"expected {name} as a whole number in 1..{MOST}, got {value!r}")
        if self.steps is not None and self.epochs is not None:
            raise InvalidValue(f"expected steps or epochs, got {self.steps} and {self.epochs}")
        if self.lr is not None and not (_number(self.lr) and self.lr > 0):
            raise InvalidValue(f"expected lr > 0, got {self.lr!r}")
        if not (_number(self.momentum) and 0 <= self.momentum < 1):
            raise InvalidValue(f"expected 0 <= momentum < 1, got {self.momentum!r}")
        if self.reduction not in get_args(Reduction) or self.mode not in get_args(Mode):
            raise InvalidValue(
                "expected reduction 'mean' or 'sum' and mode 'eval' or 'train', got "
                f"{self.reduction!r} and {self.mode!r}"
            )
        if self.round is not None and not (_whole(self.round) and self.round >= 0):
            raise InvalidValue(f"expected round as a whole number >= 0, got {self.round!r}")
        self._check_words()
        _ = self.domain

    def _check_words(self) -> None:
        if not isinstance(self.framework, str) or len(self.framework) > _LONGEST_WORD:
            raise InvalidValue(f"expected framework as at most {_LONGEST_WORD} characters")
        if self.client and not (isinstance(self.client, str) and _HASH.fullmatch(self.client)):
            raise InvalidValue(
                "expected client as a hash, since a capture must not name anybody; use "
                "sp.capture.hashed(name)"
            )

    @property
    def domain(self) -> Domain | None:
        """The space of the inputs, where the shape is known."""
        if not self.shape:
            return None
        kinds = {3: Image, 2: Signal}
        numbers = (*self.mean, *self.std, *self.bounds)
        sizes_fit = len(self.shape) in kinds and all(_whole(size) for size in self.shape)
        if not sizes_fit or not all(map(_number, numbers)) or len(self.bounds) != 2:
            raise InvalidValue(
                "expected a shape (C, H, W) or (C, L) with finite mean, std and bounds, got "
                f"shape={self.shape!r}, mean={self.mean!r}, std={self.std!r}, "
                f"bounds={self.bounds!r}"
            )
        if math.prod(self.shape) * (self.batch_size or 1) > MOST_ENTRIES:
            raise InvalidValue(
                f"expected at most {MOST_ENTRIES} entries in all inputs together, got "
                f"{self.batch_size or 1} of shape {self.shape!r}"
            )
        return kinds[len(self.shape)](self.shape, self.mean, self.std, self.bounds)

    def plain(self) -> dict[str, Any]:
        """What is said, as data that JSON can hold; what is as usual is left out."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Setting:
        """The setting of which `plain` is the plain form; lists count as tuples."""
        words = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return construct("a capture", cls, words)


def hashed(client: str, *, salt: bytes | None = None) -> str:
    """A name for a client that does not tell who it is: SHA-256 of salt and name.

    Args:
        client: Whatever the framework calls it.
        salt: Secret and the same for all captures that are to be told apart; drawn anew and
            thrown away if not given, so that nobody can try out names against the hash.

    Example:
        >>> hashed("7", salt=b"secret") == hashed("7", salt=b"secret")
        True
        >>> hashed("7") == hashed("7")
        False
    """
    grain = secrets.token_bytes(32) if salt is None else salt
    # The length of the salt goes first, lest ("a", "bc") be ("ab", "c").
    return hashlib.sha256(len(grain).to_bytes(8, "big") + grain + client.encode()).hexdigest()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    # Compared, not converted: a whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


# What wrappers put before every name: data-parallel training, per-example gradients.
PREFIXES = ("module.", "_module.")
# Counted during training; no output depends on it, and some frameworks leave it out.
_COUNTER = "num_batches_tracked"


class _Broadcast(Protocol):
    """What was sent to the client, and what is said of it."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """By name; empty if they were not captured."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """By name."""

    @property
    def setting(self) -> Setting:
        """How the client computed."""


def fitted(task: Task, broadcast: _Broadcast) -> Task:
    """The task with the weights that were broadcast, where these are known."""
    shape = broadcast.setting.shape
    if shape and shape != tuple(task.domain.shape):
        raise InvalidValue(
            f"the capture is of inputs {shape}, but {task.name} is for inputs "
            f"{tuple(task.domain.shape)}; give it the domain of the capture"
        )
    if not broadcast.parameters:
        return task
    model = copy.deepcopy(task.model)
    own = model.state_dict()
    came = bare({**broadcast.parameters, **broadcast.buffers})
    # Buffers that are not there stay as the model has them; parameters must be there.
    required = dict(model.named_parameters())
    _require(task, came, required=required, known=own, what="the parameters")
    model.load_state_dict({**own, **{n: t.to(own[n]) for n, t in came.items() if n in own}})
    return replace(task, model=model)


def trained(update: Mapping[str, Tensor], task: Task) -> dict[str, Tensor]:
    """The part of an update that is of trainable parameters, in the order of the task."""
    came = bare(update)
    known = task.model.state_dict()
    _require(task, came, required=task.parameters, known=known, what="the update")
    return {name: came[name] for name in task.parameters}


def bare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names the network itself gives them.

    Example:
        >>> import torch
        >>> list(bare({"_module.fc.weight": torch.zeros(1)}))
        ['fc.weight']
    """
    tensors = {name_unwrapped(name): t for name, t in tensors.items()}
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return bare({name.removeprefix(prefix): t for name, t in tensors.items()})
    return tensors


def _require(
    task: Task,
    came: Mapping[str, Tensor],
    *,
    required: Mapping[str, Tensor],
    known: Mapping[str, Tensor],
    what: str,
) -> None:
    problems = [f"{n} is missing" for n in required if n not in came]
    problems += [f"{n} is not in it" for n in came if n not in known and _COUNTER not in n]
    problems += [
        f"{n} is {tuple(known[n].shape)}, not {tuple(came[n].shape)}"
        for n in came
        if n in known and known[n].shape != came[n].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InvalidValue(
            f"{what} of this capture do not fit {task.name}: {'; '.join(problems[:3])}{more}; "
            "build the network that was trained"
        )
