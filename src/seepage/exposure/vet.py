"""Vetting: what a client can check in a network it was sent, before it computes an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import Batch, Task
from seepage.core.errors import InvalidValue
from seepage.exposure.server_checks import FEWEST_LABELLED as FLIPPING_TAKES
from seepage.exposure.server_checks import (
    Finding,
    VettingVerdict,
    exposed_inputs,
    flipped_labels,
    passing_layers,
    repeated_rows,
    silenced_classes,
)

# Times the mean of the others; honest networks, trained or not, stay well below.
CONCENTRATED = 50.0
FEWEST_EXAMPLES = 8
MOST = 16
# Below this, an example is known by heart and says nothing about how the network spreads gradients.
KNOWN = 1e-5


@dataclass(frozen=True)
class Concentration:
    """How far one example outweighs all the others in some layer.

    Args:
        plain: max over layers of max_i ||g_i|| / (sum_j ||g_j|| - max_i ||g_i||), the D-SNR.
        relative: The same with every g_i divided by the norm of the loss's gradient at the logits.
        layer: Where the relative one is largest.
        examples: How many were compared.
    """

    plain: float
    relative: float
    layer: str
    examples: int


def gradient_concentration(task: Task, batch: Batch) -> Iterator[Finding]:
    """Examples that alone make up the gradient of a layer though others are as wrong.

    D-SNR alone would raise an alarm over every trained network that meets one example it does not
    know. What an honest network cannot do is to answer equal losses with very unequal gradients,
    so each example is measured relative to the loss's gradient at the logits.

    References:
        Garov et al., 2024 (garov2024hiding)
    """
    found = concentration(task, batch)
    if found is not None and found.relative * (found.examples - 1) > CONCENTRATED:
        reason = (
            f"at equal loss, one of your {found.examples} examples outweighs all the others "
            f"{_times(found.relative)} in the gradient of {found.layer!r} (D-SNR {found.plain:.3g})"
        )
        yield Finding("concentration", "suspicious", found.layer, reason)


def concentration(task: Task, batch: Batch) -> Concentration | None:
    """D-SNR over the first examples of a batch; None if too few say anything."""
    task = task.in_mode("eval")
    norms, errors = [], []
    for number in range(min(len(batch), MOST)):
        one = slice(number, number + 1)
        update = Gradient()(task, batch.inputs[one], batch.labels[one])
        norms.append(torch.stack([tensor.norm() for tensor in update]))
        errors.append(_at_logits(task, batch.inputs[one], batch.labels[one]))
    error = torch.stack(errors).double()
    spoken = error > KNOWN * float(error.max())
    if int(spoken.sum()) < FEWEST_EXAMPLES:
        return None
    each = torch.stack(norms).double()[spoken]
    relative = _outweighs(each / error[spoken, None])
    worst = int(relative.argmax())
    name = list(task.parameters)[worst]
    plain = float(_outweighs(each).max())
    return Concentration(plain, float(relative[worst]), name, len(each))


def _outweighs(norms: Tensor) -> Tensor:
    """For each column, the largest entry over the sum of the others; zero where all are zero."""
    largest, total = norms.amax(0), norms.sum(0)
    rest = total - largest
    return torch.where(largest > 0, largest / rest.clamp_min(1e-300), 0.0)


def _at_logits(task: Task, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = task.outputs(task.parameters, inputs)
    outputs.requires_grad_(True)
    (gradient,) = torch.autograd.grad(task.loss(outputs, labels).sum(), outputs)
    norm: Tensor = gradient.norm()
    return norm


def _times(value: float) -> str:
    return f"{value:.3g} times" if value < 1e6 else "beyond measure"


OF_WEIGHTS: Mapping[str, Callable[[Task], Iterable[Finding]]] = MappingProxyType(
    {
        "repeated rows and bins of biases": repeated_rows,
        "pass-through layers": passing_layers,
        "inputs exposed by the architecture": exposed_inputs,
        "silenced classes": silenced_classes,
    }
)
# Each with the number of examples below which it says nothing.
ON_DATA: Mapping[str, tuple[Callable[[Task, Batch], Iterable[Finding]], int]] = MappingProxyType(
    {
        "gradient concentration (D-SNR)": (gradient_concentration, FEWEST_EXAMPLES),
        "flipped labels": (flipped_labels, FLIPPING_TAKES),
    }
)
_ORDER = ("malicious", "suspicious", "exposed")


def vet(task: Task, batch: Batch | None = None) -> VettingVerdict:
    """Say whether a network looks as if its server wanted to read the update it will cause.

    Only weights that honest training does not lead to are alarms. What an architecture exposes,
    however honest, is listed as exposed and leaves the verdict clean. A clean verdict is no proof:
    weights can be optimised to leak and look like any others.

    Args:
        task: The network that was received.
        batch: Data of the client's own, which stays here; some checks run on data alone. A dozen
            examples or more of several classes say most; with fewer, some are left out.

    Example:
        >>> import seepage as sp
        >>> honest = sp.zoo.lenet()
        >>> planted = sp.attacks.robbing_the_fed(bins=16).plant(honest, rng=sp.rng(0))
        >>> vet(honest).judgement, vet(planted).judgement
        ('clean', 'malicious')

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting), who ask for vetting; Garov et al.,
        2024 (garov2024hiding)
    """
    if not isinstance(task, Task):
        raise InvalidValue(
            f"expected a Task, with its loss and inputs, got {type(task).__name__}; make one "
            "with Task(model, loss, domain)"
        )
    findings = [finding for check in OF_WEIGHTS.values() for finding in check(task)]
    names = [*OF_WEIGHTS]
    if batch is not None:
        task.check(batch)
        for name, (check, fewest) in ON_DATA.items():
            if len(batch) >= fewest:
                findings += check(task, batch)
                names.append(name)
    findings.sort(key=lambda finding: _ORDER.index(finding.level))
    return VettingVerdict(task.name, tuple(findings), tuple(names))
