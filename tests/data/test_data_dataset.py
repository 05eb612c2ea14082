import dataclasses

import pytest
import torch

from seepage.core.errors import InvalidValue
from seepage.data import Dataset
from seepage.domains import Image


def ramp(**changes):
    fields = {
        "name": "ramp",
        "inputs": torch.arange(5).reshape(5, 1, 1, 1).expand(5, 1, 2, 2) / 4,
        "labels": torch.tensor([0, 1, 2, 1, 0]),
        "domain": Image((1, 2, 2)),
        "class_names": ("a", "b", "c", "d"),
        "source": "made up",
    }
    return Dataset(**{**fields, **changes})


def test_classes_are_counted_by_name_even_without_an_example():
    assert ramp().classes == 4
    assert len(ramp()) == 5


def test_a_batch_is_consecutive_examples():
    batch = ramp().batch(2, start=3)
    assert batch.labels.tolist() == [1, 0]
    assert batch.inputs[:, 0, 0, 0].tolist() == [0.75, 1.0]


def test_the_last_example_can_be_reached_but_not_passed():
    assert len(ramp().batch(1, start=4)) == 1
    assert len(ramp().batch(5)) == 5
    with pytest.raises(InvalidValue, match=r"5 examples of ramp, got size=2, start=4"):
        ramp().batch(2, start=4)


@pytest.mark.parametrize(("size", "start"), [(0, 0), (-1, 0), (2, -1), (6, 0)])
def test_no_batch_lies_outside_the_data(size, start):
    with pytest.raises(InvalidValue, match="expected a batch within"):
        ramp().batch(size, start=start)


@pytest.mark.parametrize("indices", [[4, 0, 0], torch.tensor([4, 0, 0]), (4, 0, 0)])
def test_take_keeps_order_and_repeats(indices):
    assert ramp().take(indices).inputs[:, 0, 0, 0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("indices", [[], [5], [-1], [0.5], [[0]], torch.tensor([True, False])])
def test_take_refuses_what_is_not_a_list_of_examples(indices):
    with pytest.raises(InvalidValue, match="example number"):
        ramp().take(indices)


def test_changing_a_batch_leaves_the_data_alone():
    data = ramp(inputs=torch.zeros(5, 1, 2, 2))
    data.batch(2).inputs.fill_(1)
    assert data.inputs.max() == 0


def test_the_mean_is_the_average_input():
    assert torch.equal(ramp().mean(), torch.full((1, 2, 2), 0.5))


def test_repr_prints_no_private_number():
    assert repr(ramp()) == "Dataset('ramp', 5 inputs of shape (1, 2, 2), 4 classes)"


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ramp().name = "other"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"inputs": torch.zeros(5, 1, 2, 3)}, "expected inputs"),
        ({"inputs": torch.full((5, 1, 2, 2), 255.0)}, "divide by 255"),
        ({"inputs": torch.full((5, 1, 2, 2), torch.nan)}, "NaN"),
        ({"inputs": torch.zeros(5, 1, 2, 2, dtype=torch.float64)}, "float32"),
        ({"inputs": torch.zeros(0, 1, 2, 2), "labels": torch.zeros(0).long()}, "at least one"),
        ({"labels": torch.tensor([0, 1])}, r"labels \(5,\)"),
        ({"labels": torch.zeros(5)}, "float32 targets"),
        ({"labels": torch.tensor([0, 1, 2, 3, 4])}, r"labels in 0\.\.3 in ramp, got others"),
        ({"labels": torch.tensor([0, 1, 2, 3, -1])}, "got others; number the classes"),
    ],
)
def test_invalid_data_are_refused_at_construction(changes, complaint):
    with pytest.raises(InvalidValue, match=complaint):
        ramp(**changes)
