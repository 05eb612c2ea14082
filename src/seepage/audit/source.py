"""A spec as plain data, from which any process can build it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seepage.core.errors import DataNotFound

QUICKSTART = Path(__file__).parent / "quickstart.toml"


@dataclass(frozen=True)
class Source:
    """The text of a spec and where to run it.

    Args:
        name: Of the file, for messages.
        text: What it says.
        device: Where the networks go.
    """

    name: str
    text: str
    device: str = "cpu"

    @classmethod
    def read(cls, path: Path | None = None, *, device: str = "cpu") -> Source:
        """Read a file; None takes the bundled quickstart."""
        path = QUICKSTART if path is None else path
        try:
            return cls(path.name, path.read_text(encoding="utf-8"), device)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DataNotFound(f"cannot read the spec {str(path)!r}: {reason}") from error
