"""Inputs come back from what inner layers read of them."""

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import limited, listen
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.probing._hooks import read_layers
from seepage.search import KnownMap, invert_maps
from seepage.search import _map_decoder as map_decoder
from seepage.search._decoder_training import DecoderTraining
from seepage.search._map_inversion import _Inversion

DIGITS = sp.domains.Image((1, 16, 16), mean=(0.15,), std=(0.3,))
WAVES = sp.domains.Signal((1, 40), bounds=(-1.0, 1.0))


def build_network(axes, seed):
    torch.manual_seed(seed)
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if axes == 2 else (nn.Conv1d, nn.BatchNorm1d)
    model = nn.Sequential()
    for number, (before, after, stride) in enumerate([(1, 12, 1), (12, 24, 2), (24, 24, 1)]):
        model.add_module(f"conv{number}", conv(before, after, 3, stride, 1, bias=False))
        model.add_module(f"norm{number}", norm(after))
        model.add_module(f"relu{number}", nn.ReLU(inplace=True))
    model.add_module("flat", nn.Flatten())
    model.add_module("head", nn.LazyLinear(10))
    return model


def task_of(axes, domain, seed=0):
    model = build_network(axes, seed)
    model(torch.zeros(2, *domain.shape))
    return sp.Task(model.eval(), sp.cross_entropy, domain, name=f"conv{axes}d")


@pytest.fixture(scope="module")
def digits(data_root):
    """Handwritten digits at 16 pixels: 600 public ones, and four of other people."""
    images = np.load(data_root / "mnist_10k.npz")["train_images"]
    images = torch.from_numpy(images[:700]).reshape(-1, 1, 28, 28).float() / 255
    small = nn.functional.interpolate(images, size=16, mode="area")
    return sp.PublicData(small[:600]), small[600:604]


@pytest.fixture(scope="module")
def trained(data_root, digits):
    """A network that knows nine digits of ten."""
    labels = torch.from_numpy(np.load(data_root / "mnist_10k.npz")["train_labels"][:600]).long()
    data = sp.Batch(digits[0].inputs, labels)
    plan = sp.utility.Training(epochs=3, batch_size=32, lr=0.05)
    kept = sp.utility.train(task_of(2, DIGITS), data, held_out=data, plan=plan, rng=sp.rng(0))
    assert kept.accuracy[-1] > 0.85
    return kept.task


@pytest.fixture
def waves():
    return WAVES.make_up(3, rng=sp.rng(5))


def read(task, inputs, *layers, training=False, scaled=True):
    mode = task.in_mode("train" if training else "eval")
    values = read_layers(mode, layers, task.domain.normalise(inputs))
    return [KnownMap(layer, values[layer], scaled) for layer in layers]


def decibels(task, guess, truth):
    """Peak signal to noise ratio of each person."""
    error = (task.domain.denormalise(guess) - truth).square().flatten(1).mean(1)
    return -10 * error.log10()


def test_people_come_back_from_a_trained_network_and_the_search_adds_to_the_decoder(
    trained, digits
):
    public, people = digits
    maps = read(trained, people, "flat")
    decoder = sp.Decoder(public, epochs=4, width=32)
    first, last = (
        invert_maps(trained, maps, decoder=decoder, steps=steps, rng=sp.rng(0))
        for steps in (0, 150)
    )
    mean = trained.domain.normalise(public.inputs.mean(0, keepdim=True))
    without, decoded, searched = (
        decibels(trained, guess, people).mean() for guess in (mean, first, last)
    )
    assert decoded > without + 3
    assert searched > decoded + 2


def test_behind_normalisation_by_the_batch_directions_of_all_people_together_are_enough(
    trained, digits
):
    public, people = digits
    maps = [
        KnownMap(known.layer, known.values * factors, scaled=False)
        for known in read(trained, people, "flat", training=True)
        for factors in [torch.tensor([0.5, 3.0, 1.0, 20.0]).reshape(-1, 1, 1, 1)]
    ]
    decoder = sp.Decoder(public, epochs=4, width=32)
    found = invert_maps(trained, maps, decoder=decoder, steps=150, rng=sp.rng(0), training=True)
    mean = trained.domain.normalise(public.inputs.mean(0, keepdim=True))
    gained = decibels(trained, found, people) - decibels(trained, mean, people)
    assert gained.min() > 3


