"""Layers that give their input away by what they are, whatever their weights."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from seepage.attacks.linear_systems import inspection
from seepage.core import Task
from seepage.vetting.verdict import Finding

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def exposed_inputs(task: Task) -> Iterator[Finding]:
    """A fully connected layer that reads the input, and a rank metric of zero.

    Both are exposed by architecture: an honest perceptron has the former, a small honest
    convolutional network the latter. Beside convolutions, which are there to read the input, a
    fully connected layer that reads it as well is suspicious.

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting); Chen and Campbell, 2022
        (chen2022analysing)
    """
    found = inspection(task)
    if found.closed_form is not None:
        name = found.closed_form
        if any(isinstance(module, CONVOLUTIONS) for module in task.model.modules()):
            reason = (
                f"{name!r} is fully connected and reads the input of a convolutional network, "
                "which has no use for it"
            )
            yield Finding("first layer", "suspicious", name, reason)
        else:
            reason = (
                f"{name!r} is fully connected with a bias and reads the input, so one example "
                "comes back in closed form"
            )
            yield Finding("first layer", "exposed", name, reason)
    if found.metric is not None and found.metric.layers and round(found.metric.value) == 0:
        reason = "its rank metric c(M) is 0: the equations of one update determine one example"
        yield Finding("rank metric", "exposed", "", reason)
