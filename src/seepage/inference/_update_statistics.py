"""Statistics by which a member of a batch shows in its update.

The gradient of a candidate alone agrees with the update, and what layers read of the candidate lies
in the space that the members span there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from seepage.clients._gradient import Gradient
from seepage.core import Batch, Observation, Task, Update
from seepage.probing._first_layer import convolutional_reader, draw_noise, input_readers, list_calls
from seepage.probing._hooks import layer_inputs

# What noise adds to a squared singular value, as a share of the largest: from the rounding of
# single precision to noise as strong as the gradient.
_FLOORS = tuple(10.0**exponent for exponent in (-13, -11, -9, -7, -5, -4, -3, -2, -1))
# Residuals below this are rounding.
_ROUNDING = 1e-14
# The shorter side of the largest gradient that is decomposed, and positions read of each input.
_WIDEST, _POSITIONS = 3_072, 64
# Numbers in the inputs, or in the gradients, that are held at a time.
_CHUNK = 20_000_000
# Numbers in the gradients of public inputs that are held.
_PUBLIC = 40_000_000
# What is added to the variance of public gradients in every direction, as a share of their mean.
_RIDGE = 0.1


@dataclass(frozen=True)
class _SpanLayer:
    """A layer whose weight gradient is a sum of outer products with what it read.

        dL/dW = sum over inputs i and positions p of delta_ip z_ip^T

    So every row of the gradient is a combination of the z_ip, and if there are fewer of them than
    entries in z, a stranger's z lies outside their span.

    Args:
        name: Of the module.
        bias: Whether the gradient of its bias is shared: then (z, 1) is used in place of z.
        kernel: Width, stride, padding and dilation of a convolution; None if it has none.
    """

    name: str
    bias: bool = False
    kernel: tuple[tuple[int, ...], ...] | None = None

    def is_shared(self, update: Update) -> bool:
        return f"{self.name}.weight".lstrip(".") in update.tensors

    def gradient(self, update: Update) -> Tensor:
        prefix = f"{self.name}." if self.name else ""
        weight = update.tensors[f"{prefix}weight"].double().flatten(1)
        if not self.bias:
            return weight
        return torch.cat([weight, update.tensors[f"{prefix}bias"].double()[:, None]], dim=1)

    def rows(self, read: Tensor) -> Tensor:
        """What the layer multiplies its weight with, `(N, positions, d)`, of unit length."""
        values = read.double()
        if self.kernel is not None:
            width, stride, padding, dilation = self.kernel
            values = unfold(
                values, width, stride=stride, padding=padding, dilation=dilation
            ).transpose(1, 2)
        values = values.reshape(len(values), -1, values.shape[-1])
        step = -(-values.shape[1] // _POSITIONS)
        values = values[:, ::step]
        if self.bias:
            values = torch.cat([values, values.new_ones((*values.shape[:2], 1))], dim=2)
        unit: Tensor = values / values.norm(dim=2, keepdim=True).clamp_min(1e-300)
        return unit


def span_layers(task: Task) -> tuple[_SpanLayer, ...]:
    """Layers at which one input alone does not span everything, in the order in which they run.

    Linear layers, also at every position of a sequence, and convolutions over two axes.

    Example:
        >>> from seepage.zoo import mlp
        >>> [layer.name for layer in span_layers(mlp(hidden=(16,)))]
        ['hidden1', 'head']
    """
    found: dict[str, _SpanLayer] = {}
    again: set[str] = set()
    modules = dict(task.model.named_modules())
    for name, read in list_calls(task, (nn.Linear, nn.Conv2d), draw_noise(task)):
        if name in found:
            again.add(name)
        module, prefix = modules[name], f"{name}." if name else ""
        weight = task.parameters.get(f"{prefix}weight")
        if weight is None or min(weight.flatten(1).shape) > _WIDEST:
            continue
        layer = _describe(module, name, f"{prefix}bias" in task.parameters)
        if layer is not None and _count_positions(layer, read) < weight[0].numel():
            found[name] = layer
    return tuple(layer for name, layer in found.items() if name not in again)


def stack_rounds(rounds: Sequence[Observation]) -> Observation | None:
    """Several rounds as one, whose first layer has the neurons of all; None if there is no such.

    The first layer reads the same inputs in every round, whatever its weights are. So the rows of
    its gradients in all rounds lie in the span of the same inputs.
    """
    task = rounds[0].task
    spanned = {layer.name for layer in span_layers(task)}
    readers = [n for n in (*input_readers(task), convolutional_reader(task)) if n in spanned]
    prefix = f"{readers[0]}." if readers and readers[0] else ""
    names = [n for n in (f"{prefix}weight", f"{prefix}bias") if n in task.parameters]
    updates = [seen.update.descent() for seen in rounds]
    if not readers or not names or any(n not in u.tensors for n in names for u in updates):
        return None
    stacked = {name: torch.cat([update.tensors[name] for update in updates]) for name in names}
    return replace(rounds[0], update=Update(stacked))


def _describe(module: nn.Module, name: str, bias: bool) -> _SpanLayer | None:
    if isinstance(module, nn.Linear):
        return _SpanLayer(name, bias)
    assert isinstance(module, nn.Conv2d)
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        return None
    kernel = (module.kernel_size, module.stride, module.padding, module.dilation)
    return _SpanLayer(name, bias, kernel)


def _count_positions(layer: _SpanLayer, read: Tensor) -> int:
    if layer.kernel is None:
        return read[0].numel() // read.shape[-1]
    width, stride, padding, dilation = layer.kernel
    one = unfold(read[:1].double(), width, stride=stride, padding=padding, dilation=dilation)
    return one.shape[2]


@dataclass(frozen=True, eq=False)
class _LayerReadings:
    """What inputs give each layer to read.

    Args:
        rows: `(N, positions, d)` by layer name.
        tokens: `(N, T)` by the name of an embedding.
    """

    rows: Mapping[str, Tensor]
    tokens: Mapping[str, Tensor]


def read_layers(task: Task, layers: Sequence[_SpanLayer], inputs: Tensor) -> _LayerReadings:
    """Run the network, with running statistics, and keep what its layers read."""
    plain = task.in_mode("eval")
    modules = dict(plain.network.named_modules())
    embeddings = [n for n, m in modules.items() if isinstance(m, nn.Embedding)]
    embeddings = [n for n in embeddings if f"{n}.weight" in task.parameters]
    rows: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    tokens: dict[str, list[Tensor]] = {name: [] for name in embeddings}
    size = max(1, _CHUNK // max(1, inputs[0].numel() * 64))
    for part in map(task.move_inputs, torch.split(inputs, size)):
        with layer_inputs(plain.network, [*rows, *embeddings]) as read, torch.no_grad():
            plain.outputs(plain.parameters, part)
        for layer in layers:
            rows[layer.name].append(layer.rows(read[layer.name]))
        for name in embeddings:
            # Positions are the same for every input, and some networks use the table directly.
            if name in read and len(read[name]) == len(part):
                tokens[name].append(read[name].flatten(1))
    return _LayerReadings(
        {name: torch.cat(parts) for name, parts in rows.items()},
        {name: torch.cat(parts) for name, parts in tokens.items() if parts},
    )


def span_scores(
    update: Update, layers: Sequence[_SpanLayer], readings: _LayerReadings
) -> dict[str, Tensor]:
    """Score inputs by how much of them lies outside the span; higher is more likely a member.

    The share of z outside the span, softened by a floor f on the squared singular values:

        r = f z^T (G^T G + f I)^-1 z / z^T z,   the score is -log10 of its mean over positions

    With f at rounding it is the residual of an orthogonal projection. Noise on the gradient asks
    for a larger f; several are tried. Of an embedding the score is the log10 of the shortest row
    among those of the input's tokens.

    Returns:
        Scores `(N,)` by the name of the statistic.

    References:
        Capon, 1969 (capon1969high), whose spectrum has the same form
    """
    scores: dict[str, Tensor] = {}
    gradient = update.descent()
    for layer in layers:
        matrix, rows = layer.gradient(gradient), readings.rows[layer.name]
        for floor, residual in _residuals(matrix, rows).items():
            scores[f"span of {layer.name or 'the layer'}, floor {floor:.0e}"] = -residual.log10()
    for name, tokens in readings.tokens.items():
        lengths = gradient.tensors[f"{name}.weight"].double().norm(dim=1)
        least = float(lengths.max().clamp_min(1e-300)) * 1e-12
        scores[f"rows of {name}"] = lengths.clamp_min(least)[tokens].amin(1).log10()
    return scores


def _residuals(matrix: Tensor, rows: Tensor) -> dict[float, Tensor]:
    """The mean residual of every input, by floor."""
    wide = matrix.shape[0] < matrix.shape[1]
    gram = matrix @ matrix.T if wide else matrix.T @ matrix
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    # In the directions of the eigenvectors, squared: (N * positions, m) or (N * positions, d).
    flat = rows.flatten(0, 1)
    along = (flat @ (matrix.T @ vectors) if wide else flat @ vectors).square()
    found = {}
    for share in _FLOORS:
        floor = share * float(values[-1].clamp_min(1e-300))
        if wide:
            residual = 1 - along @ (1 / (values + floor))
        else:
            residual = along @ (floor / (values + floor))
        found[share] = residual.clamp_min(_ROUNDING).reshape(rows.shape[:2]).mean(1)
    return found


@dataclass(frozen=True, eq=False)
class Whitening:
    """Gradients of public inputs `(n, P)`, whose common directions say little of who took part."""

    gradients: Tensor

    @classmethod
    def of(cls, task: Task, public: Batch) -> Whitening:
        """Compute the gradients, of as many inputs as fit."""
        entries = sum(p.numel() for p in task.parameters.values())
        most = max(1, min(len(public), _PUBLIC // entries))
        few = Batch(public.inputs[:most], public.labels[:most])
        return cls(torch.cat([part.flat() for part in _each_gradient(task, few)]))

    def __call__(self, update: Update) -> Update:
        """(Sigma + lambda I)^-1 times the update, up to scale; Sigma is their second moment."""
        own, flat = self.gradients, update.flat().to(self.gradients)
        gram = (own @ own.T).double()
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        weights = torch.linalg.solve(gram + ridge, (own @ flat).double())
        return update.unflatten(flat - weights.to(flat) @ own)


def _each_gradient(task: Task, batch: Batch) -> Iterator[Update]:
    """The gradient of every example alone, with running statistics, a few at a time."""
    plain, local = task.in_mode("eval"), Gradient()
    entries = sum(p.numel() for p in task.parameters.values())
    size = max(1, _CHUNK // entries)
    for inputs, labels in zip(
        torch.split(batch.inputs, size), torch.split(batch.labels, size), strict=True
    ):
        there = plain.move_inputs(inputs)
        yield local(plain, there, labels.to(there.device), granularity="per_example").detach()


def alignment_scores(
    update: Update, task: Task, batch: Batch, whitening: Whitening
) -> dict[str, Tensor]:
    """Score examples by the agreement of their own gradient g with the update U.

        cosine: <g, V> / ||g||,   layers: the mean over the tensors of their cosines

    V is the update, or the update whitened by public gradients: the best linear statistic if the
    other members' gradients are normal with their covariance.

    Returns:
        Scores `(N,)` by the name of the statistic.

    References:
        Geiping et al., 2020 (geiping2020inverting) for the cosine
    """
    towards = {"update": update.descent().detach()}
    towards["whitened update"] = whitening(towards["update"])
    parts: dict[str, list[Tensor]] = {}
    for each in _each_gradient(task, batch):
        lengths = each.norm().double().clamp_min(1e-300)
        for name, direction in towards.items():
            along = torch.stack(
                [
                    (g.flatten(1) @ direction.tensors[n].flatten().to(g)).double()
                    for n, g in each.tensors.items()
                ]
            )
            norms = torch.stack([g.flatten(1).norm(dim=1).double() for g in each])
            own = torch.stack([direction.tensors[n].norm().double() for n in each.tensors])
            cosines = along / (norms * own[:, None].to(norms)).clamp_min(1e-300)
            parts.setdefault(f"cosine with the {name}", []).append(along.sum(0) / lengths)
            parts.setdefault(f"layers' cosines with the {name}", []).append(cosines.mean(0))
    scale = {name: float(direction.norm()) or 1.0 for name, direction in towards.items()}
    joined = {name: torch.cat(scores).cpu() for name, scores in parts.items()}
    for name, norm in scale.items():
        joined[f"cosine with the {name}"] /= norm
    return joined
