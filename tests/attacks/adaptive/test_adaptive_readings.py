"""What is read off an update is what the client did: at the truth, the simulation is exact."""

import pytest
import torch

import seepage as sp
from seepage.attacks._adaptive import INVERTERS, STRONG, OverSignal, adapt_to_defense
from seepage.attacks._agreement import residual
from seepage.attacks.labels import InferLabels, ReadLogits
from seepage.core import Update
from seepage.core.errors import InvalidValue
from seepage.defenses._representation import VariationalBottleneck
from seepage.search import Candidate, Cosine, GaussianLikelihood, GradientMatching, TotalVariation
from seepage.search._defense_inversion import Tolerance, UnitScale, searchable

SEARCH = sp.attacks.inverting_gradients(steps=1, restarts=1)


@pytest.fixture(scope="module")
def data():
    return sp.data.load("photos", pixels=16)


@pytest.fixture(scope="module")
def task(data):
    return sp.zoo.cnn(variant="cnn2-v2", domain=data.domain)


def observed(defense, task, batch, *, local=None):
    client = sp.Client(local or sp.Gradient(), defense)
    return sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))


READ = [
    sp.Prune(0.5),
    sp.Prune(0.5, scope="update"),
    sp.TopK(1_000),
    sp.Dropout(0.7),
    sp.Dropout(0.7, rescale=True),
    sp.Soteria(0.5),
    sp.Precode(16),
    sp.chain(sp.Dropout(0.5), sp.Clip(0.1)),
    sp.chain(sp.Clip(0.1), sp.Dropout(0.5, rescale=True)),
    sp.chain(sp.Dropout(0.5), sp.Prune(0.5)),
    sp.chain(sp.Soteria(0.5), sp.Dropout(0.5)),
    sp.chain(sp.Precode(16), sp.Clip(0.1)),
]


@pytest.mark.parametrize("defense", READ, ids=repr)
def test_the_truth_explains_the_update_exactly_once_the_defense_is_read_off(defense, task, data):
    batch = data.batch(1)
    seen = observed(defense, task, batch)
    read = adapt_to_defense(SEARCH, seen).observation
    assert residual(read, batch.inputs, batch.labels) < 1e-5


@pytest.mark.parametrize("defense", [sp.Prune(0.5), sp.TopK(1_000)], ids=repr)
def test_every_search_reads_off_what_survived_and_what_is_certified_stays(defense, task, data):
    seen = observed(defense, task, data.batch(1))
    (link,) = searchable(SEARCH, seen).simulate.client.chain.links
    assert isinstance(link, Tolerance)
    assert seen.simulate.client.defense == defense


@pytest.mark.parametrize("defense", [sp.Dropout(0.7), sp.Soteria(0.5), sp.Precode(16)], ids=repr)
def test_without_reading_it_off_it_does_not(defense, task, data):
    batch = data.batch(1)
    seen = observed(defense, task, batch)
    assert residual(seen, batch.inputs, batch.labels) > 0.5


def test_sparse_updates_of_several_people_and_local_steps_are_read_alike(task, data):
    batch = data.batch(3)
    batch = sp.Batch(batch.inputs, batch.labels.sort().values)
    for local in (sp.Gradient(), sp.FedAvg(lr=0.01, steps=2)):
        seen = observed(sp.Dropout(0.7), task, batch, local=local)
        read = adapt_to_defense(SEARCH, seen).observation
        assert residual(read, batch.inputs, batch.labels) < 1e-5


def test_the_noise_of_precode_is_that_which_the_client_drew(task, data):
    client = sp.Client(sp.Gradient(), sp.Precode(16))
    held = client.broadcast(task)
    (prepared,) = client.share(held, data.batch(1), rng=sp.rng(0)).prepared_batches
    read = adapt_to_defense(
        SEARCH, observed(sp.Precode(16), task, data.batch(1))
    ).observation.simulate.task
    drawn, found = (
        next(m.noise for m in t.model.modules() if isinstance(m, VariationalBottleneck))
        for t in (prepared.task, read)
    )
    assert torch.allclose(found, drawn, atol=1e-3)


