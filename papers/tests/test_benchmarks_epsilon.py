"""Broken private trainings are caught, and correct ones are not accused."""

import pytest
from benchmarks.epsilon_audit import BROKEN, CORRECT, OpacusSteps, audit

import seepage as sp

pytest.importorskip("opacus", reason="the promise is of an accountant of Opacus")
SEEDS = (0, 1)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_mechanism_is_caught(name):
    mechanism, promise = BROKEN[name]
    for seed in SEEDS:
        found = audit(mechanism, promise(), seed, trials=150, canaries=800)
        assert found.violated
        assert "refuted" in str(found)


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.filterwarnings("ignore")
def test_a_correct_mechanism_is_not_accused(name):
    mechanism, promise = CORRECT[name]
    for seed in SEEDS:
        found = audit(mechanism, promise(), seed, trials=150, canaries=800)
        assert not found.violated
        assert "proves nothing more" in str(found)


@pytest.mark.filterwarnings("ignore")
def test_the_optimiser_of_opacus_keeps_its_promise():
    claimed = sp.epsilon(noise_multiplier=2.0, sample_rate=1.0, steps=4, delta=1e-5)
    found = audit(OpacusSteps(2.0, 1.0), claimed, 0, trials=20, canaries=2000)
    assert 0.5 < found.from_one_run < claimed
