"""Plain data is read back as the type hints say, and anything else is refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest

from seepage.core._schema import AtMost, Count, Matches, Share, from_plain, parse_json, to_plain
from seepage.core.errors import UnreadableFile


class Flags(TypedDict, total=False):
    steps: Count
    cut: bool


@dataclass(frozen=True)
class Part:
    name: Annotated[str, Matches("[a-z]+")]
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    pair: tuple[str, Count]
    kind: Literal["one", "two"]
    scores: Mapping[str, tuple[float | None, ...]]
    share: Share | None = None
    note: Annotated[str, AtMost(5)] = ""
    flags: Flags | None = None
    right: bool = False


WHOLE = Whole(
    parts=(Part("a", {"sizes": (3, 5), "low": -math.inf, "deep": {"x": None}}),),
    pair=("b", 2**63 - 1),
    kind="two",
    scores={"psnr": (math.inf, None, 1e-300)},
    share=0.5,
    note="12345",
    flags={"steps": 3},
)


def plain(**changes):
    return {**json.loads(json.dumps(to_plain(WHOLE), allow_nan=False)), **changes}


def test_what_is_written_is_read_back():
    assert from_plain(Whole, plain()) == WHOLE


def test_a_field_with_a_default_may_be_missing_and_another_may_not():
    short = {name: value for name, value in plain().items() if name not in ("share", "note")}
    assert from_plain(Whole, short).share is None
    del short["kind"]
    with pytest.raises(UnreadableFile, match="the field 'kind' is missing"):
        from_plain(Whole, short)


def nest(depth):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": "three"}, "'kind' .* expected one of 'one', 'two', got 'three'"),
        ({"kind": ["one"]}, "'kind' .* got list"),
        ({"pair": ["b"]}, "'pair' .* expected a list of 2"),
        ({"pair": ["b", -1]}, "'pair' .* expected a number from 0"),
        ({"pair": ["b", 2**63]}, "'pair' .* expected a whole number"),
        ({"pair": ["b", 1.0]}, "'pair' .* expected a whole number"),
        ({"pair": ["b", True]}, "'pair' .* expected a whole number"),
        ({"parts": {}}, "'parts' .* expected a list"),
        ({"parts": [{"name": "B", "arguments": {}}]}, r"'parts\[0\]\.name' .* expected a name"),
        ({"parts": [{"name": "b"}]}, r"'parts\[0\]' .* 'arguments' is missing"),
        ({"scores": {"psnr": [0.5, "x"]}}, r"'scores\.psnr\[1\]' .* expected a number"),
        ({"scores": {"psnr": [10**400]}}, r"'scores\.psnr\[0\]' .* expected a number"),
        ({"scores": {"\ud800": []}}, "'scores.*' is not what it should be"),
        ({"share": 1.5}, "'share' .* expected a number from 0 to 1"),
        ({"share": "nan"}, "'share' .* expected a number"),
        ({"note": "123456"}, "'note' .* at most 5 characters"),
        ({"right": 1}, "'right' .* expected true or false"),
        ({"flags": {"other": 1}}, "'flags' .* there is no field 'other'"),
        ({"more": 1}, "there is no field 'more'"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_place_where_it_stands(changed, said):
    with pytest.raises(UnreadableFile, match=said) as refused:
        from_plain(Whole, plain(**changed))
    assert len(str(refused.value).splitlines()) == 1


def test_data_that_is_nested_too_deeply_is_refused():
    deep = plain(parts=[{"name": "a", "arguments": {"x": nest(100_000)}}])
    with pytest.raises(UnreadableFile, match="nested too deeply"):
        from_plain(Whole, deep)


@pytest.mark.parametrize(
    "text", ["[NaN]", '["\\ud800"]', "[" * 100_000, "{", "9" * 5_000, '{"a": Infinity}']
)
def test_text_that_is_no_plain_json_is_refused(text):
    with pytest.raises(UnreadableFile, match="it is not plain JSON"):
        parse_json(text, "it")
