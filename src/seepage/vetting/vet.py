"""Vetting: what a client can check in a network it was sent, before it computes an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from seepage.core import Batch, Task
from seepage.core.errors import InvalidValue
from seepage.vetting.classifier import silenced_classes
from seepage.vetting.dsnr import FEWEST as CONCENTRATION_TAKES
from seepage.vetting.dsnr import gradient_concentration
from seepage.vetting.flipped import FEWEST as FLIPPING_TAKES
from seepage.vetting.flipped import flipped_labels
from seepage.vetting.pass_through import passing_layers
from seepage.vetting.readers import exposed_inputs
from seepage.vetting.repeated import repeated_rows
from seepage.vetting.verdict import Finding, Verdict

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
        "gradient concentration (D-SNR)": (gradient_concentration, CONCENTRATION_TAKES),
        "flipped labels": (flipped_labels, FLIPPING_TAKES),
    }
)
_ORDER = ("malicious", "suspicious", "exposed")


def vet(task: Task, batch: Batch | None = None) -> Verdict:
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
    return Verdict(task.name, tuple(findings), tuple(names))
