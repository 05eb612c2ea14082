"""The table that a network looks tokens up in, and the one of positions, if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.clients._gradient import batch_gradient
from seepage.core import Domain, Rng, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens

# A place in a text of which nothing is known.
UNKNOWN = -1
# Rows of tokens and positions agree up to rounding.
_CLOSE = 1e-3


@dataclass(frozen=True)
class TokenTable:
    """Where a network keeps the vectors of its tokens.

    Args:
        weight: Name of the parameter `(V, d)`, with a row for each token.
        positions: Name of a parameter with a row for each position, whose gradient at a position
            is the gradient of the token there; None if there is none.
        first: Row of the first position.
        tied: Whether the output layer uses the same table, so that all rows have a gradient.
    """

    weight: str
    positions: str | None = None
    first: int = 0
    tied: bool = False


def require_texts(domain: Domain, *, needed_by: str) -> Tokens:
    """Return the domain of texts; raise `NotApplicable` if inputs are something else."""
    if not isinstance(domain, Tokens):
        raise NotApplicable(
            f"{needed_by} reads token sequences, but the inputs are {domain!r}; use an attack on "
            "numbers"
        )
    return domain


def find_token_table(task: Task) -> TokenTable:
    """Find the table by the gradient of one random text: only rows of its tokens have one.

    Any module will do, since nothing but the gradient is looked at. A table that the output layer
    shares has a gradient everywhere; it is found as a trained `nn.Embedding` with a row for each
    token.

    Example:
        >>> from seepage.zoo import gpt
        >>> find_token_table(gpt(width=16, layers=1))
        TokenTable(weight='tokens.weight', positions='positions.weight', first=0, tied=False)

    Raises:
        NotApplicable: Inputs are no texts, or no trained parameter is such a table.
    """
    domain = require_texts(task.domain, needed_by="a table of tokens")
    (text,) = draw_texts(domain, 1)
    inputs = task.move_inputs(text[None])
    gradient = batch_gradient(task, task.parameters, inputs, task.blank_labels(1))
    tables = {n: t for n, t in gradient.items() if t.ndim == 2 and len(t) == domain.vocabulary}
    for name, rows in tables.items():
        read = set(rows.any(1).nonzero().flatten().tolist())
        if read and read <= set(text.tolist()):
            positions, first = _find_positions(gradient, name, text)
            return TokenTable(name, positions, first)
    embeddings = {
        f"{name}.weight"
        for name, module in task.model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    tied = next((n for n, rows in tables.items() if n in embeddings and bool(rows.any())), None)
    if tied is not None:
        return TokenTable(tied, tied=True)
    raise NotApplicable(
        f"expected {task.name} to train a table with a row for each of {domain.vocabulary} tokens, "
        "got none with a gradient: its embeddings are frozen, or the vocabulary is another one"
    )


def draw_texts(domain: Tokens, count: int) -> Tensor:
    """Random texts `(N, L)` without padding, and without a repetition if the vocabulary allows."""
    order = Rng(0).fork("texts").permutation(domain.vocabulary)
    order = order[order != domain.padding] if domain.padding is not None else order
    return order[torch.arange(count * domain.length) % len(order)].reshape(count, -1)


def _find_positions(
    gradient: Mapping[str, Tensor], table: str, text: Tensor
) -> tuple[str | None, int]:
    """Find rows, one after the other, that have the gradients of the text's tokens in order."""
    rows = gradient[table]
    wanted = rows[text.to(rows.device)]
    if len(set(text.tolist())) < len(text) or not bool(wanted.any(1).all()):
        return None, 0
    return find_rows({n: t for n, t in gradient.items() if n != table}, wanted)


def find_rows(gradient: Mapping[str, Tensor], wanted: Tensor) -> tuple[str | None, int]:
    """Find the parameter that has a given gradient in consecutive rows, as one of positions has.

    Args:
        gradient: By name of the parameter.
        wanted: `(N, d)`.

    Returns:
        Its name and the first of the rows; None if there is no such parameter.
    """
    for name, tensor in gradient.items():
        if tensor.shape[-1:] != wanted.shape[-1:] or tensor.numel() < wanted.numel():
            continue
        parts = tensor.reshape(-1, wanted.shape[1])
        for first in range(len(parts) - len(wanted) + 1):
            found = parts[first : first + len(wanted)]
            if bool(found[0].any()) and _agree(found[:1], wanted[:1]) and _agree(found, wanted):
                return name, first
    return None, 0


def _agree(one: Tensor, other: Tensor) -> bool:
    apart = (one - other).norm(dim=1)
    return bool((apart <= _CLOSE * other.norm(dim=1)).all())
