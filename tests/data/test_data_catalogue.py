import shutil
from pathlib import Path

import numpy as np
import pytest

import seepage.data._dataset
from seepage.core.errors import DataNotFound, InvalidValue, UnknownName, UnreadableFile
from seepage.data import catalogue, data_root, load

ON_DISK = [
    "cifar10",
    "cifar100",
    "mnist",
    "imagenet",
    "faces",
    "cells",
    "ecg",
    "ecg:mitbih",
    "fmri",
]


def test_the_catalogue_says_one_line_about_everything_that_loads():
    lines = catalogue()
    assert set(lines) == {
        *(
            "photos",
            "digits",
            "voters",
            "hamlet",
            *ON_DISK,
            "npz:PATH",
            "csv:PATH",
            "parquet:PATH",
            "folder:PATH",
            "torchvision:NAME",
        )
    }
    for line in lines.values():
        assert line
        assert "\n" not in line
        assert len(line) < 80


@pytest.mark.parametrize("name", ["cifar", "npz", "npz:", "folder", "xlsx:data.xlsx", "", "Photos"])
def test_unknown_names_are_refused_with_those_known(name):
    with pytest.raises(UnknownName, match=r"unknown data set .*known: cells, cifar10"):
        load(name)


@pytest.mark.parametrize("name", ON_DISK)
def test_a_missing_folder_is_named_with_the_variable_to_set(name, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataNotFound, match=r"nowhere.*set SEEPAGE_DATA"):
        load(name)


@pytest.mark.parametrize("name", ON_DISK)
def test_a_missing_file_is_named_with_the_folder_searched(name, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=f"in {tmp_path}.*set SEEPAGE_DATA"):
        load(name)


def test_both_places_searched_are_named_when_neither_exists(monkeypatch, tmp_path):
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    installed = tmp_path / "env" / "lib" / "site" / "seepage" / "data" / "dataset.py"
    monkeypatch.setattr(seepage.data._dataset, "__file__", str(installed))
    with pytest.raises(DataNotFound) as caught:
        data_root()
    assert str(tmp_path / "shared" / "data") in str(caught.value)
    assert str(tmp_path / "env" / "shared" / "data") in str(caught.value)
    assert "set SEEPAGE_DATA" in str(caught.value)


def test_the_folder_beside_the_working_directory_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert data_root() == tmp_path / "shared" / "data"


def test_the_variable_wins_over_the_folder_beside(monkeypatch, tmp_path):
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    assert data_root() == tmp_path


@pytest.mark.parametrize(
    ("name", "split"), [("photos", "train"), ("cells", "train"), ("cifar10", "val")]
)
def test_a_split_that_a_set_does_not_have_is_refused(name, split):
    with pytest.raises(InvalidValue, match=f"expected split 'test'.* for {name}, got '{split}'"):
        load(name, split=split)


def test_a_known_file_with_other_arrays_is_unreadable(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    np.savez(tmp_path / "ecg.npz", beats=np.zeros((2, 140)))
    with pytest.raises(UnreadableFile, match=r"ecg5000_beats.*ecg\.npz.*among beats"):
        load("ecg")


def test_a_truncated_known_file_is_unreadable(monkeypatch, tmp_path):
    source = Path(seepage.data.__file__).parent / "bundle" / "digits.npz"
    copy = tmp_path / "mnist_10k.npz"
    shutil.copy(source, copy)
    copy.write_bytes(copy.read_bytes()[:5000])
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    with pytest.raises(UnreadableFile, match=r"mnist_10k\.npz"):
        load("mnist")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"images": [{"file": "a.jpg"}]}'])
def test_damaged_imagenet_labels_are_unreadable(text, monkeypatch, tmp_path):
    (tmp_path / "imagenet_16").mkdir()
    (tmp_path / "imagenet_16" / "labels.json").write_text(text)
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    with pytest.raises(UnreadableFile, match=r"labels\.json"):
        load("imagenet")


@pytest.mark.parametrize("name", ["plain.npy", "notes.txt"])
def test_a_file_of_another_kind_says_which_kinds_there_are(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    with pytest.raises(InvalidValue, match=rf"expected data as \.npz, .*, got the file '{name}'"):
        load(name)
