"""Vetting: what a client can check in a received network before it computes an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.core import Batch, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure._gradient_probes import (
    FEWEST_EXAMPLES,
    FEWEST_PLACES,
    concentration,
    find_held_input,
    find_own_places,
)
from seepage.exposure._inspection import inspection
from seepage.exposure._repeated_rows import (
    CONVOLUTIONS,
    find_repeated_rows,
    find_sorting_units,
    list_rows,
)
from seepage.probing._heads import classifier_head

Level = Literal["exposed", "suspicious", "malicious"]
Judgement = Literal["clean", "suspicious", "malicious"]


@dataclass(frozen=True)
class Finding:
    """One finding.

    Args:
        check: The check that found it.
        level: "exposed": the architecture gives inputs away, as honest ones may, but the weights
            are not strange. "suspicious": honest training hardly leads here. "malicious": the only
            purpose is to read inputs off the update.
        layer: The module; empty for the network as a whole.
        reason: One sentence.
    """

    check: str
    level: Level
    layer: str
    reason: str


@dataclass(frozen=True)
class VettingVerdict:
    """What was found in a network, and how bad it is.

    Args:
        model: Name of the task.
        findings: All findings, alarms first.
        checks: The names of all checks that ran.

    Example:
        >>> finding = Finding("reader", "exposed", "fc", "reads the input")
        >>> VettingVerdict("mlp", (finding,)).judgement
        'clean'
    """

    model: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that an honest network does not have."""
        return tuple(found for found in self.findings if found.level != "exposed")

    @property
    def judgement(self) -> Judgement:
        """The worst alarm, or "clean"."""
        levels: set[str] = {found.level for found in self.alarms}
        return "malicious" if "malicious" in levels else "suspicious" if levels else "clean"

    @property
    def trusted(self) -> bool:
        """Whether there is no alarm."""
        return not self.alarms


# Classes whose rows have a norm below this, relative to the largest, are silenced.
DEAD = 1e-6


# Logarithm of how much more likely one class is than another before the input is read.
HOPELESS = 15.0
# The same between likely classes and all others. Training on one person in a hundred leads to 4.6,
# and so does a prior of one in a hundred, as detectors begin with.
UNLIKELY = 5.2
# Inputs undo biases where all of these classes are as likely as this in the end, by logarithm.
UNDONE = -1.0


def _silenced_classes(task: Task) -> Iterator[Finding]:
    """Rows of zeros in the last layer, or biases that decide before the input is read.

    Examples of silenced classes leave nothing below the last layer, so that the update is that of
    the other examples. A last layer of zeros only is an honest initialisation.

    References:
        Wen et al., 2022 (wen2022fishing)
    """
    try:
        head = classifier_head(task)
    except NotApplicable:
        return
    layer, norms = head.layer, task.parameters[head.weight].norm(dim=1)
    silent = int((norms <= DEAD * norms.max()).sum()) if float(norms.max()) > 0 else 0
    if silent:
        reason = (
            f"{silent} of {len(norms)} classes have a row of zeros in {layer!r}, so that their "
            "examples leave nothing in the layers below and the update shows the others alone"
        )
        level: Level = "malicious" if silent >= len(norms) - 1 else "suspicious"
        yield Finding("silenced classes", level, layer, reason)
    bias = task.parameters[head.bias] if head.bias is not None else head.offset
    spread = float(bias.max() - bias.min())
    moved = float((head.logits - bias).abs().max())
    if spread > HOPELESS and spread > 2 * moved:
        reason = (
            f"biases of {layer!r} differ by {spread:.3g}, more than any input moves the logits "
            f"({moved:.3g}): some classes are ruled out before the input is read"
        )
        yield Finding("silenced classes", "malicious", layer, reason)
    elif silent := _count_unlikely_classes(bias, head.logits):
        reason = (
            f"biases of {layer!r} make {silent} of {len(bias)} classes at least "
            f"{math.exp(UNLIKELY):.0f} times less likely than any other before the input is read: "
            "people of the others leave next to nothing, so that the update shows a lone one of "
            "these; training leads there only if people of these classes are as rare"
        )
        yield Finding("silenced classes", "suspicious", layer, reason)


