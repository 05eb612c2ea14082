"""Linear layers that read a vector at every place of a text, and what each of them sees."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor, nn

from seepage.attacks.text.token_table import draw_texts, require_texts
from seepage.core import Task, Update
from seepage.numerics.row_span import share_outside
from seepage.probing.hooks import layer_inputs

# Sequences that pass through the network together.
TOGETHER = 256

# Names of linear layers that read the same vector at every position, as query, key and value do.
Reader = tuple[str, ...]
# A function of the token and its position alone, of the tokens before as well, or of all tokens.
Sees = Literal["token", "prefix", "text"]


@dataclass(frozen=True, eq=False)
class SeenReader:
    """A reader, with what it sees.

    Args:
        layers: Names of the layers.
        sees: On what its vectors depend.
        read: What it read of one random text, `(L, d)`.
    """

    layers: Reader
    sees: Sees
    read: Tensor


@dataclass(frozen=True, eq=False)
class Readers:
    """All trained readers of a network in the order in which they run, and a text that was read."""

    readers: tuple[SeenReader, ...]
    text: Tensor


def list_readers(task: Task) -> Readers:
    """List trained linear layers that read every place of a text, by what they see.

    To tell them apart, the network runs on random texts that agree in one half.

    Example:
        >>> from seepage.zoo import gpt
        >>> first, *_ = list_readers(gpt(width=16, layers=1)).readers
        >>> first.sees, first.layers[0]
        ('token', 'blocks.0.attention.query')
    """
    half = task.domain.shape[0] // 2
    domain = require_texts(task.domain, needed_by="a reader of texts")
    one, other = task.move_inputs(draw_texts(domain, 2))
    mixed = torch.cat([one[:half], other[half:]])
    read = run_until(task, torch.stack([one, other, mixed]), None)
    groups: list[list[str]] = []
    for name, seen in read.items():
        group = next((g for g in groups if torch.equal(read[g[0]], seen)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    found = []
    for group in groups:
        of_one, of_other, of_mixed = read[group[0]]
        before = torch.allclose(of_mixed[:half], of_one[:half], atol=1e-5)
        after = torch.allclose(of_mixed[half:], of_other[half:], atol=1e-5)
        sees: Sees = "token" if before and after else "prefix" if before else "text"
        found.append(SeenReader(tuple(group), sees, of_one))
    return Readers(tuple(found), one)


def list_weights(task: Task, reader: Reader) -> list[str]:
    """Names of the weights of layers that read the same."""
    attends = [isinstance(task.network.get_submodule(n), nn.MultiheadAttention) for n in reader]
    return [
        f"{layer}.{'in_proj_weight' if attention else 'weight'}"
        for layer, attention in zip(reader, attends, strict=True)
    ]


def stack_gradients(task: Task, reader: Reader, update: Update) -> Tensor:
    """The weight gradients of layers that read the same, one above the other, `(m, d)`."""
    turned = [_is_turned(task.network.get_submodule(layer)) for layer in reader]
    gradients = [update.tensors[name] for name in list_weights(task, reader)]
    return torch.cat([g.T if turn else g for g, turn in zip(gradients, turned, strict=True)])


def _is_turned(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as `(inputs, outputs)`, as those of GPT-2 do."""
    return type(module).__name__ == "Conv1D"


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None and bool(module.batch_first)
    return isinstance(module, nn.Linear) or _is_turned(module)


def run_reader(task: Task, reader: Reader, texts: Tensor) -> Tensor:
    """Return what a reader sees at every position of texts `(N, L)`: `(N, L, d)`."""
    parts = torch.split(texts, TOGETHER)
    return torch.cat([run_until(task, part, reader[0])[reader[0]] for part in parts])


class _SeenEnough(Exception):  # noqa: N818
    """Raised to leave a forward pass whose rest is not needed."""


def run_until(task: Task, texts: Tensor, last: str | None) -> dict[str, Tensor]:
    """Run to one layer and return what it reads, or with None what every linear layer reads."""

    def stop(*_: object) -> NoReturn:
        raise _SeenEnough

    network = task.network
    layers = [
        name
        for name, module in network.named_modules()
        if _is_linear(module) and set(list_weights(task, (name,))) <= task.parameters.keys()
    ]
    with layer_inputs(network, layers if last is None else [last]) as read:
        # Hooks run in the order in which they were registered.
        layer = None if last is None else network.get_submodule(last)
        ending = nullcontext() if layer is None else layer.register_forward_pre_hook(stop)
        with ending, torch.no_grad(), suppress(_SeenEnough):
            task.outputs(task.parameters, texts)
    return {n: t for n, t in read.items() if t.ndim == 3 and t.shape[1] == texts.shape[1]}


def measure_tokens(task: Task, reader: Reader, basis: Tensor) -> Tensor:
    """How far outside a span every token lies at every position, `(V, L)`.

    `(V, 1)` if what is read does not depend on the position, as with rotations.
    """
    domain = require_texts(task.domain, needed_by="a reader of texts")
    texts = task.move_inputs(torch.arange(domain.vocabulary))[:, None].expand(-1, domain.length)
    first = run_reader(task, reader, texts[:1])
    if torch.allclose(first[:, :1].expand_as(first), first, atol=1e-6):
        # Networks of one length do not take a shorter text.
        with suppress(RuntimeError, IndexError, ValueError):
            if torch.allclose(run_reader(task, reader, texts[:1, :1]), first[:, :1], atol=1e-6):
                texts = texts[:, :1]
        first = first[:, :1]
    parts = (run_reader(task, reader, part) for part in torch.split(texts, TOGETHER))
    return torch.cat([share_outside(basis, read[:, : first.shape[1]]) for read in parts])


@dataclass(frozen=True, eq=False)
class SpanCheck:
    """A reader with the basis of the row space of its observed gradient.

    Args:
        reader: The layers.
        basis: `(r, d)`.
        clear: Whether the gradient has no more directions than there are tokens.
    """

    reader: Reader
    basis: Tensor
    clear: bool = True

    def measure(self, task: Task, texts: Tensor) -> Tensor:
        """Return how far outside the span texts `(N, L)` lie at every position, `(N, L)`."""
        parts = torch.split(texts, TOGETHER)
        return torch.cat(
            [share_outside(self.basis, run_reader(task, self.reader, p)) for p in parts]
        )
