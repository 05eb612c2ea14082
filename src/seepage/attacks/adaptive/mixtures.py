"""What InstaHide mixed: its encodings come apart where the mixing is known."""

from __future__ import annotations

from dataclasses import replace

from seepage.attacks.reading.plan import Plan
from seepage.attacks.unmixing import Unmixed
from seepage.defenses import InstaHide


def read_mixtures(link: InstaHide, plan: Plan) -> Plan:
    """Carry on from the encodings to the private inputs, where the threat knows the mixing.

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """
    if plan.observation.mixing is None or isinstance(plan.attack, Unmixed):
        return plan
    return replace(plan, attack=Unmixed(plan.attack))
