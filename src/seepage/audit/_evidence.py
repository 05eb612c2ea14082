"""Results of inference in a file that a dossier reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from seepage import __version__
from seepage.audit._folder import require_free
from seepage.core._whole_file import write_whole
from seepage.core.errors import InvalidValue, UnreadableFile

# Raised whenever what the files hold changes.
FORMAT = 1


class InferenceResult(Protocol):
    """A result: of `membership`, of `attributes(...).compare(...)`, or of `audit_epsilon`."""

    @property
    def kind(self) -> str:
        """What was asked: "membership", "attributes" or "epsilon"."""

    def plain(self) -> dict[str, Any]:
        """The result as data that JSON can hold."""


def describe_evidence(
    found: InferenceResult, *, system: str, data: str, adversary: str, seed: int | None = None
) -> dict[str, Any]:
    """A result with what a reader must know of it, as data that JSON can hold."""
    about = {"system": system, "data": data, "adversary": adversary}
    for name, words in about.items():
        if not words.strip():
            raise InvalidValue(f"expected a few words on the {name}, got {words!r}")
    header = {"kind": found.kind, "format": FORMAT, "seepage": __version__}
    return {**header, **about, "seed": seed, **found.plain()}


def save_evidence(
    found: InferenceResult,
    path: Path | str,
    *,
    system: str,
    data: str,
    adversary: str,
    seed: int | None = None,
) -> None:
    """Write a result to a JSON file, for `seepage dossier`; see `describe_evidence`.

    Example:
        >>> import tempfile, torch
        >>> from seepage.inference import AttributeComparison
        >>> yes = torch.ones(8, dtype=torch.bool)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_evidence(
        ...         AttributeComparison("party", yes, ~yes, ~yes),
        ...         Path(folder, "party.json"),
        ...         system="MLP, one gradient of 8 people",
        ...         data="voters",
        ...         adversary="the update, the network and all other columns",
        ...     )
        ...     json.loads(Path(folder, "party.json").read_text())["kind"]
        'attributes'
    """
    path = Path(path)
    require_free(path)
    told = describe_evidence(found, system=system, data=data, adversary=adversary, seed=seed)
    written = json.dumps(told, indent=1, allow_nan=False) + "\n"
    try:
        write_whole(path, written.encode())
    except OSError as error:
        raise UnreadableFile(
            f"cannot write the result to {str(path)!r}: {error.strerror}; choose another file"
        ) from error
