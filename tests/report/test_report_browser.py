"""The page in a real browser, opened from disk."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.report.records import make_record

import seepage as sp
from seepage.audit import AuditResult
from seepage.audit._folder import case_file, inputs_file
from seepage.audit._words import defense_words
from seepage.core._construct import Component
from seepage.core._whole_file import seal
from seepage.report import audit_page

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
PRUNE = (Component("Prune", {"ratio": 0.9}),)
NOISE = tuple(map(Component.of, (sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.01))))
DEFENSES = ((), PRUNE, NOISE)


def record(person, defense, psnr, **changed):
    plain = {
        "people": (person,),
        "defense": defense,
        "attack": Component("inverting_gradients", {"steps": 4}),
        "scores": {"psnr": (psnr,), "exact": (0.0,)},
        "baselines": {"mean": {"psnr": (11.0,)}},
        "effort": {"steps": 4, "restarts": 1, "seconds": 1.5, "device": "cpu"},
        "truth": "truth",
        "case": "case",
    }
    return make_record(**plain | changed)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the page of these records, every guess with the same picture."""

    def written(records, **changed) -> Path:
        folder = tmp_path_factory.mktemp("audit")
        for part in ("cases", "inputs"):
            (folder / part).mkdir()
        truth = {"inputs": torch.rand(1, 3, 8, 8)}
        inputs_file(folder, "truth").write_bytes(seal(truth))
        curve = torch.logspace(0, -3, 5, dtype=torch.float64)
        held = {"guess": torch.rand(1, 3, 8, 8), "objective": curve}
        case_file(folder, "case").write_bytes(seal(held))
        plain = AuditResult(folder, "Tiny", "title = 'Tiny'", {}, (), tuple(records))
        path = folder / "report.html"
        path.write_text(audit_page(replace(plain, **changed)), encoding="utf-8")
        return path

    return written


@pytest.fixture(scope="module")
def report(written):
    scores = [(45.0, 33.0), (27.0, 21.5), (12.0, 11.0)]
    grid = [(d, n, row[n]) for d, row in zip(DEFENSES, scores, strict=True) for n in range(2)]
    return written([record(person, defense, psnr) for defense, person, psnr in grid])


@pytest.fixture
def page(browser, report):
    page = browser.page()
    page.look_like()
    page.open(report)
    return page


SHOWN = "[...document.querySelectorAll('#results tbody tr')].map(row => row.innerText)"


