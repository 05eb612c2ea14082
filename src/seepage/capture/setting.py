"""How a client computed its update, and on what kind of input."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from seepage.core.construct import construct
from seepage.core.errors import InvalidValue
from seepage.core.task import Mode, Reduction
from seepage.domains import Image, Signal, Vector

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
        kinds = {3: Image, 2: Signal, 1: Vector}
        numbers = (*self.mean, *self.std, *self.bounds)
        sizes_fit = len(self.shape) in kinds and all(map(_is_whole, self.shape))
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
        return kinds[len(self.shape)](self.shape, self.mean, self.std, self.bounds)

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
