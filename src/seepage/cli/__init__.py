"""The commands: `seepage audit`, `seepage report`, `seepage inspect` and `seepage list`."""

from seepage.cli.app import app, main

__all__ = ["app", "main"]
