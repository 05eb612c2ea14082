"""Trained keys that an attention reads before those of a text, as prefix tuning adds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.core import Rng, Task

# Gets the number of an attention with a prefix, its queries `(N, H, L, d)` and keys, P + L of them.
_Seen = Callable[[int, Tensor, Tensor], None]

_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class PrefixKeys(str):
    """The trained prefix of one attention.

    The score of a query q_i and a key k_p is q_i^T k_p / sqrt(d), so the gradient of the key is
    sum_i (dL/ds_ip) q_i / sqrt(d). It spans queries as the gradient of a weight spans what a layer
    read, and the queries of the first attention are functions of a token and its position. Heads
    have queries and coefficients of their own: their gradients are blocks on a diagonal, and a
    token has the queries of all heads, one after the other.

    Args:
        weight: Name of the parameter.
        attention: Number of the attention among those with a prefix, in the order they run.
        places: Where the parameter has the keys that each head of queries meets, `(H, P, d)`.
    """

    weight: str
    attention: int
    places: Tensor
    # Heads of queries, and how many share their keys, as with grouped queries.
    heads: int
    shared: int

    def __new__(cls, weight: str, attention: int, places: Tensor) -> PrefixKeys:
        """Name the keys."""
        keys = super().__new__(cls, f"{weight} (keys before attention {attention})")
        keys.weight, keys.attention, keys.places = weight, attention, places
        keys.heads = len(places)
        keys.shared = keys.heads // len(set(places[:, 0, 0].tolist()))
        return keys

    def stack_gradients(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The gradients of the keys, `(H P, H d)`."""
        return _put_on_diagonal(tensors[self.weight].flatten()[self.places])

    def mix(self, queries: Tensor, *, rng: Rng) -> Tensor:
        """Mix queries `(T, H d)` by random numbers as a gradient does, `(H P, H d)`."""
        heads = queries.reshape(len(queries), self.heads, -1).transpose(0, 1)
        known = heads.reshape(self.heads // self.shared, -1, heads.shape[2])
        chance = rng.normal((len(known), self.places.shape[1], known.shape[1])).to(known)
        return _put_on_diagonal((chance @ known).repeat_interleave(self.shared, 0))


def _put_on_diagonal(blocks: Tensor) -> Tensor:
    """A matrix `(H P, H d)` of blocks `(H, P, d)` that is zero elsewhere."""
    count = torch.arange(len(blocks), device=blocks.device)
    wide = blocks.new_zeros(len(blocks), blocks.shape[1], len(blocks), blocks.shape[2])
    wide[count, :, count] = blocks
    return wide.flatten(2).flatten(0, 1)


class WatchAttention(TorchFunctionMode):
    """Shows the queries and keys of every attention inside the block that has more keys."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self._seen, self._count = seen, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204
        """Look at the arguments, and run the function."""
        named = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            query, key = (*args, *(named[n] for n in ("query", "key") if n in named))[:2]
            self._show(query, key)
        elif func in _PRODUCTS and args[0].ndim == args[1].ndim == 4:
            self._show(args[0], args[1].mT)
        return func(*args, **named)

    def _show(self, query: Tensor, key: Tensor) -> None:
        if key.shape[2] > query.shape[2]:
            self._count += 1
            self._seen(self._count - 1, query, key)


def find_prefix_keys(task: Task, text: Tensor) -> list[PrefixKeys]:
    """Find the trained prefixes of attentions: parameters that are keys before those of a text.

    Args:
        task: The network.
        text: Any text, `(L,)`.
    """
    parameters = {n: p.detach().requires_grad_() for n, p in task.parameters.items()}
    found: list[PrefixKeys] = []

    def look(number: int, query: Tensor, key: Tensor) -> None:
        count = key.shape[2] - query.shape[2]
        if query.shape[2] != len(text) or not key.requires_grad:
            return
        keys = key[0, :, :count].repeat_interleave(query.shape[1] // key.shape[1], 0)
        located = [_locate(head, parameters) for head in keys]
        if len(names := {name for name, _ in located}) == 1 and (name := names.pop()) is not None:
            places = torch.stack([places for _, places in located])
            found.append(PrefixKeys(name, number, places))

    with torch.enable_grad(), WatchAttention(look):
        task.outputs(parameters, text[None])
    return found


def _locate(keys: Tensor, parameters: Mapping[str, Tensor]) -> tuple[str | None, Tensor]:
    """Find the parameter whose entries the keys `(P, d)` are, and where it has them.

    The gradient of a sum of all keys with different weights has these weights as its entries.
    """
    weights = torch.arange(1.0, keys.numel() + 1, device=keys.device).view_as(keys)
    total = (keys.float() * weights).sum()
    slopes = torch.autograd.grad(
        total, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    for name, slope in zip(parameters, slopes, strict=True):
        if slope is not None:
            places = slope.flatten().nonzero().flatten()
            places = places[slope.flatten()[places].argsort()]
            if torch.equal(slope.flatten()[places], weights.flatten()):
                return name, places.view_as(keys)
    return None, weights
