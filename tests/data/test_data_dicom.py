"""DICOM files in a folder of images: levels come back as they were stored."""

import sys
import warnings

import numpy as np
import pytest
import torch

import seepage as sp
from seepage.core.errors import MissingExtra, UnreadableFile, install_hint
from seepage.data._image_files import _read_dicom

LEVELS = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 4


@pytest.fixture
def written(tmp_path):
    pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed")

    def write(name, levels, **tags):
        made = pydicom.Dataset()
        made.file_meta = pydicom.dataset.FileMetaDataset()
        made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        made.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
        made.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
        wide = 8 * levels.dtype.itemsize
        made.Rows, made.Columns = levels.shape[-2:] if levels.ndim < 3 else levels.shape[:2]
        made.BitsAllocated, made.BitsStored, made.HighBit = wide, wide, wide - 1
        made.SamplesPerPixel, made.PixelRepresentation = 1, int(levels.dtype.kind == "i")
        made.PhotometricInterpretation = "MONOCHROME2"
        made.PixelData = levels.tobytes()
        for tag, value in tags.items():
            setattr(made, tag, value)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.save_as(path, enforce_file_format=True)
        return path

    return write


def test_twelve_of_sixteen_bits_are_the_whole_range(written):
    found = _read_dicom(written("a.dcm", LEVELS, BitsStored=12, HighBit=11))
    assert found.shape == (1, 32, 32)
    assert torch.equal((found * 4095).round(), torch.from_numpy(LEVELS.astype(np.float32))[None])


def test_where_zero_is_white_levels_are_inverted(written):
    plain = _read_dicom(written("a.dcm", LEVELS))
    inverted = _read_dicom(written("b.dcm", LEVELS, PhotometricInterpretation="MONOCHROME1"))
    assert torch.allclose(inverted, 1 - plain)


def test_signed_levels_lie_around_the_middle(written):
    found = _read_dicom(written("a.dcm", np.zeros((4, 4), dtype=np.int16)))
    assert float(found.mean()) == pytest.approx(0.5, abs=1e-4)


def test_colours_have_three_channels(written):
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    tags = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    found = _read_dicom(written("a.dcm", pixels, **tags))
    assert torch.equal((found * 255).round().byte(), torch.from_numpy(pixels).permute(2, 0, 1))


def test_a_folder_of_scans_is_a_data_set(written, tmp_path):
    for number in range(2):
        for kind in ("healthy", "ill"):
            written(f"scans/{kind}/{number}.dcm", LEVELS)
    found = sp.data.load(f"folder:{tmp_path / 'scans'}", pixels=32)
    assert found.inputs.shape == (4, 1, 32, 32)
    assert found.class_names == ("healthy", "ill")


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"NumberOfFrames": 3}, "it holds 3 frames"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR, not grey or RGB"),
        ({"PixelData": b"\0\0"}, "cannot be read"),
    ],
    ids=["frames", "palette", "truncated"],
)
def test_what_is_no_picture_is_refused_in_one_sentence(written, tags, said):
    with pytest.raises(UnreadableFile, match=said) as refused:
        _read_dicom(written("a.dcm", LEVELS, **tags))
    assert "\n" not in str(refused.value)


def test_an_enormous_picture_is_refused_before_it_is_unpacked(written, monkeypatch):
    path = written("a.dcm", LEVELS, Rows=60_000, Columns=60_000)
    with pytest.raises(UnreadableFile, match="SEEPAGE_LARGEST"):
        _read_dicom(path)


def test_another_file_with_that_name_is_refused(tmp_path):
    pytest.importorskip("pydicom", reason="pydicom is not installed")
    path = tmp_path / "a.dcm"
    path.write_bytes(b"no scan at all")
    with pytest.raises(UnreadableFile, match="expected a DICOM image of one frame"):
        _read_dicom(path)


def test_without_pydicom_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtra) as refused:
        _read_dicom(tmp_path / "a.dcm")
    assert install_hint("dicom") in str(refused.value)
