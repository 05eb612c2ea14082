"""Any attack as it was before it was adapted: what an adversary can always do as well."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from seepage.attacks.adaptive.attack import Adaptive

Value = TypeVar("Value")


def unadapted(attack: Value) -> Value:
    """The attack without what adapts it, however deep inside; itself if nothing does.

    Example:
        >>> import seepage as sp
        >>> search = sp.attacks.dlg(iterations=1)
        >>> knowing = sp.attacks.Unmixed(sp.attacks.adaptive(search, sp.Prune(0.9)))
        >>> unadapted(knowing) == sp.attacks.Unmixed(search)
        True
        >>> unadapted(search) is search
        True
    """
    if isinstance(attack, Adaptive):
        return unadapted(attack.attack)  # type: ignore[return-value]
    if not is_dataclass(attack) or isinstance(attack, type):
        return attack
    held = {field.name: getattr(attack, field.name) for field in fields(attack) if field.init}
    bare = {name: unadapted(value) for name, value in held.items()}
    changed = {name: value for name, value in bare.items() if value is not held[name]}
    return replace(attack, **changed) if changed else attack
