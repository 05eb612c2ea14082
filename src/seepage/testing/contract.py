"""A law broken."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any


class ContractError(AssertionError):
    """A part does not keep a law that everything of its kind must keep."""


def require(holds: bool, part: object, law: str) -> None:
    """Raise `ContractError` naming the part and the law unless it holds."""
    if not holds:
        raise ContractError(f"{part!r} breaks a law: {law}")


def check_value(part: Any) -> None:  # noqa: ANN401
    """Raise `ContractError` unless a part is a frozen dataclass with equality and a serial form."""
    require(is_dataclass(part) and _frozen(part), part, "it is a frozen dataclass")
    options = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
    require(part == type(part)(**options), part, "its fields rebuild it")


def _frozen(value: Any) -> bool:  # noqa: ANN401
    try:
        value.changed = True
    except FrozenInstanceError:
        return True
    return False
