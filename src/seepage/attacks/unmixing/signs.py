"""Signs that were lost: found by what the magnitudes allow, and by what neighbours make likely."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.unmixing.negatives import positive
from seepage.core import Rng

STEPS = 60


def retrieve_signs(magnitudes: Tensor, coefficients: Tensor, *, restarts: int, rng: Rng) -> Tensor:
    """Solve |W u| = a for every entry apart, each up to its sign: real phase retrieval.

        s = sign(W u),   u = W^+ (s * a),   until the signs no longer change

    Args:
        magnitudes: a, `(E, P)`.
        coefficients: W, `(E, B)`.
        restarts: Random starts; the smallest residual is kept, entry by entry.
        rng: Of the starts.

    Returns:
        u, `(B, P)`.

    References:
        Fienup, 1982 (fienup1982phase)
    """
    inverse = torch.linalg.pinv(coefficients)
    shape = (coefficients.shape[1], magnitudes.shape[1])
    best = torch.zeros(shape).to(magnitudes)
    lowest = torch.full(shape[1:], torch.inf).to(magnitudes)
    for restart in range(restarts):
        found = rng.fork(restart).normal(shape, like=magnitudes)
        for _ in range(STEPS):
            before = found
            found = inverse @ torch.where(coefficients @ found < 0, -magnitudes, magnitudes)
            if torch.equal(found, before):
                break
        residual = ((coefficients @ found).abs() - magnitudes).square().sum(0)
        best = torch.where(residual < lowest, found, best)
        lowest = torch.minimum(residual, lowest)
    return best


def agree_with_neighbours(values: Tensor) -> Tensor:
    """Choose one sign per entry, shared by all inputs, so that neighbours agree.

    Entries are joined along every axis. The pairs that agree or disagree most clearly, by the size
    of the scalar product over the inputs, span a tree; signs are carried along it. The sign of the
    whole is that of a photograph (`positive`).

    Args:
        values: `(B, ...)`, each entry right up to a sign.

    Example:
        >>> smooth = torch.linspace(-3.0, -1.0, 5).expand(2, 5)
        >>> signs = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0])
        >>> torch.equal(agree_with_neighbours(smooth * signs), smooth)
        True
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    flat = values.flatten(1).cpu()
    first, second = _neighbours(values.shape[1:])
    products = (flat[:, first] * flat[:, second]).sum(0)
    # A pair without a product would be no edge at all, and the entry would be lost.
    clarity = -(products.abs().double() + 1e-12).numpy()
    size = flat.shape[1]
    graph = coo_array((clarity, (first.numpy(), second.numpy())), shape=(size, size))
    tree = minimum_spanning_tree(graph.tocsr())
    order, parents = breadth_first_order(tree, 0, directed=False)
    agreement = (flat[:, order[1:]] * flat[:, parents[order[1:]]]).sum(0).tolist()
    signs = torch.ones(size, dtype=torch.float64)
    for entry, parent, agrees in zip(order[1:], parents[order[1:]], agreement, strict=True):
        signs[entry] = signs[parent] * (-1.0 if agrees < 0 else 1.0)
    whole = flat * signs.to(flat)
    shaped = whole.reshape(values.shape)
    return (shaped if positive(shaped) else -shaped).to(values)


def _neighbours(shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Every pair of entries side by side along some axis, as two lists of positions."""
    numbers = torch.arange(shape.numel()).reshape(shape)
    pairs = [
        (numbers.narrow(axis, 0, length - 1), numbers.narrow(axis, 1, length - 1))
        for axis, length in enumerate(shape)
        if length > 1
    ]
    first, second = zip((numbers[:0], numbers[:0]), *pairs, strict=True)
    return torch.cat([a.flatten() for a in first]), torch.cat([b.flatten() for b in second])
