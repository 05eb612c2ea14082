"""What an update leaves open: directions, equations, and Table 1."""

import math

import pytest
import torch
from benchmarks.two_layer import on_the_sphere, two_layer

import seepage as sp
from seepage.bounds import (
    BOUNDS,
    Bound,
    EquationCount,
    Identifiability,
    RankDeficiency,
    table_1,
    two_layer_orders,
)
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.exposure._rank_metric import rank_metric

PLAIN = sp.Client(sp.Gradient())
SMALL = sp.domains.Image((1, 6, 6))


@pytest.fixture(scope="module")
def digits():
    bundle = sp.data.bundled("digits", size=3)
    return sp.Batch(bundle.inputs[..., 11:17, 11:17].contiguous(), bundle.labels)


def test_open_directions_change_nothing_and_the_others_do(digits):
    """A first layer that skips every third row and column leaves 20 of 36 pixels unread."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 2, stride=3), torch.nn.Sigmoid(), torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    )  # fmt: skip
    task = sp.Task(model, sp.cross_entropy, SMALL)
    one = sp.Batch(digits.inputs[:1], digits.labels[:1])
    found = Identifiability(shown=24).determined(PLAIN, task, one, rng=sp.rng(0))
    assert found.rank == 16
    assert float(found.open) == pytest.approx(36 - 16)
    exact = task.to(dtype=torch.float64)

    def moved(direction):
        there = PLAIN.expected(exact, one.inputs.double() + 0.1 * direction, one.labels)
        return float(
            (there.flat() - PLAIN.expected(exact, one.inputs.double(), one.labels).flat()).norm()
        )

    assert found.directions.shape == (24, 1, 1, 6, 6)
    assert max(moved(d) for d in found.directions[:20]) < 1e-9
    assert min(moved(d) for d in found.directions[20:]) > 1e-6
    unread = torch.ones(6, 6)
    unread[::3], unread[1::3] = 0, 0
    assert float((found.directions[:20] * unread).square().sum()) == pytest.approx(12)
    bound = Identifiability(radius=0.5)(PLAIN, task, one, rng=sp.rng(0))
    assert 0 < float(bound.value) <= 0.5 / math.pi
    assert "20 of 36 directions" in bound.assumptions[0]


def test_where_all_is_determined_there_is_nothing_to_say(digits):
    task = sp.zoo.mlp(hidden=(16,), activation="sigmoid", domain=SMALL)
    found = Identifiability()(PLAIN, task, digits, rng=sp.rng(0))
    assert "determines all 108 directions" in found.remark


def test_a_matrix_that_does_not_fit_is_said_in_words(digits):
    task = sp.zoo.mlp(hidden=(16,), domain=SMALL)
    found = Identifiability(held=10)(PLAIN, task, digits, rng=sp.rng(0))
    assert "raise `held`" in found.remark


def test_equations_are_counted_as_the_paper_does(photos):
    """LeNet's 12 filters of half the size are as many equations as one image has unknowns."""
    one, four = (sp.Batch(photos.inputs[:n], photos.labels[:n]) for n in (1, 4))
    task = sp.zoo.lenet()
    assert "as many equations" in EquationCount()(PLAIN, task, one, rng=sp.rng(0)).remark
    found = EquationCount()(PLAIN, task, four, rng=sp.rng(0))
    assert "12 filters, of 48" in found.assumptions[0]
    widest = 0.25 / math.pi * math.sqrt(1 - 12 / 48)
    assert bool((found.value <= widest + 1e-9).all())
    assert bool((found.value >= widest / 2 - 1e-9).all())


def test_the_rank_metric_bounds_what_its_first_layer_leaves_open(photos):
    open_one, closed = sp.zoo.cnn(variant="cnn2-v2"), sp.zoo.cnn(variant="cnn2-v1")
    found = RankDeficiency(radius=0.5)(PLAIN, open_one, photos, rng=sp.rng(0))
    assert "1470 of 3072 unknowns" in found.assumptions[0]
    assert rank_metric(open_one).value == -1470
    widest = 0.5 / math.pi * math.sqrt(1470 / 3072)
    assert bool((found.value <= widest + 1e-9).all())
    assert bool((found.value >= widest / 2 - 1e-9).all())
    assert RankDeficiency()(PLAIN, closed, photos, rng=sp.rng(0)).vacuous
    assert "convolution" in RankDeficiency()(PLAIN, sp.zoo.mlp(), photos, rng=sp.rng(0)).remark


