"""What theory said in one case: a bound as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.core.bound import Side


@dataclass(frozen=True)
class Ceiling:
    """A bound on the error of attacks on one batch.

    Args:
        values: One per person; empty where the case failed.
        side: Whether the error is at least or at most this.
        metric: What is bounded.
        assumptions: Under which it holds.
        remark: Why it says nothing, where it does not; empty otherwise.
        peak: Width of the range of an entry, which a PSNR is relative to.
        entries: Of one input.
        mode: In which the client ran the network, "train" or "eval".
    """

    values: tuple[float, ...]
    side: Side
    metric: str
    assumptions: tuple[str, ...] = ()
    remark: str = ""
    peak: float = 1.0
    entries: int = 1
    mode: str = "eval"
