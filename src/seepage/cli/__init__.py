"""The command line: `seepage audit`, `report` and the other commands of `seepage --help`."""

from seepage.cli._app import app, main

__all__ = ["app", "main"]
