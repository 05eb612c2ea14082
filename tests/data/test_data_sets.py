import numpy as np
import pytest
import torch
from PIL import Image as Pictures

from seepage.core.errors import InvalidValue
from seepage.data import data_root, load
from seepage.domains import CIFAR10, CIFAR100, IMAGENET, MNIST, Image, Signal

# name, split, count, domain, classes, first labels
SETS = [
    ("cifar10", "test", 1500, CIFAR10, 10, [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]),
    ("cifar100", "test", 916, CIFAR100, 100, [49, 33, 72, 51, 71, 92, 15, 14, 23, 0]),
    ("cifar100", "train", 1117, CIFAR100, 100, [19, 29, 0, 11, 1, 86, 90, 28, 23, 31]),
    ("mnist", "test", 2000, MNIST, 10, [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
    ("mnist", "train", 10000, MNIST, 10, [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    ("imagenet", "test", 16, IMAGENET, 1000, [0, 1, 31, 88, 130, 207, 277, 281, 340, 386]),
    ("faces", "test", 400, (1, 64, 64), 40, list(range(40))),
    ("cells", "test", 450, (3, 64, 64), 3, [0, 1, 0, 1, 1, 0, 0, 1, 2, 0]),
    ("ecg", "test", 500, (1, 140), 5, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]),
    ("ecg:mitbih", "test", 2271, (1, 200), 3, [0, 1, 2, 0, 1, 0, 1]),
    ("fmri", "test", 28, (1, 250), 28, list(range(28))),
]


@pytest.mark.parametrize(
    ("name", "split", "count", "domain", "classes", "first"),
    SETS,
    ids=lambda value: str(value)[:12],
)
def test_every_set_has_its_shape_range_and_canonical_first_labels(
    loaded, name, split, count, domain, classes, first
):
    data = loaded(name, split=split)
    shape = domain if isinstance(domain, tuple) else domain.shape
    assert data.inputs.shape == (count, *shape)
    assert data.inputs.dtype == torch.float32
    assert data.labels.dtype == torch.int64
    assert data.classes == classes
    assert data.labels[: len(first)].tolist() == first
    assert data.domain.shape == shape
    assert isinstance(domain, tuple) or data.domain == domain
    assert 0 <= float(data.inputs.min()) < 0.35
    assert 0.85 < float(data.inputs.max()) <= 1
    assert data.source.endswith(".")


def test_the_first_cifar10_test_image_is_a_cat_with_the_pixels_of_the_file(loaded):
    data = loaded("cifar10")
    assert data.class_names[data.labels[0]] == "cat"
    # The canonical first pixel of the canonical first test image.
    assert (data.inputs[0, :, 0, 0] * 255).round().tolist() == [158, 112, 49]


def test_cifar10_train_opens_with_a_frog(loaded):
    data = loaded("cifar10", split="train")
    assert len(data) == 20000
    assert data.class_names[data.labels[0]] == "frog"
    assert (data.inputs[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]


def test_the_preset_of_cifar10_fits_its_training_images(loaded):
    channels = loaded("cifar10", split="train").inputs.transpose(0, 1).flatten(1)
    assert channels.mean(1).tolist() == pytest.approx(CIFAR10.mean, abs=0.01)
    assert channels.std(1).tolist() == pytest.approx(CIFAR10.std, abs=0.01)


@pytest.mark.parametrize("name", ["faces", "cells"])
def test_written_down_statistics_are_those_of_the_data(loaded, name):
    data = loaded(name)
    channels = data.inputs.transpose(0, 1).flatten(1).double()
    assert channels.mean(1).tolist() == pytest.approx(data.domain.mean, abs=2e-4)
    assert channels.std(1).tolist() == pytest.approx(data.domain.std, abs=2e-4)


def test_loading_twice_gives_the_same_numbers(loaded):
    for name in ("faces", "imagenet", "ecg"):
        assert torch.equal(loaded(name).inputs, load(name).inputs)


def test_consecutive_faces_are_different_people_and_the_same_people_return(loaded):
    data = loaded("faces")
    assert data.labels.tolist() == list(range(40)) * 10
    grey = data.inputs.flatten(1)
    same = (grey[:40] - grey[40:80]).square().mean()
    other = (grey[:40] - grey[41:81]).square().mean()
    assert same < other


def test_imagenet_is_the_usual_resize_and_centre_crop(loaded):
    data = loaded("imagenet")
    with Pictures.open(data_root() / "imagenet_16" / "n01440764_tench.jpg") as tench:
        wide = tench.convert("RGB").resize((341, 256), Pictures.Resampling.LANCZOS)
    usual = np.asarray(wide.crop((58, 16, 282, 240))) / 255
    error = np.square(usual.transpose(2, 0, 1) - data.inputs[0].numpy()).mean()
    assert 10 * np.log10(1 / error) > 30
    assert data.class_names[0] == "tench"
    assert data.class_names[2] == "class 2"


@pytest.mark.parametrize(("name", "channels"), [("cifar10", 3), ("faces", 1), ("cells", 3)])
def test_images_come_in_the_size_asked_for(loaded, name, channels):
    loaded(name)
    data = load(name, pixels=20)
    assert data.domain.shape == (channels, 20, 20)
    assert data.domain.mean == loaded(name).domain.mean


def test_mnist_at_32_pixels_is_padded_as_its_paper_does(loaded):
    loaded("mnist")
    padded = load("mnist", pixels=32)
    assert torch.equal(padded.inputs[:, :, 2:30, 2:30], loaded("mnist").inputs)
    assert padded.domain == Image((1, 32, 32), mean=MNIST.mean, std=MNIST.std)


def test_heart_beats_are_a_linear_map_of_the_file(loaded):
    data = loaded("ecg")
    with np.load(data_root() / "ecg.npz") as stored:
        beats, labels = stored["ecg5000_beats"], stored["ecg5000_labels"]
    first_of_class_3 = beats[np.flatnonzero(labels == 4)[0]]
    undone = data.inputs[3, 0].numpy() * (4.1 + 5.8) - 5.8
    assert np.allclose(undone, first_of_class_3, atol=1e-5)
    assert "-5.8 to 4.1" in data.source
    assert data.domain == Signal((1, 140))


def test_each_brain_region_spans_the_whole_range_and_nuisance_signals_are_gone(loaded):
    data = loaded("fmri")
    assert data.inputs.amin((1, 2)).tolist() == [0.0] * 28
    assert data.inputs.amax((1, 2)).tolist() == [1.0] * 28
    assert not {"WM", "Vent", "Brain"} & set(data.class_names)
    with np.load(data_root() / "fmri.npz") as stored:
        course = stored["roi_timeseries"][:, stored["roi_names"].tolist().index("LHip")]
    hippocampus = data.inputs[data.class_names.index("LHip"), 0].numpy()
    assert np.corrcoef(course, hippocampus)[0, 1] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["ecg", "ecg:mitbih", "fmri"])
def test_signals_have_no_pixels(loaded, name):
    loaded(name)
    with pytest.raises(InvalidValue, match="pixels=None"):
        load(name, pixels=32)
