"""What was asked of a source."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class Request:
    """Which part of a source, and at what size.

    Args:
        split: "test" or "train".
        pixels: Side of the square images; None leaves the choice to the source.
        argument: What followed the colon, e.g. the path in `npz:PATH`.
    """

    split: str = "test"
    pixels: int | None = None
    argument: str = ""

    def __post_init__(self) -> None:
        """Refuse images without pixels."""
        if self.pixels is not None and self.pixels < 1:
            raise InvalidValue(f"expected pixels >= 1, got {self.pixels!r}")
