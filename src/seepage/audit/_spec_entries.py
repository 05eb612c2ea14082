"""The entries of a spec, each turned into the value its constructor makes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, UnionType
from typing import Any, TypeVar

import torch

from seepage.attacks import ReadLogits, Unmixed, adaptive
from seepage.attacks._applicability import require_kind
from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.attacks.labels import InferLabels
from seepage.audit._captured_data import CapturedData, read_capture
from seepage.audit._targets import Target, select_targets
from seepage.bounds import BOUNDS, Bound
from seepage.clients import LOCALS
from seepage.core import ActiveAttack, Attack, Domain, LocalComputation, Protection, Task, errors
from seepage.core._batch import are_numbers
from seepage.core._construct import Component, Parts, construct, write_call
from seepage.core._construct import build as build_value
from seepage.core._loss import LOSSES
from seepage.core._part_text import read_links, read_part
from seepage.core._plugins import add_article, find_part, is_path
from seepage.core.errors import InvalidValue, UnknownName, error_path
from seepage.data._dataset import Dataset
from seepage.data._load import load
from seepage.defenses import DEFENSES, chain
from seepage.domains import Image, Signal
from seepage.rehearsal._auto_attack import ALL_ATTACKS
from seepage.threats._threat import Threat
from seepage.zoo._build_task import add_argument
from seepage.zoo._foreign import compare_with_inputs
from seepage.zoo._models import build
from seepage.zoo._weights import load_weights

T = TypeVar("T")
Table = Mapping[str, Any]
# A part as a table, or in words such as `Prune(ratio=0.9)`.
Part = Table | str
AnyData = Dataset | CapturedData
# After what records call them.
NamedAttack = tuple[Component, Attack]
NamedBound = tuple[Component, Bound]


@dataclass(frozen=True)
class _Kind:
    """Where parts are found by their names, what they must be, and which needs no name."""

    known: Mapping[str, Callable[..., Any]]
    type: type | UnionType
    usual: str | None = None


_THREATS: Mapping[str, Callable[..., Threat]] = {
    "Threat": Threat,
    "strongest": Threat.strongest,
    "realistic": Threat.realistic,
}
_KINDS: Mapping[str, _Kind] = {
    "bound": _Kind(BOUNDS, Bound),
    "defense": _Kind(DEFENSES, Protection),
    "local computation": _Kind(LOCALS, LocalComputation, "Gradient"),
    "threat": _Kind(_THREATS, Threat, "Threat"),
}


def require_numbers(value: object, *place: str | int) -> None:
    """Raise `InvalidValue` if there is NaN in it, or a whole number of more than 64 bits."""
    inside = value.items() if isinstance(value, Mapping) else ()
    for step, item in enumerate(value) if isinstance(value, list) else inside:
        require_numbers(item, *place, step)
    huge = isinstance(value, int) and abs(value) >= 2**63
    if huge or (isinstance(value, float) and math.isnan(value)):
        with error_path(*place):
            expected = "whole numbers of 64 bits" if huge else "a number"
            raise InvalidValue(f"expected {expected}, got {value}")


def read_words(written: str, noun: str) -> dict[str, Any]:
    """Read a part in words as its table; the options of some may be given by their place alone."""
    name, called, _ = written.partition("(")
    known = _KINDS[noun].known if noun in _KINDS else {}
    found = called and name.strip() in known
    order = [*inspect.signature(known[name.strip()]).parameters] if found else ()
    return read_part(written, noun, order=order)


def _read_table(part: object, noun: str) -> Table:
    """The table of a part, which may be in words."""
    if isinstance(part, str):
        return read_words(part, noun)
    if not isinstance(part, Mapping):
        raise InvalidValue(
            f"expected {add_article(noun)} as a table such as {{ name = ... }}, got {part!r}"
        )
    return part


def build_part(noun: str, part: Part) -> Any:  # noqa: ANN401
    """Make a bound, a defense, a local computation or a threat.

    Example:
        >>> build_part("defense", "Prune(ratio=0.9)")
        Prune(0.9)
        >>> build_part("local computation", {})
        Gradient(reduction='mean')
    """
    kind, table = _KINDS[noun], _read_table(part, noun)
    named = table if kind.usual is None else {"name": kind.usual, **table}
    return _construct_part(noun, kind.known, named, kind.type)


def _take_bool(table: dict[str, Any], key: str, default: bool = False) -> bool:
    """Take the truth value under a key out of a table."""
    if key not in table:
        return default
    with error_path(key):
        value: bool = build_value(table.pop(key), bool, f"expected {key}")
        return value


def _split_name(table: Table) -> tuple[str, dict[str, Any]]:
    """Split a table into its name and its options."""
    name = table.get("name")
    if not isinstance(name, str):
        raise InvalidValue(f"expected a table with a name, got {dict(table)!r}")
    return name, {key: value for key, value in table.items() if key != "name"}


def _construct_part(
    kind: str,
    known: Mapping[str, Callable[..., T]],
    table: Table,
    expected: type | UnionType,
    parts: Parts = MappingProxyType({}),
) -> T:
    """Make what a table names, in a catalogue or as `package.module:factory`."""
    name, options = _split_name(table)
    with error_path("name"):
        make = find_part(kind, name, known)
    with explain_errors(name):
        made = construct(name, make, options, parts=parts)
    if not isinstance(made, expected):
        with error_path("name"):
            raise InvalidValue(
                f"expected {name} to make {add_article(kind)}, got {type(made).__name__}"
            )
    return made


def explain_errors(name: str) -> AbstractContextManager[None]:
    """Turn whatever the user's own code raises into one sentence."""
    return errors.explain_errors(InvalidValue, f"{name} cannot be built or run, it raised")


