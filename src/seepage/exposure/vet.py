"""Vetting: what a client can check in a received network before it computes an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.core import Batch, Rng, Task
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure.d_snr import FEWEST_EXAMPLES, concentration
from seepage.exposure.gradient_probes import FEWEST_PLACES, find_held_input, find_own_places
from seepage.exposure.inspection import inspection
from seepage.probing.heads import classifier_head

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


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Classes whose rows have a norm below this, relative to the largest, are silenced.
DEAD = 1e-6


@dataclass(frozen=True, eq=False)
class _LayerRows:
    """The weights of a layer as a matrix `(rows, entries)`, and the bias, without rows of zeros."""

    name: str
    convolutional: bool
    matrix: Tensor
    bias: Tensor | None


def _weight_rows(task: Task) -> Iterator[_LayerRows]:
    """Every linear layer and convolution of a network."""
    for name, module in task.model.named_modules():
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            matrix = module.weight.detach().flatten(1)
            # Below the smallest normal number rounding decides the direction. How large other rows
            # are must not matter: one huge row would hide all others.
            alive = matrix.abs().amax(1) >= torch.finfo(matrix.dtype).tiny
            bias = None if module.bias is None else module.bias.detach()[alive]
            yield _LayerRows(name, isinstance(module, CONVOLUTIONS), matrix[alive], bias)


# Logarithm of how much more likely one class is than another before the input is read.
HOPELESS = 15.0


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
    renamed = _best_agreement(predicted, batch.labels, task.classes)
    if right <= WRONG and renamed >= RIGHT and len(set(predicted.tolist())) >= 3:
        reason = (
            f"it is right about {100 * right:.0f} % of your examples, and would be about "
            f"{100 * renamed:.0f} % if its classes were renamed: rows of the classifier have been "
            "permuted"
        )
        yield Finding("flipped labels", "suspicious", "", reason)


def _best_agreement(predicted: Tensor, labels: Tensor, classes: int) -> float:
    """The share of predictions that are right under the best renaming of the classes."""
    from scipy.optimize import linear_sum_assignment

    pairs = torch.bincount(labels * classes + predicted, minlength=classes**2)
    agreement = pairs.reshape(classes, classes).double() / len(labels)
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
    layers = list(_weight_rows(task))
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
        yield Finding("rank metric", "exposed", "", reason)


# In fewer dimensions, directions coincide by chance.
DIMENSIONS = 16
# Rows are compared with so many of them, so many at a time.
PIVOTS, HELD = 512, 64
FEWEST_ROWS = 4
# A cosine, the share of rows that nearly no training brings so near to one row, and how many such
# rows are enough to sort inputs into bins, however many others there are.
REPEATED = ((0.999, 0.1, 16.0), (0.9, 0.3, math.inf))
# Entries are also compared cut off at this multiple of the median entry of their row.
LARGEST_ENTRY = 3.0


def _repeated_rows(task: Task) -> Iterator[Finding]:
    """Layers with many rows that are equal up to scale: they measure one thing many times.

    If their biases differ, they sort inputs into bins, and differences of neighbouring rows of the
    gradient are single inputs. Neither other rows nor single large entries hide the repeated ones.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    for rows in _weight_rows(task):
        found = []
        for directions in (rows.matrix, _cut_entries(rows.matrix)):
            groups = _parallel_rows(directions, [cosine for cosine, _, _ in REPEATED])
            for group, (_, share, enough) in zip(groups, REPEATED, strict=True):
                fewest = max(FEWEST_ROWS, share * len(rows.matrix))
                found.append(_judge_group(rows, group, fewest=fewest, enough=min(fewest, enough)))
        yield from sorted(filter(None, found), key=lambda one: _ORDER.index(one.level))[:1]


def _judge_group(
    rows: _LayerRows, group: Tensor, *, fewest: float, enough: float
) -> Finding | None:
    """What a group of parallel rows is: bins, if it has enough biases, or merely repeated."""
    share = f"{len(group)} of the {len(rows.matrix)} rows of {rows.name!r} are one row repeated"
    if rows.bias is not None and _count_cuts(rows.matrix[group], rows.bias[group]) >= enough:
        reason = (
            f"{share}, with biases that sort inputs into bins; what a bin holds alone stands in "
            "the gradient as it is"
        )
        return Finding("bins of biases", "malicious", rows.name, reason)
    if len(group) < fewest:
        return None
    reason = f"{share} up to scale, which training does not lead to"
    return Finding("repeated rows", "suspicious", rows.name, reason)


def _cut_entries(matrix: Tensor) -> Tensor:
    """The rows with no entry above a multiple of the median of those that are not zero."""
    size = matrix.double().abs()
    median = torch.where(size > 0, size, torch.nan).nanmedian(dim=1, keepdim=True).values
    return matrix.sign() * torch.minimum(size, LARGEST_ENTRY * median)


def _parallel_rows(matrix: Tensor, cosines: Sequence[float]) -> list[Tensor]:
    """For each cosine, the numbers of the most rows that are so near to one row, up to sign.

    Rows are compared with some of them. Which these are depends on the weights, so that nobody can
    place rows around them.
    """
    if matrix.shape[1] < DIMENSIONS or len(matrix) < FEWEST_ROWS:
        return [torch.empty(0, dtype=torch.long)] * len(cosines)
    # `normalize` alone would not make rows of tiny entries unit vectors.
    scaled = matrix.double() / matrix.double().abs().amax(1, keepdim=True)
    unit = torch.nn.functional.normalize(scaled, dim=1).float()
    chosen = Rng(0).fork("pivots", digest(matrix)).permutation(len(unit))[:PIVOTS]
    best = [torch.zeros(len(unit), dtype=torch.bool, device=unit.device)] * len(cosines)
    for part in torch.split(unit[chosen.to(unit.device)], HELD):
        near = (part @ unit.T).abs()
        for number, cosine in enumerate(cosines):
            alike = near > cosine
            most = alike[alike.sum(1).argmax()]
            best[number] = max(best[number], most, key=lambda rows: int(rows.sum()))
    return [rows.nonzero()[:, 0] for rows in best]


def _count_cuts(matrix: Tensor, bias: Tensor) -> int:
    """At how many different places parallel rows cut their common direction."""
    if not len(matrix):
        return 0
    wide = matrix.double()
    side = (wide @ wide[0]).sign()
    cuts = (side * bias.double() / wide.norm(dim=1)).sort().values
    spread = cuts[-1] - cuts[0]
    return 1 + int((cuts.diff() > 1e-9 * spread).sum())


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
