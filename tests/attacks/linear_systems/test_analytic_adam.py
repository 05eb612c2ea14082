"""What steps of Adam keep besides signs gives a first layer's input away."""

import pytest
import torch

import seepage as sp
from seepage.attacks._applicability import check_applicability
from seepage.core.errors import NotApplicable

KNOWS = sp.Threat(knows_labels=True)
SEEDS = range(4)
DIGITS = sp.data.load("digits")


def one(data, person):
    return sp.Batch(data.inputs[person : person + 1], data.labels[person : person + 1])


def network(data=DIGITS, width=128):
    return sp.zoo.mlp(hidden=(width,), domain=data.domain, classes=data.classes)


def observe(person, threat=KNOWS, defense=None, data=DIGITS, **options):
    local = sp.Local(**{"optimizer": "Adam", "lr": 1e-3, "steps": 1, **options})
    client = sp.Client(local, *([] if defense is None else [defense]))
    return threat.observe(client, network(data), one(data, person), rng=sp.rng(person))


def psnr(attack, person, data=DIGITS, **options):
    guess = attack(observe(person, data=data, **options), rng=sp.rng(1))
    return float(sp.score(guess, one(data, person))["psnr"].min())


TRAININGS = [
    {},
    {"optimizer": "AdamW", "steps": 5, "schedule": "cosine"},
    {"steps": 5, "lr": 1e-4},
    {"optimizer": "RMSprop", "steps": 2},
    {"steps": 4, "clip_norm": 1.0, "warmup": 2},
]


@pytest.mark.parametrize("options", TRAININGS, ids=str)
def test_steps_are_read_far_beyond_their_signs(options):
    read = [psnr(sp.attacks.analytic_adam(), person, **options) for person in SEEDS]
    signs = [psnr(sp.attacks.analytic_fc(), person, **options) for person in SEEDS]
    assert sorted(read)[1] > 22
    assert sum(read) > sum(signs) + 10 * len(SEEDS)


def test_photographs_and_labels_that_are_not_known_are_read_too():
    photos = sp.data.load("photos", pixels=16)
    found = []
    for person in SEEDS:
        seen = observe(person, threat=sp.Threat(), data=photos, steps=3)
        [option] = [o for o in check_applicability(seen).chosen if o.name == "analytic_adam"]
        assert option.infer_labels
        guess = option.attack(seen, rng=sp.rng(1))
        found.append(float(sp.score(guess, one(photos, person))["psnr"].min()))
    assert sorted(found)[1] > 22


def test_auto_takes_it_without_being_told():
    seen = observe(0, threat=sp.Threat())
    guess = sp.auto(budget=30)(seen, rng=sp.rng(0))
    assert float(sp.score(guess, one(DIGITS, 0))["psnr"].min()) > 22


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "SGD"}, "known to train with Adam"),
        ({"warm": 2}, "moments of the optimizer are not known"),
        ({"weight_decay": 0.1}, "weight decay inside the gradient"),
        ({"clip_value": 0.1}, "clipping by value"),
        ({"defense": sp.Prune(0.5)}, "behind a defense"),
    ],
    ids=str,
)
def test_steps_that_cannot_be_read_are_refused_with_the_reason(options, said):
    with pytest.raises(NotApplicable, match=said):
        sp.attacks.analytic_adam()(observe(0, **options), rng=sp.rng(0))


@pytest.mark.parametrize("data", ["digits", "photos"])
@pytest.mark.parametrize("options", [*TRAININGS, {"optimizer": "AdamW", "steps": 5}], ids=str)
def test_a_picture_of_signs_is_never_called_sure(data, options):
    dataset = sp.data.load(data)
    for person in range(2):
        guess = sp.attacks.analytic_fc()(observe(person, data=dataset, **options), rng=sp.rng(1))
        assert guess.confidence is None
        assert guess.certificate is None or not guess.certificate.unique


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_only_sums_of_gradients_are_certified_by_the_first_layer(optimizer):
    small = sp.data.load("photos", pixels=4)
    seen = observe(0, data=small, optimizer=optimizer, steps=2)
    truth = one(small, 0)
    found = sp.certify(seen, sp.Reconstruction(truth.inputs, truth.labels))
    assert found.residual < 1e-3
    assert (found.unique is True) == (optimizer == "SGD")


@pytest.mark.parametrize("options", [{}, {"steps": 3}, {"warm": 3}], ids=str)
def test_members_are_told_from_strangers_by_the_plain_gradient(options):
    """Of four members and four strangers, behind Adam as behind SGD."""
    data, found = DIGITS, []
    for seed in range(2):
        order = sp.rng(seed).permutation(len(data.inputs))
        mine, others, public = order[:4], order[4:8], order[8:72]
        batch = sp.Batch(data.inputs[mine], data.labels[mine])
        local = sp.Local(**{"optimizer": "Adam", "lr": 1e-3, "steps": 1, **options})
        seen = sp.Threat().observe(sp.Client(local), network(), batch, rng=sp.rng(seed))
        both = torch.cat([mine, others])
        test = sp.membership(
            seen,
            sp.Batch(data.inputs[both], data.labels[both]),
            public=sp.PublicData(data.inputs[public], data.labels[public]),
        )
        p = test.p_values
        found += [(p[:4][:, None] < p[4:][None]).float().mean()]
    assert sum(found) / len(found) > 0.75
