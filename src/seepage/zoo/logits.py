"""Networks that return more than logits, or read another shape, seen as ones that do not."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from seepage.core.errors import InvalidValue


class Logits(nn.Module):
    """A network whose logits are somewhere in what another one returns.

    Args:
        model: The other one; taken as it is, not copied.
        shape: What it reads of one input, where that is not what it is given.

    Example:
        >>> import torch
        >>> class Pair(nn.Linear):
        ...     def forward(self, inputs):
        ...         return {"logits": super().forward(inputs), "loss": None}
        >>> Logits(Pair(3, 2), shape=(3,))(torch.ones(4, 1, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, model: nn.Module, *, shape: tuple[int, ...] | None = None) -> None:
        """Keep both."""
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits `(B, K)`."""
        given = inputs if self.shape is None else inputs.reshape(len(inputs), *self.shape)
        return logits_of(self.model(given))


def logits_of(returned: object) -> Tensor:
    """The logits in what a network returned: alone, first of many, or named so.

    Raises:
        InvalidValue: There is no such thing.
    """
    found = returned
    if isinstance(returned, Mapping):
        found = returned.get("logits")
    elif isinstance(returned, tuple | list) and returned:
        found = returned[0]
    if not isinstance(found, Tensor):
        found = getattr(returned, "logits", found)
    if not isinstance(found, Tensor):
        raise InvalidValue(
            "expected a network that returns logits (B, K), alone, first of a tuple or under the "
            f"name logits, got {type(returned).__name__}"
        )
    return found
