"""Linear layers that read a vector at every place of an input, and what each of them sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.text._prefix_keys import PrefixKeys, WatchAttention, find_prefix_keys
from seepage.attacks.text._token_table import draw_texts, require_texts
from seepage.clients import Gradient
from seepage.core import Rng, Task, Update
from seepage.core.errors import NotApplicable
from seepage.numerics._row_span import row_span, share_outside
from seepage.probing._hooks import layer_inputs

# Tokens that pass through the network together.
_TOGETHER = 4_096
# Layers above the first attention that check texts, at most: two blocks or so.
_LATER = 8

# Names of linear layers that read the same vector at every position, as query, key and value do;
# or of trained keys before those of a text, which its queries meet.
Reader = tuple[str, ...]
# A function of the token and its position alone, of the tokens before as well, or of all tokens.
Sees = Literal["token", "prefix", "text"]


@dataclass(frozen=True, eq=False)
class _SeenReader:
    """A reader and what it reads.

    Args:
        layers: Names of the layers.
        sees: On what its vectors depend.
        read: What it read of one random text, `(L, d)`.
    """

    layers: Reader
    sees: Sees
    read: Tensor


@dataclass(frozen=True, eq=False)
class _Readers:
    """All trained readers of a network in the order in which they run, and a text that was read."""

    readers: tuple[_SeenReader, ...]
    text: Tensor


def list_readers(task: Task) -> _Readers:
    """List trained layers that read every place of a text, by what they see.

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
    texts = torch.stack([one, other, mixed])
    with torch.no_grad():
        read = run_until(task, texts)
    read |= {keys: run_reader(task, (keys,), texts) for keys in find_prefix_keys(task, one)}
    read = {name: seen for name, seen in read.items() if seen.shape[1] == len(one)}
    found = []
    for group in group_readers(read):
        of_one, of_other, of_mixed = read[group[0]]
        before = torch.allclose(of_mixed[:half], of_one[:half], atol=1e-5)
        after = torch.allclose(of_mixed[half:], of_other[half:], atol=1e-5)
        sees: Sees = "token" if before and after else "prefix" if before else "text"
        found.append(_SeenReader(group, sees, of_one))
    return _Readers(tuple(found), one)


@dataclass(frozen=True)
class TextReaders:
    """The layers of a transformer whose gradients span what they read.

    Args:
        token: Reads functions of a token and its position; None if only later layers are trained.
        later: Read functions of all tokens before as well, or of the whole text.
        both_ways: Whether the later ones read the whole text.
        reads_last: Whether the last token is read, and not only predicted.
    """

    token: Reader | None
    later: tuple[Reader, ...]
    both_ways: bool
    reads_last: bool


def find_readers(task: Task, *, tolerance: float) -> TextReaders:
    """Find a reader of single tokens, and all readers of prefixes or of whole texts.

    Only readers count whose gradient spans everything they read, which is tested on one random
    text: in the last block only the classified position may count. Where the loss is that of the
    next token, the last one has no gradient. A decoder needs no reader of single tokens: its output
    layer reads every prefix, and each token can be tried at the end of each.

    Raises:
        NotApplicable: The network has no such layers, for example if a classifier's head alone is
            trained.
    """
    found = list_readers(task)
    probe = Gradient()(task, found.text[None], task.blank_labels(1))
    spanning: dict[str, list[Reader]] = {"token": [], "prefix": [], "text": []}
    reads_last: dict[str, bool] = {}
    for reader in found.readers:
        gradient = stack_gradients(task, reader.layers, probe)
        if len(spanning["prefix"] + spanning["text"]) == _LATER or not bool(gradient.any()):
            continue
        # One text has few directions, which as many random mixtures of rows span.
        count = 2 * len(found.text) * math.prod(count_heads(reader.layers))
        mixed = Rng(0).normal((min(count, len(gradient)), len(gradient)))
        basis = row_span(mixed.to(gradient) @ gradient, tolerance=tolerance)
        inside = share_outside(basis, reader.read) < 1e-2
        # A span of everything that could be read tells nothing.
        if len(basis) < gradient.shape[1] and bool(inside[:-1].all()):
            spanning[reader.sees].append(reader.layers)
            reads_last.setdefault(reader.sees, bool(inside[-1]))
    later = spanning["prefix"] or spanning["text"]
    if not spanning["prefix"] and not (spanning["token"] and later):
        raise NotApplicable(
            f"expected {task.name} to read texts by trained layers, the first ones or a decoder's "
            "last, got none whose gradient spans what it read; use another attack"
        )
    both_ways = not spanning["prefix"]
    if both_ways:
        turned = run_reader(task, later[0], found.text.flip(0)[None])
        if torch.allclose(turned.flip(1), run_reader(task, later[0], found.text[None]), atol=1e-5):
            raise NotApplicable(
                f"{task.name} reads words in no order, so it holds no texts, only words; use "
                "bag_of_words or token_span"
            )
    token = next(iter(spanning["token"]), None)
    ends = reads_last["prefix" if token is None else "token"]
    return TextReaders(token, tuple(later), both_ways, ends)


