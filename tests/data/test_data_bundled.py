import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import seepage.data
from seepage.core.errors import InvalidValue, UnknownName
from seepage.data import bundled, load
from seepage.domains import MNIST

BUNDLE = Path(seepage.data.__file__).parent / "bundle"


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_whole_bundle_stays_under_one_and_a_half_megabytes():
    assert sum(file.stat().st_size for file in BUNDLE.iterdir()) < 1.5e6


def test_every_file_of_the_bundle_has_its_origin_stated():
    stated = (BUNDLE / "SOURCES.md").read_text(encoding="utf-8")
    for file in BUNDLE.glob("*.npz"):
        assert f"## {file.name}" in stated


@pytest.mark.parametrize("pixels", [32, 64])
def test_the_first_ten_photos_show_each_class_once(pixels):
    data = load("photos", pixels=pixels)
    assert data.labels[:10].tolist() == list(range(10))
    assert data.class_names[:4] == ("person", "cat", "coffee", "rocket")
    assert data.inputs.shape == (24, 3, pixels, pixels)


def test_every_photo_is_a_different_picture_with_contrast():
    photos = load("photos").inputs
    assert len({hashlib.sha256(photo.numpy().tobytes()).digest() for photo in photos}) == len(
        photos
    )
    assert float(photos.flatten(1).std(1).min()) > 0.05


def test_small_and_large_photos_show_the_same():
    small, large = load("photos", pixels=32).inputs, load("photos", pixels=64).inputs
    shrunk = torch.nn.functional.avg_pool2d(large, 2)
    assert float((small - shrunk).square().mean()) < 1e-3


def test_the_photos_are_normalised_by_their_own_statistics():
    data = load("photos")
    channels = data.inputs.transpose(0, 1).flatten(1).double()
    assert channels.mean(1).tolist() == pytest.approx(data.domain.mean, abs=1e-4)
    assert channels.std(1, correction=0).tolist() == pytest.approx(data.domain.std, abs=1e-4)


def test_the_digits_count_to_ten_ten_times():
    data = load("digits")
    assert data.labels.tolist() == list(range(10)) * 10
    assert data.domain == MNIST
    assert data.class_names == tuple("0123456789")


def test_at_32_pixels_a_digit_keeps_its_strokes_inside_a_black_border():
    padded, plain = load("digits", pixels=32), load("digits")
    assert torch.equal(padded.inputs[:, :, 2:30, 2:30], plain.inputs)
    assert padded.inputs.sum() == plain.inputs.sum()
    assert padded.domain.mean == MNIST.mean


def test_digits_can_be_shrunk_too():
    assert load("digits", pixels=14).inputs.shape == (100, 1, 14, 14)


def test_bundled_gives_consecutive_examples_of_what_load_gives():
    batch = bundled("photos", size=3, start=2, pixels=64)
    assert torch.equal(batch.inputs, load("photos", pixels=64).inputs[2:5])
    assert bundled("digits").inputs.shape == (4, 1, 32, 32)


@pytest.mark.parametrize("pixels", [1, 16, 48, 96])
def test_photos_come_in_any_size(pixels):
    assert bundled("photos", pixels=pixels).inputs.shape == (4, 3, pixels, pixels)


def test_the_same_call_gives_the_same_numbers():
    assert torch.equal(bundled("photos", pixels=40).inputs, bundled("photos", pixels=40).inputs)


def test_a_name_that_is_not_bundled_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'photos'"):
        bundled("photo")


def test_more_photos_than_there_are_cannot_be_had():
    with pytest.raises(InvalidValue, match="24 examples of photos"):
        bundled("photos", size=25)
    with pytest.raises(InvalidValue, match=r"pixels in 1\.\.4096"):
        bundled("photos", pixels=0)


def test_the_script_still_cuts_the_same_photos():
    pytest.importorskip("skimage", reason="needs scikit-image, from the dev extra")
    from scripts.bundle_data import CLASSES, CROPS, photos

    with np.load(BUNDLE / "photos.npz", allow_pickle=False) as stored:
        cut = photos(64).astype(int)
        # Two of the pictures are JPEGs, whose decoders may differ by a level or two.
        assert np.abs(cut - stored["images_64"]).max() <= 3
        assert [CLASSES[label] for label in stored["labels"]] == [crop.label for crop in CROPS]
