import contextlib
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile
from seepage.data import load
from seepage.domains import Image, Signal

BYTES = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 1, 0])


def saved(tmp_path, **arrays):
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    return f"npz:{tmp_path / 'own.npz'}"


def test_eight_bit_images_come_back_as_they_went_in(tmp_path):
    name = saved(tmp_path, images=BYTES, labels=LABELS)
    data = load(name)
    assert np.array_equal((data.inputs * 255).round().numpy(), BYTES.transpose(0, 3, 1, 2))
    assert data.labels.tolist() == LABELS.tolist()
    assert data.domain == Image((3, 6, 8))
    assert data.class_names == ("0", "1", "2")
    assert data.name == name


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_float_images_come_back_as_they_went_in(tmp_path, dtype):
    stored = (BYTES.transpose(0, 3, 1, 2) / 256).astype(dtype)
    data = load(saved(tmp_path, inputs=stored, labels=LABELS.astype(np.uint8)))
    assert np.array_equal(data.inputs.numpy(), stored.astype(np.float32))


def test_channels_may_come_first_or_last_and_levels_have_8_or_16_bits(tmp_path):
    expected = load(saved(tmp_path, images=BYTES, labels=LABELS)).inputs
    first = np.ascontiguousarray(BYTES.transpose(0, 3, 1, 2))
    for images in (first, (BYTES / 255), BYTES.astype(np.uint16) * 257, first.astype(">u2") * 257):
        found = load(saved(tmp_path, images=images, labels=LABELS))
        assert found.inputs.shape == (5, 3, 6, 8)
        assert np.allclose(found.inputs, expected, atol=1e-6)


def test_grey_images_need_no_channel_axis(tmp_path):
    data = load(saved(tmp_path, images=BYTES[..., 0], labels=LABELS))
    assert data.inputs.shape == (5, 1, 6, 8)


def test_three_axes_of_floats_are_signals(tmp_path):
    data = load(saved(tmp_path, inputs=np.full((5, 2, 30), 0.5), labels=LABELS))
    assert data.domain == Signal((2, 30))
    with pytest.raises(InvalidValue, match="pixels=None for signals"):
        load(data.name, pixels=8)


def test_names_given_in_the_file_count_the_classes(tmp_path):
    data = load(saved(tmp_path, images=BYTES, labels=LABELS, class_names=np.array(list("abcd"))))
    assert data.class_names == tuple("abcd")


def test_images_are_cut_square_and_resized(tmp_path):
    left_half_white = np.zeros((1, 1, 8, 16))
    left_half_white[..., :8] = 1
    data = load(saved(tmp_path, inputs=left_half_white, labels=np.array([0])), pixels=4)
    assert data.inputs.shape == (1, 1, 4, 4)
    assert data.inputs[0, 0, :, 0].tolist() == pytest.approx([1] * 4, abs=0.05)
    assert data.inputs[0, 0, :, 3].tolist() == pytest.approx([0] * 4, abs=0.05)


@pytest.mark.parametrize(
    "arrays", [{}, {"images": BYTES}, {"labels": LABELS}, {"x": BYTES, "labels": LABELS}]
)
def test_other_arrays_are_answered_with_the_accepted_names(tmp_path, arrays):
    with pytest.raises(UnreadableFile, match=r"images \(or inputs\) and labels.*own\.npz"):
        load(saved(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"images": BYTES.astype(np.int32)}, r"expected rows of floats.*got int32 \(5, 6, 8, 3\)"),
        ({"images": BYTES[..., 0].astype(np.int64)}, r"got int64 \(5, 6, 8\)"),
        ({"images": np.full((5, 12), np.inf)}, "NaN or infinity"),
        ({"images": BYTES[:0], "labels": LABELS[:0]}, r"got uint8 \(0, 6, 8, 3\)"),
        ({"images": np.full((5, 1, 4, 4), 7.0)}, "divide by 255"),
        ({"images": np.full((5, 1, 4, 4), np.nan)}, "NaN"),
        ({"labels": np.full(5, np.inf)}, "finite targets"),
        ({"labels": LABELS.astype(str)}, "integer labels"),
        ({"labels": LABELS - 1}, "got others; number the classes"),
        ({"labels": LABELS[:3]}, r"labels \(5,\)"),
        ({"labels": LABELS[:, None]}, r"labels \(5,\)"),
        ({"labels": LABELS * 10**12}, "numbered from 0"),
        ({"labels": np.zeros((5, 6, 8), int)}, "classes of pixels with sp.audit_step"),
        ({"class_names": np.array(["only"])}, r"labels in 0\.\.0"),
    ],
)
def test_arrays_that_no_audit_could_use_are_refused(tmp_path, arrays, complaint):
    with pytest.raises(InvalidValue, match=complaint):
        load(saved(tmp_path, **{"images": BYTES, "labels": LABELS, **arrays}))


class Loaded:
    """Unpickling this would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_arrays_are_refused_without_running_what_is_in_them(tmp_path):
    trap = np.array([Loaded(tmp_path / "ran")], dtype=object)
    name = saved(tmp_path, images=trap, labels=LABELS)
    with pytest.raises(UnreadableFile, match=r"own\.npz.*allow_pickle=False"):
        load(name)
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_is_refused_without_running_it(tmp_path):
    path = tmp_path / "own.npz"
    path.write_bytes(pickle.dumps(Loaded(tmp_path / "ran")))
    with pytest.raises(UnreadableFile, match=r"own\.npz"):
        load(f"npz:{path}")
    assert not (tmp_path / "ran").exists()


def test_a_file_of_another_kind_is_not_called_a_pickle(tmp_path):
    path = tmp_path / "own.npz"
    path.write_bytes(b"not an archive")
    with pytest.raises(UnreadableFile, match="it is no archive") as told:
        load(f"npz:{path}")
    assert "pickle" not in str(told.value)


def test_a_single_array_is_not_an_archive(tmp_path):
    np.save(tmp_path / "own.npy", BYTES)
    with pytest.raises(UnreadableFile, match="single array"):
        load(f"npz:{tmp_path / 'own.npy'}")


def test_members_that_are_not_arrays_are_unreadable(tmp_path):
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images", "not an array")
        archive.writestr("labels", "0 1 2")
    with pytest.raises(UnreadableFile, match="images is not an array"):
        load(f"npz:{path}")


def test_nothing_at_the_path_and_a_folder_at_the_path_are_told_apart(tmp_path):
    with pytest.raises(DataNotFound, match=r"gone\.npz"):
        load(f"npz:{tmp_path / 'gone.npz'}")
    with pytest.raises(UnreadableFile, match="got a folder"):
        load(f"npz:{tmp_path}")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npz")
    np.savez(folder / "whole.npz", images=BYTES, labels=LABELS)
    return folder / "whole.npz"


@settings(max_examples=60, deadline=None)
@given(kept=st.floats(0, 0.999))
def test_every_truncation_is_unreadable(archive, kept):
    whole = archive.read_bytes()
    short = archive.with_name("short.npz")
    short.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(UnreadableFile, match=r"short\.npz"):
        load(f"npz:{short}")


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 0.999), byte=st.integers(0, 255))
def test_a_flipped_byte_is_an_error_of_ours_or_does_not_matter(archive, where, byte):
    damaged = bytearray(archive.read_bytes())
    damaged[int(where * len(damaged))] = byte
    other = archive.with_name("damaged.npz")
    other.write_bytes(damaged)
    with contextlib.suppress(UnreadableFile, InvalidValue):
        assert torch.equal(load(f"npz:{other}").inputs, load(f"npz:{archive}").inputs)
