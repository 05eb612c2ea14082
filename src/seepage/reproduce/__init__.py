"""Published tables and figures, made again: the paper's number, ours, and why they differ."""

from seepage.reproduce.cost import Cost, cost
from seepage.reproduce.figure import page
from seepage.reproduce.judge import Claim, Verdict, claims, judged
from seepage.reproduce.lines import Line
from seepage.reproduce.measures import MEASURES, STATISTICS
from seepage.reproduce.pictures import save_pictures
from seepage.reproduce.place import Place
from seepage.reproduce.reading import load_table, names, parse_table
from seepage.reproduce.reproduction import Reproduction
from seepage.reproduce.run import Announce, build, reproduction, source
from seepage.reproduce.shortfall import Shortfall, shortfalls
from seepage.reproduce.sources import Audited
from seepage.reproduce.table import SCALES, PaperTable

__all__ = [
    "MEASURES",
    "SCALES",
    "STATISTICS",
    "Announce",
    "Audited",
    "Claim",
    "Cost",
    "Line",
    "PaperTable",
    "Place",
    "Reproduction",
    "Shortfall",
    "Verdict",
    "build",
    "claims",
    "cost",
    "judged",
    "load_table",
    "names",
    "page",
    "parse_table",
    "reproduction",
    "save_pictures",
    "shortfalls",
    "source",
]
