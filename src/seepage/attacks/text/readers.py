"""Linear layers that read a vector at every place of an input, and what each of them sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.text.prefix_keys import PrefixKeys, WatchAttention, find_prefix_keys
from seepage.attacks.text.token_table import draw_texts, require_texts
from seepage.core import Task, Update
from seepage.numerics.row_span import share_outside, split_span
from seepage.probing.hooks import layer_inputs

# Tokens that pass through the network together.
_TOGETHER = 4_096
# Vectors that made a span lie outside it by at most this, or this multiple of its rounding.
_OUTSIDE, _TURNED = 1e-3, 2.0

# Directions to try, in multiples of the tokens and at most this share of all; which share of wrong
# texts may lie nearer than the tolerance assumes; how much further out than known texts the unknown
# may lie; and by how much rounding may be larger than simulated.
_MULTIPLES, _MOST = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5), 0.95
_NEAR, _MARGIN, _ROUNDED = 0.1, 1.2, 10.0

# Names of linear layers that read the same vector at every position, as query, key and value do;
# or of trained keys before those of a text, which its queries meet.
Reader = tuple[str, ...]
# A function of the token and its position alone, of the tokens before as well, or of all tokens.
Sees = Literal["token", "prefix", "text"]


@dataclass(frozen=True, eq=False)
class _SeenReader:
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

    readers: tuple[_SeenReader, ...]
    text: Tensor


def list_readers(task: Task) -> Readers:
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
    return Readers(tuple(found), one)


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
    stacked = []
    for layer in reader:
        if isinstance(layer, PrefixKeys):
            stacked.append(layer.stack_gradients(update.tensors))
        else:
            gradient = update.tensors[_name_weight(task, layer)]
            turned = _is_turned(task.network.get_submodule(layer))
            stacked.append(gradient.T if turned else gradient)
    return torch.cat(stacked)


def count_heads(reader: Reader) -> tuple[int, int]:
    """Heads of a reader's vectors, and how many of them share rows; one and one but for keys."""
    first = reader[0]
    return (first.heads, first.shared) if isinstance(first, PrefixKeys) else (1, 1)


