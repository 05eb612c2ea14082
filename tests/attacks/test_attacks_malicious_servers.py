"""Servers that cheat get what their papers say, from real images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import seepage as sp
from seepage.attacks.malicious_server._identity_convolutions import _find_passed_entries
from seepage.attacks.malicious_server._planted_classifier import ClassFishing
from seepage.attacks.malicious_server._reversible_blocks import ReversibleNetwork, _largest_stretch
from seepage.attacks.malicious_server._robbing_the_fed import Imprint, Law, Public
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.scoring import METRICS

CLIENT = sp.Client(sp.Gradient())
CHEATING = sp.Threat(server="malicious")
PHOTOGRAPHS = stats.truncnorm(-0.474 / 0.126, 0.526 / 0.126, loc=0.474, scale=0.126)


def psnr(guess, batch):
    return sp.score(guess, batch, metrics=(METRICS["psnr"],))["psnr"]


def attacked(attack, task, batch, *, client=CLIENT, threat=CHEATING):
    planted = attack.plant(task, rng=sp.rng(2))
    return attack(threat.observe(client, planted, batch, rng=sp.rng(0)), rng=sp.rng(1))


@pytest.fixture(scope="module")
def cifar(data_root):
    return sp.data.load("cifar10")


@pytest.fixture(scope="module")
def photos():
    return sp.data.load("photos", pixels=16)


@pytest.fixture(scope="module")
def lenet(photos):
    return sp.zoo.lenet(domain=photos.domain)


def alone(batch, bins, law):
    """Who falls into a bin alone, by scipy's own quantiles and a loop over people."""
    edges = law.ppf(np.arange(1, bins) / bins)
    brightness = batch.inputs.double().flatten(1).mean(1).numpy()
    held = np.searchsorted(edges, brightness)
    return torch.tensor([int((held == own).sum()) == 1 for own in held])


@pytest.mark.parametrize("variant", ["cumulative", "sparse"])
def test_everybody_who_is_alone_in_a_bin_comes_back_and_128_bins_hold_64_people(variant, cifar):
    batch, attack = cifar.batch(64), sp.attacks.robbing_the_fed(variant=variant)
    found = psnr(attacked(attack, sp.zoo.lenet(), batch), batch)
    lonely = alone(batch, 128, PHOTOGRAPHS)
    assert bool((found[lonely] > 60).all())
    assert float((found > 60).double().mean()) > 0.5


def test_the_share_that_is_alone_is_what_theory_says(cifar):
    batches = [cifar.batch(64, start=64 * n) for n in range(8)]
    share = torch.cat([alone(b, 128, PHOTOGRAPHS) for b in batches]).double().mean()
    assert abs(float(share) - (1 - 1 / 128) ** 63) < 0.06


def test_an_imprinted_network_still_classifies(cifar, data_root):
    weights = data_root / "weights" / "cifar10_resnet20-12fca82f.safetensors"
    if not weights.exists():
        pytest.skip("trained weights not found in the data folder")
    task, batch = sp.zoo.load_weights(sp.zoo.resnet20(), weights), cifar.batch(32)
    planted = sp.attacks.robbing_the_fed().plant(task, rng=sp.rng(0))
    with torch.no_grad():
        honest, cheating = (t.outputs(t.parameters, batch.inputs) for t in (task, planted))
    assert torch.equal(honest.argmax(1), cheating.argmax(1))
    assert float((honest - cheating).norm() / honest.norm()) < 0.01
    assert planted.domain == task.domain


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "known", "unknown"), [(0.3, 26, 17), (0.9, 17, 15)])
def test_what_dropout_took_is_filled_in_from_around_it(rate, known, unknown, cifar):
    """Half of its pixels are enough to know a person by; a bias that is gone, its bin tells."""
    attack = sp.attacks.robbing_the_fed(bins=2048)
    batch, planted = cifar.batch(16), attack.plant(sp.zoo.lenet(), rng=sp.rng(2))
    client, scores = sp.Client(sp.Gradient(), sp.Dropout(rate)), {}
    for threat in (CHEATING, CHEATING.forget_defense()):
        seen = threat.observe(client, planted, batch, rng=sp.rng(0))
        if threat.knows_defense:
            caught = seen.update.tensors["bins.weight"].any(1)
            gone = seen.update.tensors["bins.bias"][caught] == 0
            assert bool(gone.any())
        scores[threat.knows_defense] = sp.score(attack(seen, rng=sp.rng(1)), batch)["psnr"]
    assert float(scores[True].median()) > known
    assert float(scores[False].median()) < unknown


