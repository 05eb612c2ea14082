import os
import tomllib

import pytest

from seepage.audit._plan import find_imports
from seepage.audit._spec_text import SpecSource, write_toml
from seepage.core._construct import LARGEST, parse_toml
from seepage.core.errors import InvalidValue, UnreadableFile

HOSTILE = {
    # tomllib takes 40 GB for this key.
    "long key": "a" + ".a" * 100_000 + " = 1",
    "long key in a table": "x = { a" + ".a" * 100_000 + " = 1 }",
    "long header": "[a" + ".a" * 100_000 + "]",
    "deep lists": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{ b = " * 5_000,
    "long number": "a = 1" + "0" * 10_000,
    "long text": "#" * (LARGEST + 1),
    "no TOML": "a = = 1",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_toml_is_refused_in_one_line(text):
    with pytest.raises(InvalidValue) as caught:
        parse_toml(text)
    assert len(str(caught.value).splitlines()) == 1
    assert find_imports(text) == []


def test_ordinary_toml_is_parsed_as_by_the_standard_library():
    text = 'a.b.c = 1\nd = [0.1, 0.2]\ne = { f = "x.y.z" }\n[g.h]\ni = """\n..."""\n'
    assert parse_toml(text) == tomllib.loads(text)


def test_a_pipe_named_as_a_spec_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "spec.toml")
    with pytest.raises(UnreadableFile, match="pipe or device"):
        SpecSource.read(tmp_path / "spec.toml")


def test_a_spec_with_the_line_ends_of_windows_is_read(tmp_path):
    (tmp_path / "spec.toml").write_bytes(b'title = "x"\r\nseeds = [0]\r\n')
    assert SpecSource.read(tmp_path / "spec.toml").text == 'title = "x"\nseeds = [0]\n'


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scenario": 3}, "one or more tables by name"),
        ({"scenario": [["data"]]}, "one or more tables by name"),
        ({3: "x", "scenario": {}}, "keys of a spec as words"),
    ],
)
def test_a_mapping_that_is_no_spec_is_one_sentence(spec, words):
    with pytest.raises(InvalidValue, match=words):
        write_toml(spec)


def test_a_mapping_of_too_many_levels_is_one_sentence():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidValue, match="a few levels"):
        write_toml({"seeds": deep, "scenario": {}})
