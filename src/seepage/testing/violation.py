"""A law broken."""


class ContractError(AssertionError):
    """A part does not keep a law that everything of its kind must keep."""


def require(holds: bool, part: object, law: str) -> None:
    """Raise `ContractError` naming the part and the law unless it holds."""
    if not holds:
        raise ContractError(f"{part!r} breaks a law: {law}")
