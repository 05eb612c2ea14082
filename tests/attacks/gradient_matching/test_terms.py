"""Fidelity terms and their wrappers: against plain loops, under vmap, and at exact zeros."""

import copy
import math

import pytest
import torch
from torch.func import grad, vmap

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import Image
from seepage.search._fidelity import L2, Cosine, LayerwiseCosine, Whitened, _find_factors
from seepage.search._objective import Candidate, _loop
from seepage.search._priors import Decaying

SHAPES = {
    "conv1.weight": (4, 2, 3),
    "conv1.bias": (1,),
    "conv10.weight": (5,),
    "head.weight": (2, 6),
}
DOMAIN = Image((1, 2, 2))

FIDELITIES = [
    L2(),
    Cosine(),
    Cosine(top=2),
    LayerwiseCosine(),
    LayerwiseCosine(weighting=0),
    LayerwiseCosine(weighting=2.5),
]
WRAPPED = [
    Decaying(Cosine(), factor=0.5, every=3),
]
TERMS = FIDELITIES + WRAPPED


def draw(seed, sparse=False):
    key = sp.rng(seed)
    tensors = {
        n: key.fork(n).normal(s, like=torch.zeros((), dtype=torch.float64))
        for n, s in SHAPES.items()
    }
    if sparse:
        tensors = {n: t * (t > -0.3) for n, t in tensors.items()}
    return tensors


def value(term, ours, theirs, step=None):
    inputs = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    step = torch.tensor(0) if step is None else step
    candidate = Candidate(inputs, torch.tensor([0]), sp.Update(ours), DOMAIN, step, inputs)
    return term(candidate, sp.Observation(task=None, update=sp.Update(theirs), simulate=None))


def entries(tensors):
    return [float(v) for t in tensors.values() for v in t.flatten()]


def cosine(a, b):
    inner = sum(x * y for x, y in zip(a, b, strict=True))
    return inner / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def only(tensors, names):
    return {n: tensors[n] for n in names}


OURS, THEIRS = draw(1), draw(2, sparse=True)


def squared(a, b):
    return sum((x - y) ** 2 for x, y in zip(entries(a), entries(b), strict=True))


def test_l2_sums_the_squared_differences_of_all_entries():
    assert float(value(L2(), OURS, THEIRS)) == pytest.approx(squared(OURS, THEIRS), rel=1e-12)


def test_cosine_is_over_all_tensors_jointly():
    expected = 1 - cosine(entries(OURS), entries(THEIRS))
    assert float(value(Cosine(), OURS, THEIRS)) == pytest.approx(expected, rel=1e-12)


def test_cosine_keeps_its_digits_close_to_the_truth():
    theirs = {n: t.float() for n, t in THEIRS.items()}
    near = {n: t + 1e-5 * OURS[n].float() for n, t in theirs.items()}
    exact = value(
        Cosine(),
        {n: t.double() for n, t in near.items()},
        {n: t.double() for n, t in theirs.items()},
    )
    assert float(value(Cosine(), near, theirs)) == pytest.approx(float(exact), rel=1e-2)


@pytest.mark.parametrize("form", ["as it is", "turned", "turned twice", "among rows"])
@pytest.mark.parametrize("dead", [False, True])
def test_a_weight_gradient_is_compared_by_its_factors(form, dead):
    forms = {
        "as it is": lambda c, r: torch.mm(c, r),
        "turned": lambda c, r: torch.mm(r.t(), c.t()).t(),
        "turned twice": lambda c, r: torch.mm(c, r).t().t(),
        "among rows": lambda c, r: torch.mm(c, r).unsqueeze(0).squeeze(0),
    }
    like = torch.zeros((), dtype=torch.float64)
    column, row = sp.rng(0).normal((70, 1), like=like), sp.rng(1).normal((1, 1000), like=like)
    theirs = {"w": sp.rng(2).normal((70, 1000), like=like), "b": torch.ones(70, dtype=like.dtype)}
    slopes = []
    for make in (forms[form], lambda c, r: c * r):
        leaves = (column * (0 if dead else 1)).requires_grad_(), row.clone().requires_grad_()
        product = make(*leaves)
        assert (_find_factors(product) is None) == (make is not forms[form])
        found = value(Cosine(), {"w": product, "b": leaves[0][:, 0]}, theirs)
        slopes.append([found, *torch.autograd.grad(found, leaves)])
    for ours, plain in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_top_compares_the_tensors_of_largest_observed_norm(top):
    names = sorted(THEIRS, key=lambda n: -float(THEIRS[n].norm()))[:top]
    expected = 1 - cosine(entries(only(OURS, names)), entries(only(THEIRS, names)))
    assert float(value(Cosine(top=top), OURS, THEIRS)) == pytest.approx(expected, rel=1e-12)


