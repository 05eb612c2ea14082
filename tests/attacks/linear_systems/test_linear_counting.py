"""Equations against unknowns, as Qian and Hansen count them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import MNIST, Signal
from seepage.exposure._inspection import (
    _features_determined,
    _filters_needed,
    _hidden_units_needed,
    inspection,
)


def enough_units(n1, *, batch, d, n2):
    """Equations 4 to 7 of the paper, counted, against what is unknown in them."""
    equations = n2 + n1 * n2 + n1 + n1 * d
    unknowns = batch * n2 + n1 * batch + batch * d
    return equations >= unknowns


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 30))
def test_the_units_needed_are_the_fewest_whose_equations_outnumber_the_unknowns(batch, d, n2):
    needed = _hidden_units_needed(batch, inputs=d, outputs=n2)
    tried = (n1 for n1 in range(1, 50_000) if enough_units(n1, batch=batch, d=d, n2=n2))
    if batch >= d + n2 + 1:
        assert needed is None
    else:
        assert needed == next(tried)


def test_the_numbers_of_the_paper_come_out():
    assert _hidden_units_needed(1, inputs=1024, outputs=10) == 1
    cifar = {"before": (3, 32, 32), "after": (16, 16)}
    assert [_filters_needed(batch, **cifar) for batch in (1, 4)] == [12, 48]


@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 40))
def test_features_are_determined_where_the_head_has_as_many_equations_as_unknowns(batch, n1, n2):
    # Equations 9 and 10: n2 + n1 n2 known sums over the batch; B n2 residuals and B n1 features
    # are unknown.
    counted = n2 + n1 * n2 >= batch * n2 + batch * n1
    assert _features_determined(batch, features=n1, outputs=n2) == (
        batch == 1 or (batch < n2 and counted)
    )


@pytest.mark.parametrize("rule", [_hidden_units_needed, _features_determined])
def test_a_batch_of_nobody_is_refused(rule):
    width = {"inputs": 4} if rule is _hidden_units_needed else {"features": 4}
    with pytest.raises(InvalidValue, match="batch of one or more"):
        rule(0, outputs=3, **width)


def test_inspection_counts_the_layer_that_reads_the_input():
    found = inspection(sp.zoo.single_conv(filters=12, classes=100), batches=(1, 4))
    assert (found.first.name, found.first.kind, found.first.width) == ("conv", "filters", 12)
    assert [(c.needed, c.enough) for c in found.first.counts] == [(12, True), (48, False)]
    dense = inspection(sp.zoo.fc(hidden=8, domain=MNIST), batches=(8, 1000))
    assert [(c.needed, c.enough) for c in dense.first.counts] == [(9, False), (None, False)]
    assert dense.closed_form == "hidden1"
    # The layer behind counts too, whether or not its activation can be undone.
    smooth = sp.zoo.mlp(hidden=(9, 30), activation="gelu", domain=Signal((1, 20)))
    [count] = inspection(smooth, batches=(8,)).first.counts
    assert count.needed == _hidden_units_needed(8, inputs=20, outputs=30) == 9


def test_filters_are_not_enough_where_the_head_does_not_determine_the_features():
    counts = inspection(sp.zoo.single_conv(filters=400), batches=(8, 32)).first.counts
    assert [c.enough for c in counts] == [True, False]
    assert all(c.needed < 400 for c in counts)


def test_networks_outside_the_theory_get_what_can_be_said():
    found = inspection(sp.zoo.resnet20())
    assert found.metric is None
    assert "BatchNorm2d" in found.outside
    assert found.closed_form is None
    assert found.first.name == "conv1"


class Recurrent(nn.Module):
    """A network whose first layer is of a kind that no rule counts."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x.transpose(1, 2))[0][:, -1])


def test_a_first_layer_of_another_kind_is_counted_by_nobody():
    found = inspection(sp.Task(Recurrent(), sp.cross_entropy, Signal((1, 12))))
    assert found.first is None
    assert found.closed_form is None
    assert found.metric is None


@pytest.mark.parametrize("first", [(nn.Flatten(), nn.Linear(12, 8)), (nn.Conv1d(1, 8, 12),)])
def test_a_frozen_first_layer_gives_nothing_away_in_closed_form(first):
    model = nn.Sequential(*first, nn.Flatten(), nn.ReLU(), nn.Linear(8, 3))
    task = sp.Task(model, sp.cross_entropy, Signal((1, 12)))
    assert inspection(task).first is not None
    first[-1].requires_grad_(False)
    found = inspection(sp.Task(model, sp.cross_entropy, Signal((1, 12))))
    assert (found.first, found.closed_form) == (None, None)
