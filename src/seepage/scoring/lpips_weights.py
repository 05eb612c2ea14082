"""Where the weights behind LPIPS lie, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from seepage.core.errors import MissingExtra, UnreadableFile

FILE = "lpips_alex_v0.1.safetensors"
CONVOLUTIONS = ("features.0", "features.3", "features.6", "features.8", "features.10")
_NEEDED = frozenset(
    [f"{layer}.{part}" for layer in CONVOLUTIONS for part in ("weight", "bias")]
    + [f"lin{i}.weight" for i in range(len(CONVOLUTIONS))]
)


def find_weights() -> Path | None:
    """The weights file, or None.

    Looked for in this order: the file the environment variable SEEPAGE_LPIPS names (and then
    nowhere else), the folder `weights` of SEEPAGE_DATA, `../shared/data/weights`.
    """
    named = os.environ.get("SEEPAGE_LPIPS")
    if named:
        places = [Path(named)]
    else:
        data = os.environ.get("SEEPAGE_DATA")
        folders = [Path(data)] if data else []
        places = [folder / "weights" / FILE for folder in [*folders, Path("../shared/data")]]
    return next((place.resolve() for place in places if place.is_file()), None)


def require_weights() -> Path:
    """The weights file, or `MissingExtra` with what to do."""
    found = find_weights()
    if found is None:
        named = os.environ.get("SEEPAGE_LPIPS")
        came = f"SEEPAGE_LPIPS names {named!r}, which is no file" if named else "it was not found"
        raise MissingExtra(
            f"lpips needs the file {FILE}, but {came}; build it with scripts/lpips_weights.py of "
            "the source tree and set SEEPAGE_LPIPS to its path"
        )
    return found


@lru_cache(maxsize=4)
def load_weights(path: Path, device: torch.device, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """The tensors by name: `features.{0,3,6,8,10}.{weight,bias}` and `lin{0..4}.weight`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UnreadableFile(
            f"expected LPIPS weights in {str(path)!r}, got a file that safetensors cannot read "
            f"({error}); build it again with scripts/lpips_weights.py"
        ) from error
    missing = sorted(_NEEDED - tensors.keys())
    if missing:
        raise UnreadableFile(
            f"expected {len(_NEEDED)} tensors of LPIPS in {str(path)!r}, got none named "
            f"{', '.join(missing)}; build it again with scripts/lpips_weights.py"
        )
    return MappingProxyType({name: tensors[name].to(device, dtype) for name in _NEEDED})
