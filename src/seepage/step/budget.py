"""As many steps of a search as there is time for."""

from __future__ import annotations

import time
from dataclasses import replace

from seepage.attacks.suitable import Suited
from seepage.core import Observation, Rng

_TRIAL = 3
_FEWEST = 10
# What an option of a recipe counts, in steps.
_COUNTED = {"steps": 1, "iterations": 20}


def affordable(option: Suited, observation: Observation, *, seconds: float) -> Suited:
    """The attack with its steps cut to what fits, measured on a few of them.

    Args:
        option: An attack; one that does not search stays as it is.
        observation: What it will attack.
        seconds: How long it may take.
    """
    counted = next((name for name in _COUNTED if name in option.options), None)
    if counted is None:
        return option
    wanted = option.options[counted]
    assert isinstance(wanted, int)
    trial = 1 if counted == "iterations" else _TRIAL
    short = replace(option, options={**option.options, counted: trial})
    began = time.perf_counter()
    try:
        short.attack(observation, rng=Rng(0).fork("trial"))
    except Exception:  # noqa: BLE001 - the run itself will fail as well, and say why
        return option
    each = (time.perf_counter() - began) / trial
    fewest = max(1, _FEWEST // _COUNTED[counted])
    fit = min(wanted, max(fewest, int(seconds / each)))
    return replace(option, options={**option.options, counted: fit})