def test_what_a_decoder_sees_of_groups_is_what_separate_batches_read(trained, digits):
    public = digits[0]
    task = trained.in_mode("train")
    training = DecoderTraining(
        task, (("flat", True), ("conv2", False)), public.inputs, 4, 1, "groups"
    )
    inputs = task.domain.normalise(public.inputs[:12])
    grouped = training._read(inputs)
    alone = [read_layers(task, ["flat", "conv2"], part) for part in inputs.split(4)]
    assert torch.allclose(grouped[0], torch.cat([one["flat"] for one in alone]), atol=1e-4)
    directions = nn.functional.normalize(grouped[1].flatten(1))
    wanted = nn.functional.normalize(torch.cat([one["conv2"] for one in alone]).flatten(1))
    assert torch.allclose(directions, wanted, atol=1e-4)


def test_contrast_that_normalisation_by_the_batch_hides_is_that_of_the_first_guess(trained, digits):
    public, people = digits
    task = trained.in_mode("train")
    truth = task.domain.normalise(0.5 + 0.4 * (people - 0.5))
    values = read_layers(task, ["flat"], truth)["flat"]
    learned = sp.Decoder(public, epochs=4, width=32).learn(task, {"flat": True}, group=4)
    search = _Inversion(task, [KnownMap("flat", values)], 1, None, learned, sp.rng(0))
    drifted = 0.6 * truth
    restored = search._restore_contrast(drifted, truth)
    assert torch.allclose(restored, truth, atol=1e-4)
    right = read_layers(trained, ["flat"], drifted)["flat"]
    sure = _Inversion(trained, [KnownMap("flat", right)], 1, None, learned, sp.rng(0))
    assert torch.equal(sure._restore_contrast(drifted, truth), drifted), (
        "running statistics show it"
    )


def test_signals_come_back_without_a_decoder(waves):
    task = task_of(1, WAVES)
    maps = read(task, waves, "conv2")
    found = invert_maps(task, maps, decoder=None, steps=400, rng=sp.rng(0))
    assert found.shape == waves.shape
    assert decibels(task, found, waves).min() > 25


def test_a_decoder_learns_from_made_up_inputs_and_says_so(waves):
    task = task_of(1, WAVES)
    decoder = sp.Decoder(epochs=3, width=16)
    learned = decoder.learn(task, {"conv2": True})
    assert decoder.made_up
    assert learned.made_up
    assert 0.5 < learned.explained < 1
    guess = invert_maps(task, read(task, waves, "conv2"), decoder=decoder, steps=0, rng=sp.rng(0))
    error = (guess - waves).square().mean()
    assert error < 0.5 * (waves - waves.mean()).square().mean()


def test_two_maps_say_more_than_the_deeper_one(trained, digits):
    people = digits[1]
    deep, both = (
        invert_maps(trained, read(trained, people, *layers), decoder=None, steps=60, rng=sp.rng(0))
        for layers in (["flat"], ["conv1", "flat"])
    )
    assert decibels(trained, both, people).mean() > decibels(trained, deep, people).mean() + 1


def test_the_order_in_which_maps_are_named_changes_nothing(trained, digits):
    maps = read(trained, digits[1], "conv1", "flat")
    one, other = (
        invert_maps(trained, named, decoder=None, steps=5, rng=sp.rng(0))
        for named in (maps, maps[::-1])
    )
    assert torch.allclose(one, other, atol=1e-4)


def test_a_loss_of_all_guesses_together_is_followed(waves):
    task = task_of(1, WAVES)
    maps = read(task, waves, "conv2")

    def near_zero(guess):
        return 100 * guess.square().sum()

    found = invert_maps(task, maps, decoder=None, steps=40, rng=sp.rng(0), together=near_zero)
    assert found.abs().max() < 0.05


