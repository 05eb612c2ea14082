"""Each defense against a naive computation."""

import math
from decimal import Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

import seepage as sp
from seepage.core.errors import InvalidValue


def an_update(seed: int = 0) -> sp.Update:
    key = sp.rng(seed)
    return sp.Update({"w": key.fork("w").normal((6, 7)), "b": key.fork("b").normal((6,))})


@given(ratio=st.floats(0, 1), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_pruning_keeps_exactly_the_largest_entries_of_each_tensor(ratio, seed):
    update = an_update(seed)
    pruned = sp.Prune(ratio)(update, rng=sp.rng(0))
    for name, tensor in update.tensors.items():
        entries = sorted(tensor.flatten().tolist(), key=abs)
        kept = set(entries[int(Decimal(str(ratio)) * len(entries)) :])
        naive = [v if v in kept else 0.0 for v in tensor.flatten().tolist()]
        assert pruned.tensors[name].flatten().tolist() == naive


@pytest.mark.parametrize(("ratio", "pruned"), [(0.29, 29), (0.57, 57), (0.9, 90), (0.999, 99)])
def test_pruning_a_share_prunes_that_many_entries_however_the_product_rounds(ratio, pruned):
    update = sp.core.Update({"weight": torch.arange(1.0, 101.0)})
    left = sp.Prune(ratio)(update, rng=sp.rng(0)).flat()
    assert int((left == 0).sum()) == pruned


def test_pruning_the_whole_update_ranks_all_tensors_together():
    update = sp.Update({"big": torch.tensor([5.0, -6.0]), "small": torch.tensor([0.1, 0.2])})
    pruned = sp.Prune(0.5, scope="update")(update, rng=sp.rng(0))
    assert pruned.tensors["big"].tolist() == [5.0, -6.0]
    assert pruned.tensors["small"].tolist() == [0.0, 0.0]


def test_pruning_everything_leaves_nothing():
    assert not sp.Prune(1.0)(an_update(), rng=sp.rng(0)).flat().any()


def test_clipping_scales_the_whole_update_to_the_norm():
    update = an_update()
    clipped = sp.Clip(0.5)(update, rng=sp.rng(0))
    assert math.isclose(float(clipped.norm()), 0.5, rel_tol=1e-6)
    assert torch.allclose(clipped.flat(), update.flat() * 0.5 / update.norm())
    assert torch.equal(sp.Clip(100.0)(update, rng=sp.rng(0)).flat(), update.flat())


def test_dp_sgd_without_noise_is_the_mean_of_clipped_gradients(photos):
    task = sp.zoo.cnn(variant="cnn2-v2")
    defense = sp.chain(sp.ClipEach(0.7), sp.Mean(), sp.AddGaussian(0.0))
    shared = sp.Client(sp.Gradient(), defense)(task, photos, rng=sp.rng(0))
    naive = torch.zeros_like(shared.flat())
    for x, y in zip(photos.inputs, photos.labels, strict=True):
        one = sp.Gradient()(task, x[None], y[None]).flat()
        naive += one * min(1.0, 0.7 / float(one.norm())) / len(photos)
    assert torch.allclose(shared.flat(), naive, atol=1e-6)


@pytest.mark.parametrize(
    ("defense", "law", "scale"),
    [(sp.AddGaussian(0.3), "norm", 0.3), (sp.AddLaplace(0.3), "laplace", 0.3)],
    ids=repr,
)
def test_noise_follows_its_law(defense, law, scale):
    from scipy import stats

    update = sp.Update({"w": torch.zeros(4000), "b": torch.zeros(1000)})
    noise = defense(update, rng=sp.rng(4)).flat().numpy()
    assert stats.kstest(noise / scale, law).pvalue > 0.01
    assert abs(noise.std() / (scale * getattr(stats, law).std()) - 1) < 0.05


def test_tensors_do_not_share_their_noise():
    update = sp.Update({"a": torch.zeros(100), "b": torch.zeros(100)})
    noisy = sp.AddGaussian(1.0)(update, rng=sp.rng(0))
    assert not torch.allclose(noisy.tensors["a"], noisy.tensors["b"])


def test_dropout_drops_the_stated_share():
    update = sp.Update({"w": torch.ones(20_000)})
    dropped = sp.Dropout(0.3)(update, rng=sp.rng(0)).flat()
    assert abs(float((dropped == 0).float().mean()) - 0.3) < 0.02
    assert set(dropped.tolist()) == {0.0, 1.0}
    rescaled = sp.Dropout(0.3, rescale=True)(update, rng=sp.rng(0)).flat()
    assert math.isclose(float(rescaled.max()), 1 / 0.7, rel_tol=1e-6)


def test_quantising_rounds_to_the_nearest_level():
    update = an_update()
    shared = sp.Quantize(3)(update, rng=sp.rng(0))
    for name, tensor in update.tensors.items():
        step = float(tensor.abs().max()) / 3
        assert torch.allclose(shared.tensors[name], (tensor / step).round() * step, atol=1e-6)
        assert len(shared.tensors[name].unique()) <= 7


def test_signs_are_all_that_sign_shares():
    assert torch.equal(sp.Sign()(an_update(), rng=sp.rng(0)).flat(), an_update().flat().sign())


@pytest.mark.parametrize("defense", [sp.Sign(), sp.Quantize(4)], ids=repr)
def test_rounding_passes_gradients_to_the_informed_adversary(defense):
    leaf = an_update().flat().requires_grad_()
    defense.expected(an_update().unflatten(leaf)).flat().square().sum().backward()
    assert leaf.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "defense",
    [
        sp.Prune(0.5),
        sp.Prune(0.5, scope="update"),
        sp.Clip(1.0),
        sp.Dropout(0.5),
        sp.Sign(),
        sp.Quantize(4),
        sp.AddGaussian(1.0),
    ],
    ids=repr,
)
def test_the_expected_part_works_under_vmap(defense):
    form = an_update()
    pair = torch.stack([an_update(0).flat(), an_update(1).flat()])
    together = vmap(lambda v: defense.expected(form.unflatten(v)).flat())(pair)
    apart = torch.stack([defense.expected(an_update(i)).flat() for i in (0, 1)])
    assert torch.allclose(together, apart)


