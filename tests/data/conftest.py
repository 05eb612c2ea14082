from collections.abc import Callable

import pytest

from seepage.core.errors import DataNotFound
from seepage.data import Dataset, load


@pytest.fixture(scope="session")
def loaded() -> Callable[..., Dataset]:
    """Load real data once per session, or skip where they are not kept."""
    kept: dict[str, Dataset] = {}

    def get(name, *, split="test"):
        key = f"{name} {split}"
        if key not in kept:
            try:
                kept[key] = load(name, split=split)
            except DataNotFound as error:
                pytest.skip(f"no {name} here: {error}")
        return kept[key]

    return get
