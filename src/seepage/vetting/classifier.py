"""A classifier that some classes cannot reach."""

from __future__ import annotations

from collections.abc import Iterator

from seepage.attacks.labels.head import classifier_head
from seepage.core import Task
from seepage.core.errors import NotApplicable
from seepage.vetting.verdict import Finding, Level
from seepage.vetting.weights import DEAD

# Natural logarithm of how much more likely a class is before the input was looked at.
HOPELESS = 15.0


def silenced_classes(task: Task) -> Iterator[Finding]:
    """Rows of zeros in the last layer, or biases that decide before the input is looked at.

    The people of silenced classes leave nothing below the last layer, so that the update is that
    of the others alone. A layer that is zero altogether is an honest way to begin.

    References:
        Wen et al., 2022 (wen2022fishing)
    """
    try:
        head = classifier_head(task)
    except NotApplicable:
        return
    layer = head.weight.removesuffix(".weight")
    norms = task.parameters[head.weight].norm(dim=1)
    silent = int((norms <= DEAD * norms.max()).sum()) if float(norms.max()) > 0 else 0
    if silent:
        reason = (
            f"{silent} of {len(norms)} classes have a row of zeros in {layer!r}, so that their "
            "people leave nothing in the layers below and the update is that of the others alone"
        )
        level: Level = "malicious" if silent >= len(norms) - 1 else "suspicious"
        yield Finding("silenced classes", level, layer, reason)
    bias = task.parameters[head.bias] if head.bias is not None else head.offset
    spread = float(bias.max() - bias.min())
    moved = float((head.logits - bias).abs().max())
    if spread > HOPELESS and spread > 2 * moved:
        reason = (
            f"biases of {layer!r} differ by {spread:.3g}, more than any input moves the logits "
            f"({moved:.3g}): some classes are ruled out before the input is looked at"
        )
        yield Finding("silenced classes", "malicious", layer, reason)