@pytest.mark.parametrize("people", [2, 3])
def test_codes_of_several_people_cannot_be_read(people, task, data):
    seen = observed(sp.Precode(16), task, data.batch(people))
    assert adapt_to_defense(SEARCH, seen).observation.simulate is seen.simulate


@pytest.mark.parametrize(
    "defense",
    [
        sp.chain(sp.Prune(0.9), sp.AddGaussian(1e-4)),
        sp.chain(sp.Prune(0.9), sp.SecureAggregation(2)),
        sp.chain(sp.TopK(100), sp.SecureAggregation(2)),
    ],
    ids=repr,
)
def test_survivors_that_something_later_hides_are_not_read(defense, task, data):
    seen = observed(defense, task, data.batch(2))
    assert adapt_to_defense(SEARCH, seen).defense.links == defense.links[1:]


def test_dropout_that_something_later_hides_is_simulated_by_its_mean(task, data):
    defense = sp.chain(sp.Dropout(0.7), sp.AddGaussian(1e-4))
    seen = observed(defense, task, data.batch(2))
    assert adapt_to_defense(SEARCH, seen).defense == defense


def test_pruned_entries_must_only_be_as_small_as_the_smallest_survivor():
    """Against a loop over the entries, in exact numbers."""
    observed = Update({"w": torch.tensor([3.0, 0.0, -2.0, 0.0, 0.0])})
    limit = Update({"w": torch.tensor([0.0, 2.0, 0.0, 2.0, torch.inf])})
    ours = torch.tensor([5.0, 1.5, 2.5, -2.5, 9.0])
    found = Tolerance(observed, limit).expected(Update({"w": ours})).tensors["w"].tolist()
    naive = []
    for g, seen, most in zip(
        ours.tolist(), [3.0, 0.0, -2.0, 0.0, 0.0], [0, 2, 0, 2, 9e9], strict=True
    ):
        nearest = min(max(seen, g - most), g + most)
        naive.append(nearest)
    assert found == naive == [5.0, 0.0, 2.5, -0.5, 0.0]


@pytest.mark.parametrize("defense", [sp.Prune(0.95), sp.TopK(700)], ids=repr)
def test_fewer_survivors_than_unknowns_are_compared_with_all_the_rest(defense, task, data):
    seen = observed(defense, task, data.batch(1))
    assert int((seen.update.flat() != 0).sum()) < 3 * 16 * 16
    assert adapt_to_defense(SEARCH, seen).defense == sp.chain()


def test_signs_have_the_scale_of_what_is_compared_with_them(task, data):
    seen = observed(sp.Sign(), task, data.batch(1))
    plan = adapt_to_defense(SEARCH, seen)
    assert plan.defense.links == (UnitScale(),)
    simulated = plan.observation.simulate(data.batch(1).inputs, data.batch(1).labels)
    raw = sp.Gradient()(task, data.batch(1).inputs, data.batch(1).labels)
    for name, tensor in simulated.tensors.items():
        assert float(tensor.square().mean()) == pytest.approx(1.0, rel=1e-4)
        assert torch.equal(tensor.sign(), raw.tensors[name].sign())


def test_entries_that_say_nothing_have_no_slope():
    limit = Update({"w": torch.tensor([0.0, torch.inf])})
    ours = torch.tensor([2.0, 2.0], requires_grad=True)
    Tolerance(Update({"w": torch.zeros(2)}), limit).expected(
        Update({"w": ours})
    ).flat().sum().backward()
    assert ours.grad.tolist() == [1.0, 0.0]


def test_the_bound_of_a_tensor_is_its_own_unless_all_are_pruned_together(task, data):
    for scope in ("tensor", "update"):
        seen = observed(sp.Prune(0.5, scope=scope), task, data.batch(1))
        (link,) = adapt_to_defense(SEARCH, seen).defense.links
        flat = seen.update.flat()
        for name, tensor in seen.update.tensors.items():
            entries = tensor if scope == "tensor" else flat
            smallest = min((abs(v) for v in entries.flatten().tolist() if v), default=torch.inf)
            limits = link.limit.tensors[name]
            assert (limits[tensor != 0] == 0).all()
            assert (limits[tensor == 0] == smallest).all()


