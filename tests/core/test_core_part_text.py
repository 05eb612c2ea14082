"""Parts in words: the call that reports print, and `NAME:key=value` for a shell."""

import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seepage.core._construct import write_call
from seepage.core._part_text import read_links, read_option, read_part
from seepage.core.errors import InvalidValue


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
            read_option(f"key={written}")
    else:
        assert read_option(f"key={written}") == ("key", value)


def test_a_comma_separates_options_only_before_a_key():
    written = "Own:sizes=3,5,kernel=(3, 5),names=['a=1', 'b+c'],deep=True"
    expected = {"sizes": [3, 5], "kernel": [3, 5], "names": ["a=1", "b+c"], "deep": True}
    assert read_part(written, "model") == {"name": "Own", **expected}
    assert read_part("own.nets:small:width=4", "model") == {"name": "own.nets:small", "width": 4}
    assert read_part("timm:resnet18", "model") == {"name": "timm:resnet18"}


@pytest.mark.parametrize(
    ("written", "table"),
    [
        ("Sign()", {}),
        ("  Sign ( ) ", {}),
        ("Sign(a=1, b=-2.5, c='x y', d=True, e=None)",
         {"a": 1, "b": -2.5, "c": "x y", "d": True, "e": None}),
        ("Sign(a=(3,), b=[1, (2, 3)], c=())", {"a": [3], "b": [1, [2, 3]], "c": []}),
        ("Sign(a={'name': 'x', 'y': -inf})", {"a": {"name": "x", "y": -float("inf")}}),
        ("Sign(a=dlg(steps=3), b=\"it's (1 + 1)\")",
         {"a": {"name": "dlg", "steps": 3}, "b": "it's (1 + 1)"}),
    ],
)  # fmt: skip
def test_a_call_is_read_as_the_table_of_a_spec(written, table):
    assert read_part(written, "attack") == {"name": "Sign", **table}


@pytest.mark.parametrize("name", ["own.nets:Net", "own.py:Net", "cnn3-v4", "timm:a/b.c", "hf:gpt"])
def test_the_name_of_a_call_is_any_name_of_a_part(name):
    assert read_part(f"{name}(width=4)", "model") == {"name": name, "width": 4}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Sign(a=b)", "Sign expects a as a number, a list or words in quotes, got b"),
        ("Sign(a=1 + 1)", "got 1 + 1"),
        ("Sign(a=open('x'))", "expected every option of open with its name"),
        ("Sign(a=os.system)", "got os.system"),
        ("Sign(a=[x for x in y])", "got [x for x in y]"),
        ("Sign(a=b'x')", "got b'x'"),
        ("Sign(a=1j)", "got 1j"),
        ("Sign(a=...)", "got ..."),
        ("Sign(a={1: 2})", "got {1: 2}"),
        ("Sign(a=-True)", "got -True"),
        ("Sign(3)", "every option of Sign with its name, as Sign(key=value), got 3 alone"),
        ("Sign(a=1, a=2)", "every option of Sign once, got 'a'"),
        ("Sign(name=1)", "every option of Sign once, got 'name'"),
        ("Sign(**{'a': 1})", "every option of Sign once, got '**'"),
        ("Sign(*[1])", "got *[1] alone"),
        ("Sign(a=)", "expected a defense as NAME(key=value, key=value), got 'Sign(a=)'"),
        ("Sign(a=1)(b=2)", "expected a defense as NAME(key=value, key=value)"),
        ("Sign(a=1); x()", "expected a defense as NAME(key=value, key=value)"),
        ("Sign(a=1", "expected a defense as NAME(key=value) or NAME:key=value"),
        ("(a=1)", "expected a defense as NAME(key=value) or NAME:key=value"),
        ("Sign(a=" + "9" * 5000 + ")", "expected a defense as NAME(key=value, key=value)"),
        ("Sign(a=" + "9" * 20000 + ")", "a defense of at most 10,000 characters, got 20,008"),
    ],
)
def test_what_is_no_part_is_one_sentence(written, said):
    with pytest.raises(InvalidValue) as refused:
        read_part(written, "defense")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "hint"),
    [("", "got ''"), ("Prune:0.9", "got 'Prune:0.9'"), ("Prune:", "got 'Prune:'"),
     ("ratio=0.9", "got 'ratio=0.9'"), ("Prune,ratio=0.9", "write Prune:ratio=0.9"),
     ("own.py:Net,width=3", "write own.py:Net:width=3")],
)  # fmt: skip
def test_a_part_without_its_key_says_how_to_write_it(written, hint):
    with pytest.raises(InvalidValue, match=r"expected a defense as NAME.* or NAME:key=val") as said:
        read_part(written, "defense")
    assert hint in str(said.value)