@pytest.mark.slow
def test_long_columns_stand_out_of_noise(cifar):
    batch, client = cifar.batch(16), sp.Client(sp.Gradient(), sp.AddGaussian(0.01))
    scores = []
    for column in (1e-2, 100.0):
        attack = sp.attacks.robbing_the_fed(bins=2048, column=column)
        planted = attack.plant(sp.zoo.lenet(), rng=sp.rng(2))
        seen = CHEATING.observe(client, planted, batch, rng=sp.rng(0))
        scores.append(float(sp.score(attack(seen, rng=sp.rng(1)), batch)["psnr"].median()))
    assert scores[0] < 12
    assert scores[1] > 35


def test_the_gradient_of_a_bin_is_the_sum_over_whom_it_holds(photos, lenet):
    """An independent loop: what each person contributes to each row of the imprint."""
    batch = photos.batch(4)
    planted = sp.attacks.robbing_the_fed(bins=8).plant(lenet, rng=sp.rng(0)).to(dtype=torch.float64)
    batch = batch.to(dtype=torch.float64)
    update = CLIENT(planted, batch, rng=sp.rng(0))
    normalised = planted.domain.normalise(batch.inputs).flatten(1)
    layer = planted.model.bins
    opened = (normalised @ layer.weight.T + layer.bias).detach()
    held = (opened > 0) & (opened < planted.model.activation.max_val)
    each = [CLIENT(planted, sp.Batch(x[None], y[None]), rng=sp.rng(0)).tensors["bins.bias"]
            for x, y in zip(batch.inputs, batch.labels, strict=True)]  # fmt: skip
    expected = sum(torch.outer(bias, x) for bias, x in zip(each, normalised, strict=True)) / 4
    torch.testing.assert_close(update.tensors["bins.weight"], expected)
    assert torch.equal(torch.stack(each) != 0, held)


def test_the_sparse_imprint_works_through_local_epochs(cifar):
    walker = sp.Client(sp.FedAvg(lr=0.01, epochs=2, local_batch_size=16))
    batch = cifar.batch(32)
    found = psnr(
        attacked(sp.attacks.robbing_the_fed(), sp.zoo.resnet20(width=4), batch, client=walker),
        batch,
    )
    assert float((found > 40).double().mean()) > 0.5


def test_nothing_but_the_update_is_needed_and_its_scale_does_not_matter(photos, lenet):
    batch, attack = photos.batch(12), sp.attacks.robbing_the_fed(std=0.15)
    blind = sp.Threat(server="malicious", knows_batch_size=False, knows_defense=False)
    clipped = sp.Client(sp.Gradient(), sp.Clip(1e-3))
    plain = psnr(attacked(attack, lenet, batch), batch)
    scaled = psnr(attacked(attack, lenet, batch, client=clipped, threat=blind), batch)
    assert int((plain > 60).sum()) == int((scaled > 60).sum()) >= 6


def test_edges_measured_on_public_data_are_its_quantiles(photos, lenet):
    with pytest.raises(InvalidValue, match="expected split 'test' for photos"):
        sp.attacks.robbing_the_fed(public="photos")
    public = Public(data="photos", split="test")
    functional = torch.linspace(-1, 1, 768, dtype=torch.float64)
    levels = torch.tensor([0.25, 0.5, 0.9], dtype=torch.float64)
    measured = photos.inputs.double().flatten(1).numpy() @ functional.numpy()
    expected = np.quantile(measured, levels.numpy())
    np.testing.assert_allclose(public(functional, lenet, levels).numpy(), expected)
    attack = sp.attacks.robbing_the_fed(bins=64, public="photos", split="test", functional="random")
    batch = photos.batch(12)
    assert int((psnr(attacked(attack, lenet, batch), batch) > 60).sum()) >= 6


@pytest.mark.parametrize(("shape", "law"), [("normal", stats.norm), ("laplace", stats.laplace)])
def test_assumed_laws_have_the_quantiles_of_scipy_within_reach(shape, law, lenet):
    levels = torch.linspace(0.01, 0.99, 33, dtype=torch.float64)
    whole = law(loc=0.4, scale=0.2 / law.std())
    below, up_to = whole.cdf([0, 1])
    expected = whole.ppf(below + levels.numpy() * (up_to - below))
    brightness = torch.full((768,), 1 / 768, dtype=torch.float64)
    ours = Law(shape=shape, mean=0.4, std=0.2)(brightness, lenet, levels)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


