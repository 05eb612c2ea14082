"""Words for the values of a record: short labels, and numbers with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seepage.audit._record import Defense, Record
from seepage.core._construct import Component
from seepage.defenses._recorded import defense_words as defense_words

T = TypeVar("T", bound=Hashable)

NO_DEFENSE: Defense = ()
# Why nothing is said to be safe, or proved, behind a defense that does not do what it tells.
UNSIMULATED = "the defense could not be simulated"


def local_words(local: Component) -> str:
    """The short label of what the client computed.

    Example:
        >>> local_words(Component("Gradient", {"reduction": "mean"}))
        'gradient'
        >>> local_words(Component("FedAvg", {"lr": 0.1, "steps": 4, "epochs": None}))
        'FedAvg 4 steps'
        >>> local_words(Component("Local", {"optimizer": "AdamW", "epochs": 2}))
        'AdamW 2 epochs'
    """
    arguments = local.arguments
    if local.name == "Gradient":
        return "summed gradient" if arguments.get("reduction") == "sum" else "gradient"
    if local.name not in ("FedAvg", "Local"):
        return str(local)
    steps, epochs, size = (arguments.get(k) for k in ("steps", "epochs", "local_batch_size"))
    if not (isinstance(steps, int | None) and isinstance(epochs, int | None)):
        return str(local)
    long = count_noun(epochs or 1, "epoch") if steps is None else count_noun(steps, "step")
    name = arguments.get("optimizer", local.name)
    parts = [f"{name} {long}", f"batches of {size}" if size else ""]
    parts += [word for key, word in _HIDDEN.items() if arguments.get(key)]
    return ", ".join(filter(None, parts))


# What the server does not see of a local training.
_HIDDEN = {"shuffle": "shuffled", "warm": "with a warm optimizer"}


_KNOWLEDGE: Mapping[str, str] = {
    "knows_labels": "the labels",
    "knows_batch_size": "the batch size",
    "knows_defense": "the defense",
    "knows_mixing": "any mixing of inputs",
}
_STATISTICS: Mapping[object, str] = {
    "exact": "the batch statistics",
    "running": "the broadcast batch statistics",
}


def _split_threat(threat: Component) -> tuple[list[str], list[str]]:
    """What the adversary had besides the update, and what it lacked."""
    had, lacked = list[str](), list[str]()
    for name, value in threat.arguments.items():
        if name in _KNOWLEDGE:
            (had if value else lacked).append(_KNOWLEDGE[name])
        elif name == "batchnorm":
            known = isinstance(value, str) and value in _STATISTICS
            (had if known else lacked).append(_STATISTICS[value if known else "exact"])
        elif name == "rounds":
            if value != 1:
                had.append(f"{value} rounds")
        elif name != "server":
            had.append(f"{name}={value!r}")
        elif value == "malicious":
            had.append("the freedom to send any network")
    return had, lacked


def threat_words(threat: Component | None) -> str:
    """What the adversary had, as a clause after "the adversary had"; empty for a bound.

    Example:
        >>> knows = {"knows_labels": True, "knows_defense": False, "batchnorm": "exact"}
        >>> threat_words(Component("Threat", knows))
        'the update, the labels and the batch statistics, but not the defense'
    """
    if threat is None:
        return ""
    had, lacked = _split_threat(threat)
    words = list_words(["the update", *had])
    return f"{words}, but not {list_words(lacked, 'or')}" if lacked else words


def threat_label(threat: Component) -> str:
    """What the adversary knew besides the update, short enough for a table.

    Example:
        >>> threat_label(Component("Threat", {"knows_labels": True, "knows_defense": False}))
        'knows labels'
    """
    had = [known.removeprefix("the ") for known in _split_threat(threat)[0]]
    return f"knows {', '.join(had)}" if had else "knows the update only"


@dataclass(frozen=True)
class Setup:
    """Defense, local computation and batch size; cases that differ in these are kept apart."""

    defense: Defense
    local: Component
    batch_size: int

    @classmethod
    def of(cls, record: Record) -> Setup:
        """The setup of a case."""
        return cls(record.defense, record.local, len(record.people))


def label_setups(setups: Iterable[Setup]) -> dict[Setup, str]:
    """The defense of each setup, with the local computation and the batch size if these vary.

    Example:
        >>> gradient = Component("Gradient")
        >>> list(label_setups([Setup((), gradient, 1), Setup((), gradient, 8)]).values())
        ['no defense, batch size 1', 'no defense, batch size 8']
    """
    every = list(dict.fromkeys(setups))
    defenses = label_defenses(s.defense for s in every)
    locals_ = tell_apart((s.local for s in every), local_words, str)
    sizes = {setup.batch_size for setup in every}
    return {
        setup: ", ".join(
            [
                defenses[setup.defense],
                *[locals_[setup.local]] * (len(locals_) > 1),
                *[f"batch size {setup.batch_size}"] * (len(sizes) > 1),
            ]
        )
        for setup in every
    }


def label_defenses(defenses: Iterable[Defense]) -> dict[Defense, str]:
    """The short label of each defense, or its calls in full if two share the short one."""
    return tell_apart(defenses, defense_words, lambda links: " + ".join(map(str, links)))


def tell_apart(
    values: Iterable[T], short: Callable[[T], str], full: Callable[[T], str]
) -> dict[T, str]:
    """The short label of each value, or the full one if two values share the short one."""
    labels = {value: short(value) for value in dict.fromkeys(values)}
    taken = list(labels.values())
    return {v: word if taken.count(word) == 1 else full(v) for v, word in labels.items()}


def short_names(names: Iterable[T]) -> dict[T, str]:
    """Each attack, bound, network or data set without its arguments, if that tells it apart.

    Example:
        >>> short_names([Component("dlg", {"steps": 3})])[Component("dlg", {"steps": 3})]
        'dlg'
        >>> short_names(["mlp(hidden=(8,))", "mlp(hidden=(9,))"])["mlp(hidden=(8,))"]
        'mlp(hidden=(8,))'
    """

    def shorten(name: T) -> str:
        return name.name if isinstance(name, Component) else str(name).partition("(")[0]

    return tell_apart(names, shorten, str)


def decibels(value: float | None, *, unit: bool = True) -> str:
    """Write a PSNR; infinity means exact, and None or minus infinity that there is none.

    Example:
        >>> decibels(31.25), decibels(math.inf), decibels(None)
        ('31.2 dB', 'exact', '-')
    """
    if value is None or value == -math.inf:
        return "-"
    return "exact" if value == math.inf else f"{value:.1f}{' dB' if unit else ''}"


def residual_words(residual: float) -> str:
    """Write a residual, which is relative: one digit, and no exponent where few zeros do.

    Example:
        >>> residual_words(2.5e-7), residual_words(0.0021), residual_words(23.4)
        ('2e-07', '0.002', '23')
    """
    return f"{residual:.1g}" if residual < 1 else f"{residual:,.0f}"


def list_words(words: Sequence[str], last: str = "and") -> str:
    """Join words as a sentence does.

    Example:
        >>> list_words(["clipping", "noise", "pruning"])
        'clipping, noise and pruning'
    """
    return f" {last} ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def count_noun(count: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun.

    Example:
        >>> count_noun(1, "case"), count_noun(2, "case"), count_noun(3, "person", "people")
        ('1 case', '2 cases', '3 people')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """A share as a percentage of three digits.

    Example:
        >>> percent(0.010512), percent(0.3891)
        ('1.05 %', '38.9 %')
    """
    return f"{100 * share:.3g} %"


def write_duration(seconds: float) -> str:
    """Write a time in words.

    Example:
        >>> write_duration(0.2), write_duration(95), write_duration(7300)
        ('1 s', '1 min 35 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
