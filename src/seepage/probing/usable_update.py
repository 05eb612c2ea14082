"""The old place of `seepage.core.usable_update`."""

import warnings

from seepage.core import usable_update


def __getattr__(name: str) -> object:
    if name in ("require_usable", "require_continuous"):
        message = f"seepage.probing.usable_update.{name} is now in seepage.core.usable_update"
        warnings.warn(f"{message}; the old name goes with 0.4", DeprecationWarning, stacklevel=2)
        return getattr(usable_update, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