def test_the_links_of_a_chain_draw_apart():
    update = sp.Update({"w": torch.zeros(5000)})
    twice = sp.chain(sp.AddGaussian(1.0), sp.AddGaussian(1.0))(update, rng=sp.rng(0))
    assert abs(float(twice.flat().std()) - 2**0.5) < 0.05


def test_nested_chains_are_flattened():
    a, b, c = sp.Clip(1.0), sp.Prune(0.5), sp.AddGaussian(0.1)
    assert sp.chain(sp.chain(a, b), c) == sp.chain(a, sp.chain(b, c)) == sp.chain(a, b, c)
    assert sp.chain(a) is a


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: sp.Prune(1.5), r"in \[0, 1\], got 1.5"),
        (lambda: sp.Prune(math.nan), "got nan"),
        (lambda: sp.Prune(0.5, scope="layer"), "got 'layer'"),
        (lambda: sp.Clip(0.0), "max_norm > 0, got 0.0"),
        (lambda: sp.ClipEach(-1.0), "max_norm > 0, got -1.0"),
        (lambda: sp.AddGaussian(-0.1), "std >= 0, got -0.1"),
        (lambda: sp.AddLaplace(math.inf), "scale >= 0, got inf"),
        (lambda: sp.Mean(over=0), "over >= 1 examples, got 0"),
        (lambda: sp.Dropout(1.0), r"in \[0, 1\), got 1.0"),
        (lambda: sp.Quantize(1), r"use Sign\(\) for one"),
        (lambda: sp.chain(sp.Mean(), sp.ClipEach(1.0)), "per-example links come first"),
        (lambda: sp.chain(sp.Prune(0.5), sp.Mean()), "takes per_example updates"),
        (lambda: sp.chain(0.5), "expected a defense such as .*, got 0.5"),
    ],
)
def test_impossible_defenses_are_refused_at_construction(build, said):
    with pytest.raises(InvalidValue, match=said):
        build()


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e-3, 5.0])
def test_clipping_has_a_finite_derivative_at_every_size(size):
    leaf = torch.full((5,), size, requires_grad=True)
    each = sp.Update({"w": leaf.expand(3, 5)}, granularity="per_example")
    whole = sp.Clip(1.0).expected(sp.Update({"w": leaf})).flat()
    total = whole.sum() + sp.ClipEach(1.0).expected(each).flat().sum()
    (slope,) = torch.autograd.grad(total, leaf)
    assert slope.isfinite().all()
