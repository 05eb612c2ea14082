import re
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image as Pictures

from seepage.core.errors import DataNotFound, InvalidValue, MissingExtra, UnknownName, install_hint
from seepage.data import load
from seepage.domains import CIFAR10, Image

# torchvision is optional, so its own behaviour is stood in for: constructors that take a root,
# a flag or a name for the split, and raise RuntimeError when the files are not there.


class Flagged:
    classes = ("shirt", "shoe")

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        assert not download
        self.root, self.offset = root, 100 if train else 0

    def __len__(self):
        return 6

    def __getitem__(self, number):
        if number >= 6:
            raise IndexError
        grey = np.full((8, 8), number + self.offset, dtype=np.uint8)
        return Pictures.fromarray(grey), number % 2


class CIFAR10Set(Flagged):
    def __getitem__(self, number):
        picture, label = super().__getitem__(number)
        return picture.convert("RGB").resize((32, 32)), label


class NamedSplit:
    def __init__(self, root, split="train", download=False):
        if split not in ("train", "test", "extra"):
            raise ValueError(f"Unknown value {split!r} for argument split.")
        self.split = split

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return Pictures.new("RGB", (4 + number, 6)), number


class Absent:
    def __init__(self, root, train=True, download=False):
        raise RuntimeError("Dataset not found. You can use download=True to download it")


class Boxes(Flagged):
    def __getitem__(self, number):
        return super().__getitem__(number)[0], {"boxes": []}


class Demanding:
    def __init__(self, root, annotation):
        pass


@pytest.fixture(autouse=True)
def _data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))


@pytest.fixture
def _torchvision(monkeypatch):
    sets = {"FashionMNIST": Flagged, "CIFAR10": CIFAR10Set, "SVHN": NamedSplit}
    sets |= {"KMNIST": Absent, "Kitti": Boxes, "CocoDetection": Demanding}
    package, module = ModuleType("torchvision"), ModuleType("torchvision.datasets")
    module.__all__ = tuple(sets)
    for name, value in sets.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)


def test_without_torchvision_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.datasets", raising=False)
    with pytest.raises(MissingExtra, match=re.escape(install_hint("vision"))):
        load("torchvision:FashionMNIST")


@pytest.mark.usefixtures("_torchvision")
@pytest.mark.parametrize(("split", "offset"), [("test", 0), ("train", 100)])
def test_a_set_split_by_a_flag(split, offset):
    data = load("torchvision:FashionMNIST", split=split)
    assert data.inputs.shape == (6, 1, 8, 8)
    assert (data.inputs[:, 0, 0, 0] * 255).round().tolist() == [offset + n for n in range(6)]
    assert data.labels.tolist() == [0, 1] * 3
    assert data.class_names == ("shirt", "shoe")
    assert data.domain == Image((1, 8, 8))


@pytest.mark.usefixtures("_torchvision")
def test_a_set_split_by_a_name_with_pictures_of_many_sizes():
    with pytest.raises(InvalidValue, match=r"one size, got 6x4, 6x5.*pixels="):
        load("torchvision:SVHN", split="extra")
    data = load("torchvision:SVHN", split="extra", pixels=4)
    assert data.inputs.shape == (2, 3, 4, 4)
    assert data.class_names == ("0", "1")


@pytest.mark.usefixtures("_torchvision")
def test_well_known_sets_are_normalised_as_usual():
    assert load("torchvision:CIFAR10").domain == CIFAR10


@pytest.mark.usefixtures("_torchvision")
@pytest.mark.parametrize("name", ["FashionMNIST", "SVHN"])
def test_a_split_the_set_does_not_have_is_refused(name):
    with pytest.raises(InvalidValue, match="'val'"):
        load(f"torchvision:{name}", split="val")


@pytest.mark.usefixtures("_torchvision")
def test_nothing_is_downloaded(tmp_path):
    with pytest.raises(DataNotFound, match=f"KMNIST in {tmp_path}.*download=True"):
        load("torchvision:KMNIST")


@pytest.mark.usefixtures("_torchvision")
def test_sets_without_class_numbers_are_refused():
    with pytest.raises(InvalidValue, match="image and a class number"):
        load("torchvision:Kitti")
    with pytest.raises(InvalidValue, match="CocoDetection does not"):
        load("torchvision:CocoDetection")


@pytest.mark.usefixtures("_torchvision")
def test_unknown_sets_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'FashionMNIST'"):
        load("torchvision:FashonMNIST")
