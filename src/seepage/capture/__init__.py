"""Captures: updates as the server receives them, kept in a file and attacked later."""

from seepage.capture._capture import Capture, Form, Setting, hashed
from seepage.capture._capture_file import dump, load, parse, save
from seepage.capture._consistency import Consistency, consistency

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