def read_model(part: Part, dataset: AnyData) -> Task:
    """Build a network for the data set's inputs and classes, unless the table says otherwise."""
    name, options = _split_name(_read_table(part, "model"))
    weights = options.pop("weights", None)
    double = _take_bool(options, "double")
    fitted: dict[str, Any] = {"domain": dataset.domain}
    if dataset.classes is not None:
        fitted["classes"] = dataset.classes
    loss = options.pop("loss", None)
    shape = tuple(dataset.labels.shape[1:]) if isinstance(dataset, Dataset) else ()
    numbers = isinstance(dataset, Dataset) and are_numbers(dataset.labels)
    if dataset.classes == 0 or (numbers and isinstance(loss, str) and is_path(loss)):
        # What the network returns has another size than the targets.
        del fitted["classes"]
    if dataset.classes == 0 and loss is None:
        raise InvalidValue(
            "the data have no labels; give the model a loss of what it returns and what it reads, "
            "such as loss = 'MSELoss'"
        )
    if dataset.classes == 1 and "classes" not in options and not numbers:
        raise InvalidValue(
            "expected data of two classes or more, got one; add people of another class, give the "
            "model classes = 10 (-o classes=10), or the data labels = false for an autoencoder"
        )
    with explain_errors(name):
        task = build(name, options=options, fitted=fitted)
        task = task if weights is None else load_weights(task, weights)
        if loss is not None:
            task = _with_loss(task, loss)
        if dataset.classes == 0:
            task = compare_with_inputs(task)
        elif numbers and task.target_shape is None and "classes" not in fitted:
            task = replace(task, target_shape=shape)
    if numbers and task.target_shape is None:
        raise InvalidValue(
            f"the targets of {getattr(dataset, 'name', 'the data')} are numbers, for which "
            f"{name} has no loss; give the model loss = 'MSELoss'"
        )
    return task.to(dtype=torch.float64) if double else task


def _with_loss(task: Task, asked: object) -> Task:
    """Give a task a loss of torch, named with its options, or one of the user's own."""
    with error_path("loss"):
        name, options = _split_name(_read_table(asked, "loss"))
    lists = {key: torch.tensor(one) for key, one in options.items() if isinstance(one, list)}
    with error_path("loss"):
        made = construct(name, find_part("loss", name, LOSSES), {**options, **lists})
        if not callable(made):
            raise InvalidValue(f"expected {name} to return a loss, got {type(made).__name__}")
        return replace(task, loss=made, name=add_argument(task.name, "loss", asked))


def read_defenses(listed: object) -> tuple[Protection, ...]:
    """Make every defense, at least one."""
    with error_path("defenses"):
        found: tuple[Protection, ...] = build_value(
            listed, tuple[Protection, ...], "expected defenses", parts={Protection: read_defense}
        )
        return found


def read_defense(part: object) -> Protection:
    """Make a defense of one table, or chain a list of them; an empty list defends nothing."""
    listed = read_links(part) if isinstance(part, str) else part
    if listed == []:
        return chain()
    make: Parts = {Protection: partial(build_part, "defense")}
    links: tuple[Protection, ...] = build_value(
        listed, tuple[Protection, ...], "expected a defense", parts=make
    )
    return chain(*links)


