"""One table per protocol: the public checks, run over everything there is.

Adding a defense, metric or attack adds a row here; the first test of each table fails without it.
"""

import math

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import ATTACKS
from seepage.core._protocols import needs_labels
from seepage.core.errors import MissingExtra, MissingKnowledge
from seepage.defenses import DEFENSES, Chain
from seepage.scoring import METRICS
from seepage.testing import (
    check_active_attack,
    check_aggregation,
    check_attack,
    check_defense,
    check_input_defense,
    check_knowledge,
    check_metric,
)

# Each defense beside itself at zero strength, where it has one.
DEFENDED = [
    (sp.Prune(0.5), sp.Prune(0.0)),
    (sp.Prune(0.9, scope="update"), sp.Prune(0, scope="update")),
    (sp.Clip(1.0), sp.Clip(math.inf)),
    (sp.ClipEach(1.0), sp.ClipEach(math.inf)),
    (sp.AddGaussian(0.1), sp.AddGaussian(0)),
    (sp.AddLaplace(0.1), sp.AddLaplace(0)),
    (sp.Dropout(0.3), sp.Dropout(0)),
    (sp.Dropout(0.3, rescale=True), sp.Dropout(0, rescale=True)),
    (sp.Mean(), None),
    (sp.Mean(over=5), None),
    (sp.Sign(), None),
    (sp.TopK(5), sp.TopK(25)),
    (sp.chain(), sp.chain()),
    (sp.dp_sgd(max_norm=1.0, noise_multiplier=0.3, batch_size=3), None),
    (sp.chain(sp.Clip(1.0), sp.Prune(0.5)), sp.chain(sp.Clip(math.inf), sp.Prune(0.0))),
]
# Rounding strays from its `expected` by up to half a step of the grid.
ROUNDED = [(sp.Quantize(bits), 0.5 / (2 ** (bits - 1) - 1)) for bits in (2, 4, 8)]
# Those that act before there is an update, and those that act with other clients.
PREPARED = [
    sp.MixUp(4),
    sp.MixUp(2, bound=0.9),
    sp.InstaHide(4),
    sp.Oasis(),
    sp.Oasis(rotations=False, flips=True),
    sp.Soteria(0.5),
    sp.Precode(8),
]
AGGREGATED = [sp.SecureAggregation(3), sp.SecureAggregation(4, average=False)]
# Recipes that are chains of others.
COMPOSED = {"dp_sgd"}


def test_every_defense_has_a_row():
    defenses = [*(d for d, _ in [*DEFENDED, *ROUNDED]), *PREPARED, *AGGREGATED]
    links = [d.links if isinstance(d, Chain) else (d,) for d in defenses]
    assert {type(link).__name__ for row in links for link in row} | COMPOSED == set(DEFENSES)


@pytest.mark.parametrize(("defense", "neutral"), DEFENDED, ids=repr)
def test_every_defense_keeps_its_laws(defense, neutral):
    check_defense(defense, neutral=neutral)


@pytest.mark.parametrize(("defense", "rounding"), ROUNDED, ids=repr)
def test_every_rounding_keeps_the_laws_up_to_half_a_step(defense, rounding):
    check_defense(defense, rounding=rounding)


@pytest.mark.parametrize("preparation", PREPARED, ids=repr)
def test_every_defense_before_the_update_keeps_its_laws(preparation, photos):
    check_input_defense(preparation, task=sp.zoo.cnn(variant="cnn2-v2"), batch=photos)


@pytest.mark.parametrize("aggregation", AGGREGATED, ids=repr)
def test_every_aggregation_keeps_its_laws(aggregation, photos):
    check_aggregation(aggregation, batch=photos)


