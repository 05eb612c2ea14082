"""Signs lost in a single round: every pattern is a candidate, and neighbours choose among them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

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
