"""What layers read at every position of a text, found by running them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.clients import Gradient
from seepage.core import Rng, Task, Update
from seepage.core.errors import NotApplicable
from seepage.core.progress import report


@dataclass(frozen=True, eq=False)
class _RowSpan:
    """A subspace of what a layer reads.

    Args:
        basis: Orthonormal rows `(r, d)`, in float64.
    """

    basis: Tensor

    @property
    def rank(self) -> int:
        """Its dimension."""
        return len(self.basis)

    def distances(self, vectors: Tensor) -> Tensor:
        """Share of each vector `(..., d)` that lies outside: ||x - x V^T V|| / ||x||."""
        wide = vectors.double()
        outside = wide - wide @ self.basis.T @ self.basis
        shares: Tensor = outside.norm(dim=-1) / wide.norm(dim=-1)
        return shares


def row_span(gradient: Tensor, *, tolerance: float, at_most: int | None = None) -> _RowSpan:
    """The row space of a weight gradient dL/dW = sum_i (dL/dy_i) x_i^T, which the x_i span.

    Args:
        gradient: `(m, d)`.
        tolerance: Singular values below this share of the largest are rounding.
        at_most: How many vectors the layer read, where that is known; noise has more directions.

    Example:
        >>> read = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
        >>> span = row_span(torch.ones(4, 2).tril() @ read, tolerance=1e-6)
        >>> span.rank, span.distances(torch.eye(3)).round().tolist()
        (2, [0.0, 0.0, 1.0])
    """
    _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    kept = int((values > tolerance * values[0]).sum())
    return _RowSpan(rows[: kept if at_most is None else min(kept, at_most)])


# Sequences that pass through the network together.
TOGETHER = 256


@dataclass(frozen=True)
class _Reader:
    """Linear layers that read the same vector at every position, as query, key and value do.

    Args:
        layers: Their names.
    """

    layers: tuple[str, ...]

    def gradient(self, update: Update) -> Tensor:
        """The gradients of their weights, one below the other: `(m, d)`."""
        return torch.cat([update.tensors[f"{layer}.weight"] for layer in self.layers])


@dataclass(frozen=True)
class Readers:
    """Where a decoder gives its text away.

    Args:
        token: Reads a function of the token and its position alone.
        prefix: Read functions of the token and those before it.
    """

    token: _Reader
    prefix: tuple[_Reader, ...]


def find_readers(task: Task, *, tolerance: float) -> Readers:
    """Find the readers by running texts of random tokens that agree in their first half.

    A reader of a prefix sees the same where texts agree so far, and a reader of tokens also where
    they agree from there on. Of these, the ones are taken whose gradient spans all that they read,
    which is tried on a random text: in a last block only the position that is classified counts.

    Raises:
        NotApplicable: The network has no such layers, as one that reads texts in both directions.
    """
    half = task.domain.shape[0] // 2
    one, other = task.placed(task.domain.sample(2, rng=Rng(0).fork("probe")))
    mixed = torch.cat([one[:half], other[half:]])
    read = _read(task, torch.stack([one, other, mixed]), None)
    label = torch.zeros(1, dtype=torch.long, device=one.device)
    probe = Gradient()(task, one[None], label)
    token: list[_Reader] = []
    prefix: list[_Reader] = []
    for reader in _alike(read):
        of_one, of_other, of_mixed = read[reader.layers[0]]
        span = row_span(reader.gradient(probe), tolerance=tolerance)
        told = bool((span.distances(of_one) < 1e-2).all())
        if not told or not torch.allclose(of_mixed[:half], of_one[:half], atol=1e-5):
            continue
        local = torch.allclose(of_mixed[half:], of_other[half:], atol=1e-5)
        (token if local else prefix).append(reader)
    if not token or not prefix:
        raise NotApplicable(
            f"expected {task.name} to read texts from left to right by trained linear layers, two "
            "blocks deep or more, got none whose gradient spans what it read; use another attack"
        )
    return Readers(token[0], tuple(prefix))


def read_by(task: Task, reader: _Reader, texts: Tensor) -> Tensor:
    """What a reader sees at every position of texts `(N, L)`: `(N, L, d)`."""
    return torch.cat(
        [_read(task, part, reader)[reader.layers[0]] for part in torch.split(texts, TOGETHER)]
    )


def _alike(read: Mapping[str, Tensor]) -> list[_Reader]:
    """Layers grouped by what they read, in the order of the forward pass."""
    groups: list[list[str]] = []
    for name, seen in read.items():
        same = (
            g for g in groups if read[g[0]].shape == seen.shape and torch.equal(read[g[0]], seen)
        )
        group = next(same, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [_Reader(tuple(group)) for group in groups]


class _SeenEnough(Exception):  # noqa: N818
    """Raised to leave a forward pass whose rest is not needed."""


def _read(task: Task, texts: Tensor, reader: _Reader | None) -> dict[str, Tensor]:
    """What every trained linear layer reads at each position, or one reader's first alone."""
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, Sequence[Tensor]], None]:
        def hook(_: nn.Module, arguments: Sequence[Tensor]) -> None:
            if arguments[0].ndim == 3 and arguments[0].shape[1] == texts.shape[1]:
                seen[name] = arguments[0].detach()
            if reader is not None:
                raise _SeenEnough

        return hook

    trained = {
        name: module
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Linear) and f"{name}.weight" in task.parameters
    }
    watched = trained if reader is None else {reader.layers[0]: trained[reader.layers[0]]}
    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in watched.items()]
    try:
        with torch.no_grad():
            task.outputs(task.parameters, texts)
    except _SeenEnough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen


