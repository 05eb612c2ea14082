"""What changed between the plan of an audit and the spec it is to be resumed with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from seepage.audit.database import Planned

# What changes along with something that says more.
_WITH: Mapping[str, tuple[str, ...]] = defaultdict(
    tuple,
    people=("data",),
    inputs=("data", "people"),
    domain=("data", "model"),
    weights=("data", "model"),
    options=("attack", "bound"),
)
_LONGEST = 80


def changes(before: Sequence[Planned], now: Sequence[Planned]) -> str:
    """Name the parts of a case that differ, in words.

    Example:
        >>> mlp = Planned("1", "", {"model": "mlp", "seed": "0"})
        >>> cnn = Planned("2", "", {"model": "cnn", "seed": "0"})
        >>> changes([mlp], [cnn])
        "model was 'mlp' and is now 'cnn'"
    """
    names = dict.fromkeys(name for case in (*before, *now) for name in case.identity)
    found = {name: words for name in names if (words := _change(name, before, now))}
    told = [words for name, words in found.items() if not any(n in found for n in _WITH[name])]
    return ", and ".join(told) or f"it had {len(before)} cases and now has {len(now)}"


def _change(name: str, before: Sequence[Planned], now: Sequence[Planned]) -> str:
    old, new = ({case.identity.get(name, "") for case in cases} for cases in (before, now))
    gone, come = sorted(old - new), sorted(new - old)
    if gone and come:
        return f"{name} was {_listed(gone)} and is now {_listed(come)}"
    if gone:
        return f"{name} {_listed(gone)} is gone"
    return f"{name} {_listed(come)} is new" if come else ""


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - 1} more" if len(values) > 1 else ""
    first = values[0] if len(values[0]) <= _LONGEST else values[0][:_LONGEST] + "..."
    return f"{first!r}{more}"
