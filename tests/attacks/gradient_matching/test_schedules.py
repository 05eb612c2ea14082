"""Schedules: closed forms, and torch's own."""

import pytest
import torch

from seepage.core.errors import InvalidValue
from seepage.numerics._schedules import Constant, CosineDecay, StepDecay, WarmUp


def test_a_constant_schedule_is_one():
    assert {Constant()(step, 10) for step in range(10)} == {1.0}


def test_the_step_size_falls_at_the_papers_milestones():
    factors = [StepDecay()(step, 800) for step in (0, 299, 300, 499, 500, 699, 700, 799)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_decay_is_that_of_torch(floor):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 37, eta_min=floor)
    for step in range(37):
        assert CosineDecay(floor=floor)(step, 37) == pytest.approx(reference.get_last_lr()[0])
        optimiser.step()
        reference.step()


def test_warm_up_rises_linearly_and_hands_over():
    schedule = WarmUp(CosineDecay(), steps=50)
    assert [schedule(step, 250) for step in (0, 24, 49)] == pytest.approx([0.02, 0.5, 1.0])
    assert [schedule(50 + s, 250) for s in range(200)] == [
        CosineDecay()(s, 200) for s in range(200)
    ]


def test_a_run_shorter_than_its_warm_up_only_rises():
    factors = [WarmUp(StepDecay(), steps=50)(step, 20) for step in range(20)]
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "schedule", [Constant(), StepDecay(), CosineDecay(), WarmUp(CosineDecay(floor=0.2), steps=3)]
)
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_factors_are_plain_numbers_in_the_unit_interval(schedule, steps):
    factors = [schedule(step, steps) for step in range(steps)]
    assert all(type(f) is float and 0 < f <= 1 for f in factors)


def test_impossible_schedules_are_refused():
    with pytest.raises(InvalidValue, match="floor"):
        CosineDecay(floor=1.5)
    with pytest.raises(InvalidValue, match="steps"):
        WarmUp(Constant(), steps=0)