@dataclass(frozen=True, eq=False)
class Check:
    """A reader with the span of its gradient in the observed update."""

    reader: _Reader
    span: _RowSpan


@dataclass(frozen=True)
class Limits:
    """What counts as inside, and how many are kept.

    Args:
        tolerance: Largest share of a vector that may lie outside a span.
        at_least: Of the nearest, kept even if none lies inside: a best effort behind noise.
        at_most: Kept at each position.
    """

    tolerance: float
    at_least: int
    at_most: int

    def kept(self, outside: Tensor) -> Tensor:
        """Indices of those that lie inside, the nearest first."""
        nearest = outside.argsort(stable=True)
        count = int((outside < self.tolerance).sum())
        return nearest[: min(max(count, self.at_least), self.at_most)]


@dataclass(frozen=True, eq=False)
class Found:
    """Texts, the nearest to the spans first.

    Args:
        texts: `(N, L)`.
        outside: How far outside each lies at its worst, `(N,)`.
        complete: Whether every text that lies inside is among them.
    """

    texts: Tensor
    outside: Tensor
    complete: bool


def tokens_in_span(task: Task, check: Check, *, vocabulary: int, limits: Limits) -> list[Tensor]:
    """For each position the tokens whose embedding there lies in the span.

    Every token of the vocabulary is tried at every position.

    Raises:
        NotApplicable: The span holds half of the vocabulary or more, so that it tells nothing.
    """
    length = task.domain.shape[0]
    device = next(iter(task.parameters.values())).device
    everywhere = torch.arange(vocabulary, device=device)[:, None].expand(-1, length)
    outside = check.span.distances(read_by(task, check.reader, everywhere))
    if float((outside < limits.tolerance).double().mean()) > 0.5:
        raise NotApplicable(
            f"the update spans {check.span.rank} directions and with them nearly every token, so "
            "it tells none apart; the batch holds too many tokens for this width, or it is noisy"
        )
    return [limits.kept(column) for column in outside.T]


def assemble_texts(
    task: Task, checks: Sequence[Check], candidates: Sequence[Tensor], *, limits: Limits
) -> Found:
    """The texts all of whose prefixes lie in the spans.

    Texts grow by a token at a time: position i of a decoder depends on nothing that comes later,
    so that the rest may be anything.

    Args:
        task: What was broadcast.
        checks: Of layers that read prefixes.
        candidates: Tokens for each position.
        limits: What counts as inside.
    """
    length = len(candidates)
    texts = candidates[0].new_zeros(1, length)
    worst = texts.new_zeros(1, dtype=torch.float64)
    complete = max(map(len, candidates)) < limits.at_most
    for position, tokens in enumerate(candidates):
        outside = worst.repeat_interleave(len(tokens))
        texts = texts.repeat_interleave(len(tokens), 0)
        texts[:, position] = tokens.repeat(len(worst))
        for check in checks:
            read = read_by(task, check.reader, texts)[:, position]
            outside = torch.maximum(outside, check.span.distances(read))
            kept = limits.kept(outside)
            texts, outside = texts[kept], outside[kept]
            complete = complete and len(kept) < limits.at_most
        worst = outside
        report(position + 1, length, float(worst.max()))
    return Found(texts, worst, complete)
