"""Vetting: what a client can check in a network it was sent, before it computes an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.clients.gradient import Gradient
from seepage.core import Batch, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure.inspection import inspection
from seepage.probing.heads import classifier_head

Level = Literal["exposed", "suspicious", "malicious"]
Judgement = Literal["clean", "suspicious", "malicious"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Args:
        check: What looked for it.
        level: "exposed": the architecture gives inputs away, as honest ones may, and nothing about
            the weights is strange. "suspicious": honest training hardly leads here. "malicious":
            it has no purpose but to read inputs off the update.
        layer: The module it was found in; empty for the network as a whole.
        reason: One sentence for people.
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
        findings: Everything that was found, alarms first.
        checks: Everything that was looked for.

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
        levels = {found.level for found in self.alarms}
        if "malicious" in levels:
            return "malicious"
        return "suspicious" if levels else "clean"

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against computing an update."""
        return not self.alarms


KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Rows shorter than this, relative to the longest, are dead and point nowhere.
DEAD = 1e-6


@dataclass(frozen=True, eq=False)
class Rows:
    """A layer as a matrix.

    Args:
        name: Of the module.
        convolutional: Whether its weights are shared between positions.
        matrix: `(rows, entries)`, without the rows that are dead.
        bias: Of those rows, or None.
    """

    name: str
    convolutional: bool
    matrix: Tensor
    bias: Tensor | None


def _weight_rows(task: Task) -> Iterator[Rows]:
    """Every linear layer and convolution of a network."""
    for name, module in task.model.named_modules():
        if isinstance(module, KINDS):
            matrix = module.weight.detach().flatten(1)
            norms = matrix.norm(dim=1)
            alive = norms > DEAD * norms.max()
            bias = None if module.bias is None else module.bias.detach()[alive]
            convolutional = not isinstance(module, nn.Linear)
            yield Rows(name, convolutional, matrix[alive], bias)


# Natural logarithm of how much more likely a class is before the input was looked at.
HOPELESS = 15.0


def _silenced_classes(task: Task) -> Iterator[Finding]:
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


FEWEST_LABELLED = 12
WRONG, RIGHT = 0.3, 0.8


def _flipped_labels(task: Task, batch: Batch) -> Iterator[Finding]:
    """Predictions that are wrong as they are, and right after renaming the classes.

    An untrained network is wrong under every naming, a trained one right under its own.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    if batch.labels.ndim != 1 or len(batch) < FEWEST_LABELLED:
        return
    with torch.no_grad():
        predicted = task.in_mode("eval").outputs(task.parameters, batch.inputs).argmax(1)
    agreement = _agreement(predicted, batch.labels, task.classes)
    right, renamed = float((predicted == batch.labels).double().mean()), _best(agreement)
    if right <= WRONG and renamed >= RIGHT and len(set(predicted.tolist())) >= 3:
        reason = (
            f"it is right about {right:.0%} of your examples, and would be about {renamed:.0%} if "
            "its classes were renamed: rows of the classifier have been permuted"
        )
        yield Finding("flipped labels", "suspicious", "", reason)


def _agreement(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How often each class was predicted for each label, `(K, K)`, as shares of all."""
    pairs = torch.bincount(labels * classes + predicted, minlength=classes**2)
    return pairs.reshape(classes, classes).double() / len(labels)


def _best(agreement: Tensor) -> float:
    """The share that is right under the best renaming."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(agreement.cpu().numpy(), maximize=True)
    return float(agreement[rows, columns].sum())


# In fewer dimensions one entry outweighs the others by chance.
PASS_DIMENSIONS = 9
DOMINANT = 0.9
PASS_SHARE = 0.9


def _passing_layers(task: Task) -> Iterator[Finding]:
    """Layers whose rows each hold one entry and next to nothing else: identities, permutations.

    A first one passes the input on as it is; behind a chain of them, a classifier reads the input.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    layers = list(_weight_rows(task))
    passing = [rows for rows in layers if _passes_on(rows)]
    first = [rows.name for rows in layers if rows.convolutional][:1]
    for rows in passing:
        kind = "convolution" if rows.convolutional else "fully connected layer"
        reason = f"{kind} {rows.name!r} passes on single entries of what it reads, unchanged"
        begins = [rows.name] == first or rows.name == layers[0].name
        level: Level = "malicious" if begins else "suspicious"
        yield Finding("pass-through layers", level, rows.name, reason)