@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_keeps_the_same_form(name, digits):
    bound = BOUNDS[name]()
    task = sp.zoo.mlp(hidden=(16,), activation="sigmoid", domain=SMALL)
    noisy = sp.Client(sp.Gradient(), sp.AddGaussian(0.01))
    kept = digits.inputs.clone()
    found, again = (bound(noisy, task, digits, rng=sp.rng(0)) for _ in range(2))
    assert isinstance(bound, Bound)
    # Of how often a person can be identified there is a limit from above, of errors one from below.
    identified = name == "IdentificationLimit"
    assert (found.side, found.metric) == (
        ("upper", "identified") if identified else ("lower", "rmse")
    )
    assert found.value.shape == (3,)
    assert torch.equal(found.value, again.value)
    assert torch.equal(kept, digits.inputs)
    assert found.assumptions or found.vacuous


B, D, M = 4, 100, 10_000
PLAIN_ORDER = math.sqrt(D / M)


@pytest.mark.parametrize(
    ("options", "upper", "lower"),
    [
        ({}, B, 0.5),
        ({"added": 2.0}, B + 2, 2.0),
        ({"clipped": 3.0}, B, 1.5),
        ({"clipped": 0.3}, B, 0.5),
        ({"added": 2.0, "clipped": 3.0}, B + 6, 6.0),
        ({"dropped": 0.75}, 2 * B, 1.0),
        ({"pruned": 0.75}, None, 1.0),
    ],
    ids=["none", "noise", "clipping", "not clipped", "dp-sgd", "dropout", "pruning"],
)
def test_table_1_column_by_column(options, upper, lower):
    found = two_layer_orders(batch=B, inputs=D, width=M, std=0.5, **options)
    # The table clips without noise at B sqrt(d / m): noise alone is stretched.
    assert found.upper == (None if upper is None else pytest.approx(upper * PLAIN_ORDER))
    assert found.lower == pytest.approx(lower * PLAIN_ORDER)
    assert "up to constants" in found.assumptions[0]


def test_table_1_reads_a_clients_defenses():
    task, batch = two_layer(6, 30), on_the_sphere(3, 6)
    plain = math.sqrt(6 / 30)

    def read(*links):
        client = sp.Client(sp.Gradient(), sp.chain(*links))
        return table_1(client, task, batch, std=0.1)

    norm = float(PLAIN.expected(task, batch.inputs, batch.labels).norm())
    assert read().upper == pytest.approx(3 * plain)
    assert read(sp.SecureAggregation(3)).upper == pytest.approx(3 * plain)
    assert read(sp.Clip(norm / 4)).lower == pytest.approx(0.4 * plain)
    assert read(sp.Dropout(0.5)).lower == pytest.approx(0.1 * plain * math.sqrt(2))
    assert read(sp.Prune(0.5)).upper is None
    assert read(sp.AddGaussian(0.2)).upper == pytest.approx(3.2 * plain)
    both = read(sp.Clip(norm / 4), sp.AddGaussian(0.2))
    assert both.upper == pytest.approx(3.8 * plain)
    assert any("several defenses" in phrase for phrase in both.assumptions)


def test_table_1_names_what_it_has_no_column_for():
    batch = on_the_sphere(3, 6)
    with pytest.raises(NotApplicable, match=r"no column for Quantize\(4\)"):
        table_1(sp.Client(sp.Gradient(), sp.Quantize(4)), two_layer(6, 30), batch)
    with pytest.raises(NotApplicable, match="two fully connected layers, but lenet"):
        table_1(PLAIN, sp.zoo.lenet(), batch)
    with pytest.raises(InvalidValue, match="expected dropped and pruned"):
        two_layer_orders(batch=1, inputs=2, width=3, dropped=1.0)


def test_people_with_wide_intervals_are_held_to_the_narrowest_of_all():
    """A direction that runs through two people is known as well as the better known of them."""
    task = sp.zoo.mlp(hidden=(1,), activation="sigmoid", domain=SMALL)
    batch = sp.Batch(
        torch.stack([torch.zeros(1, 6, 6), torch.full((1, 6, 6), 0.5)]), torch.tensor([3, 3])
    )
    bound = Identifiability(radius=0.5)
    found = bound.determined(PLAIN, task, batch, rng=sp.rng(0))
    half = torch.tensor([0.25] * 36 + [0.5] * 36, dtype=torch.float64)
    open_ = Identifiability(radius=0.5, shown=found.unknowns - found.rank)
    null = open_.determined(PLAIN, task, batch, rng=sp.rng(0)).directions.flatten(1)
    # The limit of van Trees: N (N^T diag(pi^2 / h^2) N)^-1 N^T.
    limit = null.T @ torch.linalg.inv(null * (math.pi / half).square() @ null.T) @ null
    exact = (limit.diagonal().reshape(2, -1).mean(1)).sqrt()
    assert (bound(PLAIN, task, batch, rng=sp.rng(0)).value <= exact * (1 + 1e-9)).all()
