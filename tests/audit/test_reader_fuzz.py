"""Every reader either reads a changed file or refuses it in one sentence."""

import pytest
from scripts.fuzz import list_readers, mutate, read_bytes, read_one


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return list_readers(tmp_path_factory.mktemp("corpus"))


NAMES = (
    *("spec", "npz", "image", "capture", "weights", "plan", "case", "inputs"),
    *("record", "tensors"),
    *("checkpoint", "table", "columns", "parquet"),
    # Values are changed, and the file is sealed again.
    *("values", "sealed plan", "mapping", "evidence", "dossier", "command"),
)
# Readings that take longer, such as those of a whole audit.
SLOW = ("values", "sealed plan", "mapping", "dossier", "command")


def test_every_reader_is_tried(readers):
    # Without pyarrow there is no reader of Parquet.
    assert set(readers) | {"parquet"} == set(NAMES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES],
)
def test_changed_files_are_read_or_refused_in_one_sentence(readers, name, tmp_path):
    if name not in readers:
        pytest.skip("pyarrow is not installed")
    reader, count = readers[name], 20 if name in SLOW else 60
    for file, data in list(reader.files.items())[:4]:
        assert read_bytes(reader, file, data, tmp_path) == "read"
    ends = [read_one(reader, f"{name}-0-{number}", tmp_path) for number in range(count)]
    assert set(ends) <= {"read", "refused"}
    assert ends.count("refused") > count // 12, "the changes change nothing"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("weights", "0-16"), ("weights", "7-798"), ("weights", "7-54"), ("spec", "0-191")),
        *(
            ("mapping", "1-97"),
            ("mapping", "1-204"),
            ("evidence", "1-246"),
            ("sealed plan", "1-144"),
        ),
    ],
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
