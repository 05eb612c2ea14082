"""What options write in one word: an attack, a defense or a network with its arguments."""

import pytest

from seepage.cli.options import _read_option, read_chains, read_network, read_part
from seepage.core.errors import InvalidValue, UnknownName


@pytest.mark.parametrize(
    ("written", "value"),
    [("3", 3), ("3,5", [3, 5]), ("3,", [3]), ("[3, 5]", [3, 5]), ("(3, 5)", [3, 5]),
     ("[[3, 5], [7, 9]]", [[3, 5], [7, 9]]), (".5", 0.5), ("1e+3", 1000.0), ("True", True),
     ("true,False", None), ("tanh", "tanh"), ("'a, b'", "a, b"), ("{ width = 3 }", {"width": 3}),
     ("own.losses:mine", "own.losses:mine"), ("a=b", "a=b")],
)  # fmt: skip
def test_a_value_is_read_as_a_spec_or_python_writes_it(written, value):
    if value is None:
        with pytest.raises(InvalidValue, match="write numbers as 3,5"):
            _read_option(f"key={written}")
    else:
        assert _read_option(f"key={written}") == ("key", value)


def test_a_comma_separates_options_only_before_a_key():
    written = "Own:sizes=3,5,kernel=(3, 5),names=['a=1', 'b+c'],deep=True"
    expected = {"sizes": [3, 5], "kernel": [3, 5], "names": ["a=1", "b+c"], "deep": True}
    assert read_part(written, "model") == {"name": "Own", **expected}
    assert read_part("own.nets:small:width=4", "model") == {"name": "own.nets:small", "width": 4}
    assert read_part("timm:resnet18", "model") == {"name": "timm:resnet18"}


@pytest.mark.parametrize(
    ("written", "hint"),
    [("", "got ''"), ("Prune:0.9", "got 'Prune:0.9'"), ("Prune:", "got 'Prune:'"),
     ("ratio=0.9", "got 'ratio=0.9'"), ("Prune,ratio=0.9", "write Prune:ratio=0.9"),
     ("own.py:Net,width=3", "write own.py:Net:width=3")],
)  # fmt: skip
def test_a_part_without_its_key_says_how_to_write_it(written, hint):
    with pytest.raises(InvalidValue, match="expected --defense as NAME or NAME:key=value") as said:
        read_part(written, "defense")
    assert hint in str(said.value)


@pytest.mark.parametrize("written", ["width=None", "width=", "=3", "width", "width=[3, 5"])
def test_a_value_that_nothing_can_be_made_of_is_one_sentence(written):
    with pytest.raises(InvalidValue) as said:
        _read_option(written)
    assert "width" in str(said.value) or "=3" in str(said.value)


def test_links_are_joined_by_plus_which_numbers_may_have_too():
    links = [{"name": "Clip", "max_norm": 100.0}, {"name": "Sign"}]
    assert read_chains(["Clip:max_norm=1e+2+Sign"]) == [[], links]


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
    assert read_network("./nets/own_deep.py:Net", None) == {"name": "nets.own_deep:Net"}
    assert read_network(f"{own}/own_small.py:Net", None) == {"name": "own_small:Net"}


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
        read_network(model, None)


def test_a_file_elsewhere_says_where_to_run_the_command(own, monkeypatch):
    monkeypatch.chdir(own / "nets")
    with pytest.raises(InvalidValue, match=r"run the command in '\.\.' and write own_small.py:Net"):
        read_network("../own_small.py:Net", None)


@pytest.mark.parametrize(
    ("written", "table"),
    [
        ("digits", {"name": "digits"}),
        ("folder:./a=b,c", {"name": "folder:./a=b,c"}),
        ("npz:/x/1.npz", {"name": "npz:/x/1.npz"}),
        ("folder:2020/a:pixels=28", {"name": "folder:2020/a", "pixels": 28}),
        ("npz:a.npz:mean=0.4,0.5,std=1", {"name": "npz:a.npz", "mean": [0.4, 0.5], "std": 1}),
    ],
)
def test_a_path_of_data_may_have_any_characters_before_its_options(written, table):
    assert read_part(written, "data") == table
