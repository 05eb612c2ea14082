"""Texts from the gradients of transformers."""

from seepage.attacks.text.attack import Dager

__all__ = ["Dager"]
