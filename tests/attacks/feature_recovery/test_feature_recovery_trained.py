"""The victim of Liu et al. (2024) after some training: it learned, and its features come back."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import seepage as sp
from seepage.attacks.feature_recovery import NotToldApartWarning
from seepage.attacks.feature_recovery._tensor_features import _gaussian_neurons
from seepage.core.errors import NotApplicable
from seepage.probing._heads import two_layer_head
from seepage.search import FeatureMatching
from seepage.search._feature_matching import features_at
from seepage.utility import Training, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(data_root):
    return sp.data.load("cifar10", pixels=16)


@pytest.fixture(scope="module")
def victim(images):
    """A narrow copy at the learning rate of the paper."""
    task = sp.zoo.wide_head_resnet18(width=4, neurons=1024, trained=128, domain=images.domain)
    plan = Training(steps=60, batch_size=64, lr=0.1, momentum=0.9, weight_decay=5e-4)
    seen, unseen = images.batch(1024, start=400), images.batch(300, start=100)
    return train(task, seen, held_out=unseen, plan=plan, delta=None, rng=sp.rng(0))


def observe(task, batch):
    threat = sp.Threat(knows_labels=True)
    return threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))


def cosines(task, batch, found):
    truth = features_at(task, found.layer, batch.inputs).detach()
    units = functional.normalize(found.values.double(), dim=1)
    return (functional.normalize(truth.double(), dim=1) @ units.T).amax(1)


def surer(task, times):
    """The same network with its head so many times as large."""
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        for parameter in model.fc.head.parameters():
            parameter *= times
    return replace(task, model=model)


def test_the_victim_learns_at_the_learning_rate_of_the_paper(victim, images):
    assert victim.accuracy[-1] > 0.15, "ten classes"
    assert victim.training_loss < victim.loss[0] - 0.3
    lengths = features_at(victim.task, "fc.hidden", images.batch(32).inputs).norm(dim=1)
    assert float(lengths.min()) > 1, "features do not die"


@pytest.mark.parametrize("people", [1, 2, 4, 8, 16, 32])
def test_its_update_is_finite_and_not_zero(victim, images, people):
    update = observe(victim.task, images.batch(people)).update
    for name in ("fc.hidden.weight", "fc.head.weight", "conv1.weight"):
        assert bool(update.tensors[name].isfinite().all())
        assert float(update.tensors[name].norm()) > 1e-3


@pytest.mark.parametrize("people", [1, 2, 4, 8, 16, 24])
def test_its_features_come_back(victim, images, people):
    batch = images.batch(people)
    found = sp.attacks.exact_features().recover(observe(victim.task, batch), rng=sp.rng(1))
    assert cosines(victim.task, batch, found).min() > 0.99


def test_the_rank_tells_how_many_people_there_are(victim, images):
    seen = sp.Threat(knows_batch_size=False).observe(
        sp.Client(sp.Gradient()), victim.task, images.batch(8), rng=sp.rng(0)
    )
    assert len(sp.attacks.exact_features().recover(seen, rng=sp.rng(1)).values) == 8


def test_people_who_are_not_told_apart_are_said_to_be(victim, images):
    hasty = sp.attacks.exact_features(rounds=1, steps=1, starts=1)
    hasty = replace(hasty, search=replace(hasty.search, starts=2))
    with pytest.warns(NotToldApartWarning, match="not all of 16 examples were told apart"):
        hasty.recover(observe(victim.task, images.batch(16)), rng=sp.rng(1))


@pytest.fixture(scope="module")
def sure(victim, images):
    """A confident network, and four people of whom the first has the class that it predicts."""
    task, candidates = surer(victim.task, 1000.0), images.batch(64).inputs
    # Those whose class the network prefers most clearly, so that rounding does not decide.
    logits = task.outputs(task.parameters, candidates)
    best = logits.topk(2).values
    inputs = candidates[(best[:, 0] - best[:, 1]).argsort(descending=True)[:4]]
    predicted = task.outputs(task.parameters, inputs).argmax(1)
    batch = sp.Batch(inputs, (predicted + torch.tensor([0, 1, 2, 3])) % 10)
    losses = task.losses(task.parameters, batch.inputs, batch.labels).detach()
    assert float(losses[0]) < 1e-6 < 1 < float(losses[1:].min())
    return task, batch


def test_the_others_come_back_beside_somebody_the_network_is_sure_of(sure):
    task, batch = sure
    seen = observe(task, batch)
    with pytest.raises(NotApplicable, match=r"rank 3 for 4 examples: .*sure of some examples"):
        sp.attacks.exact_features().recover(seen, rng=sp.rng(1))
    uncounted = replace(seen, batch_size=None, labels=None)
    found = sp.attacks.exact_features().recover(uncounted, rng=sp.rng(1))
    assert len(found.values) == 3
    assert cosines(task, batch, found)[1:].min() > 0.99


def test_systematic_matches_the_features_of_the_others(sure):
    """Three features for four people: the fourth is searched by the gradient alone."""
    seen = observe(*sure)
    attack = sp.attacks.systematic(features=sp.attacks.exact_features(), steps=2)
    (term,) = [
        t for t in attack._prepare(seen, sp.rng(1))[0].terms if isinstance(t, FeatureMatching)
    ]
    assert len(term.features) == 3
    assert term.comparison != "span"
    guess = attack(seen, rng=sp.rng(1))
    assert guess.inputs.shape == sure[1].inputs.shape
    assert bool(guess.inputs.isfinite().all())


def test_random_neurons_are_told_from_trained_ones_by_their_common_column(victim, images):
    head = two_layer_head(observe(victim.task, images.batch(2)))
    assert _gaussian_neurons(head)[0].tolist() == list(range(128, 1024))


@pytest.mark.parametrize("method", ["exact_features", "tensor_features"])
def test_what_nobody_left_a_trace_in_is_refused_in_words(victim, images, method):
    seen = observe(victim.task, images.batch(2))
    recover = getattr(sp.attacks, method)().recover
    tensors = dict(seen.update.tensors)
    tensors["fc.head.weight"] = torch.zeros_like(tensors["fc.head.weight"])
    silent = replace(seen, update=replace(seen.update, tensors=tensors))
    with pytest.raises(NotApplicable, match=r"last layer is zero.*sure of all examples"):
        recover(silent, rng=sp.rng(1))
    tensors["fc.head.weight"] = torch.full_like(tensors["fc.head.weight"], torch.nan)
    broken = replace(seen, update=replace(seen.update, tensors=tensors))
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        recover(broken, rng=sp.rng(1))
