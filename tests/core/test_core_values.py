"""Batches, updates, keys and errors."""

import pytest
import torch

import seepage as sp
from seepage.core._construct import _serialise
from seepage.core.errors import InvalidValue, SeepageError, UnknownName


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (torch.zeros(0, 3, 4, 4), torch.zeros(0, dtype=torch.long), "B >= 1"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2).long(), "divide 8-bit images by 255"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(3).long(), "one label per input"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).int(), "use labels.long()"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 3).long(), "probabilities"),
        (torch.zeros(2, 3, 4, 4), torch.tensor(1), "one label per input"),
    ],
)
def test_an_impossible_batch_is_refused_in_one_sentence(inputs, labels, said):
    with pytest.raises(InvalidValue, match=said) as caught:
        sp.Batch(inputs, labels)
    assert "\n" not in str(caught.value)


def test_a_batch_never_prints_private_values():
    assert "tensor" not in repr(sp.Batch(torch.rand(1, 2), torch.tensor([0])))


def test_flat_and_unflatten_are_inverse():
    update = sp.Update({"w": torch.randn(2, 3), "b": torch.randn(2), "s": torch.randn(())})
    back = update.unflatten(update.flat())
    assert all(torch.equal(back.tensors[n], t) for n, t in update.tensors.items())


def test_norm_per_example_equals_a_loop():
    update = sp.Update({"w": torch.randn(5, 2, 3), "b": torch.randn(5)}, granularity="per_example")
    loop = [
        (update.tensors["w"][i].square().sum() + update.tensors["b"][i] ** 2) ** 0.5
        for i in range(5)
    ]
    assert torch.allclose(update.norm(), torch.stack(loop))


def test_a_difference_points_the_other_way():
    update = sp.Update({"w": torch.ones(2)}, kind="difference")
    assert torch.equal(update.descent().tensors["w"], -torch.ones(2))
    assert update.descent().kind == "gradient"


def test_an_update_cannot_be_edited():
    update = sp.Update({"w": torch.ones(2)})
    with pytest.raises(TypeError):
        update.tensors["w"] = torch.zeros(2)


def test_a_key_gives_the_same_numbers_in_any_precision():
    single = sp.rng(3).normal((4,))
    double = sp.rng(3).normal((4,), like=torch.zeros((), dtype=torch.float64))
    assert torch.equal(double.float(), single)


def test_forks_are_independent_of_each_other():
    draws = torch.stack([sp.rng(0).fork("restart", i).normal((2000,)) for i in range(3)])
    assert (torch.corrcoef(draws) - torch.eye(3)).abs().max() < 0.1


def test_normal_draws_are_standard_normal():
    from scipy.stats import kstest

    assert kstest(sp.rng(5).normal((5000,)).numpy(), "norm").pvalue > 0.01


def test_global_randomness_is_not_touched():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    sp.rng(1).normal((3,))
    assert torch.equal(torch.rand(1), expected)


def test_unknown_names_offer_the_nearest():
    assert "did you mean 'psnr'?" in str(UnknownName("metric", "psrn", ["psnr", "ssim"]))
    assert issubclass(UnknownName, SeepageError)


def test_a_chain_serialises_to_plain_data():
    import json

    defense = sp.chain(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.1))
    plain = json.loads(json.dumps(_serialise(defense)))
    links = plain["arguments"]["links"]
    assert [link["name"] for link in links] == ["ClipEach", "Mean", "AddGaussian"]
    assert links[2]["arguments"]["std"] == 0.1
