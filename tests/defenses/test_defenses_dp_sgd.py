"""DP-SGD: its scale, its refusals and its promise, against closed forms and against Opacus."""

import copy
import math
import re

import pytest
import torch
from scipy import integrate, stats

import seepage as sp
from seepage.core.errors import InvalidValue, MissingExtra, UnknownName, install_hint
from seepage.defenses import gaussian_epsilon


def test_dp_sgd_is_the_chain_of_its_three_links():
    defense = sp.dp_sgd(max_norm=0.5, noise_multiplier=3.0, batch_size=6)
    assert defense == sp.chain(sp.ClipEach(0.5), sp.Mean(over=6), sp.AddGaussian(0.25))


def test_the_noise_on_the_mean_has_the_stated_deviation():
    defense = sp.dp_sgd(max_norm=2.0, noise_multiplier=0.7, batch_size=4)
    each = sp.Update({"w": torch.zeros(4, 50)}, granularity="per_example")
    draws = torch.stack([defense(each, rng=sp.rng(seed)).flat() for seed in range(1000)])
    assert abs(float(draws.std()) / (0.7 * 2.0 / 4) - 1) < 0.02


def test_nobody_moves_the_sum_by_more_than_the_norm(photos):
    task = sp.zoo.mlp(hidden=(8,))
    client = sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=0.1, noise_multiplier=0, batch_size=4))
    without_one = sp.Batch(photos.inputs[1:], photos.labels[1:])
    with_all, with_others = (client(task, b, rng=sp.rng(0)).flat() for b in (photos, without_one))
    # The mean is over four examples even when three came: the noise was measured for that.
    assert float((with_all - with_others).norm()) == pytest.approx(0.1 / 4, rel=1e-4)


def test_dp_sgd_is_refused_where_a_batch_normalises_itself(photos):
    client = sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1, noise_multiplier=1, batch_size=4))
    task = sp.zoo.convnet(width=2)
    for batchnorm in ("exact", "unknown"):
        with pytest.raises(InvalidValue, match="batch normalisation mixes the batch"):
            sp.Threat(batchnorm=batchnorm).observe(client, task, photos, rng=sp.rng(0))
    sp.Threat(batchnorm="running").observe(client, task, photos, rng=sp.rng(0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_norm": -1.0}, "max_norm > 0, got -1.0"),
        ({"noise_multiplier": -0.1}, "noise_multiplier >= 0, got -0.1"),
        ({"noise_multiplier": math.inf}, "noise_multiplier >= 0, got inf"),
        ({"batch_size": 0}, "batch_size >= 1, got 0"),
    ],
)
def test_impossible_numbers_are_refused_with_the_value(options, said):
    with pytest.raises(InvalidValue, match=said):
        sp.dp_sgd(**{"max_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 1, **options})


def privacy_loss_integral(eps: float, mu: float) -> float:
    """The smallest delta of two Gaussians mu apart, by integrating max(0, p - e^eps q)."""

    def surplus(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(eps) * stats.norm.pdf(x))

    crossing = eps / mu + mu / 2
    return integrate.quad(surplus, crossing, crossing + 40, epsabs=1e-16, limit=400)[0]


@pytest.mark.parametrize("sigma", [0.7, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_the_exact_epsilon_spends_exactly_delta(sigma, steps, delta):
    eps = gaussian_epsilon(noise_multiplier=sigma, steps=steps, delta=delta)
    spent = privacy_loss_integral(eps, math.sqrt(steps) / sigma)
    assert spent == pytest.approx(delta, rel=1e-4)


def test_the_exact_epsilon_at_the_ends():
    assert gaussian_epsilon(noise_multiplier=0.0, delta=1e-5) == math.inf
    assert gaussian_epsilon(noise_multiplier=1e6, delta=1e-3) == 0.0
    values = [gaussian_epsilon(noise_multiplier=s, delta=1e-5) for s in (0.05, 0.5, 1, 2, 10)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"sample_rate": 0.0}, InvalidValue, r"sample_rate in \(0, 1\], got 0.0"),
        ({"sample_rate": 1.5}, InvalidValue, "got 1.5"),
        ({"steps": 0}, InvalidValue, "steps >= 1, got 0"),
        ({"delta": 1.0}, InvalidValue, r"delta in \(0, 1\), got 1.0"),
        ({"noise_multiplier": -1.0}, InvalidValue, "noise_multiplier >= 0, got -1.0"),
        ({"accountant": "rpd"}, UnknownName, "did you mean 'rdp'"),
    ],
)
def test_an_impossible_account_is_refused_with_the_value(options, error, said):
    usual = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(error, match=said):
        sp.epsilon(**{**usual, **options})


def test_without_opacus_the_account_says_what_to_install():
    try:
        import opacus  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=re.escape(install_hint("dp"))):
            sp.epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=10, delta=1e-5)
    else:
        pytest.skip("Opacus is installed")


@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_epsilon_is_that_of_opacus(name):
    accountants = pytest.importorskip("opacus.accountants", reason="needs the extra dp")
    theirs = accountants.create_accountant(name)
    theirs.history = [(1.1, 0.02, 50)]
    options = {"noise_multiplier": 1.1, "sample_rate": 0.02, "steps": 50, "delta": 1e-5}
    assert sp.epsilon(**options, accountant=name) == pytest.approx(theirs.get_epsilon(1e-5))


@pytest.mark.filterwarnings("ignore:divide by zero")  # of Opacus, where everybody takes part
@pytest.mark.parametrize(("name", "slack"), [("rdp", 1.25), ("prv", 1.02)])
def test_the_accounts_of_opacus_bound_the_exact_one_from_above(name, slack):
    pytest.importorskip("opacus", reason="needs the extra dp")
    exact = gaussian_epsilon(noise_multiplier=2.0, steps=20, delta=1e-5)
    options = {"noise_multiplier": 2.0, "sample_rate": 1.0, "steps": 20, "delta": 1e-5}
    assert exact <= sp.epsilon(**options, accountant=name) <= slack * exact


def test_the_clipped_mean_is_that_of_opacus(photos):
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="needs the extra dp")
    from opacus.optimizers import DPOptimizer

    task = sp.zoo.cnn(variant="cnn2-v2")
    defense = sp.dp_sgd(max_norm=0.7, noise_multiplier=0.0, batch_size=4)
    ours = sp.Client(sp.Gradient(), defense)(task, photos, rng=sp.rng(0))
    model = grad_sample.GradSampleModule(copy.deepcopy(task.model))
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        expected_batch_size=4,
    )
    # Hooks warn about inputs that need no gradient.
    logits = model(task.domain.normalise(photos.inputs).requires_grad_())
    torch.nn.functional.cross_entropy(logits, photos.labels).backward()
    optimiser.pre_step()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(ours.flat(), theirs, atol=1e-6)
