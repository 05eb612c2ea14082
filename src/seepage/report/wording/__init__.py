"""The sentences of reports: one for each kind of finding, and no decision."""

from collections.abc import Mapping
from typing import Any

from seepage.report.wording._attack_words import ATTACKS, curve_words, describe_effort
from seepage.report.wording._kinds import Cause, Kind, Template, fill
from seepage.report.wording._people_words import PEOPLE
from seepage.report.wording._update_words import UPDATES, proof_words

__all__ = ["Cause", "Kind", "curve_words", "describe_effort", "phrase", "proof_words"]

_TEMPLATES: Mapping[Kind, Template] = {**PEOPLE, **ATTACKS, **UPDATES}


def phrase(kind: Kind, numbers: Mapping[str, Any]) -> str:
    """The sentence of a finding."""
    template = _TEMPLATES[kind]
    return fill(template, **numbers) if isinstance(template, str) else template(**numbers)
