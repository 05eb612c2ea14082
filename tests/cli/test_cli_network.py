"""What options write in words: defenses and networks; for parts see test_core_part_text.py."""

import pytest

from seepage.audit._spec_entries import read_chains
from seepage.cli._model_commands import read_network
from seepage.core.errors import InvalidValue, UnknownName


def test_links_are_joined_by_plus_which_numbers_may_have_too():
    links = [{"name": "Clip", "max_norm": 100.0}, {"name": "Sign"}]
    for written in ("Clip:max_norm=1e+2+Sign", "Clip(max_norm=1e+2) + Sign()", "Clip(1e2)+Sign"):
        assert read_chains([written]) == [[], links]


def test_no_defense_is_first_unless_it_is_listed():
    sign = [{"name": "Sign"}]
    assert read_chains([]) == [[]]
    assert read_chains(["Sign"]) == [[], sign]
    assert read_chains(["Sign", "none"]) == [sign, []]


@pytest.fixture
def own(wide_place):
    """A folder of files, each with a network."""
    source = "from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n"
    (wide_place / "nets").mkdir()
    for name in ("own_small", "own-dashed", "nets/own_deep", "json"):
        (wide_place / f"{name}.py").write_text(source)
    return wide_place


def test_a_network_in_a_file_is_named_as_python_imports_it(own):
    wanted = {"name": "own_small:Net", "width": 3, "seed": 1}
    assert read_network("own_small.py:Net:width=3", ["seed=1"]) == wanted
    assert read_network("own_small.py:Net(width=3)", ["seed=1"]) == wanted
    assert read_network("./nets/own_deep.py:Net", ()) == {"name": "nets.own_deep:Net"}
    assert read_network(f"{own}/own_small.py:Net", ()) == {"name": "own_small:Net"}


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ("own_smal.py:Net", UnknownName, "unknown file 'own_smal.py'; did you mean 'own_small.py'"),
        ("own_small.py", InvalidValue, r"of that file \(Net\), got 'own_small.py'"),
        ("own-dashed.py:Net", InvalidValue, "got 'own-dashed.py'; rename it"),
        ("json.py:Net", InvalidValue, "Python imports 'json' from '.*' instead of 'json.py'"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(own, model, kind, sentence):
    with pytest.raises(kind, match=sentence):
        read_network(model, ())


def test_a_file_elsewhere_says_where_to_run_the_command(own, monkeypatch):
    monkeypatch.chdir(own / "nets")
    with pytest.raises(InvalidValue, match=r"run the command in '\.\.' and write own_small.py:Net"):
        read_network("../own_small.py:Net", ())
