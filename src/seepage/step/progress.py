"""A line that shows that an audited step is alive, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from seepage.core import progress


@contextmanager
def shown(name: str) -> Iterator[None]:
    """Show the steps of an attack on a terminal; whoever listens already goes on listening.

    Args:
        name: Of the attack.
    """
    if progress.heard() or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"auditing the step: {name}") as status:

        def tell(step: int, steps: int, objective: float) -> None:
            status.update(
                f"auditing the step: {name}, step {step}/{steps}, objective {objective:.3g}"
            )

        with progress.listen(tell):
            yield