def test_strong_noise_is_weighed_against_the_prior_and_weak_noise_is_not(task, data):
    entries = sum(p.numel() for p in task.parameters.values())
    plain = observed(sp.chain(), task, data.batch(1))
    signal = float(plain.update.norm()) ** 2
    for share, weighed in ((STRONG / 2, False), (2 * STRONG, True)):
        std = (share / (1 - share) * signal / entries) ** 0.5
        seen = observed(sp.AddGaussian(std), task, data.batch(1))
        attack = adapt_to_defense(SEARCH, seen).attack
        assert isinstance(attack, GradientMatching)
        terms = [getattr(term, "term", term) for term in attack.search.terms]
        assert [type(t) for t in terms] == [
            GaussianLikelihood if weighed else Cosine,
            TotalVariation,
        ]


@pytest.mark.parametrize("wrap", [InferLabels, ReadLogits, lambda a: ReadLogits(InferLabels(a))])
def test_strong_noise_is_weighed_inside_of_what_wraps_the_search(wrap, task, data):
    seen = observed(sp.AddGaussian(1.0), task, data.batch(1))
    weighed = adapt_to_defense(SEARCH, seen).attack
    assert weighed != SEARCH
    assert adapt_to_defense(wrap(SEARCH), seen).attack == wrap(weighed)


def test_the_likelihood_and_the_prior_are_in_the_proportion_of_nats(task, data):
    seen = observed(sp.AddGaussian(1.0), task, data.batch(2))
    likelihood, prior = adapt_to_defense(SEARCH, seen).attack.search.terms
    assert likelihood.term.std == likelihood.std == prior.std == 1.0
    assert prior.weight / likelihood.weight == pytest.approx(2 * 3 * 16 * 16)


@pytest.mark.parametrize(("drawn", "std"), [(0.01, 0.01), (0.5, 1.0)])
def test_nats_are_counted_in_shares_of_the_signal_or_of_what_noise_hides(drawn, std, task, data):
    """Against numpy in double precision."""
    seen = observed(sp.AddGaussian(drawn), task, data.batch(1))
    flat = seen.update.flat().double().numpy()
    beyond, hidden = (flat**2).sum() - flat.size * std**2, (2 * flat.size) ** 0.5 * std**2
    assert (beyond > hidden) == (drawn == std)
    one = Update({n: t + 1.0 for n, t in seen.update.tensors.items()})
    blank = torch.zeros(1)
    candidate = Candidate(blank, blank, one, task.domain, blank, blank)
    nats = flat.size / std**2 / 2
    found = OverSignal(GaussianLikelihood(std=std), std)(candidate, seen)
    assert float(found) == pytest.approx(nats * std**2 / max(beyond, hidden), rel=1e-3)


def test_the_gaussian_likelihood_is_that_of_torch(task, data):
    seen = observed(sp.chain(), task, data.batch(1))
    other = seen.update.map(lambda t: t + 0.3)
    blank = torch.zeros(1)
    candidate = Candidate(blank, blank, other, task.domain, blank, blank)
    law = torch.distributions.Normal(0.0, 0.5)
    away = other.flat() - seen.update.flat()
    nats = (law.log_prob(torch.zeros(1)) - law.log_prob(away)).sum()
    assert float(GaussianLikelihood(std=0.5)(candidate, seen)) == pytest.approx(float(nats), 1e-4)
    with pytest.raises(InvalidValue, match="expected std > 0"):
        GaussianLikelihood(std=0.0)


def test_only_a_search_by_cosine_and_total_variation_is_weighed_anew(task, data):
    seen = observed(sp.AddGaussian(1.0), task, data.batch(1))
    for attack in (sp.attacks.dlg(iterations=1), sp.attacks.analytic_fc(), sp.attacks.rgap()):
        assert adapt_to_defense(attack, seen).attack == attack


def test_every_reading_is_of_a_defense_in_the_catalogue():
    assert {kind.__name__ for kind in INVERTERS} <= set(sp.defenses.DEFENSES)
