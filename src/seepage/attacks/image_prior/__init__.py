"""An untrained network as a prior: its weights are searched instead of pixels."""

from seepage.attacks.image_prior.prior import PriorNetwork
from seepage.attacks.image_prior.through import through

__all__ = ["PriorNetwork", "through"]