def test_the_page_opens_from_disk_without_error_or_request(page):
    assert page.complaints == []
    beyond = [url for url in page.requests if not url.startswith(("file:", "data:"))]
    assert beyond == []
    assert sum(url.startswith("file:") for url in page.requests) == 1
    assert page.run("document.querySelector('h1').innerText") == (
        "Inconclusive without a defense: no control was run, so the attacks may be too weak "
        "(2\N{NO-BREAK SPACE}people attacked)."
    )
    sections = page.run("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert sections == ["assumptions", "people", "defenses", "convergence", "records", "rerun"]


def test_an_error_would_be_heard_and_the_page_may_not_ask_the_network(page):
    page.run("console.error('heard'); fetch('http://127.0.0.1:9/').catch(() => 0)")
    page.wait("true")
    time.sleep(0.2)
    page.wait("true")
    assert any("heard" in complaint for complaint in page.complaints)
    assert any("Content Security Policy" in complaint for complaint in page.complaints)


def test_every_image_is_drawn_and_has_a_description(page):
    images = page.run(
        "[...document.images].map(i => [i.getAttribute('alt'), i.complete && i.naturalWidth])"
    )
    assert len(images) == 2 + 2 * (1 + len(DEFENSES))
    assert all(alt and width == 8 for alt, width in images)
    assert page.run("getComputedStyle(document.images[0]).imageRendering") == "pixelated"


def test_typing_filters_the_table_and_the_address_keeps_it(page):
    assert len(page.run(SHOWN)) == 6
    page.run(
        "{const box = document.getElementById('filter'); box.value = 'prune #1';"
        " box.dispatchEvent(new Event('input'))}"
    )
    [row] = page.run(SHOWN)
    assert "photos #1" in row
    assert "Prune 0.9" in row
    assert page.run("document.getElementById('count').innerText") == "1 of 1 rows shown"
    assert page.run("location.hash") == "#filter=prune%20%231"
    assert page.complaints == []


@pytest.mark.parametrize("spelt", ["#filter=photos%20%230&sort=psnr", "#sort=psnr&filter=%230"])
def test_a_filter_that_was_passed_on_is_kept(browser, report, spelt):
    page = browser.page()
    page.open(report, spelt)
    scores = [row.split("\t")[5] for row in page.run(SHOWN)]
    assert scores == ["12.0", "27.0", "45.0"]
    assert page.run("document.getElementById('filter').value").endswith("#0")
    assert page.run("document.querySelector('[aria-sort]').ariaSort") == "ascending"


def test_a_click_on_a_heading_sorts_both_ways(page):
    buttons = "[...document.querySelectorAll('#results th button')]"
    click = f"{buttons}.find(button => button.innerText === 'psnr').click()"
    for expected in (["45.0", "33.0"], ["11.0", "12.0"]):
        page.run(click)
        assert [row.split("\t")[5] for row in page.run(SHOWN)][:2] == expected


def test_the_label_of_a_defense_filters_the_table(page):
    page.run(
        "[...document.querySelectorAll('.strip a')].find(a => /DP-SGD/.test(a.innerText)).click()"
    )
    page.wait("document.getElementById('filter').value !== ''")
    rows = page.run(SHOWN)
    assert len(rows) == 2
    assert all(defense_words(NOISE) in row for row in rows)


def test_charts_answer_the_keyboard_and_light_up_one_person(page):
    page.run("document.querySelector('svg.track[tabindex]').focus()")
    tips = []
    for _ in range(3):
        page.press("ArrowRight")
        tips.append(page.run("document.getElementById('tip').innerText"))
    assert any(tip.startswith("photos #0: 45.0 dB by inverting_gradients") for tip in tips)
    assert any(tip.startswith("no defense: median 39.0 dB") for tip in tips)
    page.press("ArrowLeft")
    assert page.run("document.querySelectorAll('.dot.lit').length") == len(DEFENSES)
    page.press("Escape")
    assert page.run("document.getElementById('tip').hidden")


def test_charts_answer_the_mouse(page):
    page.run("document.getElementById('defenses').scrollIntoView({behavior: 'instant'})")
    box = page.run(
        "(() => {const b = document.querySelector('.dot').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]})()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    page.wait("!document.getElementById('tip').hidden")
    assert "photos #" in page.run("document.getElementById('tip').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_and_colours_follow_the_reader(browser, report, width, scheme):
    page = browser.page()
    page.look_like(width=width, height=844, scheme=scheme)
    page.open(report)
    assert page.run("document.documentElement.scrollWidth") == width
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(","))
    assert (brightness > 600) == (scheme == "light")


def test_paper_has_the_results_and_not_the_controls(browser, report):
    page = browser.page()
    page.look_like(media="print")
    page.open(report)
    seen = "getComputedStyle(document.querySelector('{}')).display"
    assert page.run(seen.format("nav")) == "none"
    assert page.run(seen.format(".controls")) == "none"
    assert page.run(seen.format("#results")) == "table"


def test_hostile_names_do_not_run(browser, written):
    part = Component(HOSTILE)
    hostile = record(0, (part,), 30.0, data=HOSTILE, attack=part, threat=part)
    broken = replace(hostile, scores={}, error=HOSTILE)
    page = browser.page()
    page.open(written([hostile, broken], title=HOSTILE, spec=HOSTILE), "#filter=onerror")
    assert len(page.run(SHOWN)) == 2
    page.run(
        "document.querySelector('.dot').dispatchEvent(new Event('pointerover', {bubbles: true}))"
    )
    assert page.run("window.hacked") is None
    assert page.complaints == []


def test_two_thousand_records_filter_without_lag(browser, written):
    def pruned(tenths):
        return (Component("Prune", {"ratio": tenths / 10}),)

    records = [
        record(
            number % 500, (Component("Prune", {"ratio": number // 500 / 10}),), 15.0 + number % 37
        )
        for number in range(2000)
    ]
    path = written(records)
    assert path.stat().st_size < 10_000_000
    page = browser.page()
    page.open(path)
    assert len(page.run(SHOWN)) == 200
    began = time.monotonic()
    page.run(
        "{const box = document.getElementById('filter');"
        " for (const text of ['p', 'pr', 'prune', 'prune 0.3', '#499 0.3'])"
        " {box.value = text; box.dispatchEvent(new Event('input'))}}"
    )
    # A wide limit, since the machine may be busy.
    assert (time.monotonic() - began) / 5 < 3
    assert len(page.run(SHOWN)) == 1
