"""Sign and size of separated sources, which a mixture alone does not tell."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.mixture import Mixture

# The part of the entries that may leave the bounds when a source is stretched to fill them.
_LEAVING = 0.005


def scales(mixture: Mixture, unmixing: Tensor) -> Tensor:
    """What to divide the rows A M by, `(B,)`, differentiable where the bias gives it.

    With a bias the gradient of the bias is D 1, so that A maps it to the lengths themselves. Where
    there is none, sources of one sign are made positive, and sources with bounds on both sides
    stretched to fill them, with the sign that lets them grow further; others have none.
    """
    if mixture.total is not None:
        return unmixing @ mixture.total
    sources = (unmixing @ mixture.mixtures).detach()
    if bool(mixture.high.isfinite().all()):
        both = torch.stack([_stretch(sign * sources, mixture) for sign in (1.0, -1.0)])
        return torch.where(both[0] >= both[1], 1 / both[0], -1 / both[1])
    return torch.where(sources.sum(1) < 0, -1.0, 1.0).to(sources)


def outside(mixture: Mixture, unmixing: Tensor) -> Tensor:
    """How far the sources leave their bounds: the mean over entries, summed over sources."""
    sources = (unmixing @ mixture.mixtures) / scales(mixture, unmixing).unsqueeze(1)
    below = (mixture.low - sources).clamp_min(0)
    above = (sources - mixture.high).clamp_min(0)
    return (below + above).mean(1).sum()


def _stretch(sources: Tensor, mixture: Mixture) -> Tensor:
    """The largest factor `(B,)` with which nearly all entries stay within the bounds."""
    limits = torch.where(sources > 0, mixture.high / sources, mixture.low / sources)
    return limits.nan_to_num(torch.inf, torch.inf).quantile(_LEAVING, dim=1)
