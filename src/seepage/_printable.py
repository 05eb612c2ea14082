"""Text from specs, records and files, as terminals and documents may show it.

It stands outside of all packages and imports none, so that `seepage --help` does not wait for them.
"""

from __future__ import annotations

import re

# Control characters but for the end of a line, and those that turn the direction of text, end a
# line unseen or cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_printable(text: str) -> str:
    r"""Replace what a terminal or a reader would obey instead of showing it.

    Example:
        >>> make_printable("a\x1b[2Jb"), make_printable("invoice\u202egnp.exe")
        ('a?[2Jb', 'invoice?gnp.exe')
    """
    return _UNSAFE.sub("?", text)
