"""A seed is no key: every public door says so in one sentence."""

from functools import cache

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import ATTACKS
from seepage.bounds import BOUNDS
from seepage.bounds.risk import RISKS
from seepage.core import Observation
from seepage.core.errors import InvalidValue

CLIENT = sp.Client(sp.Gradient())
REFUSED = r"^expected rng to be sp\.rng\(SEED\), got 0$"


def photo() -> tuple[sp.Task, sp.Batch]:
    return sp.zoo.mlp(hidden=(8,)), sp.data.bundled("photos", size=1)


@cache
def seen() -> Observation:
    return sp.Threat(knows_labels=True).observe(CLIENT, *photo(), rng=sp.rng(0))


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_refuse_a_seed(name):
    with pytest.raises(InvalidValue, match=REFUSED):
        ATTACKS[name]()(seen(), rng=0)


@pytest.mark.parametrize("name", ["cocktail_party", "exact_features", "tensor_features"])
def test_recoveries_of_features_refuse_a_seed(name):
    with pytest.raises(InvalidValue, match=REFUSED):
        ATTACKS[name]().recover(seen(), rng=0)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_refuse_a_seed(name):
    with pytest.raises(InvalidValue, match=REFUSED):
        BOUNDS[name]()(CLIENT, *photo(), rng=0)


@pytest.mark.parametrize("name", RISKS)
def test_risk_scores_refuse_a_seed(name):
    with pytest.raises(InvalidValue, match=REFUSED):
        RISKS[name]()(CLIENT, *photo(), rng=0)


@pytest.mark.parametrize(
    "share",
    [CLIENT, lambda task, batch, rng: sp.Threat().observe(CLIENT, task, batch, rng=rng)],
    ids=["client", "threat"],
)
def test_clients_and_threats_refuse_a_seed(share):
    with pytest.raises(InvalidValue, match=REFUSED):
        share(*photo(), rng=0)


def test_training_refuses_a_seed():
    task, batch = photo()
    with pytest.raises(InvalidValue, match=REFUSED):
        sp.utility.train(task, batch, held_out=batch, plan=sp.utility.Training(epochs=1), rng=0)


def test_a_step_takes_a_seed_and_refuses_a_key():
    batch = torch.rand(1, 4), torch.tensor([0])
    with pytest.raises(InvalidValue, match=r"^expected seed to be a whole number, got Rng\("):
        sp.audit_step(nn.Linear(4, 2), nn.CrossEntropyLoss(), batch, seed=sp.rng(0))
