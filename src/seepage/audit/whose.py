"""The entries of a spec that say whose data is attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from seepage.audit.captured import Captured, captured
from seepage.audit.entries import Table, named, only
from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims, victims
from seepage.core.construct import construct, described
from seepage.core.errors import InvalidValue
from seepage.data import Dataset, load
from seepage.domains import Image, Signal

DATASET = ("name", "split", "pixels", "mean", "std")
Find = Callable[[Table], Dataset]


def data(
    table: Table, *, find: Find | None = None
) -> tuple[Dataset | Captured, tuple[Victims | Strangers, ...]]:
    """Whose data: `{ name, split, pixels, mean, std, people, batch_size, start }`, or a capture.

    Args:
        table: The entry.
        find: What makes the data set of its first keys; `dataset` by default.
    """
    if "capture" in table:
        held = construct("a captured update", captured, table)
        return held, (held.victims,)
    only(table, *DATASET, "people", "batch_size", "start")
    named(table)
    found = (find or dataset)({key: table[key] for key in DATASET if key in table})
    batch_size = table.get("batch_size", 1)
    cut = {"people": table.get("people", batch_size), "batch_size": batch_size}
    start = {"start": table["start"]} if "start" in table else {}
    return found, construct("a batch", partial(victims, found), {**cut, **start})


def dataset(table: Table) -> Dataset:
    """The data set of `{ name, split, pixels, mean, std }`."""
    options = {key: value for key, value in table.items() if key in ("split", "pixels")}
    scaling = {key: value for key, value in table.items() if key in ("mean", "std")}
    found = construct("data", load, {"name": named(table), **options})
    if scaling:
        found = construct("data", partial(_normalised, found), scaling)
    if options or scaling:
        # Records must tell the same data at another size or split apart.
        found = replace(found, name=described(found.name, options | scaling))
    return found


def _normalised(dataset: Dataset, *, mean: float = 0.0, std: float = 1.0) -> Dataset:
    """The same data, of which networks see (x - mean) / std in every channel."""
    domain = dataset.domain
    if not isinstance(domain, Image | Signal):
        raise InvalidValue(f"mean and std are for images and signals; leave them out for {domain}")
    channels = domain.shape[0]
    scaled = replace(domain, mean=(float(mean),) * channels, std=(float(std),) * channels)
    return replace(dataset, domain=scaled)


def once(make: Find = dataset) -> Find:
    """Make what several scenarios share a single time."""
    known: dict[str, Dataset] = {}

    def made(table: Table) -> Dataset:
        key = repr(sorted(table.items()))
        if key not in known:
            known[key] = make(table)
        return known[key]

    return made
