"""Extension of griffe: reads our docstrings' `Example:` as the section of doctests it is."""

from __future__ import annotations

import re

import griffe


class Examples(griffe.Extension):
    """Renames the section before it is parsed; griffe knows the plural alone."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rename in one docstring."""
        if obj.docstring is not None:
            written = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", written, flags=re.M)