def test_of_equal_norms_top_takes_the_first_and_no_more():
    equal = {n: torch.ones(4, dtype=torch.float64) for n in "abc"}
    ours = {n: sp.rng(0).fork(n).normal((4,)).double() for n in "abc"}
    assert float(value(Cosine(top=1), ours, equal)) == pytest.approx(
        1 - cosine(ours["a"].tolist(), [1.0] * 4)
    )


@pytest.mark.parametrize("weighting", ["entries", 0, 1.0, 2.5])
def test_layerwise_cosine_is_a_weighted_mean_over_tensors(weighting):
    weights = {
        n: t.numel() if weighting == "entries" else math.hypot(*t.flatten().tolist()) ** weighting
        for n, t in THEIRS.items()
    }
    expected = sum(
        w * (1 - cosine(OURS[n].flatten().tolist(), THEIRS[n].flatten().tolist()))
        for n, w in weights.items()
    )
    for normalised, total in ((True, sum(weights.values())), (False, 1.0)):
        term = LayerwiseCosine(weighting=weighting, normalised=normalised)
        found = float(value(term, OURS, THEIRS))
        assert found == pytest.approx(expected / total, rel=1e-12)


def test_whitening_makes_a_weak_direction_weigh_as_much_as_a_strong_one():
    theirs = {"w": torch.diag(torch.tensor([1.0, 0.25, 0.0])).double()}
    term = Whitened().prepare(sp.Observation(task=None, update=sp.Update(theirs), simulate=None))
    strong, weak = (theirs["w"].clone() for _ in range(2))
    strong[0] *= 1.2
    weak[1] *= 1.2
    assert value(term, theirs, theirs) == 0
    expected = pytest.approx(0.2**2 / 2)
    assert value(term, {"w": strong}, theirs).item() == expected
    assert value(term, {"w": weak}, theirs).item() == expected
    assert value(L2(), {"w": weak}, theirs) < value(L2(), {"w": strong}, theirs) / 10


def test_whitening_leaves_out_a_tensor_that_is_all_rounding():
    theirs = {"w": torch.eye(2).double(), "b": torch.full((2,), 1e-9).double()}
    term = Whitened().prepare(sp.Observation(task=None, update=sp.Update(theirs), simulate=None))
    assert value(term, {**theirs, "b": -theirs["b"]}, theirs) == 0


def test_whitening_weighs_every_position_alike_and_above_later_layers():
    key = torch.Generator().manual_seed(0)
    places = torch.randn(1, 4, 6, generator=key).double()
    places[:, 0] *= 1_000
    theirs = {"positions": places, "later": torch.eye(3).double()}
    term = Whitened(later=0.01).prepare(
        sp.Observation(task=None, update=sp.Update(theirs), simulate=None)
    )
    sizes = []
    for place in range(4):
        moved = places.clone()
        moved[:, place] *= 1.1
        sizes.append(value(term, {**theirs, "positions": moved}, theirs).item())
    assert max(sizes) < 20 * min(sizes)
    later = value(term, {**theirs, "later": 1.1 * theirs["later"]}, theirs).item()
    assert later == pytest.approx(0.01 * 0.1**2)


