"""The old place of two checks that `seepage.core` has now."""

import warnings

from seepage.core import _usable_update as usable_update


def __getattr__(name: str) -> object:
    if name in ("require_usable", "require_continuous"):
        message = f"seepage.probing.usable_update.{name} is now seepage.core.{name}"
        warnings.warn(f"{message}; the old name goes with 0.4", DeprecationWarning, stacklevel=2)
        return getattr(usable_update, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
