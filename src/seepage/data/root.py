"""Where data that do not ship with the package are kept."""

from __future__ import annotations

import os
from pathlib import Path

from seepage.core.errors import DataNotFound

VARIABLE = "SEEPAGE_DATA"


def data_root() -> Path:
    """Return the folder named by SEEPAGE_DATA, or `shared/data` beside the repository."""
    places = _places()
    for place in places:
        if place.is_dir():
            return place
    looked = " or ".join(map(str, places))
    raise DataNotFound(f"expected a data folder at {looked}, found none; set {VARIABLE} to yours")


def located(name: str) -> Path:
    """Return the path of a file or folder in the data folder."""
    root = data_root()
    if not (root / name).exists():
        raise DataNotFound(
            f"expected {name} in {root}, but it is not there; set {VARIABLE} to the folder that "
            "holds it"
        )
    return root / name


def _places() -> list[Path]:
    if named := os.environ.get(VARIABLE):
        return [Path(named).expanduser()]
    repository = Path(__file__).resolve().parents[3]
    beside = [parent / "shared" / "data" for parent in (Path.cwd().parent, repository.parent)]
    return list(dict.fromkeys(beside))