def _is_turned(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as `(inputs, outputs)`, as those of GPT-2 do."""
    return type(module).__name__ == "Conv1D"


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None and bool(module.batch_first)
    return isinstance(module, nn.Linear) or _is_turned(module)


def run_reader(task: Task, reader: Reader, texts: Tensor) -> Tensor:
    """Return what a reader sees at every position of texts `(N, L)`: `(N, L, d)`."""
    with torch.no_grad():
        return torch.cat([run_until(task, p, reader[:1])[reader[0]] for p in _split(texts)])


def _read_last(task: Task, layer: str, texts: Tensor, position: int) -> Tensor:
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
            if name != layer and (isinstance(module, nn.Linear) or _is_turned(module)):
                hooks.enter_context(module.register_forward_pre_hook(shorten))
                hooks.enter_context(module.register_forward_hook(restore))
        return run_until(task, texts, (layer,))[layer][:, position]


def _split(texts: Tensor) -> tuple[Tensor, ...]:
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


class _SeenEnough(Exception):  # noqa: N818
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
            raise _SeenEnough

    def keep(number: int, query: Tensor, _: Tensor) -> None:
        for layer in wanted:
            if isinstance(layer, PrefixKeys) and layer.attention == number:
                queries[layer] = query.transpose(1, 2).flatten(2)
                if layer == last:
                    raise _SeenEnough

    names = [layer for layer in wanted if not isinstance(layer, PrefixKeys)]
    with layer_inputs(network, names, ndim=3) as read, ExitStack() as hooks:
        # Hooks run in the order in which they were registered.
        if last in names:
            hooks.enter_context(network.get_submodule(last).register_forward_pre_hook(stop))
        if len(names) < len(wanted):
            hooks.enter_context(WatchAttention(keep))
        with suppress(_SeenEnough):
            task.outputs(task.parameters, inputs)
    return {**read, **queries}


def _list_linear(task: Task) -> list[str]:
    """Names of all trained linear layers."""
    return [
        name
        for name, module in task.network.named_modules()
        if _is_linear(module) and set(list_weights(task, (name,))) <= task.parameters.keys()
    ]


def measure_tokens(task: Task, reader: Reader, bases: Sequence[Tensor]) -> Tensor:
    """How far outside each of several spans every token lies at every position, `(N, V, L)`.

    `(N, V, 1)` if what is read does not depend on the position, as with rotations.
    """
    domain = require_texts(task.domain, needed_by="a reader of texts")
    texts = task.move_inputs(torch.arange(domain.vocabulary))[:, None].expand(-1, domain.length)
    first = run_reader(task, reader, texts[:1])
    if torch.allclose(first[:, :1].expand_as(first), first, atol=1e-6):
        texts = texts[:, :1] if takes_prefixes(task, reader, 1) else texts
        first = first[:, :1]
    measured = []
    for part in _split(texts):
        read = run_reader(task, reader, part)[:, : first.shape[1]]
        measured.append(torch.stack([share_outside(basis, read) for basis in bases]))
    return torch.cat(measured, dim=1)


@dataclass(frozen=True, eq=False)
class SpanCheck:
    """A reader with the basis of the row space of its observed gradient.

    Args:
        reader: The layers.
        basis: `(r, d)`.
        tolerance: Largest share of a vector outside the span that counts as inside.
        clear: Whether the gradient has no more directions than there are tokens.
        whole: Whether it also has more rows than directions, so that all that was read lies inside.
    """

    reader: Reader
    basis: Tensor
    tolerance: float
    clear: bool = True
    whole: bool = True

    @cached_property
    def _beyond(self) -> Tensor | None:
        """A basis of all that lies outside the span, in single precision, if that is faster."""
        inside, width = self.basis.shape
        if width - inside > 2 * inside:
            return None
        full: Tensor = torch.linalg.qr(self.basis.T, mode="complete").Q
        return full.T[inside:].float()

    def _share(self, vectors: Tensor) -> Tensor:
        """How far outside the span vectors lie, told from zero above 1e-5 or so."""
        if self._beyond is None:
            return share_outside(self.basis.float(), vectors).double()
        single = vectors.float()
        shares: Tensor = (single @ self._beyond.T).norm(dim=-1) / single.norm(dim=-1)
        return shares.double()

    def measure(self, task: Task, texts: Tensor) -> Tensor:
        """Return how far outside the span texts `(N, L)` lie at every position, `(N, L)`."""
        return torch.cat([self._share(run_reader(task, self.reader, p)) for p in _split(texts)])

    def measure_last(self, task: Task, texts: Tensor, position: int, *, short: bool) -> Tensor:
        """Return how far outside texts lie at a position, `(N,)`; `short` if the rest is left out.

        For networks in which a position does not depend on later ones, see `takes_prefixes`.
        """
        rows = texts[:, : position + 1] if short else texts
        read = torch.cat([_read_last(task, self.reader[0], p, position) for p in _split(rows)])
        return self._share(read)

    def find_outside(self, task: Task, texts: Tensor) -> Tensor:
        """Return what lies outside the span at every position, `(N, L, d)`, of unit vectors."""
        found = []
        for rows in _split(texts):
            read = run_reader(task, self.reader, rows).double()
            read = read / read.norm(dim=-1, keepdim=True)
            found.append((read - read @ self.basis.T @ self.basis).float())
        return torch.cat(found)


def find_widest(checks: Sequence[SpanCheck]) -> SpanCheck:
    """The check that leaves most directions outside, of those that every position reaches."""
    # Of a loss at some positions the last layers hear of those alone, and their spans are small.
    most = max(len(one.basis) for one in checks)
    reached = [one for one in checks if len(one.basis) >= 0.9 * most]
    return max(reached, key=lambda one: one.basis.shape[1] - len(one.basis))


def find_span(
    task: Task,
    reader: Reader,
    update: Update,
    *,
    places: int | None,
    rank_tolerance: float,
    tolerance: float,
) -> SpanCheck | None:
    """Return what a reader's gradient spans; None if that is nothing, or all that could be read.

    Args:
        task: The network.
        reader: The layers.
        update: What was observed.
        places: How many tokens the batch has room for, if known. Noise, rounding in half precision
            and local steps leave more directions than that.
        rank_tolerance: Singular values above this share of the largest are no rounding.
        tolerance: Largest share outside that counts as inside. Where rounding is told apart clearly
            it is less: tokens that resemble one of the batch lie near.
    """
    gradient = stack_gradients(task, reader, update)
    if not bool(gradient.any()):
        return None
    basis, turned = split_span(gradient, tolerance=rank_tolerance)
    # Each token has a vector in every head.
    places = None if places is None else places * math.prod(count_heads(reader))
    clear = len(basis) < min(gradient.shape) if places is None else len(basis) <= places
    whole = clear and len(basis) < min(gradient.shape)
    if len(basis[:places]) == gradient.shape[1]:
        return None
    if whole:
        tolerance = min(tolerance, max(_OUTSIDE, _TURNED * turned))
    return SpanCheck(reader, basis[:places], tolerance, clear, whole)


def calibrate_span(
    task: Task, check: SpanCheck, update: Update, texts: Tensor, simulated: Update, *, read: int
) -> SpanCheck:
    """Choose the directions of an unclear span, and its tolerance, by texts that one knows.

    Local steps and half precision leave no gap between what was read and the rest, and which share
    of a vector then lies outside differs from layer to layer. So the client is simulated on random
    texts `(N, L)`, as many as it has; `read` tokens of each are read, and not only predicted. Kept
    are as many directions as tell these best from texts with a wrong word at the end.
    """
    (_, own_values, own), (_, values, observed) = (
        torch.linalg.svd(stack_gradients(task, check.reader, one).double(), full_matrices=False)
        for one in (simulated, update)
    )
    most = int(_MOST * len(values))
    last = min(most, texts.numel())
    # Some rounding is not simulated.
    if values[last] / values[0] > _ROUNDED * own_values[last] / own_values[0]:
        return check
    rows = torch.arange(len(texts) * read, device=texts.device)
    changed = texts.repeat_interleave(read, 0)
    changed[rows, rows % read] = texts[:, :read].flatten().roll(1 if len(texts) == 1 else read)
    right = run_reader(task, check.reader, texts)[:, :read]
    wrong = run_reader(task, check.reader, changed)[rows, rows % read]
    best = 0.0
    for count in (round(multiple * texts.numel()) for multiple in _MULTIPLES):
        if count > most:
            break
        inside = float(share_outside(own[:count], right).max())
        outside = float(share_outside(own[:count], wrong).quantile(_NEAR))
        if outside > best * inside:
            best = outside / inside
            tolerance = max(_MARGIN * inside, math.sqrt(inside * outside))
            check = SpanCheck(check.reader, observed[:count], tolerance, clear=False, whole=False)
    return check