def test_an_update_of_an_honest_network_is_refused(photos, lenet):
    seen = sp.Threat().observe(CLIENT, lenet, photos.batch(2), rng=sp.rng(0))
    with pytest.raises(NotApplicable, match=r"attack\.plant"):
        sp.attacks.robbing_the_fed()(seen, rng=sp.rng(1))


@pytest.mark.parametrize(
    "client",
    [CLIENT, sp.Client(sp.Gradient(reduction="sum")), sp.Client(sp.FedAvg(lr=0.1, steps=1))],
    ids=repr,
)
def test_fishing_leaves_exactly_the_update_of_the_one_who_was_caught(photos, client):
    task = sp.zoo.convnet(width=2, domain=photos.domain).to(dtype=torch.float64)
    batch = photos.batch(8).to(dtype=torch.float64)
    fishing = ClassFishing(attack=sp.attacks.analytic_fc(), target=5)
    planted = fishing.plant(task, rng=sp.rng(0))
    blind = replace(CHEATING, knows_batch_size=False)
    together = blind.observe(client, planted, batch, rng=sp.rng(0))
    (number,) = (batch.labels == 5).nonzero()[:, 0].tolist()
    one = sp.Batch(batch.inputs[number : number + 1], batch.labels[number : number + 1])
    expected = client(planted, one, rng=sp.rng(0))
    torch.testing.assert_close(fishing._isolate(together, one.labels).flat(), expected.flat())


@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=pytest.mark.slow)])
def test_fishing_brings_one_of_a_batch_back_and_is_sure_of_it(photos, reduction):
    batch, client = photos.batch(8), sp.Client(sp.Gradient(reduction=reduction))
    fishing = sp.attacks.class_fishing(attack=sp.attacks.rgap(), target=5)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=photos.domain)
    guess = attacked(fishing, task, batch, client=client)
    assert guess.certificate.residual < 1e-3
    assert guess.inputs.shape[0] == 1
    best = psnr(guess, batch)
    assert float(best.max()) > 60
    assert int(best.argmax()) == int((batch.labels == 5).nonzero())


def test_fishing_for_nobody_says_so(photos, lenet):
    batch = photos.batch(3)
    assert 9 not in batch.labels
    with pytest.raises(NotApplicable, match="no example of this batch is of class 9"):
        attacked(sp.attacks.class_fishing(target=9), lenet, batch)


def test_identity_convolutions_pass_a_padded_picture_on_whole(photos):
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 256, 10))
    task = sp.Task(model, sp.cross_entropy, photos.domain)
    attack, batch = sp.attacks.identity_convolutions(), photos.batch(1)
    assert float(psnr(attacked(attack, task, batch), batch)) > 100
    assert _find_passed_entries(attack.plant(task, rng=sp.rng(0))).places == 768


def test_a_stride_with_enough_channels_loses_nothing_and_one_without_loses_resolution(photos):
    def strided(channels):
        layers = nn.Conv2d(3, channels, 4, stride=2, padding=1), nn.Sigmoid(), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(channels * 64, 10))
        return sp.Task(model, sp.cross_entropy, photos.domain)

    attack, batch = sp.attacks.identity_convolutions(), photos.batch(1)
    places = [_find_passed_entries(attack.plant(strided(n), rng=sp.rng(0))).places for n in (12, 3)]
    assert places[0] > 3.5 * places[1]
    coarse, fine = (float(psnr(attacked(attack, strided(n), batch), batch)) for n in (3, 12))
    assert fine > coarse + 5 > 20


def test_identity_convolutions_undo_batch_normalisation(photos):
    layers = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(768, 10))
    with torch.no_grad():
        model[1].running_mean.uniform_(-1, 1)
        model[1].running_var.uniform_(0.5, 2)
    batch = photos.batch(1)
    task = sp.Task(model, sp.cross_entropy, photos.domain)
    assert float(psnr(attacked(sp.attacks.identity_convolutions(), task, batch), batch)) > 100


@pytest.mark.parametrize("make", [sp.zoo.resnet20, sp.zoo.mlp])
def test_where_nothing_can_be_passed_on_nothing_is_planted(make):
    options = {"width": 2} if make is sp.zoo.resnet20 else {"hidden": (8,)}
    with pytest.raises(NotApplicable, match=r"plant another way|plant a first layer"):
        sp.attacks.identity_convolutions().plant(make(**options), rng=sp.rng(0))