def read_chains(written: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Read defenses in words as lists of tables; no defense is first unless it is listed.

    Example:
        >>> read_chains(["Sign"])
        [[], [{'name': 'Sign'}]]
        >>> read_chains(["Clip(max_norm=1) + AddGaussian(std=100)", "none"])[1:]
        [[]]
    """
    chains = [[read_words(link, "defense") for link in read_links(one)] for one in written]
    return chains if [] in chains else [[], *chains]


def read_bound(part: Part) -> NamedBound:
    """Make a bound, after what records call it."""
    table = _read_table(part, "bound")
    return Component(*_split_name(table)), build_part("bound", table)


_WRAPPERS: Mapping[str, Callable[[Attack], Attack]] = {
    "read_logits": ReadLogits,
    "infer_labels": InferLabels,
    "adaptive": adaptive,
    "unmix": Unmixed,
}


def read_attack(part: Part, domain: Domain | None = None) -> NamedAttack:
    """Make an attack on inputs of this kind, if it is known, after what records call it.

    `adaptive = true` adapts it to the defense. `infer_labels = true` infers labels that it needs
    and that are not known. `unmix = true` continues from InstaHide's encodings to the private
    inputs. `read_logits = true` takes the gradient at the logits from the last layer.
    An attack that ends in another one, or begins with recovered features, names it in a table of
    its own, `attack = { name = ... }` or `features = { name = ... }`; the network that makes its
    images is `prior = { width = ... }`.
    """
    table = _read_table(part, "attack")
    name, options = _split_name(table)
    parts: Parts = {
        Attack: lambda inner: read_attack(inner, domain)[1],
        FeatureRecovery: lambda inner: read_recovery(inner, domain),
    }
    wanted = [key for key in _WRAPPERS if _take_bool(options, key)]
    made = _construct_part("attack", ALL_ATTACKS, {"name": name, **options}, Attack, parts)
    if domain is not None:
        with error_path("name"):
            require_kind(name, domain)
    for key in wanted:
        if isinstance(made, ActiveAttack):
            with error_path(key):
                raise InvalidValue(
                    f"{name} plants a network and takes no {key}; give it to the attack it ends "
                    f"in, as attack = {{ name = ..., {key} = true }}"
                )
        made = _WRAPPERS[key](made)
    return Component(*_split_name(table)), made


def read_recovery(part: Part, domain: Domain | None = None) -> FeatureRecovery:
    """Make an attack that recovers features inside the network."""
    name, made = read_attack(part, domain)
    if not isinstance(made, FeatureRecovery):
        raise InvalidValue(
            f"expected an attack that recovers features, such as tensor_features, got {name}"
        )
    return made


DATASET = ("name", "split", "pixels", "mean", "std", "labels")
Find = Callable[[Table], Dataset]
FoundData = tuple[AnyData, tuple[Target, ...]]


def read_data(part: Part, *, find: Find | None = None) -> FoundData:
    """Read a data set and who of it is attacked, or a capture.

    The data set of its first keys is found by `find`, or else by `read_dataset`.
    """
    table = _read_table(part, "data")
    if "capture" in table:
        held = construct("a captured update", read_capture, table)
        return held, (held.target,)
    known = (*DATASET, "people", "batch_size", "start", "sample_seed")
    for key in table:
        if key not in known:
            with error_path(key):
                raise UnknownName("key", key, known)
    _split_name(table)
    found = (find or read_dataset)({key: table[key] for key in DATASET if key in table})
    batch_size = table.get("batch_size", 1)
    cut = {"people": table.get("people", batch_size), "batch_size": batch_size}
    chosen = {key: table[key] for key in ("start", "sample_seed") if key in table}
    return found, construct("a batch", partial(select_targets, found), {**cut, **chosen})


def read_dataset(table: Table) -> Dataset:
    """Load the data set of `{ name, split, pixels, mean, std, labels }`."""
    name, given = _split_name(table)
    options = {key: value for key, value in given.items() if key in ("split", "pixels")}
    scaling = {key: value for key, value in given.items() if key in ("mean", "std")}
    found = construct("data", load, {"name": name, **options})
    if scaling:
        found = construct("data", partial(_normalise, found), scaling)
    if not _take_bool(given, "labels", True):
        options["labels"] = False
        found = replace(found, labels=torch.zeros(len(found), 0), class_names=())
    if options or scaling:
        # Records must tell the same data at another size or split apart.
        found = replace(found, name=write_call(found.name, options | scaling))
    return found


def find_dataset(written: str) -> Dataset:
    """Load a data set in words, such as `folder:PATH:pixels=28`."""
    return read_dataset(read_words(written, "data"))


def _normalise(
    dataset: Dataset,
    *,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
) -> Dataset:
    """Let networks see (x - mean) / std in every channel of the data, or in each by its own."""
    domain = dataset.domain
    if not isinstance(domain, Image | Signal):
        raise InvalidValue(f"mean and std are for images and signals; leave them out for {domain}")
    channels = domain.shape[0]
    lists: list[Sequence[Any]] = [
        one if isinstance(one, list | tuple) else [one] * channels for one in (mean, std)
    ]
    if not all(type(n) in (int, float) and abs(n) < math.inf for one in lists for n in one):
        raise InvalidValue(f"expected mean and std as finite numbers, got {mean!r} and {std!r}")
    means, deviations = (tuple(map(float, given)) for given in lists)
    return replace(dataset, domain=replace(domain, mean=means, std=deviations))


def build_once(read: Callable[..., T]) -> Callable[..., T]:
    """Return a `read` that builds what several scenarios share only once."""
    known: dict[tuple[object, ...], tuple[T, Mapping[str, object]]] = {}

    def read_once(part: Part, **given: object) -> T:
        written = sorted(part.items()) if isinstance(part, Mapping) else part
        key = repr(written), *map(id, given.values())
        if key not in known:
            # What is given is kept too, so that nothing else can get its id.
            known[key] = read(part, **given), given
        return known[key][0]

    return read_once
