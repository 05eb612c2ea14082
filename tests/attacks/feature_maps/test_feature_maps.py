"""Everybody's feature maps come back from one update, in evaluation and in training."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import seepage as sp
from seepage.attacks import feature_maps
from seepage.attacks.feature_maps._layer_below import solve_below
from seepage.attacks.feature_maps._map_layers import find_map_layers
from seepage.attacks.feature_maps._map_span import find_open_maps
from seepage.attacks.feature_maps._recover_maps import FOLLOWS, trained_layers
from seepage.core.errors import NotApplicable
from seepage.probing._hooks import read_layers

PHOTOS = sp.data.load("photos", pixels=16)


class Stages(nn.Module):
    """A stem, then two convolutions at 4x4 positions whose gradients have room for a batch."""

    def __init__(self, width=64, *, stem=16, bias=0.3, affine=True):
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, stride=2, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(stem, affine=affine)
        self.down = nn.Conv2d(stem, width, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width, affine=affine)
        self.deep = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width, affine=affine)
        self.head = nn.Linear(width, 10)
        for norm in (self.norm0, self.norm1, self.norm2):
            if affine:
                nn.init.normal_(norm.bias, std=bias)

    def forward(self, images):
        hidden = torch.relu(self.norm0(self.stem(images)))
        hidden = torch.relu(self.norm1(self.down(hidden)))
        return self.head(torch.relu(self.norm2(self.deep(hidden))).mean((2, 3)))


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        # Running statistics of images, as training leaves them.
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        model.train()(PHOTOS.domain.normalise(PHOTOS.batch(24).inputs))
    return model.eval()


def observed(mode, people=3, *, model=None, client=None, **knowledge):
    model = model or seeded(Stages)
    task = sp.Task(model, sp.cross_entropy, PHOTOS.domain, mode=mode)
    batch = PHOTOS.batch(people)
    threat = sp.Threat(batchnorm="unknown" if mode == "train" else "running", **knowledge)
    client = client or sp.Client(sp.Gradient())
    return threat.observe(client, task, batch, rng=sp.rng(0)), batch


def true_maps(seen, batch, layer):
    task = seen.task
    with torch.no_grad():
        read = read_layers(task, [layer], task.domain.normalise(batch.inputs))
    return read[layer].double().flatten(1)


def errors(found, truth):
    """The relative error of the best match of each person, up to a factor for each."""
    cosines = normalize(found.double().flatten(1)) @ normalize(truth).T
    return (1 - cosines.amax(0).square()).clamp_min(0).sqrt()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_all_maps_of_two_layers_come_back_up_to_rounding(mode):
    seen, batch = observed(mode)
    found = feature_maps().recover(seen, rng=sp.rng(1))
    assert (len(found), found.missing, found.layer, found.known.layer) == (3, 0, "deep", "down")
    assert errors(found.directions, true_maps(seen, batch, "deep")).max() < 1e-3
    assert errors(found.known.values, true_maps(seen, batch, "down")).max() < 1e-3
    assert found.outside.max() < 1e-4
    assert found.misfits.max() < 1e-2


def test_in_evaluation_the_scale_comes_back_too():
    seen, batch = observed("eval")
    found = feature_maps().recover(seen, rng=sp.rng(1))
    truth = true_maps(seen, batch, "down")
    apart = torch.cdist(found.known.values.flatten(1), truth).amin(0) / truth.norm(dim=1)
    assert found.known.scaled
    assert apart.max() < 1e-3


def test_in_training_one_factor_for_the_batch_stays_unknown():
    seen, batch = observed("train")
    found = feature_maps().recover(seen, rng=sp.rng(1))
    lengths = found.known.values.flatten(1).norm(dim=1).sort().values
    true_lengths = true_maps(seen, batch, "down").norm(dim=1).sort().values
    factors = lengths / true_lengths
    assert not found.known.scaled
    assert (factors / factors.mean() - 1).abs().max() < 1e-3


def test_without_offsets_the_network_is_homogeneous_and_directions_come_back():
    seen, batch = observed("eval", model=Stages(affine=False).eval())
    found = feature_maps().recover(seen, rng=sp.rng(1))
    assert not found.known.scaled
    assert errors(found.known.values, true_maps(seen, batch, found.known.layer)).max() < 1e-2


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_batch_size_is_inferred_from_the_rank(mode):
    seen, _ = observed(mode, knows_batch_size=False)
    assert seen.batch_size is None
    assert feature_maps().recover(seen, rng=sp.rng(1)).batch_size == 3


def test_people_are_told_apart_in_an_update_in_bfloat16():
    seen, batch = observed("train", people=2)
    for tensor in seen.update.tensors.values():
        tensor.copy_(tensor.bfloat16())
    found = feature_maps().recover(seen, rng=sp.rng(1))
    assert errors(found.directions, true_maps(seen, batch, "deep")).max() < 0.1


def test_noise_of_a_thousandth_costs_a_hundredth_of_the_maps():
    seen, batch = observed("train")
    for name, tensor in seen.update.tensors.items():
        noise = sp.rng(5).fork(name).normal(tensor.shape, like=tensor)
        tensor.add_(1e-3 * tensor.square().mean().sqrt() * noise)
    found = feature_maps().recover(seen, rng=sp.rng(1))
    assert errors(found.directions, true_maps(seen, batch, "deep")).max() < 0.05
    assert errors(found.known.values, true_maps(seen, batch, "down")).max() < 0.1


def test_duplicates_are_found_once_and_said_to_be_missing():
    people = PHOTOS.batch(2)
    twice = sp.Batch(people.inputs[[0, 1, 1]], people.labels[[0, 1, 1]])
    task = sp.Task(seeded(Stages), sp.cross_entropy, PHOTOS.domain)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, twice, rng=sp.rng(0))
    with pytest.warns(UserWarning, match="2 of 3 people were told apart"):
        found = feature_maps().recover(seen, rng=sp.rng(1))
    assert errors(found.directions, true_maps(seen, people, "deep")).max() < 1e-2


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_images_come_back_from_the_maps(mode):
    seen, batch = observed(mode, people=2, model=seeded(lambda: Stages(stem=32)))
    guess = feature_maps(decoder=None, steps=400)(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["psnr"].mean() > 17
    assert (guess.confidence > 0).all()
    assert guess.certificate is None or guess.certificate.unique is None


class Beats(nn.Module):
    """The same for signals."""

    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 5, stride=2, padding=2)
        self.down = nn.Conv1d(16, width, 5, stride=2, padding=2)
        self.deep = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 5)
        for layer in (self.stem, self.down, self.deep):
            nn.init.orthogonal_(layer.weight, gain=2)

    def forward(self, signals):
        hidden = torch.relu(self.down(torch.relu(self.stem(signals))))
        return self.head(torch.relu(self.deep(hidden)).mean(2))


def test_signals_and_layers_without_normalisation():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Beats()
        signals = torch.rand(4, 1, 48)
    task = sp.Task(model, sp.cross_entropy, sp.domains.Signal((1, 48), mean=(0.5,), std=(0.2,)))
    batch = sp.Batch(signals, torch.tensor([0, 1, 2, 3]))
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    found = feature_maps().recover(seen, rng=sp.rng(1))
    assert len(found) == 4
    assert errors(found.directions, true_maps(seen, batch, "deep")).max() < 1e-2


def test_a_batch_without_room_is_refused_in_one_sentence():
    seen, _ = observed("eval", people=8)
    with pytest.raises(NotApplicable, match=r"'deep' of 64 outputs at 16 positions has room for 3"):
        feature_maps()(seen, rng=sp.rng(1))


def test_a_network_without_a_map_behind_relu_is_refused():
    task = sp.zoo.lenet()
    batch = sp.data.bundled("photos", size=2)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    with pytest.raises(NotApplicable, match="no trained layer reads maps behind a ReLU"):
        feature_maps()(seen, rng=sp.rng(1))


def test_frozen_grouped_and_strided_layers_do_not_serve():
    model = seeded(Stages)
    model.down.weight.requires_grad_(False)
    layers = find_map_layers(sp.Task(model, sp.cross_entropy, PHOTOS.domain))
    assert set(layers) == {"stem", "deep"}
    model.deep = nn.Conv2d(64, 64, 3, padding=1, groups=2)
    assert set(find_map_layers(sp.Task(model, sp.cross_entropy, PHOTOS.domain))) == {"stem"}


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_without_the_layer_below_directions_alone_come_back(mode):
    model = seeded(Stages)
    model.down.weight.requires_grad_(False)
    seen, batch = observed(mode, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = feature_maps().recover(seen, rng=sp.rng(1))
    assert (found.known.layer, found.known.scaled, found.misfits) == ("deep", False, None)
    assert errors(found.known.values, true_maps(seen, batch, "deep")).max() < 1e-3


def test_of_a_thousand_wrong_maps_none_follows_from_the_layer_below():
    seen, batch = observed("eval")
    lower = trained_layers(seen)["down"]
    opened = find_open_maps(lower, seen.update.tensors["down.weight"], 3, rng=sp.rng(1))
    own = normalize(true_maps(seen, batch, "deep"))
    strangers = PHOTOS.batch(20, start=4)
    others = normalize(true_maps(seen, strangers, "deep"))
    drawn = sp.rng(2).fork("shares").uniform((800, 3)).to(own)
    # Mixtures of the people, none of whom has nearly all of it.
    shares = drawn[drawn.amax(1) < 0.8 * drawn.sum(1)][:500]
    noise = sp.rng(2).fork("noise").normal((480, own.shape[1]), like=own).clamp_min(0)
    wrong = normalize(torch.cat([shares @ own, others, noise]))
    assert len(wrong) == 1000
    assert (solve_below(seen.task, opened, wrong).misfits > FOLLOWS).all()
    assert (solve_below(seen.task, opened, own).misfits < 1e-3).all()