def test_flipping_makes_the_gradients_of_a_trained_network_large(cifar, data_root):
    weights = data_root / "weights" / "cifar10_resnet20-12fca82f.safetensors"
    if not weights.exists():
        pytest.skip("trained weights not found in the data folder")
    task, batch = sp.zoo.load_weights(sp.zoo.resnet20(), weights), cifar.batch(1)
    flipped = sp.attacks.label_flip().plant(task, rng=sp.rng(0))
    norms = [float(CLIENT(t, batch, rng=sp.rng(0)).norm()) for t in (task, flipped)]
    assert norms[1] > 10 * norms[0]
    with torch.no_grad():
        before, after = (t.outputs(t.parameters, batch.inputs) for t in (task, flipped))
    torch.testing.assert_close(after, before.roll(1, dims=1))


@pytest.mark.slow
@pytest.mark.parametrize("search", [sp.attacks.inverting_gradients(steps=3), sp.attacks.rgap()])
def test_updates_of_one_flipped_network_are_attacked_side_by_side(search, photos):
    flip = sp.attacks.label_flip(attack=search)
    planted = flip.plant(sp.zoo.cnn(variant="cnn2-v1", domain=photos.domain), rng=sp.rng(0))
    planted = planted.to(dtype=torch.float64)
    batches = [photos.batch(1, start=i).to(dtype=torch.float64) for i in range(2)]
    threat = sp.Threat(knows_labels=True, server="malicious")
    seen = [threat.observe(CLIENT, planted, batch, rng=sp.rng(0)) for batch in batches]
    keys = [sp.rng(i) for i in range(2)]
    for one, key, guess in zip(seen, keys, flip.many(seen, rngs=keys), strict=True):
        assert torch.allclose(flip(one, rng=key).inputs, guess.inputs, atol=1e-7)


def test_two_rows_are_swapped_where_two_are_named(lenet):
    swapped = sp.attacks.label_flip(rows=(2, 7)).plant(lenet, rng=sp.rng(0)).parameters
    own = lenet.parameters
    assert torch.equal(swapped["head.weight"][2], own["head.weight"][7])
    assert torch.equal(swapped["head.bias"][7], own["head.bias"][2])
    assert torch.equal(swapped["head.bias"][3:7], own["head.bias"][3:7])


def test_what_is_planted_before_a_network_leaves_its_outputs(photos, lenet):
    planted = sp.attacks.first_layer_fc().plant(lenet, rng=sp.rng(0))
    inputs = photos.batch(2).inputs
    with torch.no_grad():
        before, after = (t.outputs(t.parameters, inputs) for t in (lenet, planted))
    torch.testing.assert_close(after, before)
    imprinted = sp.attacks.robbing_the_fed().plant(lenet, rng=sp.rng(0))
    assert isinstance(imprinted.model, Imprint)
    assert imprinted.classes == lenet.classes


@pytest.mark.parametrize("name", ["robbing_the_fed", "first_layer_fc"])
def test_nothing_is_planted_before_a_network_that_reads_words(name):
    task = sp.zoo.gpt(width=16, domain=sp.data.load("hamlet").domain)
    with pytest.raises(NotApplicable, match="plant in the classifier"):
        sp.attacks.ATTACKS[name]().plant(task, rng=sp.rng(0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sp.attacks.robbing_the_fed(bins=1), "at least 2 bins"),
        (lambda: sp.attacks.robbing_the_fed(gain=0.0), "gain > 0"),
        (lambda: sp.attacks.robbing_the_fed(std=-1.0), "std > 0"),
        (lambda: sp.attacks.robbing_the_fed(functional="random"), "has to be measured"),
        (lambda: sp.attacks.label_flip(rows=(1, 1)), "two different rows"),
        (lambda: sp.attacks.class_fishing(target=-1), "target >= 0"),
        (lambda: sp.attacks.label_flip(attack=sp.attacks.first_layer_fc()), "passive one"),
    ],
)
def test_bad_options_are_one_sentence(make, said):
    with pytest.raises(InvalidValue, match=said):
        make()


