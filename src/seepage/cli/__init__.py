"""The command line: `seepage audit`, `report`, `inspect`, `vet` and `list`."""

from seepage.cli.app import app, main

__all__ = ["app", "main"]