def _count_unlikely_classes(bias: Tensor, logits: Tensor) -> int:
    """How many classes lie below a jump of the biases `(K,)`; 0 if they are less than half of all.

    Frequencies of many classes spread biases evenly, so a jump is looked for and not a distance.

    Args:
        bias: Of the last layer.
        logits: What it returns for inputs that nobody chose, `(M, K)`. Where inputs make up for the
            biases, as those of columns that are not centred, there is no such class.

    Example:
        >>> bias = torch.tensor([0.0, -6.0, -6.1, -6.2])
        >>> _count_unlikely_classes(bias, bias + torch.zeros(5, 4))
        3
    """
    ordered = bias.double().sort(descending=True)
    jumps = (ordered.values[:-1] - ordered.values[1:])[: len(bias) // 2]
    if not len(jumps) or not float(jumps.max()) > UNLIKELY:
        return 0
    likely, others = ordered.indices.tensor_split([1 + int(jumps.argmax())])
    middle = logits.double().mean(0)
    undone = float((middle[others] - middle[likely].max()).amin()) > UNDONE
    return 0 if undone else len(others)


FEWEST_LABELLED = 12
WRONG, RIGHT = 0.3, 0.8


def _flipped_labels(task: Task, batch: Batch) -> Iterator[Finding]:
    """Predictions that are wrong, but right after renaming the classes.

    An untrained network is wrong under every naming; a trained one is right under its own.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    if batch.labels.ndim != 1 or len(batch) < FEWEST_LABELLED:
        return
    with torch.no_grad():
        predicted = task.in_mode("eval").outputs(task.parameters, batch.inputs).argmax(1)
    right = float((predicted == batch.labels).double().mean())
    renamed = _best_agreement(predicted, batch.labels)
    if right <= WRONG and renamed >= RIGHT and len(set(predicted.tolist())) >= 3:
        reason = (
            f"it is right about {100 * right:.0f} % of your examples, and would be about "
            f"{100 * renamed:.0f} % if its classes were renamed: rows of the classifier have been "
            "permuted"
        )
        yield Finding("flipped labels", "suspicious", "", reason)


def _best_agreement(predicted: Tensor, labels: Tensor) -> float:
    """The share of predictions that are right under the best renaming of the classes."""
    from scipy.optimize import linear_sum_assignment

    # Classes without an example agree with nothing, and there may be a hundred thousand of them.
    kept, rows = torch.unique(labels, return_inverse=True)
    named, columns = torch.unique(predicted, return_inverse=True)
    pairs = torch.bincount(rows * len(named) + columns, minlength=len(kept) * len(named))
    agreement = pairs.reshape(len(kept), len(named)).double() / len(labels)
    rows, columns = linear_sum_assignment(agreement.cpu().numpy(), maximize=True)
    return float(agreement[rows, columns].sum())


# In fewer dimensions one entry outweighs the others by chance.
PASS_DIMENSIONS = 9
DOMINANT = 0.9
PASS_SHARE = 0.9


def _passing_layers(task: Task) -> Iterator[Finding]:
    """Layers whose rows each have one large entry: identities and permutations.

    Such a first layer passes the input on; after a chain of them, the classifier reads the input.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    layers = list(list_rows(task))
    first = {rows.name for rows in layers[:1]}
    first |= {rows.name for rows in [r for r in layers if r.convolutional][:1]}
    for rows in layers:
        if not _passes_on(rows.matrix):
            continue
        kind = "convolution" if rows.convolutional else "fully connected layer"
        reason = f"{kind} {rows.name!r} passes on single entries of what it reads, unchanged"
        level: Level = "malicious" if rows.name in first else "suspicious"
        yield Finding("pass-through layers", level, rows.name, reason)


def _passes_on(matrix: Tensor) -> bool:
    """Whether nearly every row has nearly all of its energy in one entry."""
    if matrix.shape[1] < PASS_DIMENSIONS or len(matrix) == 0:
        return False
    energy = matrix.double().square()
    dominant = energy.amax(1) > DOMINANT * energy.sum(1)
    return bool(dominant.double().mean() >= PASS_SHARE)


def _exposed_inputs(task: Task) -> Iterator[Finding]:
    """A layer that reads the whole input, and a rank metric of zero.

    The architecture exposes both: an honest perceptron has the former, a small honest
    convolutional network the latter. A fully connected layer that reads the input of a
    convolutional network is suspicious.

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting); Chen and Campbell, 2022
        (chen2022analysing)
    """
    found = inspection(task)
    name = found.closed_form
    convolutional = any(isinstance(m, CONVOLUTIONS) for m in task.model.modules())
    if name is not None and convolutional:
        reason = (
            f"{name!r} is fully connected and reads the input of a convolutional network, which "
            "has no use for it"
        )
        yield Finding("first layer", "suspicious", name, reason)
    elif name is not None:
        reason = (
            f"{name!r} is fully connected with a bias and reads the input, so one example comes "
            "back in closed form"
        )
        yield Finding("first layer", "exposed", name, reason)
    elif (held := find_held_input(task)) is not None:
        reason = f"the gradient of {held!r} is the input itself, up to scale and shift"
        yield Finding("held input", "suspicious" if convolutional else "exposed", held, reason)
    if found.metric is not None and found.metric.layers and round(found.metric.value) == 0:
        reason = "its rank metric c(M) is 0: the equations of one update determine one example"
        if found.metric.at_most:
            reason = (
                "its rank metric c(M) is at most 0, by counting: the equations of one update may "
                "determine one example"
            )
        yield Finding("rank metric", "exposed", "", reason)


def _repeated_rows(task: Task) -> Iterator[Finding]:
    """Layers with many rows that are equal up to scale: they measure one thing many times.

    If their biases differ, they sort inputs into bins, and differences of neighbouring rows of the
    gradient are single inputs. Neither other rows nor single large entries hide the repeated ones.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    for rows in list_rows(task):
        found = find_repeated_rows(rows)
        if found is None:
            continue
        share = (
            f"{found.count} of the {len(rows.matrix)} rows of {rows.name!r} are one row repeated"
        )
        if found.is_bins:
            reason = (
                f"{share}, with biases that sort inputs into bins; what a bin holds alone stands "
                "in the gradient as it is"
            )
            yield Finding("bins of biases", "malicious", rows.name, reason)
        else:
            reason = f"{share} up to scale, which training does not lead to"
            yield Finding("repeated rows", "suspicious", rows.name, reason)


def _sorting_units(task: Task) -> Iterator[Finding]:
    """Units that measure one thing and cut it at many places, though their rows may look different.

    Noise as large as the rows, or many rows beside them, hide bins from a look at the weights.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    for found in find_sorting_units(task):
        reason = (
            f"{found.count} of the {found.units} units of {found.layer!r} measure one thing on "
            f"made-up inputs and cut it at {found.cuts} places, which sorts inputs into bins"
        )
        yield Finding("sorting units", "suspicious", found.layer, reason)


# In multiples of the mean of the others; honest networks, trained or not, stay well below.
CONCENTRATED = 50.0


def _gradient_concentration(task: Task, batch: Batch) -> Iterator[Finding]:
    """Single examples that dominate the gradient of a layer although others are as wrong.

    D-SNR alone would raise an alarm for every trained network that meets one example it does not
    know. An honest network cannot answer equal losses with very unequal gradients, so each example
    is measured relative to the loss's gradient at the logits.

    References:
        Garov et al., 2024 (garov2024hiding)
    """
    found = concentration(task, batch)
    if found is not None and found.relative * (found.examples - 1) > CONCENTRATED:
        times = f"{found.relative:.3g} times" if found.relative < 1e6 else "beyond measure"
        reason = (
            f"at equal loss, one of your {found.examples} examples outweighs all the others "
            f"{times} in the gradient of {found.layer!r} (D-SNR {found.plain:.3g})"
        )
        yield Finding("concentration", "suspicious", found.layer, reason)


def _own_places(task: Task, batch: Batch) -> Iterator[Finding]:
    """Weights of their own for places of a batch, which keep its examples apart.

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting)
    """
    name = find_own_places(task, batch)
    if name is not None:
        reason = (
            f"the gradient of {name!r} depends on the order of your examples: the network treats "
            "them by their place in the batch, which keeps their gradients apart"
        )
        yield Finding("places in the batch", "suspicious", name, reason)


def _broken_weights(task: Task) -> Iterator[Finding]:
    """Weights that are NaN or infinite: beside them no other check can see anything."""
    for name, tensor in task.model.state_dict().items():
        if broken := int((~tensor.isfinite()).sum()):
            reason = (
                f"{broken} of {tensor.numel()} entries of {name!r} are NaN or infinite, so that "
                "other checks may see nothing; do not train it"
            )
            yield Finding("finite weights", "suspicious", name, reason)


def _broken_answers(task: Task, batch: Batch) -> Iterator[Finding]:
    """Examples for which the network computes NaN or infinity: checks on data see nothing then."""
    with torch.no_grad():
        answers = task.in_mode("eval").outputs(task.parameters, batch.inputs)
    if broken := int((~answers.isfinite()).flatten(1).any(1).sum()):
        reason = f"it answers {broken} of your {len(batch)} examples with NaN or infinity"
        yield Finding("finite answers", "suspicious", "", reason)


OF_WEIGHTS: Mapping[str, Callable[[Task], Iterable[Finding]]] = {
    "weights that are not finite": _broken_weights,
    "repeated rows and bins of biases": _repeated_rows,
    "units that sort inputs into bins": _sorting_units,
    "pass-through layers": _passing_layers,
    "inputs exposed by the architecture": _exposed_inputs,
    "silenced classes": _silenced_classes,
}
# Each with the fewest examples it needs.
ON_DATA: Mapping[str, tuple[Callable[[Task, Batch], Iterable[Finding]], int]] = {
    "answers that are not finite": (_broken_answers, 1),
    "gradient concentration (D-SNR)": (_gradient_concentration, FEWEST_EXAMPLES),
    "flipped labels": (_flipped_labels, FEWEST_LABELLED),
    "places in the batch": (_own_places, FEWEST_PLACES),
}
_ORDER = ("malicious", "suspicious", "exposed")


def vet(task: Task, batch: Batch | None = None) -> VettingVerdict:
    """Check whether a network was manipulated to make the client's update readable.

    Only weights that honest training does not lead to are alarms. An input that an honest
    architecture exposes is listed as exposed and leaves the verdict clean. A clean verdict is no
    proof: weights can be optimised to leak and look like any others.

    Args:
        task: The network that was received.
        batch: The client's own data, for the checks that need data; it stays here. Give a dozen
            examples or more of several classes; with fewer, some checks are left out.

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
