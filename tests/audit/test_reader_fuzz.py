"""Every reader either reads a changed file or refuses it in one sentence."""

import pytest
from scripts.fuzz import list_readers, mutate, read_bytes, read_one


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return list_readers(tmp_path_factory.mktemp("corpus"))


NAMES = (
    *("spec", "npz", "image", "capture", "weights", "database", "record", "artifact"),
    *("checkpoint", "table", "columns"),
)


def test_every_reader_is_tried(readers):
    assert set(readers) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_changed_files_are_read_or_refused_in_one_sentence(readers, name, tmp_path):
    reader = readers[name]
    for file, data in reader.files.items():
        assert read_bytes(reader, file, data, tmp_path) == "read"
    ends = [read_one(reader, f"{name}-0-{number}", tmp_path) for number in range(60)]
    assert set(ends) <= {"read", "refused"}
    assert ends.count("refused") > 5, "the changes change nothing"


@pytest.mark.parametrize(
    ("name", "number"),
    [("weights", "0-16"), ("weights", "7-798"), ("weights", "7-54"), ("spec", "0-191")],
)
def test_files_that_once_ended_in_a_traceback_are_refused(readers, name, number, tmp_path):
    assert read_one(readers[name], f"{name}-{number}", tmp_path) in ("read", "refused")


def test_a_fault_of_a_reader_is_found(readers, tmp_path):
    from scripts.fuzz import Reader

    def careless(path):
        return path.read_bytes()[10_000]

    end = read_one(Reader(careless, {"file": b"some bytes"}), "0", tmp_path)
    assert end.startswith("traceback: IndexError")


def test_changes_are_the_same_for_the_same_seed():
    import random

    data = bytes(range(200))
    made = [mutate(data, random.Random(1), text=False) for _ in range(2)]
    assert made[0] == made[1] != data
