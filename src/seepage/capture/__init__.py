"""Captures: updates as the server receives them, kept in a file and attacked later."""

from seepage.capture.capture import Capture, Form
from seepage.capture.capture_file import dump, load, parse, save
from seepage.capture.consistency import Consistency, consistency
from seepage.capture.setting import Setting, hashed

__all__ = [
    "Capture",
    "Consistency",
    "Form",
    "Setting",
    "consistency",
    "dump",
    "hashed",
    "load",
    "parse",
    "save",
]
