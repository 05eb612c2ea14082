"""Rows of tables."""

from seepage.attacks.tabular.attack import PooledEnsemble
from seepage.attacks.tabular.pooling import aligned, confidence, pooled

__all__ = ["PooledEnsemble", "aligned", "confidence", "pooled"]