def test_out_of_time_the_search_returns_its_guess_and_half_a_decoder_is_not_kept(waves):
    task = task_of(1, WAVES)
    public = sp.PublicData(WAVES.make_up(64, rng=sp.rng(1)))
    decoder = sp.Decoder(public, epochs=1_000, width=16)
    with limited(0.3):
        learned = decoder.learn(task, {"conv2": True})
        found = invert_maps(
            task, read(task, waves, "conv2"), decoder=None, steps=10**6, rng=sp.rng(0)
        )
    assert learned.cut
    assert found.isfinite().all()
    with limited(0.3):
        assert decoder.learn(task, {"conv2": True}) is not learned


class Interrupted(BaseException):
    """What ctrl-c raises."""


def interrupt_at(number):
    def hear(step, total, objective):
        if step >= number:
            raise Interrupted

    return listen(hear)


def test_interrupted_learning_and_search_continue_where_they_stopped(waves, tmp_path):
    task = task_of(1, WAVES)
    maps = read(task, waves, "conv2")
    public = sp.PublicData(WAVES.make_up(64, rng=sp.rng(2)))

    def invert():
        map_decoder._learned.cache_clear()
        decoder = sp.Decoder(public, epochs=12, width=16)
        return invert_maps(task, maps, decoder=decoder, steps=60, rng=sp.rng(0))

    whole = invert()
    with checkpointing(tmp_path / "kept", every=20):
        with pytest.raises(Interrupted), interrupt_at(50):
            invert()
        halfway = {file.name for file in (tmp_path / "kept").iterdir()}
        again = invert()
        assert torch.equal(invert(), again), "what was learned is read from the folder"
    assert halfway
    assert [file.name[:8] for file in (tmp_path / "kept").iterdir()] == ["decoder-"]
    assert torch.equal(whole, again)


def test_what_was_learned_is_found_again_and_another_network_learns_its_own(waves):
    decoder = sp.Decoder(sp.PublicData(WAVES.make_up(64, rng=sp.rng(3))), epochs=1, width=16)
    first = decoder.learn(task_of(1, WAVES), {"conv2": True})
    assert decoder.learn(task_of(1, WAVES), {"conv2": True}) is first
    other = decoder.learn(task_of(1, WAVES, seed=1), {"conv2": True})
    assert not torch.equal(other.network.leave.weight, first.network.leave.weight)


def test_features_without_places_are_decoded_too(trained, digits):
    public, people = digits
    decoder = sp.Decoder(public, epochs=4, width=16)
    maps = read(trained, people, "head")
    guess = invert_maps(trained, maps, decoder=decoder, steps=0, rng=sp.rng(0))
    mean = trained.domain.normalise(public.inputs.mean(0, keepdim=True))
    assert decibels(trained, guess, people).mean() > decibels(trained, mean, people).mean() + 0.5


def test_bad_maps_are_refused_in_one_sentence(waves):
    task = task_of(1, WAVES)
    (known,) = read(task, waves, "conv2")

    def invert(*maps):
        return invert_maps(task, maps, decoder=None, steps=1, rng=sp.rng(0))

    with pytest.raises(InvalidValue, match="at least one feature map"):
        invert()
    with pytest.raises(UnknownName, match=r"'conv22'.*conv2"):
        invert(KnownMap("conv22", known.values))
    with pytest.raises(InvalidValue, match=r"reads \(24, 20\) of each person, got \(24, 7\)"):
        invert(KnownMap("conv2", known.values[..., :7]))
    with pytest.raises(InvalidValue, match="same people"):
        invert(known, KnownMap("conv1", torch.ones(2, 12, 40)))
    with pytest.raises(InvalidValue, match="each layer once"):
        invert(known, known)
    with pytest.raises(InvalidValue, match="finite"):
        KnownMap("conv2", torch.full((1, 2), torch.nan))
    with pytest.raises(InvalidValue, match=r"at least 64 public inputs.*got 3"):
        sp.Decoder(sp.PublicData(waves))


def test_tokens_are_refused():
    task = sp.zoo.gpt(layers=1, width=16, heads=2)
    with pytest.raises(NotApplicable, match="tokens"):
        invert_maps(
            task, [KnownMap("head", torch.ones(1, 4))], decoder=None, steps=1, rng=sp.rng(0)
        )
