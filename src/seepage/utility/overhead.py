"""How much longer a step takes behind a defense."""

from __future__ import annotations

import time

import torch

from seepage.core import Batch, Protection, Rng, Task
from seepage.defenses import chain
from seepage.utility.course import Course
from seepage.utility.plan import Plan

# Steps that are timed with the defense and without it, after one that warms up.
TIMED = 4


def overhead(task: Task, data: Batch, *, plan: Plan, defense: Protection, rng: Rng) -> float:
    """Time of a step with the defense over time without, on copies that learn apart."""
    if defense == chain():
        return 1.0
    courses = [Course.begin(task, data, plan=plan, defense=d, rng=rng) for d in (defense, chain())]
    seconds: list[list[float]] = [[], []]
    for step in range(TIMED + 1):
        for course, spent in zip(courses, seconds, strict=True):
            began = time.perf_counter()
            course.advance(step % course.steps)
            if data.inputs.is_cuda:
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
    # The fastest, which whatever else the machine does disturbed least.
    defended, plain = (min(spent[1:]) for spent in seconds)
    return defended / plain