def test_bad_words_and_bad_fits_are_one_sentence(photos, lenet):
    with pytest.raises(UnknownName, match="variant"):
        sp.attacks.robbing_the_fed(variant="dense")
    with pytest.raises(InvalidValue, match="mean and std of this data"):
        sp.attacks.robbing_the_fed(std=0.01, mean=5.0).plant(lenet, rng=sp.rng(0))
    with pytest.raises(InvalidValue, match=r"target in 0\.\.9"):
        sp.attacks.class_fishing(target=10).plant(lenet, rng=sp.rng(0))
    attack = sp.attacks.robbing_the_fed(public="digits", split="test")
    with pytest.raises(InvalidValue, match="public data of shape"):
        attack.plant(lenet, rng=sp.rng(0))


def test_a_hundred_people_with_weights_of_their_own_all_come_back_with_their_labels(cifar):
    batch, attack = cifar.batch(100), sp.attacks.input_to_logits(examples=100)
    guess = attacked(attack, sp.zoo.resnet20(width=4), batch)
    assert bool((psnr(guess, batch) > 60).all())
    assert torch.equal(guess.labels, batch.labels)
    assert guess.certificate.unique


def test_a_network_with_its_input_at_the_logits_computes_what_it_computed(photos, lenet):
    inputs = photos.batch(6).inputs
    planted = sp.attacks.input_to_logits(examples=4).plant(lenet, rng=sp.rng(0))
    assert torch.equal(
        planted.outputs(planted.parameters, inputs), lenet.outputs(lenet.parameters, inputs)
    )


def test_the_input_at_the_logits_comes_back_after_local_steps_on_the_whole_batch(photos, lenet):
    batch = photos.batch(4)
    walker = sp.Client(sp.FedAvg(lr=0.01, epochs=3, local_batch_size=4))
    guess = attacked(sp.attacks.input_to_logits(examples=4), lenet, batch, client=walker)
    assert bool((psnr(guess, batch) > 50).all())


def test_more_people_than_weights_of_their_own_are_refused(photos, lenet):
    with pytest.raises(NotApplicable, match="plant with examples=4"):
        attacked(sp.attacks.input_to_logits(examples=2), lenet, photos.batch(4))


def test_reversible_blocks_run_backwards_and_mix_every_pixel():
    network = ReversibleNetwork((3, 8, 8), 3, 10).double()
    inputs = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    read = []
    network.head.register_forward_pre_hook(lambda _, seen: read.append(seen[0]))
    with torch.no_grad():
        network(inputs)
        torch.testing.assert_close(network.invert(read[0]), inputs, rtol=0, atol=1e-12)
    as_sent = torch.nn.functional.pixel_unshuffle(inputs, 2).flatten(1)
    assert not torch.isclose(read[0], as_sent, atol=1e-3).any(1).all()
    assert float((read[0] - as_sent).norm() / as_sent.norm()) > 0.05


def test_the_largest_stretch_of_reversible_blocks_is_that_of_their_jacobian():
    network, read = (
        ReversibleNetwork((3, 4, 4), 3, 10),
        torch.rand(48, generator=torch.Generator().manual_seed(0)),
    )
    whole = torch.autograd.functional.jacobian(
        network.double().invert, read.double()[None]
    ).reshape(48, 48)
    assert _largest_stretch(network, read) == pytest.approx(float(whole.svd().S[0]), rel=0.02)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_comes_back_through_reversible_blocks(channels, photos):
    domain = sp.domains.Image((channels, 16, 16))
    batch = sp.Batch(photos.batch(1).inputs[:, :channels], photos.batch(1).labels)
    task = sp.zoo.lenet(domain=domain, classes=photos.classes)
    guess = attacked(sp.attacks.reversible_blocks(blocks=6), task, batch)
    assert float(psnr(guess, batch)) > 80
    assert guess.certificate.unique


def test_reversible_blocks_say_what_they_cannot_do(photos, lenet):
    attack = sp.attacks.reversible_blocks()
    with pytest.raises(NotApplicable, match="a batch of one"):
        attacked(attack, lenet, photos.batch(2))
    odd = sp.zoo.lenet(domain=sp.domains.Image((1, 9, 9)))
    with pytest.raises(NotApplicable, match="even height and width"):
        attack.plant(odd, rng=sp.rng(0))


@pytest.mark.parametrize("name", ["input_to_logits", "reversible_blocks"])
def test_a_network_without_what_is_planted_is_refused(name, photos, lenet):
    seen = CHEATING.observe(CLIENT, lenet, photos.batch(1), rng=sp.rng(0))
    with pytest.raises(NotApplicable, match="first"):
        sp.attacks.ATTACKS[name]()(seen, rng=sp.rng(1))