@pytest.mark.parametrize("written", ["width=None", "width=", "=3", "width", "width=[3, 5"])
def test_a_value_that_nothing_can_be_made_of_is_one_sentence(written):
    with pytest.raises(InvalidValue) as said:
        read_option(written)
    assert "width" in str(said.value) or "=3" in str(said.value)


@pytest.mark.parametrize(
    ("written", "links"),
    [
        ("Sign", ["Sign"]),
        ("none", []),
        ("chain()", []),
        ("Clip:max_norm=1e+2+Sign", ["Clip:max_norm=1e+2", "Sign"]),
        ("Clip(max_norm=1) + Sign()", ["Clip(max_norm=1)", "Sign()"]),
        ("Own(words='a + b', kernel=[1, 2]) + Sign", ["Own(words='a + b', kernel=[1, 2])", "Sign"]),
        ("chain(Prune(0.9), Own(a=1, b=2))", ["Prune(0.9)", "Own(a=1, b=2)"]),
    ],
)
def test_links_are_joined_by_plus_or_are_in_a_chain(written, links):
    assert read_links(written) == links


@pytest.mark.parametrize(
    ("written", "table"),
    [
        ("digits", {"name": "digits"}),
        ("folder:./a=b,c", {"name": "folder:./a=b,c"}),
        ("npz:/x/1.npz", {"name": "npz:/x/1.npz"}),
        ("folder:2020/a:pixels=28", {"name": "folder:2020/a", "pixels": 28}),
        ("npz:a.npz:mean=0.4,0.5,std=1", {"name": "npz:a.npz", "mean": [0.4, 0.5], "std": 1}),
        ("folder:my pictures (2)", {"name": "folder:my pictures (2)"}),
        ("folder:pictures (2)(pixels=28)", {"name": "folder:pictures (2)", "pixels": 28}),
        ("photos(mean=(0.4, 0.5), labels=False)",
         {"name": "photos", "mean": [0.4, 0.5], "labels": False}),
        ("photos(pixels=None)", {"name": "photos"}),
    ],
)  # fmt: skip
def test_a_path_of_data_may_have_any_characters_before_its_options(written, table):
    assert read_part(written, "data") == table


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:-]{0,10}", fullmatch=True)
KEYS = st.from_regex(r"[a-z]{1,8}_", fullmatch=True)


@given(NAMES, st.dictionaries(KEYS, PLAIN, max_size=4))
def test_the_call_that_is_printed_is_read_as_the_same_table(name, options):
    assert read_part(write_call(name, options), "attack") == {"name": name, **options}


HOSTILE = st.text() | st.text("()[]{}=,+-:.'\"\\#*aA0_ \n\0{}").map(lambda text: f"Sign({text})")


@settings(max_examples=400, deadline=5_000)
@given(HOSTILE, st.sampled_from(["attack", "data", "defense", "model"]))
@example("Sign(a=" + "(" * 4000 + ")" * 4000 + ")", "defense")
@example("Sign(a=" + "-" * 9000 + "1)", "defense")
@example("Sign(a=" + "not " * 2000 + "1)", "defense")
@example("Sign(a=" + "x." * 4000 + "x)", "defense")
@example("Sign(a=" + "1+" * 4000 + "1)", "defense")
@example("Sign(a=" + "f()" * 3000 + ")", "defense")
@example("Sign(a=9**9**9**9**9)", "defense")
@example("Sign(a='x' * 10**9)", "defense")
@example("Sign(a=0x" + "f" * 9000 + ")", "defense")
@example("Sign(a=1e" + "9" * 4000 + ")", "defense")
@example("Sign" + "()" * 4000, "defense")
@example("+" * 9999, "defense")
@example("a+" * 4999, "defense")
@example("(" * 9999, "model")
@example("A:" * 4999 + "b=1", "model")
@example("folder:" + ":pixels=" * 1000, "data")
@example("x" * 10**6, "attack")
@example("a\0b,c=1", "defense")
@example("Sign(a=f'{b}\0\u202e')", "defense")
@example("Sign(a='\ud800')", "attack")
def test_a_hostile_text_is_a_table_or_one_sentence_in_bounded_time_and_memory(text, kind):
    tracemalloc.start()
    began = time.process_time()
    said = read_all(text, kind)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said is None or (said.isprintable() and 0 < len(said) <= 1_500)
    assert time.process_time() - began < 4
    assert most < 2**26


def read_all(text, kind):
    """What is said of a text that is no part; None if it is one."""
    try:
        for link in read_links(text):
            read_part(link, kind)
        assert isinstance(read_part(text, kind)["name"], str)
    except InvalidValue as error:
        return str(error)
    return None
