"""Choose signs that mixtures lost: by the neighbours of a pixel, and by how photographs look."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor


def agree_with_neighbours(values: Tensor) -> Tensor:
    """Choose one sign per entry, shared by all inputs, so that neighbours agree.

    Neighbours along every axis are linked. The links with the largest absolute scalar product over
    the inputs form a spanning tree, and signs are carried along it. The sign of the whole is that
    of a photograph (`is_photograph`).

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
    numbers = torch.arange(flat.shape[1]).reshape(values.shape[1:])
    links = [numbers.unfold(axis, 2, 1).reshape(-1, 2) for axis in _long_axes(numbers)]
    first, second = torch.cat([numbers.new_zeros(0, 2), *links]).T
    products = (flat[:, first] * flat[:, second]).sum(0)
    # A link of product zero would not be stored, and its entry would be lost.
    clarity = -(products.abs().double() + 1e-12).numpy()
    size = flat.shape[1]
    graph = coo_array((clarity, (first.numpy(), second.numpy())), shape=(size, size))
    tree = minimum_spanning_tree(graph.tocsr())
    order, parents = breadth_first_order(tree, 0, directed=False)
    agreement = (flat[:, order[1:]] * flat[:, parents[order[1:]]]).sum(0).tolist()
    signs = torch.ones(size, dtype=torch.float64)
    for entry, parent, agrees in zip(order[1:], parents[order[1:]], agreement, strict=True):
        signs[entry] = signs[parent] * (-1.0 if agrees < 0 else 1.0)
    shaped = (flat * signs.to(flat)).reshape(values.shape)
    return (shaped if is_photograph(shaped) else -shaped).to(values)


def _long_axes(entries: Tensor) -> list[int]:
    """Return the axes along which entries have neighbours."""
    return [axis for axis, length in enumerate(entries.shape) if length > 1]


# Log odds that an image is no negative, by a logistic regression without a constant on 20000
# photographs (CIFAR-10's training images) and their negatives, as papers/benchmarks/negatives.py
# fits them (results/negatives.json).
PHOTOGRAPH_WEIGHTS = (-13.2, 69.8, 12.5, 7.5, 33.9)


def is_photograph(values: Tensor) -> bool:
    """Whether images, all of one sign, are likelier to be photographs than negatives.

    Photographs have warm colours, light and blue at the top, and are dark except for highlights.
    Each of these is odd in the values, so a negative has the opposite odds:

        sum_i  a <g> + b <x^3> + c <g t> + d <r> - e <r t>

    over images i, the weighted `photograph_evidence`. Other inputs than images of three channels
    are assumed to be rather dark.

    Args:
        values: `(B, ...)`, less the middle of their range, which is one wide.

    Example:
        >>> sky = torch.tensor([0.1, 0.2, 0.4]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> earth = torch.tensor([0.0, -0.1, -0.2]).reshape(1, 3, 1, 1).expand(1, 3, 4, 8)
        >>> landscape = torch.cat([sky, earth], dim=2)
        >>> is_photograph(landscape), is_photograph(-landscape)
        (True, False)
    """
    if values.ndim != 4 or values.shape[1] != 3:
        return bool(values.sum() <= 0)
    found = photograph_evidence(values)
    return bool((found @ found.new_tensor(PHOTOGRAPH_WEIGHTS)).sum() >= 0)


def photograph_evidence(values: Tensor) -> Tensor:
    """Five signs of a photograph, `(B, 5)`; those of its negative are the opposite.

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


SWEEPS = 30
# An entry so far outside its range outweighs any difference of neighbours.
PRICE = 100.0


def choose_patterns(magnitudes: Tensor, coefficients: Tensor, *, low: float, high: float) -> Tensor:
    """Solve |W u| = a with as many encodings as inputs, every entry up to its sign.

    Each pattern of signs s gives one candidate for an entry. The candidates of all entries are
    chosen together, by min-sum belief propagation over neighbours p, q along every axis:

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
    rest = product((1.0, -1.0), repeat=len(magnitudes) - 1)
    patterns = torch.tensor([(1.0, *signs) for signs in rest]).to(magnitudes)
    inverse = torch.linalg.pinv(coefficients)
    candidates = torch.einsum("be,se,e...->sb...", inverse, patterns, magnitudes)
    beyond = (low - candidates).clamp(min=0) + (candidates - high).clamp(min=0)
    mirrored = (low + candidates).clamp(min=0) + (-candidates - high).clamp(min=0)
    alone = PRICE * torch.minimum(beyond.sum(1), mirrored.sum(1))
    costs = {axis: _neighbour_costs(candidates, axis + 2) for axis in _long_axes(magnitudes[0])}
    index = _propagate_costs(alone, costs).argmin(0).expand(1, *candidates.shape[1:])
    return candidates.gather(0, index).squeeze(0)


def _neighbour_costs(candidates: Tensor, axis: int) -> Tensor:
    """How much each pattern of an entry differs from each of the next entry, `(S, S, ...)`."""
    reach = candidates.shape[axis] - 1
    one = candidates.narrow(axis, 0, reach).unsqueeze(1)
    next_one = candidates.narrow(axis, 1, reach).unsqueeze(0)
    return torch.minimum((one - next_one).abs().sum(2), (one + next_one).abs().sum(2))


def _propagate_costs(alone: Tensor, costs: dict[int, Tensor]) -> Tensor:
    """Return the least cost of everything given the pattern of one entry, `(S, ...)`."""
    # A message comes along an axis, forward from the entry before or back from the one behind.
    sides = [(axis, forward) for axis in costs for forward in (True, False)]
    messages = {side: torch.zeros_like(alone) for side in sides}
    for _ in range(SWEEPS):
        belief = alone + sum(messages.values())
        heard = {
            (axis, forward): _send_message(
                belief - messages[axis, not forward], axis, forward, costs[axis]
            )
            for axis, forward in sides
        }
        # Averaging with the old messages keeps loops from oscillating.
        messages = {side: (messages[side] + heard[side]) / 2 for side in sides}
    return alone + sum(messages.values())


def _send_message(cost: Tensor, axis: int, forward: bool, between: Tensor) -> Tensor:
    """Return the message of belief propagation from each entry's neighbour on one side."""
    reach = between.shape[axis + 2]
    said = cost.narrow(axis + 1, 0 if forward else 1, reach).unsqueeze(1)
    least = (said + (between if forward else between.transpose(0, 1))).amin(0)
    heard = torch.zeros_like(cost)
    heard.narrow(axis + 1, 1 if forward else 0, reach).copy_(least - least.amin(0))
    return heard
