"""Laws of what people read: rows of tables and texts."""

import numpy as np
import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import Categorical, Continuous, Image, Tabular, Tokens, Vector

VOTERS = sp.data.load("voters")
HAMLET = sp.data.load("hamlet")
AGE = Continuous(name="age", low=20, high=70, mean=40, std=10)
VOTE = Categorical(name="vote", categories=("no", "yes", "perhaps"))
TABLE = Tabular((VOTE, AGE))


def test_the_network_sees_numbers_standardised_and_categories_as_they_are():
    seen = VOTERS.domain.normalise(VOTERS.inputs).numpy().astype(np.float64)
    for column, place in zip(VOTERS.domain.columns, VOTERS.domain.places, strict=True):
        values = seen[:, place]
        if isinstance(column, Continuous):
            assert values.mean() == pytest.approx(0, abs=2e-3), column.name
            assert values.std() == pytest.approx(1, abs=2e-3), column.name
        else:
            assert set(np.unique(values)) <= {0.0, 1.0}
            assert (values.sum(1) == 1).all()
    natural = VOTERS.domain.denormalise(torch.from_numpy(seen))
    torch.testing.assert_close(natural.float(), VOTERS.inputs)


@pytest.mark.parametrize("domain", [VOTERS.domain, TABLE, HAMLET.domain, Tokens(3, 2)], ids=repr)
def test_samples_are_valid_and_stay_as_they_are_when_projected(domain):
    drawn = domain.sample(20, rng=sp.rng(0))
    domain.check(drawn)
    assert torch.equal(domain.project(drawn), drawn)
    torch.testing.assert_close(domain.denormalise(domain.normalise(drawn)), drawn)
    assert torch.equal(domain.sample(20, rng=sp.rng(0)), drawn)
    assert len({tuple(row) for row in drawn.tolist()}) > 1


def test_projection_takes_the_nearest_row_of_the_table():
    # Every valid row on a grid of ages, and the nearest of them by hand.
    wild = torch.tensor([[0.1, 0.7, 0.6, 1.7], [-3.0, -2.0, -5.0, -0.2], [0.2, 0.1, 0.9, 0.5]])
    for row, projected in zip(wild, TABLE.project(wild), strict=True):
        rows = [
            torch.tensor([*(float(i == c) for i in range(3)), a])
            for c in range(3)
            for a in np.linspace(0, 1, 11)
        ]
        nearest = min(rows, key=lambda valid: float((valid - row).norm()))
        assert torch.allclose(projected, nearest.float())


def test_inputs_are_read_in_their_own_units():
    assert TABLE.words(torch.tensor([0.0, 1.0, 0.0, 0.5])) == ("vote: yes", "age: 45")
    line = HAMLET.domain.words(HAMLET.inputs[1])
    assert " ".join(line) == "tis now struck twelve ; get thee to bed , francisco ."
    assert Tokens(2, 9).words(torch.tensor([8, -1])) == ("8", "_")


@pytest.mark.parametrize(
    ("low", "high", "number"),
    [
        (0.0, 100_000.0, "80331"),
        (9_000.0, 98_000.0, "68707.72"),
        (0.0, 1e9, "12.34"),
        (-0.3, 4.3, "0"),
        (-40.0, 45.0, "-17.25"),
        (1e6, 2e6, "1234567"),
        (0.0, 1.0, "0.00012345"),
        (0.0, 1e-12, "0"),
        (2e-12, 5e-12, "2e-12"),
        (2e-12, 5e-12, "3.5e-12"),
    ],
)
def test_a_number_of_a_table_is_printed_with_all_its_digits(low, high, number):
    column = Continuous(name="it", low=low, high=high, mean=low, std=high - low)
    stored = torch.tensor((float(number) - low) / (high - low), dtype=torch.float64).float()
    assert column.words(stored) == f"it: {number}"


@pytest.mark.parametrize("number", ["80331", "68707.72", "0.1", "-3.25", "16777216", "1e-09"])
def test_a_number_of_a_row_is_printed_with_all_its_digits(number):
    row = torch.tensor([float(number)])
    assert Vector((1,), bounds=(-2e7, 2e7)).words(row) == (f"column 0: {number}",)


def test_a_number_that_is_none_is_printed_all_the_same():
    assert AGE.words(torch.tensor(torch.nan)) == "age: nan"


@pytest.mark.parametrize(
    ("domain", "inputs", "said"),
    [
        (TABLE, torch.zeros(1, 3), r"expected rows \(B, 4\) of floats"),
        (TABLE, torch.tensor([[0.0, 1.0, 0.0, 1.5]]), "expected column 'age' between its bounds"),
        (TABLE, torch.tensor([[0.5, 0.5, 0.0, 0.5]]), "expected one category per column"),
        (TABLE, torch.tensor([[torch.nan, 1.0, 0.0, 0.5]]), "expected column 'vote' between"),
        (Tokens(2, 9), torch.tensor([[0.0, 1.0]]), r"expected tokens \(B, 2\) as int64"),
        (Tokens(2, 9), torch.tensor([[0, 1, 2]]), r"expected tokens \(B, 2\) as int64"),
        (Tokens(2, 9), torch.tensor([[0, 9]]), r"expected tokens in 0\.\.8, got 1 of 2 outside"),
        (Image((1, 1, 2)), torch.zeros(1, 1, 1, 2).long(), "expected inputs as floats"),
    ],
)
def test_what_is_no_input_is_refused(domain, inputs, said):
    with pytest.raises(InvalidValue, match=said):
        domain.check(inputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tabular(()),
        lambda: Continuous(name="age", low=1, high=1, mean=0, std=1),
        lambda: Continuous(name="age", low=0, high=1, mean=0, std=0),
        lambda: Categorical(name="vote", categories=("yes",)),
        lambda: Tokens(0, 5),
        lambda: Tokens(5, 1),
        lambda: Tokens(1, 3, names=("one", "two")),
    ],
)
def test_impossible_domains_are_refused(make):
    with pytest.raises(InvalidValue, match="expected"):
        make()


def test_a_batch_of_tokens_keeps_whole_numbers_in_any_precision():
    batch = HAMLET.batch(2).to(dtype=torch.float64)
    assert torch.equal(batch.inputs, HAMLET.inputs[:2])
    with pytest.raises(InvalidValue, match="int64 input in hamlet"):
        sp.data.Dataset(
            "hamlet", HAMLET.inputs.float(), HAMLET.labels, HAMLET.domain, ("a", "b"), ""
        )


def test_the_bundled_answers_are_the_survey_itself():
    # Facts of the file as published: 944 people, 41.6 % for Dole, mean age 47.04.
    ages = VOTERS.inputs[:, 0] * 80 + 18
    assert len(VOTERS) == 944
    assert float(VOTERS.labels.double().mean()) == pytest.approx(0.41631, abs=1e-4)
    assert float(ages.double().mean()) == pytest.approx(47.0434, abs=1e-3)
    assert len(HAMLET) == 2515
    assert set(HAMLET.labels[:10].tolist()) == {0, 1}
