"""Names of marks on charts: all there, none over another."""

import itertools
import math

import pytest

from seepage.audit import Choice
from seepage.report.page._chart_names import LabelBox, place_names
from seepage.report.page._curve_sections import tradeoff_section
from seepage.report.page._document import document

# Most of the marks stand in one place, as they do where defenses cost nothing.
CROWD = {f"defense {i}": (400.0 + i % 3, 200.0 + i % 4) for i in range(14)}
CHOICES = [
    Choice("none", 41.0, 0.93),
    Choice("Prune(0.9)", 40.5, 0.93),
    Choice("Quantize(8)", 41.0, 0.93),
    Choice("ClipEach(1.0) + Mean + AddGaussian(0.01)", 12.0, 0.71),
    Choice("ClipEach(1.0) + Mean + AddGaussian(0.012)", 12.0, 0.70),
    Choice("Sign", 25.0, 0.9),
]


def test_names_overlap_neither_each_other_nor_marks():
    marks = CROWD | {"far": (70.0, 60.0)}
    others = [LabelBox.about((350.0, 200.0), 4.0), LabelBox.about((450.0, 205.0), 4.0)]
    inside = LabelBox(62, 56, 884, 414)
    names = place_names(marks, inside, dot=4.0, around=others)
    assert {name.text: name.at for name in names} == marks
    for one, other in itertools.combinations(names, 2):
        assert not one.box.meets(other.box)
    for name in names:
        assert inside.holds(name.box)
        assert not any(name.box.meets(LabelBox.about(spot, 4.0)) for spot in marks.values())
        assert not any(name.box.meets(other) for other in others)


def test_a_line_leads_from_the_edge_of_a_mark_to_a_name_that_is_not_next_to_it():
    names = {
        name.text: name
        for name in place_names(CROWD | {"far": (70.0, 60.0)}, LabelBox(0, 0, 900, 500), dot=4.0)
    }
    assert not names["far"].apart
    led = next(name for name in names.values() if name.apart)
    start, end = led.leader
    assert math.dist(start, led.at) == pytest.approx(4.0)
    assert LabelBox.about(end, 0.5).meets(led.box)


def test_a_line_leads_to_a_name_that_is_closer_to_another_mark():
    names = place_names(CROWD, LabelBox(0, 0, 900, 500), dot=4.0)
    reach = {
        name.text: [math.dist(name.box.nearest(spot), spot) for spot in (name.at, *CROWD.values())]
        for name in names
    }
    closer = [name for name in names if min(reach[name.text]) < reach[name.text][0]]
    assert closer
    assert all(name.apart for name in closer)


def test_names_without_room_are_left_out():
    names = place_names(CROWD, LabelBox(300, 170, 500, 240), dot=4.0)
    assert 0 < len(names) < len(CROWD)


def test_a_choice_that_has_no_room_for_its_name_still_has_a_mark():
    many = [Choice(f"ClipEach({i}.0) + Mean + AddGaussian(0.01)", 12.0, 0.7) for i in range(80)]
    drawn = tradeoff_section(many).content
    assert drawn.count("<circle") == 80
    assert 10 < drawn.count('class="name"') < 80


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_names_in_the_browser_are_apart_at_every_width(browser, tmp_path, width):
    path = tmp_path / "page.html"
    path.write_text(
        document("Costs", first="", sections=[tradeoff_section(CHOICES)]), encoding="utf-8"
    )
    page = browser.page()
    page.look_like(width=width)
    page.open(path)
    boxes = page.run(
        "[...document.querySelectorAll('.plot .name, .plot circle')].map(e => {"
        "const b = e.getBoundingClientRect(); return [e.textContent, b.left, b.top, b.right, "
        "b.bottom]})"
    )
    assert sorted(name for name, *_ in boxes if name) == sorted(c.label for c in CHOICES)
    # Of a name the letters count, not the room that a line has above and below them.
    drawn = [
        LabelBox(x, y + 2 * bool(n), right, low - 2 * bool(n)) for n, x, y, right, low in boxes
    ]
    for (one, a), (other, b) in itertools.combinations(enumerate(drawn), 2):
        assert not a.meets(b) or not (boxes[one][0] or boxes[other][0])
