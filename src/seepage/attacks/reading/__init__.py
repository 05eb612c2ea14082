"""What an update itself says about what its client did, put in the place of a simulation."""

from seepage.attacks.reading.entries import read_survivors
from seepage.attacks.reading.plan import Plan
from seepage.attacks.reading.searchable import searchable
from seepage.attacks.reading.signs import read_signs

__all__ = ["Plan", "read_signs", "read_survivors", "searchable"]