def test_decaying_falls_by_its_factor_every_so_many_steps():
    term = Decaying(L2(weight=0.1), factor=0.9, every=2_000)
    assert term.weight == 0.1
    plain = float(value(L2(), OURS, THEIRS))
    for step, falls in [(0, 0), (1_999, 0), (2_000, 1), (7_999, 3)]:
        for dtype in (torch.int64, torch.float32):
            faded = value(term, OURS, THEIRS, step=torch.tensor(step, dtype=dtype))
            assert float(faded) == pytest.approx(0.9**falls * plain, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_fading_term_says_at_which_steps_it_is_another_one(dtype):
    term = Decaying(L2(weight=0.1), factor=0.5, every=3)
    steps = [torch.tensor(step, dtype=dtype) for step in range(10)]
    values = [float(value(term, OURS, THEIRS, step=step)) for step in steps]
    for step, before, after in zip(steps[1:], values, values[1:], strict=False):
        assert bool(term.changes(step)) == (before != after)


@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_the_truth_scores_zero(term):
    assert abs(float(value(term, THEIRS, THEIRS))) < 1e-15


@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_a_wrapper_has_the_weight_of_its_term_and_one_by_default(term):
    assert term.weight == 1.0


@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_vmap_equals_a_loop_where_every_row_has_its_own_observation(term):
    ours, theirs = [draw(i) for i in range(4)], [draw(10 + i, sparse=True) for i in range(4)]
    steps = torch.arange(4) * 2
    stacked = [{n: torch.stack([t[n] for t in rows]) for n in SHAPES} for rows in (ours, theirs)]

    def row(a, b, step):
        return value(term, a, b, step)

    together = vmap(row)(*stacked, steps)
    apart = torch.stack([row(*each) for each in zip(ours, theirs, steps, strict=True)])
    assert torch.allclose(together, apart, rtol=1e-12, atol=0)
    slopes = vmap(grad(row))(*stacked, steps)
    alone = grad(row)(ours[2], theirs[2], steps[2])
    assert all(torch.allclose(slopes[n][2], alone[n], rtol=1e-10, atol=1e-14) for n in SHAPES)


def zeroed(tensors, *names):
    return {n: torch.zeros_like(t) if n in names else t for n, t in tensors.items()}


@pytest.mark.parametrize("term", TERMS, ids=repr)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (OURS, THEIRS),
        (THEIRS, THEIRS),
        (zeroed(OURS, "head.weight"), THEIRS),
        (OURS, zeroed(THEIRS, "head.weight", "conv1.bias")),
        (zeroed(OURS, "conv1.weight"), zeroed(THEIRS, "conv1.weight")),
        (zeroed(OURS, *SHAPES), THEIRS),
        (OURS, zeroed(THEIRS, *SHAPES)),
    ],
    ids=["generic", "truth", "dead", "unseen", "dead and unseen", "all dead", "all unseen"],
)
def test_values_and_gradients_are_finite_even_at_exact_zeros(term, ours, theirs):
    for dtype in (torch.float64, torch.float32):
        a, b = ({n: t.to(dtype) for n, t in side.items()} for side in (ours, theirs))
        slope = grad(lambda tensors: value(term, tensors, b))(a)  # noqa: B023
        assert value(term, a, b).isfinite()
        assert all(t.isfinite().all() and t.abs().max() < 1e4 for t in slope.values())


@pytest.mark.parametrize("term", [Cosine(), LayerwiseCosine()], ids=repr)
def test_a_candidate_without_gradient_is_no_better_than_an_orthogonal_one(term):
    assert float(value(term, zeroed(OURS, *SHAPES), THEIRS)) == pytest.approx(1.0)


def test_a_dead_network_has_finite_slopes_in_its_inputs(photos):
    healthy = sp.zoo.mlp(hidden=(8,), activation="relu")
    model = copy.deepcopy(healthy.model)
    with torch.no_grad():
        weight, bias, *_ = model.parameters()
        weight.zero_()
        bias.fill_(-1)
    dead = sp.Task(model, sp.cross_entropy, healthy.domain)
    person = photos.inputs[:1], photos.labels[:1]
    seen = sp.Gradient()(healthy, *person).tensors
    assert float(next(iter(sp.Gradient()(dead, *person))).abs().max()) == 0

    def objective(inputs):
        update = sp.Gradient()(dead, inputs, photos.labels[:1]).tensors
        return sum(value(term, update, seen) for term in FIDELITIES)

    assert grad(objective)(photos.inputs[:1]).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cosine(top=0),
        lambda: LayerwiseCosine(weighting="norm"),
        lambda: LayerwiseCosine(weighting=-1.0),
        lambda: Decaying(L2(), factor=1.5),
        lambda: Decaying(L2(), every=0),
    ],
)
def test_impossible_options_are_refused(make):
    with pytest.raises(InvalidValue, match=r"expected .* got"):
        make()


def test_rows_in_a_loop_are_the_rows_of_vmap():
    def row(x, parts):
        return (x * parts["a"]).sum() + parts["b"]

    x, parts = torch.randn(3, 4), {"a": torch.randn(3, 4), "b": torch.randn(3)}
    assert torch.equal(_loop(row)(x, parts), torch.func.vmap(row)(x, parts))