def group_readers(read: Mapping[str, Tensor]) -> list[Reader]:
    """Put together layers that read the same."""
    groups: list[list[str]] = []
    for name, seen in read.items():
        group = next((g for g in groups if torch.equal(read[g[0]], seen)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [tuple(group) for group in groups]


def list_weights(task: Task, reader: Reader) -> list[str]:
    """Names of the weights of layers that read the same."""
    return [_name_weight(task, layer) for layer in reader]


def _name_weight(task: Task, layer: str) -> str:
    if isinstance(layer, PrefixKeys):
        return layer.weight
    joint = isinstance(task.network.get_submodule(layer), nn.MultiheadAttention)
    return f"{layer}.{'in_proj_weight' if joint else 'weight'}"


def stack_gradients(task: Task, reader: Reader, update: Update) -> Tensor:
    """The weight gradients of layers that read the same, one above the other, `(m, d)`."""
    return torch.cat(list_gradients(task, reader, update))


def list_gradients(task: Task, reader: Reader, update: Update) -> list[Tensor]:
    """The weight gradient of each of the layers that read the same, `(m, d)`."""
    stacked = []
    for layer in reader:
        if isinstance(layer, PrefixKeys):
            stacked.append(layer.stack_gradients(update.tensors))
        else:
            gradient = update.tensors[_name_weight(task, layer)]
            turned = _is_transposed(task.network.get_submodule(layer))
            stacked.append(gradient.T if turned else gradient)
    return stacked


def stack_normalised(task: Task, reader: Reader, update: Update) -> Tensor:
    """Stack the weight gradients of the layers, each scaled to length one; zeros are left out.

    The gradient of a query may be a thousandth of that of a value, and what it read would be taken
    for rounding of the other.
    """
    gradients = list_gradients(task, reader, update)
    scaled = [one.double() / one.double().norm() for one in gradients if bool(one.any())]
    return torch.cat(scaled or gradients)


def count_heads(reader: Reader) -> tuple[int, int]:
    """Heads of a reader's vectors, and how many of them share rows; one and one but for keys."""
    first = reader[0]
    return (first.heads, first.shared) if isinstance(first, PrefixKeys) else (1, 1)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as `(inputs, outputs)`, as those of GPT-2 do."""
    return type(module).__name__ == "Conv1D"


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None and bool(module.batch_first)
    return isinstance(module, nn.Linear) or _is_transposed(module)


def run_reader(task: Task, reader: Reader, texts: Tensor) -> Tensor:
    """Return what a reader sees at every position of texts `(N, L)`: `(N, L, d)`."""
    with torch.no_grad():
        return torch.cat([run_until(task, p, reader[:1])[reader[0]] for p in split_texts(texts)])


def read_last(task: Task, layer: str, texts: Tensor, position: int) -> Tensor:
    """What a layer of a decoder reads at a position of texts `(N, L)`, `(N, d)`.

    Linear layers, which take most of the time, run once on what texts have in common before it.
    """
    count, length = texts.shape
    prefix = torch.unique(texts[:, : max(1, position)], dim=0, return_inverse=True)[1]
    rows, places = (torch.arange(n, device=texts.device) for n in (count, length))
    first = rows.new_full((count,), count).scatter_reduce(0, prefix, rows, "amin")[prefix]
    held = torch.where(places == position, rows[:, None], first[:, None]) * length + places
    kept, index = torch.unique(held, return_inverse=True)

    def shorten(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor | None:
        return given[0].flatten(0, 1)[kept][None] if given[0].shape[:2] == texts.shape else None

    def restore(_: nn.Module, given: tuple[Tensor, ...], outputs: Tensor) -> Tensor | None:
        return outputs[0][index] if given[0].shape[:2] == (1, len(kept)) else None

    with ExitStack() as hooks, torch.no_grad():
        for name, module in task.network.named_modules():
            if name != layer and (isinstance(module, nn.Linear) or _is_transposed(module)):
                hooks.enter_context(module.register_forward_pre_hook(shorten))
                hooks.enter_context(module.register_forward_hook(restore))
        return run_until(task, texts, (layer,))[layer][:, position]


def split_texts(texts: Tensor) -> tuple[Tensor, ...]:
    """Split texts `(N, L)` into parts that pass through the network together."""
    return torch.split(texts, max(1, _TOGETHER // texts.shape[1]))


def takes_prefixes(task: Task, reader: Reader, length: int | None = None) -> bool:
    """Whether the beginning of a text is read alone as it is within the text.

    Args:
        task: The network.
        reader: What reads.
        length: Of the beginning; half of a text by default.
    """
    domain = require_texts(task.domain, needed_by="a reader of texts")
    text = task.move_inputs(draw_texts(domain, 1))
    length = length or max(1, domain.length // 2)
    whole = run_reader(task, reader, text)[:, :length]
    # Networks of one length do not take a shorter text.
    with suppress(RuntimeError, IndexError, ValueError):
        alone = run_reader(task, reader, text[:, :length])
        return alone.shape == whole.shape and torch.allclose(alone, whole, atol=1e-5)
    return False


class _StopForward(Exception):  # noqa: N818
    """Raised to leave a forward pass whose rest is not needed."""


def run_until(task: Task, inputs: Tensor, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Run to the last of some layers, and return what each reads at every place, `(N, L, d)`.

    Args:
        task: The network.
        inputs: Texts `(N, L)`, or images that the network cuts into patches.
        layers: Names in the order in which they run; None for all trained linear layers.
    """
    network, wanted = task.network, _list_linear(task) if layers is None else layers
    last = None if layers is None else layers[-1]
    queries: dict[str, Tensor] = {}

    def stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0].ndim == 3:
            raise _StopForward

    def keep(number: int, query: Tensor, _: Tensor) -> None:
        for layer in wanted:
            if isinstance(layer, PrefixKeys) and layer.attention == number:
                queries[layer] = query.transpose(1, 2).flatten(2)
                if layer == last:
                    raise _StopForward

    names = [layer for layer in wanted if not isinstance(layer, PrefixKeys)]
    with layer_inputs(network, names, ndim=3) as read, ExitStack() as hooks:
        # Hooks run in the order in which they were registered.
        if last in names:
            hooks.enter_context(network.get_submodule(last).register_forward_pre_hook(stop))
        if len(names) < len(wanted):
            hooks.enter_context(WatchAttention(keep))
        with suppress(_StopForward):
            task.outputs(task.parameters, inputs)
    return {**read, **queries}


def _list_linear(task: Task) -> list[str]:
    """Names of all trained linear layers."""
    return [
        name
        for name, module in task.network.named_modules()
        if _is_linear(module) and set(list_weights(task, (name,))) <= task.parameters.keys()
    ]
