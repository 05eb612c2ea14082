"""`auto`, which chooses an attack: closed forms first, then the best search in rehearsals."""

from seepage.data._public_data import PublicData, make_up
from seepage.rehearsal._attack_protocols import Rehearses
from seepage.rehearsal._auto_attack import ALL_ATTACKS, Auto, auto
from seepage.rehearsal._effort_plan import EFFORTS, Effort

__all__ = [
    "ALL_ATTACKS",
    "EFFORTS",
    "Auto",
    "Effort",
    "PublicData",
    "Rehearses",
    "auto",
    "make_up",
]
