"""The attacks that are chosen apply, and those that are not would have refused."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks._applicability import attacks_on, check_applicability, require_kind
from seepage.core.errors import NotApplicable
from seepage.rehearsal import auto

ON_TEXTS = {"bag_of_words", "dager", "next_words", "token_span"}
PHOTOS = sp.data.load("photos")


def seen(task, size=1, threat=None, local=None):
    client = sp.Client(local or sp.Gradient())
    return (threat or sp.Threat()).observe(client, task, PHOTOS.batch(size), rng=sp.rng(0))


def names(observation):
    return [option.name for option in check_applicability(observation, steps=2).chosen]


@pytest.mark.parametrize(
    ("task", "size", "expected"),
    [
        (sp.zoo.mlp(hidden=(16,)), 1, ["analytic_fc", "inverting_gradients"]),
        (sp.zoo.mlp(hidden=(64,)), 2, ["exact_batch", "inverting_gradients"]),
        (sp.zoo.lenet(), 1, ["rgap", "inverting_gradients", "dlg"]),
        (sp.zoo.lenet(), 3, ["inverting_gradients"]),
        (sp.zoo.resnet20(), 1, ["inverting_gradients"]),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_what_is_chosen_follows_from_network_and_batch(task, size, expected):
    assert names(seen(task, size)) == expected


def test_what_is_chosen_runs_and_what_is_not_would_refuse():
    observation = seen(sp.zoo.lenet(), 2)
    found = check_applicability(observation, steps=2)
    for option in found.chosen:
        assert option.infer_labels
        assert option.attack(observation, rng=sp.rng(0)).inputs.shape == (2, 3, 32, 32)
    for name in ("exact_batch", "rgap"):
        assert found.refused[name]
        with pytest.raises(NotApplicable):
            getattr(sp.attacks, name)()(observation, rng=sp.rng(0))


def test_where_nothing_applies_auto_says_why_in_one_line_and_lists_the_rest_below():
    class Severed(nn.Linear):
        """Cuts its own graph, so that no update depends on the input."""

        def forward(self, inputs):
            return super().forward(torch.zeros_like(inputs.flatten(1)))

    task = sp.Task(Severed(3072, 10), sp.cross_entropy, PHOTOS.domain)
    observation = seen(task, 2, sp.Threat(knows_labels=True))
    refused = check_applicability(observation).refused
    with pytest.raises(NotApplicable) as raised:
        auto()(observation, rng=sp.rng(0))
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("no attack applies to this update; inverting_gradients")
    assert "does not change with the inputs" in first
    assert len(first) < 250
    assert {line.partition(":")[0] for line in rest} >= set(refused)


def test_labels_that_cannot_be_inferred_are_a_reason():
    class Squashed(nn.Module):
        """Does not end in a linear layer, and has more classes than can be simulated."""

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.Flatten(), nn.Linear(256, 200))

        def forward(self, inputs):
            return torch.tanh(self.layers(inputs))

    task = sp.Task(Squashed(), sp.cross_entropy, PHOTOS.domain)
    assert (
        "Threat(knows_labels=True)"
        in check_applicability(seen(task)).refused["inverting_gradients"]
    )
    known = seen(task, threat=sp.Threat(knows_labels=True))
    assert "inverting_gradients" in names(known)


def test_local_steps_are_attacked_too():
    stepped = seen(sp.zoo.mlp(hidden=(16,)), 1, local=sp.FedAvg(lr=0.01, steps=2))
    assert "inverting_gradients" in names(stepped)


@pytest.mark.parametrize(
    ("data", "out"),
    [("photos", {*ON_TEXTS, "tableak"}), ("voters", {*ON_TEXTS, "april"})],
)
def test_what_never_fits_a_kind_of_inputs_refuses_it(data, out):
    dataset = sp.data.load(data)
    task = sp.zoo.mlp(hidden=(8,), domain=dataset.domain, classes=dataset.classes)
    client, threat = sp.Client(sp.Gradient()), sp.Threat(knows_labels=True)
    seen = threat.observe(client, task, dataset.batch(1), rng=sp.rng(0))
    assert set(sp.attacks.ATTACKS) - set(attacks_on(dataset.domain)) == out
    for name in out:
        with pytest.raises(NotApplicable, match=f"^{name} "):
            require_kind(name, dataset.domain)
        with pytest.raises(NotApplicable):
            sp.attacks.ATTACKS[name]()(seen, rng=sp.rng(1))


def test_of_fewer_people_than_classes_logistic_regression_gives_everybody_away():
    data = sp.data.load("photos", pixels=8)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    task = sp.Task(model, sp.cross_entropy, data.domain)

    def observed(people):
        client = sp.Client(sp.Gradient())
        return sp.Threat().observe(client, task, data.batch(people), rng=sp.rng(0))

    first, *_ = check_applicability(observed(3)).chosen
    assert first.name == "softmax_features"
    guess = first.attack(observed(3), rng=sp.rng(1))
    assert float(sp.score(guess, data.batch(3))["psnr"].min()) > 60
    assert (
        "as many examples as classes"
        in check_applicability(observed(10)).refused["softmax_features"]
    )
    assert "one input" in check_applicability(observed(1)).refused["softmax_features"]
