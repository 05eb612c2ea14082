"""Solving for private inputs from mixtures of them."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.unmixing.signs import agree_with_neighbours, retrieve_signs
from seepage.core import Mixing, Rng
from seepage.core.errors import InvalidValue, NotApplicable


def unmix(encodings: Tensor, mixing: Mixing, *, rng: Rng, restarts: int = 20) -> Tensor:
    """The private inputs whose mixtures come nearest to these encodings.

        min_x ||W x - e||^2,   or   min_x || |W (x - c)| - |e - c| ||^2   where signs were flipped

    Without flipped signs this is linear least squares. With them, magnitudes determine every entry
    only up to one mirroring at c for all inputs together; neighbouring entries are mirrored to
    agree, and the whole so that it is darker than c. That takes encodings of several rounds:
    `torch.cat` them, and the coefficients.

    Args:
        encodings: `(E, ...)`, in natural units.
        mixing: How they were made, with coefficients `(E, B)`.
        rng: Where the searches for signs start.
        restarts: How many searches for signs there are; the best is kept entry by entry.

    Returns:
        Inputs `(B, ...)`, in natural units.

    Example:
        >>> from seepage.core import rng
        >>> halves = Mixing(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        >>> solved = unmix(torch.tensor([[0.5], [0.75]]), halves, rng=rng(0))
        >>> torch.allclose(solved, torch.tensor([[0.0], [1.0]]), atol=1e-6)
        True

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating); Carlini et al., 2021
        (carlini2021private) for the magnitudes
    """
    weights = mixing.coefficients.double()
    if len(weights) != len(encodings):
        raise InvalidValue(
            f"expected one row of coefficients per encoding, got {len(weights)} rows and "
            f"{len(encodings)} encodings"
        )
    flat = encodings.flatten(1).double()
    if mixing.flipped_about is None:
        solved: Tensor = torch.linalg.pinv(weights) @ flat
        return solved.reshape(-1, *encodings.shape[1:]).to(encodings)
    if weights.shape[0] <= weights.shape[1]:
        raise NotApplicable(
            f"expected more encodings than inputs, since their signs are lost, got "
            f"{weights.shape[0]} for {weights.shape[1]}; add those of other rounds"
        )
    magnitudes = (flat - mixing.flipped_about).abs()
    centred = retrieve_signs(magnitudes, weights, restarts=restarts, rng=rng)
    agreed = agree_with_neighbours(centred.reshape(-1, *encodings.shape[1:]))
    return (mixing.flipped_about + agreed).to(encodings)
