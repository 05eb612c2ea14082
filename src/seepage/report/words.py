"""Values as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence


def defense_words(defense: str) -> str:
    """A defense without the punctuation of the call that made it.

    Example:
        >>> defense_words("chain()")
        'none'
        >>> defense_words("chain(ClipEach(1.0), Mean(), AddGaussian(0.01))")
        'ClipEach(1.0) + Mean + AddGaussian(0.01)'
    """
    if not defense.startswith("chain("):
        return defense.replace("()", "")
    links = defense.removeprefix("chain(").removesuffix(")")
    return links.replace("), ", ") + ").replace("()", "") or "none"


def behind(defense: str) -> str:
    """A defense as it stands after "behind", or beside a picture.

    Example:
        >>> behind("chain()"), behind("chain(Prune(0.9))")
        ('no defense', 'Prune(0.9)')
    """
    words = defense_words(defense)
    return "no defense" if words == "none" else words


def decibels(value: float | None, *, unit: bool = True) -> str:
    """A PSNR; infinite means exact, and minus infinity that there is none.

    Example:
        >>> decibels(31.25), decibels(math.inf), decibels(None)
        ('31.2 dB', 'exact', '-')
    """
    if value is None or value == -math.inf:
        return "-"
    return "exact" if value == math.inf else f"{value:.1f}{' dB' if unit else ''}"


def enumerated(words: Sequence[str], last: str = "and") -> str:
    """Words in a row, as a sentence has them.

    Example:
        >>> enumerated(["clipping", "noise", "pruning"])
        'clipping, noise and pruning'
    """
    return f" {last} ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "case"), counted(2, "case"), counted(3, "person", "people")
        ('1 case', '2 cases', '3 people')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each call without its options, where that still tells it from the others.

    Example:
        >>> short_names(["dlg(steps=3)", "mlp(hidden=(8,))", "mlp(hidden=(9,))"])["dlg(steps=3)"]
        'dlg'
        >>> short_names(["mlp(hidden=(8,))", "mlp(hidden=(9,))"])["mlp(hidden=(8,))"]
        'mlp(hidden=(8,))'
    """
    every = list(dict.fromkeys(names))
    heads = [name.partition("(")[0] for name in every]
    return {
        name: head if heads.count(head) == 1 else name
        for name, head in zip(every, heads, strict=True)
    }


_KNOWLEDGE = {
    "knows_labels=True": "the labels",
    "knows_batch_size=True": "the batch size",
    "knows_defense=True": "the defense",
    "knows_mixing=True": "any mixing of inputs",
    "server='malicious'": "the freedom to send any network",
    "batchnorm='exact'": "the batch statistics",
    "batchnorm='running'": "the broadcast batch statistics",
}
_IGNORANCE = {
    "knows_labels=False": "the labels",
    "knows_batch_size=False": "the batch size",
    "knows_defense=False": "the defense",
    "knows_mixing=False": "any mixing of inputs",
    "batchnorm='unknown'": "the batch statistics",
}


def threat_words(threat: str) -> str:
    """What the adversary had, as a clause after "the adversary had"; new fields as they stand.

    Example:
        >>> threat_words("Threat(knows_labels=True, knows_defense=False, batchnorm='exact')")
        'the update, the labels and the batch statistics, but not the defense'
    """
    fields = [f for f in re.findall(r"\w+=[^,()]+", threat) if f != "server='honest'"]
    had = [_KNOWLEDGE.get(field, field) for field in fields if field not in _IGNORANCE]
    lacked = [_IGNORANCE[field] for field in fields if field in _IGNORANCE]
    words = enumerated(["the update", *had])
    return f"{words}, but not {enumerated(lacked, 'or')}" if lacked else words
