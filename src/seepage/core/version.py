"""The version, below everything that names it."""

from __future__ import annotations

__version__ = "0.1.0"
