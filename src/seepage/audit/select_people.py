"""Which people of a data set are attacked, and in which batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from seepage.audit.targets import Target
from seepage.core import Rng
from seepage.core.errors import InvalidValue, require_at_least
from seepage.data.dataset import Dataset
from seepage.scoring.gallery import Gallery


def select_targets(
    dataset: Dataset,
    *,
    people: int | Sequence[int],
    batch_size: int,
    start: int | None = None,
    sample_seed: int = 0,
) -> tuple[Target, ...]:
    """Select batches of a data set to attack.

    Intervals over people speak of the whole data set only if the people are drawn at random, so
    that is the default. More people with the same seed include the fewer.

    Args:
        dataset: The data set.
        people: How many examples to draw at random, or their numbers.
        batch_size: How many share an update.
        start: Take people in order from this number on, instead of at random.
        sample_seed: Of the random draw.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.load("photos")
        >>> [target.people for target in select_targets(photos, people=4, batch_size=2)]
        [(4, 10), (1, 9)]
        >>> [target.people for target in select_targets(photos, people=4, batch_size=2, start=0)]
        [(0, 1), (2, 3)]
    """
    counted = isinstance(people, int)
    if not counted and start is not None:
        raise InvalidValue(f"expected people by number or a start, got {people} and {start}")
    if sample_seed and (start is not None or not counted):
        raise InvalidValue(
            f"nobody is drawn at random here, got sample_seed={sample_seed}; leave it out, or "
            "give only the number of people"
        )
    if not isinstance(people, int):
        numbers, sampling = tuple(people), "by number"
    elif start is None:
        numbers, sampling = _draw_people(dataset, people, sample_seed), "at random"
    else:
        numbers, sampling = tuple(range(start, start + people)), "in order"
    if not numbers or not all(type(number) is int for number in numbers):
        raise InvalidValue(f"expected people >= 1, or a list of their numbers, got {people!r}")
    require_at_least(1, batch_size=batch_size)
    if len(numbers) % batch_size:
        raise InvalidValue(
            f"expected people to be a multiple of batch_size, got {len(numbers)} people in batches "
            f"of {batch_size}"
        )
    if len(set(numbers)) < len(numbers):
        raise InvalidValue(f"expected different people, got {list(numbers)}")
    cuts = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
    # One gallery for all batches of a data set, so that strangers are prepared once.
    if dataset not in _GALLERIES:
        _GALLERIES[dataset] = Gallery(dataset.inputs, dataset.labels, dataset.domain)
    gallery = _GALLERIES[dataset]
    return tuple(replace(_select_target(dataset, gallery, cut), sampling=sampling) for cut in cuts)


def _draw_people(dataset: Dataset, count: int, seed: int) -> tuple[int, ...]:
    if count > len(dataset):
        raise InvalidValue(
            f"expected at most the {len(dataset)} people of {dataset.name}, got {count}; attack "
            "fewer, by people = or --people"
        )
    order = Rng(seed).fork("people").permutation(len(dataset))
    return tuple(order[: max(count, 0)].tolist())


_GALLERIES: WeakKeyDictionary[Dataset, Gallery] = WeakKeyDictionary()


def _select_target(dataset: Dataset, gallery: Gallery, people: tuple[int, ...]) -> Target:
    first, size = people[0], len(people)
    in_a_row = people == tuple(range(first, first + size))
    batch = dataset.batch(size, start=first) if in_a_row else dataset.take(people)
    if len(dataset) < 2 * size:
        raise InvalidValue(
            f"{dataset.name} has {len(dataset)} examples, too few to compare {size} people "
            "with others; use a smaller batch_size, or add inputs of others"
        )
    domain = dataset.domain
    return Target(
        dataset.name, people, batch, gallery, domain.bounds, dataset.digest, domain=domain
    )
