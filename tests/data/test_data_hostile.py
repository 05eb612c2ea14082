"""Files of strangers: their size is known before they are unpacked, and nothing else is started."""

import io
import os
import resource
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

import seepage as sp
from seepage.core.errors import DataNotFound, InvalidValue, UnknownName, UnreadableFile
from seepage.data import load
from seepage.data._image_files import read_picture


def npz_bomb(path, entries):
    """An archive of a few bytes whose array has that many."""
    header = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (entries // 1024, 32, 32)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(entries // 2**20):
                member.write(bytes(2**20))
        labels = io.BytesIO()
        np.save(labels, np.zeros(entries // 1024, dtype=np.int64))
        archive.writestr("labels.npy", labels.getvalue())


def png_bomb(path, side):
    """A black picture of that many pixels on a side, packed a row at a time."""
    import struct

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side // 8 + 1)) for _ in range(side))
    size = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)
    path.write_bytes(head + chunk(b"IDAT", rows + packer.flush()) + chunk(b"IEND", b""))


def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(
    tmp_path, monkeypatch
):
    npz_bomb(tmp_path / "bomb.npz", 512 * 2**20)
    assert (tmp_path / "bomb.npz").stat().st_size < 2**21
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        UnreadableFile, match=r"more than the limit of 2147483648; .*SEEPAGE_LARGEST"
    ):
        load(f"npz:{tmp_path / 'bomb.npz'}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    npz_bomb(tmp_path / "small.npz", 2**20)
    assert len(load(f"npz:{tmp_path / 'small.npz'}")) == 1024
    monkeypatch.setenv("SEEPAGE_LARGEST", "1000")
    with pytest.raises(UnreadableFile, match="limit of 1000"):
        load(f"npz:{tmp_path / 'small.npz'}")
    monkeypatch.setenv("SEEPAGE_LARGEST", "a lot")
    with pytest.raises(InvalidValue, match="SEEPAGE_LARGEST as a number of bytes"):
        load(f"npz:{tmp_path / 'small.npz'}")


@pytest.mark.parametrize("side", [9000, 12_000, 20_000])
def test_a_picture_of_many_pixels_is_refused_before_it_is_unpacked(tmp_path, side):
    png_bomb(tmp_path / "bomb.png", side)
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableFile, match=r"bomb\.png"):
        read_picture(tmp_path / "bomb.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_no_other_program_is_started_for_a_picture(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))
    folder = tmp_path / "a"
    folder.mkdir()
    picture = Pictures.new("RGB", (8, 8))
    picture.save(folder / "one.eps")
    with pytest.raises(DataNotFound, match="found no image"):
        load(f"folder:{tmp_path}")
    # The name of another format does not help.
    (folder / "one.eps").rename(folder / "one.png")
    with pytest.raises(UnreadableFile, match=r"one\.png"):
        load(f"folder:{tmp_path}")
    assert not started


LOADERS = {
    "npz": lambda path: load(f"npz:{path}"),
    "picture": read_picture,
    "weights": lambda path: sp.zoo.load_weights(sp.zoo.mlp(hidden=(4,)), path),
    "capture": sp.capture.load,
}
NAMES = {
    "npz": "a.npz",
    "picture": "a.png",
    "weights": "a.safetensors",
    "capture": "a.safetensors",
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("what", ["pipe", "folder", "device"])
def test_pipes_folders_and_devices_are_refused_at_once(tmp_path, kind, what):
    path = tmp_path / NAMES[kind]
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises((UnreadableFile, DataNotFound)):
        LOADERS[kind](path)


def test_weights_that_unpack_to_gigabytes_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "weights.pt"
    torch.save(sp.zoo.mlp(hidden=(4,)).model.state_dict(), path)
    with zipfile.ZipFile(path) as stored:
        members = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data if "/data/" not in name else bytes(2**20))
    monkeypatch.setenv("SEEPAGE_LARGEST", str(2**20))
    with pytest.raises(UnreadableFile, match="more than the limit"):
        sp.zoo.load_weights(sp.zoo.mlp(hidden=(4,)), path)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_names_that_are_not_utf8_can_be_shown_and_stored(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(folder)  # noqa: PTH102 - the name is no text
    Pictures.new("RGB", (8, 8)).save(folder + os.fsdecode(b"/\xff.png"))
    data = load(f"folder:{tmp_path}")
    assert data.class_names == ("caf?",)


@pytest.fixture
def parquet(tmp_path):
    """Write columns to a file of Parquet."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    module = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    return lambda columns: module.write_table(arrow.table(columns), tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"age": [], "ill": []}, "two rows or more.*got 0 rows of 2 columns"),
        ({}, "two rows or more.*got 0 rows of 0 columns"),
        ({"age": [1, 2], "seen": [[1], [2]], "ill": [0, 1]}, "words in column 'seen'.*got list<"),
        ({str(name): [1, 2] for name in range(2_001)}, "2000 at most"),
    ],
)
def test_a_parquet_file_that_is_no_table_is_one_sentence(tmp_path, parquet, columns, words):
    parquet(columns)
    with pytest.raises(InvalidValue, match=words):
        load(f"parquet:{tmp_path / 't.parquet'}")


def test_a_parquet_file_of_two_columns_with_one_name_is_refused(tmp_path, parquet):
    import pyarrow
    from pyarrow import parquet as written

    table = pyarrow.Table.from_arrays([pyarrow.array([1, 2])] * 3, names=["age", "age", "ill"])
    written.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InvalidValue, match="got 3 of which 2 differ"):
        load(f"parquet:{tmp_path / 't.parquet'}")


def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(
    tmp_path, parquet
):
    import pyarrow

    places = pyarrow.array([0] * 20_000, pyarrow.int32())
    cells = pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["x" * 10**6]))
    parquet({"name": cells, "ill": [0, 1] * 10_000})
    assert (tmp_path / "t.parquet").stat().st_size < 2**22
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableFile, match="a cell has 1000000 bytes, more than 131072"):
        load(f"parquet:{tmp_path / 't.parquet'}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20


@pytest.mark.parametrize("form", ["", "csv:", "npz:", "folder:", "parquet:"])
def test_a_name_that_no_file_can_have_is_one_sentence(form):
    for written in ("x" * 5_000, "x" * 300, "half \ud800", "nul \0", "~nobody-of-this-name/x"):
        with pytest.raises((UnknownName, InvalidValue, DataNotFound)) as caught:
            load(form + written)
        said = str(caught.value)
        assert len(said.encode()) <= 1_500
        assert len(said.splitlines()) == 1