# Metrics of other inputs than images.
DRAWN_FROM = {
    "feature_accuracy": sp.data.load("voters").domain,
    **dict.fromkeys(
        ("token_accuracy", "token_recall", "token_precision", "rouge_l"),
        sp.domains.Tokens(12, 100),
    ),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_metric_keeps_its_laws(metric):
    try:
        check_metric(
            metric,
            shape=(3, 32, 32),
            domain=DRAWN_FROM.get(metric.name),
            by_batch=metric.name in ("token_recall", "token_precision"),
        )
    except MissingExtra as error:
        pytest.skip(str(error))


def photos(model, people, *, pixels=32, **options):
    photos = sp.data.load("photos", pixels=pixels)
    task = sp.zoo.build(model, options={"domain": photos.domain, **options})
    return {"task": task, "batch": photos.batch(people)}


def one_photo(model, *, pixels=32, **options):
    return photos(model, 1, pixels=pixels, **options)


def one_photo_normalised_by_itself():
    photos = sp.data.load("photos", pixels=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(8 * 14 * 14, 10))
    return {
        "task": sp.Task(model, sp.cross_entropy, photos.domain),
        "batch": photos.batch(1),
        "threat": sp.Threat(knows_labels=True, batchnorm="exact"),
    }


def people_normalised_by_themselves(count):
    photos = sp.data.load("photos", pixels=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten()
        wide = nn.Linear(8 * 6 * 6, 512, bias=False)
        nn.init.normal_(wide.weight, std=(8 * 6 * 6) ** -0.5)
        model = nn.Sequential(*body, wide, nn.ReLU(), nn.Linear(512, 10))
    return {
        "task": sp.Task(model, sp.cross_entropy, photos.domain),
        "batch": photos.batch(count),
        "threat": sp.Threat(knows_labels=True, batchnorm="exact"),
    }


def people_before_a_wide_head(count):
    photos = sp.data.load("photos", pixels=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Linear(8 * 6 * 6, 1024, bias=False)
        nn.init.normal_(wide.weight, std=(8 * 6 * 6) ** -0.5)
        body = nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten()
        model = nn.Sequential(*body, wide, nn.ReLU(), nn.Linear(1024, 10))
    task = sp.Task(model, sp.cross_entropy, photos.domain)
    return {"task": task, "batch": photos.batch(count)}


def photos_in_sparse_maps(count):
    """Convolutions behind ReLU whose gradients have room for the patches of a few images."""
    photos = sp.data.load("photos", pixels=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stem = nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        down = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()
        deep = nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()
        model = nn.Sequential(*stem, *down, *deep, nn.Flatten(), nn.Linear(64 * 16, 10))
    return {
        "task": sp.Task(model, sp.cross_entropy, photos.domain),
        "batch": photos.batch(count),
        "threat": sp.Threat(knows_labels=True, batchnorm="unknown"),
    }


def people_of_a_regression(count):
    photos = sp.data.load("photos", pixels=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    task = sp.Task(model, sp.cross_entropy, photos.domain)
    return {"task": task, "batch": photos.batch(count)}


def people(data, model, count, **options):
    dataset = sp.data.load(data)
    fitted = {"domain": dataset.domain, "classes": dataset.classes}
    return {"task": sp.zoo.build(model, options=fitted | options), "batch": dataset.batch(count)}


class Patches(nn.Module):
    """A vision transformer with one block: patches, positions, attention, a mean and a head."""

    def __init__(self, *, size, width=64, classes=10):
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // 4) ** 2, width))
        self.block = nn.TransformerEncoderLayer(width, 4, width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        patches = self.embed(images).flatten(2).transpose(1, 2)
        return self.head(self.block(patches + self.positions).mean(1))


def one_photo_in_patches():
    photos = sp.data.load("photos", pixels=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Patches(size=16)
    return {"task": sp.Task(model, sp.cross_entropy, photos.domain), "batch": photos.batch(1)}


class Prompted(nn.Module):
    """Predicts next tokens behind a prompt, which alone is trained; returns the text as well."""

    def __init__(self, domain, *, width=32, prompt=8):
        super().__init__()
        self.tokens = nn.Embedding(domain.vocabulary, width)
        self.block = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, domain.vocabulary)
        self.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(prompt, width))

    def forward(self, tokens):
        before = self.prompt.expand(len(tokens), -1, -1)
        features = torch.cat([before, self.tokens(tokens)], dim=1)
        later = torch.full(2 * features.shape[1:2], -1e9).triu(1)
        logits = self.head(self.block(features, src_mask=later))
        return torch.cat([logits.flatten(1), tokens.to(logits)], dim=1)


def one_text_behind_a_prompt(length=4, vocabulary=100, prompt=8):
    domain = sp.domains.Tokens(length, vocabulary)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Prompted(domain, prompt=prompt)

    def predict_next(joined, _):
        logits = joined[:, :-length].unflatten(1, (prompt + length, vocabulary))
        predicted = logits[:, prompt - 1 : -1].transpose(1, 2)
        wanted = joined[:, -length:].long()
        return nn.functional.cross_entropy(predicted, wanted, reduction="none").mean(1)

    task = sp.Task(model, predict_next, domain, target_shape=(0,))
    texts = domain.sample(1, rng=sp.rng(0))
    return {"task": task, "batch": sp.Batch(texts, torch.zeros(1, 0))}


trained_by_adam = sp.Local(optimizer="Adam", lr=1e-3, steps=3)
# A scenario that each attack masters, and the PSNR in dB it must reach there: a few dB below what
# it reached when the row was written.
ATTACKED = {
    "analytic_adam": (
        sp.attacks.analytic_adam(),
        {"client": sp.Client(trained_by_adam), **one_photo("mlp", hidden=[128])},
        25.0,
    ),
    "analytic_fc": (sp.attacks.analytic_fc(), one_photo("mlp", hidden=[32]), 60.0),
    "april": (sp.attacks.april(), one_photo_in_patches(), 60.0),
    "cocktail_party": (
        sp.attacks.cocktail_party(),
        photos("mlp", 4, hidden=[32], activation="tanh"),
        26.0,
    ),
    "dlg": (
        sp.attacks.dlg(iterations=8),
        one_photo("mlp", pixels=8, hidden=[32], activation="sigmoid"),
        55.0,
    ),
    "grad_inversion": (
        sp.attacks.grad_inversion(steps=120, restarts=2),
        one_photo_normalised_by_itself(),
        15.0,
    ),
    "exact_batch": (sp.attacks.exact_batch(), photos("mlp", 4, hidden=[64]), 120.0),
    "exact_features": (
        sp.attacks.exact_features(),
        photos("two_layer", 4, pixels=8, neurons=1024),
        80.0,
    ),
    "feature_inversion": (
        sp.attacks.feature_inversion(decoder=None, steps=400),
        people_before_a_wide_head(3),
        35.0,
    ),
    "feature_maps": (
        sp.attacks.feature_maps(decoder=None, steps=300),
        photos_in_sparse_maps(2),
        12.0,
    ),
    "gradattack_strongest": (
        sp.attacks.gradattack_strongest(steps=180, tv=1e-3),
        one_photo_normalised_by_itself(),
        20.0,
    ),
    "idlg": (sp.attacks.idlg(iterations=8), one_photo("cnn2-v1", pixels=8), 45.0),
    "hybrid": (
        sp.attacks.hybrid(steps=(40, 1, 1), step_size=5e-2),
        one_photo("cnn2-v2", pixels=16),
        18.0,
    ),
    "inverting_gradients": (
        sp.attacks.inverting_gradients(steps=200, restarts=1, tv=1e-4),
        one_photo("cnn2-v1", pixels=16),
        23.0,
    ),
    "learn_from_gradients": (
        sp.attacks.learn_from_gradients(steps=80, optimiser="lbfgs", line_search=True),
        one_photo("cnn2-v1", pixels=16),
        22.0,
    ),
    "teacher_forced": (
        sp.attacks.teacher_forced(steps=100, feature_weight=1.0),
        people_normalised_by_themselves(2),
        15.0,
    ),
    "tableak": (
        sp.attacks.tableak(steps=100, members=2),
        people("voters", "mlp", 2, hidden=[64]),
        24.0,
    ),
    # Every word: the share of wrong ones is zero.
    "bag_of_words": (sp.attacks.bag_of_words(), people("hamlet", "gpt", 1, width=48), math.inf),
    "token_span": (sp.attacks.token_span(), people("hamlet", "gpt", 1, width=48), math.inf),
    "dager": (sp.attacks.dager(), people("hamlet", "gpt", 2, width=48), math.inf),
    "next_words": (sp.attacks.next_words(), one_text_behind_a_prompt(), math.inf),
    "rgap": (sp.attacks.rgap(), one_photo("cnn3-v3", pixels=8), 100.0),
    "tensor_features": (
        sp.attacks.tensor_features(),
        one_photo("two_layer", pixels=4, neurons=16384),
        15.0,
    ),
    "softmax_features": (sp.attacks.softmax_features(), people_of_a_regression(4), 60.0),
    "systematic": (
        sp.attacks.systematic(steps=150, tv=1e-3),
        one_photo_normalised_by_itself(),
        16.0,
    ),
}


# Attacks that plant, with the number of people who must come back at that PSNR.
PLANTED = {
    "class_fishing": (
        sp.attacks.class_fishing(attack=sp.attacks.analytic_fc(), target=3),
        photos("mlp", 8, hidden=[32]),
        80.0,
        1,
    ),
    "first_layer_fc": (sp.attacks.first_layer_fc(), one_photo("lenet", pixels=16), 100.0, 1),
    "identity_convolutions": (
        sp.attacks.identity_convolutions(),
        one_photo("cnn2-v1"),
        25.0,
        1,
    ),
    "input_to_logits": (
        sp.attacks.input_to_logits(examples=4),
        photos("lenet", 4, pixels=16),
        80.0,
        4,
    ),
    "label_flip": (
        sp.attacks.label_flip(attack=sp.attacks.rgap()),
        one_photo("cnn2-v1", pixels=8),
        80.0,
        1,
    ),
    "reversible_blocks": (
        sp.attacks.reversible_blocks(),
        one_photo("lenet", pixels=16),
        80.0,
        1,
    ),
    "robbing_the_fed": (
        sp.attacks.robbing_the_fed(std=0.15),
        photos("lenet", 16, pixels=16),
        60.0,
        10,
    ),
}


def test_every_attack_has_a_row():
    assert set(ATTACKED) | set(PLANTED) == set(ATTACKS)


@pytest.mark.parametrize("name", PLANTED)
def test_every_attack_that_plants_keeps_its_laws(name):
    attack, scenario, at_least, recovered = PLANTED[name]
    client = sp.Client(sp.Gradient())
    check_active_attack(attack, client=client, at_least=at_least, recovered=recovered, **scenario)


@pytest.mark.parametrize("name", ATTACKED)
def test_every_attack_keeps_its_laws(name):
    attack, scenario, at_least = ATTACKED[name]
    check_attack(attack, at_least=at_least, **{"client": sp.Client(sp.Gradient()), **scenario})


@pytest.mark.parametrize("name", [n for n, row in ATTACKED.items() if needs_labels(row[0])])
def test_an_attack_that_says_it_needs_labels_cannot_begin_without(name):
    attack, scenario, _ = ATTACKED[name]
    client = scenario.get("client", sp.Client(sp.Gradient()))
    seen = sp.Threat(batchnorm="exact").observe(
        client, scenario["task"], scenario["batch"], rng=sp.rng(0)
    )
    with pytest.raises(MissingKnowledge, match="needs the labels"):
        attack(seen, rng=sp.rng(1))


# Two searches differ by tenths of a dB by rounding alone; a wrong adaptation costs several dB.
ROUNDING = 1.5
KNOWN = [
    sp.Prune(0.7),
    sp.Clip(0.1),
    sp.AddGaussian(1e-3),
    sp.Dropout(0.3),
    sp.Sign(),
    sp.Quantize(4),
    sp.TopK(4_000),
    sp.Oasis(rotations=False, flips=True),
]


@pytest.mark.parametrize("defense", KNOWN, ids=repr)
def test_knowing_the_defense_never_hurts_the_attacker(defense):
    attack = sp.attacks.inverting_gradients(steps=60, restarts=1, tv=1e-4)
    client, scenario = sp.Client(sp.Gradient(), defense), one_photo("cnn2-v1", pixels=16)
    check_knowledge(attack, client=client, slack=ROUNDING, **scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense", [sp.Prune(0.7), sp.TopK(16_000), sp.Oasis(rotations=False, flips=True)], ids=repr
)
def test_knowing_what_a_defense_removes_helps_the_attacker(defense):
    attack = sp.attacks.inverting_gradients(steps=300, restarts=1, tv=1e-4)
    client = sp.Client(sp.Gradient(), defense)
    check_knowledge(attack, client=client, slack=-2.0, **one_photo("cnn2-v1"))


def some_photos(people):
    return photos("cnn2-v2", people, pixels=16)


# Every defense, with as many people as it needs, and what the adversary knows besides it.
ADAPTED = [
    (sp.AddGaussian(0.2), 1),
    (sp.AddLaplace(0.15), 1),
    (sp.Clip(0.1), 1),
    (sp.chain(sp.ClipEach(0.1), sp.Mean()), 2),
    (sp.Dropout(0.7), 1),
    (sp.InstaHide(2), 2),
    (sp.MixUp(2), 2),
    (sp.Oasis(), 1),
    (sp.Precode(16), 1),
    (sp.Prune(0.9), 1),
    (sp.Quantize(4), 1),
    (sp.SecureAggregation(2), 2),
    (sp.Sign(), 1),
    (sp.Soteria(0.8), 1),
    (sp.TopK(1_000), 1),
    (sp.dp_sgd(max_norm=1.0, noise_multiplier=0.05, batch_size=1), 1),
]


def test_every_defense_is_adapted_to():
    links = [d.links if isinstance(d, Chain) else (d,) for d, _ in ADAPTED]
    assert {type(link).__name__ for row in links for link in row} | COMPOSED == set(DEFENSES)


@pytest.mark.parametrize(("defense", "people"), ADAPTED, ids=repr)
def test_adapting_to_the_defense_never_hurts_the_attacker(defense, people):
    search = sp.attacks.inverting_gradients(steps=30, restarts=1, tv=1e-4)
    knowing = sp.Threat(knows_labels=True, knows_mixing=isinstance(defense, sp.MixUp))
    check_knowledge(
        sp.attacks.adaptive(search),
        client=sp.Client(sp.Gradient(), defense),
        threat=knowing,
        slack=ROUNDING,
        **some_photos(people),
    )
