"""What no architecture can be built from is refused in one sentence."""

import pytest

from seepage import zoo
from seepage.core.errors import InvalidValue, UnknownName
from seepage.domains import Image, Signal

IMAGES_ONLY = sorted(set(zoo.MODELS) - {"mlp", "fc", "single_conv", "gpt", "two_layer"})


@pytest.mark.parametrize("name", IMAGES_ONLY)
def test_networks_for_images_refuse_signals(name):
    with pytest.raises(InvalidValue, match=r"expected images \(C, H, W\) for .*got .*\(1, 140\)"):
        zoo.MODELS[name](domain=Signal((1, 140)))


def test_a_network_for_texts_refuses_images_and_heads_that_do_not_divide():
    with pytest.raises(InvalidValue, match=r"expected token sequences for gpt, got .*\(3, 8, 8\)"):
        zoo.gpt(domain=Image((3, 8, 8)))
    with pytest.raises(InvalidValue, match="expected heads to divide the width 30, got 4"):
        zoo.gpt(width=30)


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("classes", [0, -3, 2.5, "10", True, None])
def test_a_network_needs_an_output(name, classes):
    with pytest.raises(InvalidValue, match="expected classes as a whole number >= 1, got"):
        zoo.MODELS[name](classes=classes)


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_a_seed_is_a_whole_number(name, seed):
    with pytest.raises(InvalidValue, match="expected seed as a whole number >= 0, got"):
        zoo.MODELS[name](seed=seed)


WIDE = ["convnet", "resnet20", "resnet32", "resnet56", "resnet18", "resnet50", "resnet152"]


@pytest.mark.parametrize("name", [*WIDE, "wang_cnn", "mnist_convnet", "wide_head_resnet18"])
@pytest.mark.parametrize("width", [0, -1, 1.5, "64"])
def test_a_width_is_a_positive_whole_number(name, width):
    with pytest.raises(InvalidValue, match="expected width as a whole number >= 1, got"):
        zoo.MODELS[name](width=width)


@pytest.mark.parametrize("hidden", [(), [], 256, "256", None])
def test_an_mlp_needs_a_width_for_each_hidden_layer(hidden):
    with pytest.raises(InvalidValue, match="expected hidden as one width per layer"):
        zoo.mlp(hidden=hidden)


@pytest.mark.parametrize("hidden", [(0,), (8, -1), (8, 2.5)])
def test_every_hidden_layer_needs_a_unit(hidden):
    with pytest.raises(InvalidValue, match="expected each width in hidden as a whole number >= 1"):
        zoo.mlp(hidden=hidden)


@pytest.mark.parametrize("name", ["fc", "wang_cnn"])
def test_a_hidden_layer_needs_a_unit(name):
    with pytest.raises(InvalidValue, match="expected hidden as a whole number >= 1, got 0"):
        zoo.MODELS[name](hidden=0)


@pytest.mark.parametrize(
    ("build", "kind", "near"),
    [
        (lambda: zoo.mlp(activation="sigmoind"), "activation", "sigmoid"),
        (lambda: zoo.fc(activation="Tanh"), "activation", "tanh"),
        (lambda: zoo.convnet(pooling="avarage"), "pooling", "average"),
        (lambda: zoo.resnet20(pooling="avarage"), "pooling", "average"),
        (lambda: zoo.resnet18(pooling="avarage"), "pooling", "average"),
        (lambda: zoo.convnet(padding="zero"), "padding", "zeros"),
        (lambda: zoo.resnet18(stem="imagnet"), "stem", "imagenet"),
        (lambda: zoo.cnn(variant="cnn3-v5"), "variant", "cnn3-v"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(build, kind, near):
    with pytest.raises(UnknownName, match=f"unknown {kind} .*did you mean '{near}"):
        build()


@pytest.mark.parametrize("shortcut", ["C", 3, None])
def test_there_are_two_shortcuts(shortcut):
    with pytest.raises(UnknownName, match=r"unknown shortcut .*known: A, B"):
        zoo.resnet20(shortcut=shortcut)


@pytest.mark.parametrize("name", ["convnet", "cnn3-v1", "cnn4-v1", "mnist_convnet"])
def test_an_image_too_small_for_the_layers_is_refused(name):
    with pytest.raises(InvalidValue, match=r"expected at least \d entries along every axis"):
        zoo.MODELS[name](domain=Image((3, 3, 3)))


@pytest.mark.parametrize("option", ["filters", "kernel", "stride"])
def test_single_conv_needs_positive_numbers(option):
    with pytest.raises(InvalidValue, match=f"expected {option} as a whole number >= 1, got 0"):
        zoo.single_conv(**{option: 0})


def test_single_conv_refuses_negative_padding_and_kernels_wider_than_the_input():
    with pytest.raises(InvalidValue, match="expected padding as a whole number >= 0, got -1"):
        zoo.single_conv(padding=-1)
    with pytest.raises(InvalidValue, match=r"at least 40 entries along every axis.*\(32, 32\)"):
        zoo.single_conv(kernel=40, padding=0)


class Volume:
    shape = (1, 4, 4, 4)


def test_single_conv_refuses_volumes():
    with pytest.raises(InvalidValue, match=r"expected signals \(C, L\) or images"):
        zoo.single_conv(domain=Volume())


@pytest.mark.parametrize("trained", [100, 101])
def test_a_wide_head_needs_a_random_neuron(trained):
    with pytest.raises(InvalidValue, match="expected fewer trained neurons than the 100"):
        zoo.wide_head_resnet18(neurons=100, trained=trained)


def test_a_wide_head_refuses_impossible_numbers():
    with pytest.raises(InvalidValue, match="expected trained as a whole number >= 0, got -1"):
        zoo.wide_head_resnet18(trained=-1)
    with pytest.raises(InvalidValue, match="expected head_seed as a whole number >= 0, got -1"):
        zoo.wide_head_resnet18(head_seed=-1)


def test_a_misspelt_argument_is_a_type_error():
    with pytest.raises(TypeError):
        zoo.convnet(widht=8)
