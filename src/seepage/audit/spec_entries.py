"""The entries of a spec, each turned into the value its constructor makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Any, TypeVar

import torch

from seepage.attacks import ATTACKS, ReadLogits, Unmixed, adaptive
from seepage.attacks.applicability import require_kind
from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.attacks.image_prior import PriorNetwork
from seepage.attacks.labels import InferLabels
from seepage.audit.captures import CapturedData, captured
from seepage.audit.targets import Strangers, Victims, victims
from seepage.bounds import BOUNDS, Bound
from seepage.clients import LOCALS
from seepage.core import ActiveAttack, Attack, Domain, LocalComputation, Protection, Task
from seepage.core.construct import Component, construct, described
from seepage.core.errors import InvalidValue, SeepageError, UnknownName, error_path
from seepage.core.plugins import find_part
from seepage.data import Dataset, load
from seepage.defenses import DEFENSES, chain
from seepage.domains import Image, Signal
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
            with error_path(key):
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
    with error_path(key):
        return numbered(tables(table, key, default), make)


def numbered(values: Sequence[U], make: Callable[[U], T]) -> list[T]:
    """What `make` makes of every value; an error says at which number it came."""
    made = []
    for number, value in enumerate(values):
        with error_path(number):
            made.append(make(value))
    return made


def model(table: Table, dataset: Dataset | CapturedData) -> Task:
    """A network, built for the data set's inputs and classes unless the table says otherwise."""
    name, options = split(table)
    weights = options.pop("weights", None)
    double = options.pop("double", False)
    if not isinstance(double, bool):
        with error_path("double"):
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
    return _constructed("local computation", LOCALS, named, LocalComputation)


def defenses(listed: object) -> list[Protection]:
    """Every defense, at least one."""
    found = [listed] if isinstance(listed, Mapping) else listed
    with error_path("defenses"):
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
    make = partial(_constructed, "defense", DEFENSES, expected=Protection)
    return chain(*numbered(listed, make))


def threat(table: Table) -> Threat:
    """What the adversary knows, item by item or by the name of a preset."""
    for key, value in table.items():
        if key.startswith("knows") and not isinstance(value, bool):
            with error_path(key):
                raise InvalidValue(f"expected {key} to be true or false, got {value!r}")
    return _constructed("threat", THREATS, {"name": "Threat", **table}, Threat)


def bound(table: Table) -> tuple[Component, Bound]:
    """What theory is asked, and what records call it."""
    return Component(*split(table)), _constructed("bound", BOUNDS, table, Bound)


def seeds(values: object) -> tuple[int, ...]:
    """The seeds, at least one."""
    if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
        with error_path("seeds"):
            raise InvalidValue(f"expected seeds as a list of whole numbers, got {values!r}")
    return tuple(values)


def _constructed(
    kind: str,
    known: Mapping[str, Callable[..., T]],
    table: Table,
    expected: type | UnionType,
) -> T:
    """What a table names, in a catalogue or as `package.module:factory`, made with its options."""
    name, options = split(table)
    with error_path("name"):
        make = find_part(kind, name, known)
    with trusting_nothing(name):
        made = construct(name, make, options)
    if not isinstance(made, expected):
        with error_path("name"):
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


def attack(table: Table, domain: Domain | None = None) -> tuple[Component, Attack]:
    """What the adversary does to inputs of this kind, if it is known, and what records call it.

    `adaptive = true` adapts it to the defense; `infer_labels = true` recovers labels that it needs
    and are not known; `unmix = true` carries on from InstaHide's encodings to the private inputs;
    `read_logits = true` takes the gradient at the logits from the last layer.
    An attack that ends in another one, or begins with recovered features, names
    it in a table of its own, `attack = { name = ... }` or `features = { name = ... }`; the network
    that makes its images is `prior = { width = ... }`.
    """
    name, options = split(table)
    for key, make in _INNER.items():
        if isinstance(options.get(key), Mapping):
            with error_path(key):
                options[key] = make(options[key], domain)
    wrappers: dict[str, Callable[[Attack], Attack]] = {
        "read_logits": ReadLogits,
        "infer_labels": InferLabels,
        "adaptive": adaptive,
        "unmix": Unmixed,
    }
    wanted = {key: options.pop(key, False) for key in wrappers}
    made = _constructed("attack", ATTACKS, {"name": name, **options}, Attack)
    if domain is not None:
        with error_path("name"):
            require_kind(name, domain)
    for key, wrap in wrappers.items():
        if not isinstance(wanted[key], bool):
            with error_path(key):
                raise InvalidValue(f"expected {key} to be true or false, got {wanted[key]!r}")
        if wanted[key]:
            made = _wrapped(name, made, key, wrap)
    return Component(*split(table)), made


def recovery(table: Table, domain: Domain | None = None) -> FeatureRecovery:
    """An attack that recovers features inside the network."""
    name, made = attack(table, domain)
    if not isinstance(made, FeatureRecovery):
        raise InvalidValue(
            f"expected an attack that recovers features, such as tensor_features, got {name}"
        )
    return made


_INNER: Mapping[str, Callable[[Table, Domain | None], object]] = {
    "attack": lambda table, domain: attack(table, domain)[1],
    "features": recovery,
    "prior": lambda table, _: construct("prior", PriorNetwork, table),
}


def _wrapped(name: str, made: Attack, key: str, wrap: Callable[[Attack], Attack]) -> Attack:
    if isinstance(made, ActiveAttack):
        with error_path(key):
            raise InvalidValue(
                f"{name} plants a network and takes no {key}; give it to the attack it ends in, "
                f"as attack = {{ name = ..., {key} = true }}"
            )
    return wrap(made)


DATASET = ("name", "split", "pixels", "mean", "std")
Find = Callable[[Table], Dataset]


def data(
    table: Table, *, find: Find | None = None
) -> tuple[Dataset | CapturedData, tuple[Victims | Strangers, ...]]:
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
