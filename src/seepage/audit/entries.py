"""The entries of a spec, each turned into the value its constructor makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import UnionType
from typing import Any, TypeVar

import torch

from seepage.audit.captured import Captured
from seepage.bounds import BOUNDS, Bound
from seepage.clients import LOCALS
from seepage.core import LocalComputation, Protection, Task
from seepage.core.construct import construct, described
from seepage.core.errors import InvalidValue, SeepageError, UnknownName
from seepage.core.located import located
from seepage.core.plugins import find_part
from seepage.data import Dataset
from seepage.defenses import DEFENSES, chain
from seepage.threats import Threat
from seepage.zoo import build, load_weights

T = TypeVar("T")
U = TypeVar("U")
Table = Mapping[str, Any]

THREATS: Mapping[str, Callable[..., Threat]] = {
    "Threat": Threat,
    "strongest": Threat.strongest,
    "realistic": Threat.realistic,
}


def only(table: Table, *known: str) -> None:
    """Raise `UnknownName` if a table has any other key."""
    for key in table:
        if key not in known:
            with located(key):
                raise UnknownName("key", key, known)


def tables(table: Table, key: str, default: list[Table] | None = None) -> list[Table]:
    """The list of tables under a key; a single table counts as a list of one."""
    value = table.get(key, default)
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, list) or not found or not all(isinstance(t, Mapping) for t in found):
        came = "nothing" if value is None else repr(value)
        raise InvalidValue(
            f"expected {key} as one or more tables such as {{ name = ... }}, got {came}"
        )
    return found


def each(
    table: Table, key: str, make: Callable[[Table], T], default: list[Table] | None = None
) -> list[T]:
    """What `make` makes of every table under a key."""
    with located(key):
        return numbered(tables(table, key, default), make)


def numbered(values: Sequence[U], make: Callable[[U], T]) -> list[T]:
    """What `make` makes of every value; an error says at which number it came."""
    made = []
    for number, value in enumerate(values):
        with located(number):
            made.append(make(value))
    return made


def model(table: Table, dataset: Dataset | Captured) -> Task:
    """A network, built for the data set's inputs and classes unless the table says otherwise."""
    name, options = split(table)
    weights = options.pop("weights", None)
    double = options.pop("double", False)
    if not isinstance(double, bool):
        with located("double"):
            raise InvalidValue(f"expected double to be true or false, got {double!r}")
    fitted: dict[str, Any] = {"domain": dataset.domain}
    if dataset.classes is not None:
        fitted["classes"] = dataset.classes
    if dataset.classes == 1 and "classes" not in options:
        raise InvalidValue(
            "expected data of two classes or more, got one; add people of another class, or give "
            "the model `classes`"
        )
    with trusting_nothing(name):
        task = build(name, options=fitted | options)
        task = task if weights is None else load_weights(task, weights)
    return task.to(dtype=torch.float64) if double else task


@contextmanager
def trusting_nothing(name: str) -> Iterator[None]:
    """Make one sentence of whatever somebody else's network raises."""
    try:
        yield
    except SeepageError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidValue(f"{name} cannot be built or run, it raised {reason}") from error


def local(table: Table) -> LocalComputation:
    """What clients compute; the gradient unless another is named."""
    named = {"name": "Gradient", **table}
    return constructed("local computation", LOCALS, named, LocalComputation)


def defenses(listed: object) -> list[Protection]:
    """Every defense, at least one."""
    found = [listed] if isinstance(listed, Mapping) else listed
    with located("defenses"):
        if not isinstance(found, list) or not found:
            raise InvalidValue(
                "expected defenses as a list such as [[], [{ name = ... }]], whose empty list "
                f"defends nothing, got {listed!r}"
            )
        return numbered(found, defense)


def defense(links: object) -> Protection:
    """A defense: one table, or a list of them to be chained; an empty list defends nothing."""
    listed = [links] if isinstance(links, Mapping) else links
    if not isinstance(listed, list) or not all(isinstance(link, Mapping) for link in listed):
        raise InvalidValue(
            f"expected a defense as a list of tables such as [{{ name = ... }}], got {links!r}"
        )
    make = partial(constructed, "defense", DEFENSES, expected=Protection)
    return chain(*numbered(listed, make))


def threat(table: Table) -> Threat:
    """What the adversary knows, item by item or by the name of a preset."""
    for key, value in table.items():
        if key.startswith("knows") and not isinstance(value, bool):
            with located(key):
                raise InvalidValue(f"expected {key} to be true or false, got {value!r}")
    return constructed("threat", THREATS, {"name": "Threat", **table}, Threat)


def bound(table: Table) -> tuple[str, Bound]:
    """What theory is asked, and what records call it."""
    return described(*split(table)), constructed("bound", BOUNDS, table, Bound)


def seeds(values: object) -> tuple[int, ...]:
    """The seeds, at least one."""
    if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
        with located("seeds"):
            raise InvalidValue(f"expected seeds as a list of whole numbers, got {values!r}")
    return tuple(values)


def constructed(
    kind: str,
    known: Mapping[str, Callable[..., T]],
    table: Table,
    expected: type | UnionType,
) -> T:
    """What a table names, in a catalogue or as `package.module:factory`, made with its options."""
    name, options = split(table)
    with located("name"):
        make = find_part(kind, name, known)
    with trusting_nothing(name):
        made = construct(name, make, options)
    if not isinstance(made, expected):
        with located("name"):
            article = "an" if kind[0] in "aeiou" else "a"
            raise InvalidValue(
                f"expected {name} to make {article} {kind}, got {type(made).__name__}"
            )
    return made


def split(table: Table) -> tuple[str, dict[str, Any]]:
    """The name in a table, and its options."""
    return named(table), {key: value for key, value in table.items() if key != "name"}


def named(table: Table) -> str:
    """The name in a table."""
    name = table.get("name")
    if not isinstance(name, str):
        raise InvalidValue(f"expected a table with a name, got {dict(table)!r}")
    return name
