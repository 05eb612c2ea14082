"""The line of every place in a spec can be found."""

import tomllib
from pathlib import Path

import pytest

from seepage.audit import QUICKSTART
from seepage.audit._spec_text import _find_line

ROOT = Path(__file__).resolve().parents[2]

ODD = '''
# [not.a.table]
title = "a # that is no comment, and a \\" that ends nothing"
"quoted key" = 'single " quotes'
dotted.key . deeper = 1
long = """
[[no]] = "table" here
"""
literal = \'\'\'
also = 'not'\'\'\'
[a.b]
list = [1, [2, 3], # three
  { x = 1, y.z = [ "]", "}" ] },
]
[[many]]
[[many]]
when = 1979-05-27 07:32:00
[many.inner]
value = 1
[[many.items]]
[[many.items]]
last = true
'''


def places(value, above=()):
    """Every place of a parsed table, by tomllib's account."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield (*above, key)
            yield from places(inner, (*above, key))


@pytest.mark.parametrize(
    "text",
    [
        ODD,
        *(
            path.read_text(encoding="utf-8")
            for path in (QUICKSTART, ROOT / "specs/own_model.toml", ROOT / "pyproject.toml")
        ),
    ],
    ids=["odd", "quickstart", "own model", "pyproject"],
)
def test_every_place_that_tomllib_knows_has_a_line_at_or_after_its_parent(text):
    for place in list(places(tomllib.loads(text)))[::3]:
        line = _find_line(text, place)
        assert 1 <= line <= len(text.splitlines())
        assert len(place) == 1 or _find_line(text, place[:-1]) <= line


def test_lines_are_counted_as_editors_do():
    assert _find_line(ODD, ("title",)) == 3
    assert _find_line(ODD, ("dotted", "key", "deeper")) == 5
    assert _find_line(ODD, ("long",)) == 6
    assert _find_line(ODD, ("a", "b", "list", 1, 0)) == 12
    assert _find_line(ODD, ("a", "b", "list", 2, "y", "z")) == 13
    assert _find_line(ODD, ("many", 1, "when")) == 17
    assert _find_line(ODD, ("many", 1, "items", 1, "last")) == 22


def test_what_is_missing_is_sought_as_far_as_it_is_written():
    text = '[[scenario]]\nattacks = { name = "dlg" }\n'
    assert _find_line(text, ("scenario", 0, "attacks", 0, "name")) == 2
    assert _find_line(text, ("scenario", 0, "models")) == 1
    assert _find_line(text, ("title",)) is None
