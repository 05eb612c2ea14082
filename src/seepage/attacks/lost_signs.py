"""Recover lost signs from magnitudes: phase retrieval, smoothness, photograph against negative."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from seepage.core import Rng

# Log odds that an image is no negative, by a logistic regression without a constant on 20000
# photographs (CIFAR-10's training images) and their negatives, as papers/benchmarks/negatives.py
# fits them (results/negatives.json).
WEIGHTS = (-13.2, 69.8, 12.5, 7.5, 33.9)


def positive(values: Tensor) -> bool:
    """Whether images, all of one sign, are likelier to be photographs than negatives.

    Photographs are warm in colour, lit from above and bluer there, and dark but for highlights.
    Each of these is odd in the values, so that a negative has the opposite odds:

        sum_i  a <g> + b <x^3> + c <g t> + d <r> - e <r t>

    over images i, weighing `evidence`. What is not of three channels is taken to be rather dark.

    Args:
        values: `(B, ...)`, less the middle of their range, which is one wide.

    Example:
        >>> sky = torch.tensor([0.1, 0.2, 0.4]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> earth = torch.tensor([0.0, -0.1, -0.2]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> landscape = torch.cat([sky, earth], dim=2)
        >>> positive(landscape), positive(-landscape)
        (True, False)
    """
    if values.ndim != 4 or values.shape[1] != 3:
        return bool(values.sum() <= 0)
    found = evidence(values)
    return bool((found @ found.new_tensor(WEIGHTS)).sum() >= 0)


def evidence(values: Tensor) -> Tensor:
    """What tells each photograph from its negative, `(B, 5)`: the opposite of each for the other.

        <g>,   <x^3>,   <g t>,   <r>,   -<r t>

    Means <.> over the entries, g the channels' mean, r = red - blue, and t from 1 at the top to -1
    at the bottom.

    Args:
        values: `(B, 3, H, W)`, less the middle of their range, which is one wide.
    """
    height = torch.linspace(1, -1, values.shape[2]).to(values).unsqueeze(1)
    grey, warmth = values.mean(1), values[:, 0] - values[:, 2]
    kinds = (grey, values.pow(3), grey * height, warmth, -warmth * height)
    return torch.stack([kind.flatten(1).mean(1) for kind in kinds], dim=1)


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


SWEEPS = 30
# An entry so far outside its range outweighs any jump between neighbours.
PRICE = 100.0

# Where a message comes from: the axis, and whether from the entry before or the one behind.
Side = tuple[int, bool]


def choose_patterns(magnitudes: Tensor, coefficients: Tensor, *, low: float, high: float) -> Tensor:
    """Solve |W u| = a with as many encodings as inputs, every entry up to its sign.

    Each pattern of signs s gives one candidate for an entry, and those of all entries are chosen
    together, by min-sum belief propagation over neighbours p, q along every axis:

        u_p(s) = W^+ (s * a_p),   min_s sum_p price outside(u_p) + sum_{p,q} ||u_p -+ u_q||_1

    A pattern and its negative have the same magnitudes, so half of the patterns stand for all, and
    neighbours are compared up to a common sign.

    Args:
        magnitudes: a, `(E, ...)`.
        coefficients: W, `(E, B)`.
        low: The least an entry of u can be.
        high: The most.

    Returns:
        u, `(B, ...)`, each entry up to one sign for all inputs.

    Example:
        >>> smooth = torch.stack([torch.linspace(-0.4, -0.1, 5), torch.linspace(0.3, 0.5, 5)])
        >>> mixing = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
        >>> found = choose_patterns((mixing @ smooth).abs(), mixing, low=-0.5, high=0.5)
        >>> torch.allclose(found * found[1].sign(), smooth, atol=1e-5)
        True

    References:
        Pearl, 1988 (pearl1988probabilistic) for the propagation
    """
    candidates = _candidates(magnitudes, coefficients)
    beyond = (low - candidates).clamp(min=0) + (candidates - high).clamp(min=0)
    mirrored = (low + candidates).clamp(min=0) + (-candidates - high).clamp(min=0)
    alone = PRICE * torch.minimum(beyond.sum(1), mirrored.sum(1))
    chosen = _propagated(alone, dict(_jumps(candidates))).argmin(0)
    index = chosen.expand(1, *candidates.shape[1:])
    return candidates.gather(0, index).squeeze(0)


def _candidates(magnitudes: Tensor, coefficients: Tensor) -> Tensor:
    """The solution for every pattern that begins with a plus, `(S, B, ...)`."""
    rest = product((1.0, -1.0), repeat=len(magnitudes) - 1)
    patterns = torch.tensor([(1.0, *signs) for signs in rest]).to(magnitudes)
    inverse = torch.linalg.pinv(coefficients)
    return torch.einsum("be,se,e...->sb...", inverse, patterns, magnitudes)


def _jumps(candidates: Tensor) -> Iterator[tuple[int, Tensor]]:
    """For every axis, what each pattern costs beside each one of the next entry, `(S, S, ...)`."""
    for axis, length in enumerate(candidates.shape[2:]):
        if length < 2:
            continue
        one = candidates.narrow(axis + 2, 0, length - 1).unsqueeze(1)
        next_one = candidates.narrow(axis + 2, 1, length - 1).unsqueeze(0)
        alike, unlike = (one - next_one).abs().sum(2), (one + next_one).abs().sum(2)
        yield axis, torch.minimum(alike, unlike)


def _propagated(alone: Tensor, jumps: dict[int, Tensor]) -> Tensor:
    """The least cost of everything given the pattern of one entry, `(S, ...)`."""
    sides: list[Side] = [(axis, forward) for axis in jumps for forward in (True, False)]
    messages = {side: torch.zeros_like(alone) for side in sides}
    for _ in range(SWEEPS):
        belief = alone + sum(messages.values())
        heard = {
            (axis, forward): _message(belief - messages[axis, not forward], axis, forward, jump)
            for axis, jump in jumps.items()
            for forward in (True, False)
        }
        # Half of the old keeps loops from swinging to and fro.
        messages = {side: (messages[side] + heard[side]) / 2 for side in sides}
    return alone + sum(messages.values())


def _message(cost: Tensor, axis: int, forward: bool, jump: Tensor) -> Tensor:
    """What every entry hears from the one before it along an axis, or from the one behind."""
    reach = jump.shape[axis + 2]
    said = cost.narrow(axis + 1, 0 if forward else 1, reach).unsqueeze(1)
    least = (said + (jump if forward else jump.transpose(0, 1))).amin(0)
    heard = torch.zeros_like(cost)
    heard.narrow(axis + 1, 1 if forward else 0, reach).copy_(least - least.amin(0))
    return heard