def _passes_on(rows: Rows) -> bool:
    """Whether nearly every row has nearly all of its energy in one entry."""
    if rows.matrix.shape[1] < PASS_DIMENSIONS or len(rows.matrix) == 0:
        return False
    energy = rows.matrix.double().square()
    dominant = energy.amax(1) > DOMINANT * energy.sum(1)
    return bool(dominant.double().mean() >= PASS_SHARE)


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _exposed_inputs(task: Task) -> Iterator[Finding]:
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


# Directions in fewer dimensions coincide by chance.
DIMENSIONS = 16
PARALLEL = 0.999
PIVOTS = 64
FEWEST_ROWS, REPEATED_SHARE = 4, 0.1


def _repeated_rows(task: Task) -> Iterator[Finding]:
    """Layers of which many rows are the same up to scale: they measure one thing many times.

    With biases that differ, they sort inputs into bins, and differences of neighbouring rows of
    the gradient are single inputs.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    for rows in _weight_rows(task):
        group = parallel_rows(rows.matrix)
        if len(group) >= max(FEWEST_ROWS, REPEATED_SHARE * len(rows.matrix)):
            yield _finding(rows, group)


def parallel_rows(matrix: Tensor) -> Tensor:
    """Numbers of the rows in the largest group that points one way, as far as pivots show it."""
    if matrix.shape[1] < DIMENSIONS or len(matrix) < FEWEST_ROWS:
        return torch.empty(0, dtype=torch.long)
    unit = torch.nn.functional.normalize(matrix.double(), dim=1)
    chosen = torch.linspace(0, len(unit) - 1, min(PIVOTS, len(unit))).round().long()
    pivots = unit[chosen.to(unit.device)]
    alike = (pivots @ unit.T).abs() > PARALLEL
    best = alike[alike.sum(1).argmax()]
    return best.nonzero()[:, 0]


def _finding(rows: Rows, group: Tensor) -> Finding:
    of_all = f"{len(group)} of the {len(rows.matrix)} rows of {rows.name!r} are one row repeated"
    if rows.bias is None or not _bins(rows.matrix[group], rows.bias[group]):
        reason = f"{of_all} up to scale, which training does not lead to"
        return Finding("repeated rows", "suspicious", rows.name, reason)
    reason = (
        f"{of_all}, with biases that sort inputs into bins; what a bin holds alone stands in the "
        "gradient as it is"
    )
    return Finding("bins of biases", "malicious", rows.name, reason)


def _bins(matrix: Tensor, bias: Tensor) -> bool:
    """Whether the rows cut their one direction at different places."""
    cuts = (bias / matrix.norm(dim=1)).sort().values
    spread = cuts[-1] - cuts[0]
    return bool(spread > 0) and bool((cuts.diff() > 1e-9 * spread).all())


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


def _gradient_concentration(task: Task, batch: Batch) -> Iterator[Finding]:
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
        "repeated rows and bins of biases": _repeated_rows,
        "pass-through layers": _passing_layers,
        "inputs exposed by the architecture": _exposed_inputs,
        "silenced classes": _silenced_classes,
    }
)
# Each with the number of examples below which it says nothing.
ON_DATA: Mapping[str, tuple[Callable[[Task, Batch], Iterable[Finding]], int]] = MappingProxyType(
    {
        "gradient concentration (D-SNR)": (_gradient_concentration, FEWEST_EXAMPLES),
        "flipped labels": (_flipped_labels, FEWEST_LABELLED),
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
