"""Records to what people read: a table and a contact sheet."""

from seepage.report.contact_sheet import save_contact_sheet
from seepage.report.summary import Row, summarise
from seepage.report.table import leak_table
from seepage.report.words import decibels, defense_words

__all__ = [
    "Row",
    "decibels",
    "defense_words",
    "leak_table",
    "save_contact_sheet",
    "summarise",
]
