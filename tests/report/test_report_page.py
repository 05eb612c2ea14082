"""The page as a file: whole by itself, readable by everybody, and deaf to hostile names."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from tests.report.records import make_record

from seepage.audit import AuditResult, Ceiling, Choice, Planned
from seepage.audit._folder import case_file, inputs_file
from seepage.audit._record import Control
from seepage.core._construct import Component
from seepage.core._whole_file import seal
from seepage.report import (
    as_csv,
    as_json,
    audit_markdown,
    audit_page,
    comparison_page,
    missing,
    result_rows,
)
from seepage.report.page._people_section import PEOPLE, WRITTEN
from seepage.report.page._picture import LARGEST, picture
from seepage.scoring._identification import Identification

FIRST = Identification(1, 99, "same label", 9.0, 3.0, True, 5e3, 1e3, 2e4)
LAST = Identification(100, 99, "same label", -1.0, 3.0, False, 1.0, 1.0, 1.0)
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror=hacked=1>'\"&"


def record(person=0, *, psnr=30.0, case="", **changed):
    plain = {
        "people": (person,),
        "attack": Component("inverting_gradients", {"steps": 4}),
        "scores": {"psnr": (psnr,), "ssim": (0.6,), "exact": (0.0,)},
        "baselines": {"mean": {"psnr": (11.0,)}, "draw": {"psnr": (9.0,)}},
        "certificate": {"residual": 1e-7, "unique": True},
        "effort": {"steps": 4, "restarts": 1, "seconds": 1.0, "device": "cpu"},
        "case": case,
        "truth": f"truth-{person}",
        "identification": (FIRST if psnr >= 20 else LAST,),
        "control": Control(bare=(3, 3, 0.01), negative=(0, 4, 0.04)),
    }
    return make_record(**plain | changed)


@pytest.fixture
def audit(tmp_path):
    """An audit of these records, its tensors on disk; every guess is the negative of the truth."""

    def audit(records, *, shape=(3, 8, 8), planned=None, kept=True, **changed):
        for folder in ("cases", "inputs"):
            (tmp_path / folder).mkdir(exist_ok=True)
        named = [replace(r, case=f"case-{number}") for number, r in enumerate(records)]
        for each in named if kept else ():
            truth = torch.rand(1, *shape, generator=torch.Generator().manual_seed(each.people[0]))
            objective = torch.logspace(0, -3, 5, dtype=torch.float64)
            inputs_file(tmp_path, each.truth).write_bytes(seal({"inputs": truth}))
            held = {"guess": 1 - truth, "objective": objective}
            case_file(tmp_path, each.case).write_bytes(seal(held))
        count = len(named) if planned is None else planned
        plain = AuditResult(
            path=tmp_path,
            title="Tiny",
            spec="title = 'Tiny'",
            environment={"python": "3.11"},
            planned=tuple(Planned(f"case-{n}", "", {}) for n in range(count)),
            records=tuple(named),
        )
        return replace(plain, **changed)

    return audit


class Page(HTMLParser):
    """The elements of a page, each with its attributes, and its text outside scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self._open = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._open):
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def test_the_first_screen_is_the_verdict_with_its_assumptions(audit):
    page = Page(audit_page(audit([record(0), record(1, psnr=12.0, scores={"psnr": (12.0,)})])))
    first = page.text[: page.text.index("Person by person")]
    # A number stays on the line of the word that it counts.
    assert "1\xa0of\xa02\xa0people were identified: 1\xa0recognisable." in first
    first = first.replace("\xa0", " ")
    assert "the update and the labels." in first
    assert "first among the strangers, though an eye may see nothing" in first
    assert "1 of N + 1 cases" in first
    assert "Negative control: in guesses made from other updates, 0 of 4 people" in first
    assert "2 cases, 8 search steps" in first


def test_the_page_needs_nothing_else(audit):
    text = audit_page(audit([record(0)]))
    page = Page(text)
    assert len(page.all("script")) == 2
    assert not page.all("link")
    sources = [a[key] for _, a in page.elements for key in ("src", "href", "action") if key in a]
    assert sources
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert "http://" not in text
    assert "https://" not in text
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_everybody_can_read_the_page(audit):
    choices = [Choice("a", 10.0, 0.5), Choice("b", 30.0, 0.9)]
    bound = replace(
        record(0), attack=Component("CramerRao"), scores={}, bound=Ceiling((0.01,), "lower", "rmse")
    )
    told = audit([record(0), record(1)], bounds=(bound,))
    page = Page(audit_page(told, choices=choices))
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert all(image["alt"].strip() for image in page.all("img"))
    assert all("scope" in cell for cell in page.all("th"))
    drawings = [a for a in page.all("svg") if a.get("role") == "img"]
    assert len(drawings) >= 3
    assert all(drawing["aria-label"].strip() for drawing in drawings)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    anchors = [a["href"][1:] for a in page.all("a") if "=" not in a["href"]]
    assert set(anchors) <= set(ids)
    assert page.all("a")[0] == {"class": "skip", "href": "#main"}
    for section in ("people", "defenses", "tradeoff", "bounds", "convergence", "records", "rerun"):
        assert section in ids


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "paper"])
def test_every_text_colour_has_the_contrast_of_wcag_aa(scheme):
    style = (files("seepage.report.page") / "style.css").read_text()
    palette = dict(re.findall(r"--([\w-]+): (#\w{6});", style.split(":root {")[scheme + 1]))
    pairs = [(ink, "paper") for ink in ("ink", "faint", "leak", "trace", "safe", "link")]
    pairs += [(ink, f"{ink}-tint") for ink in ("leak", "trace", "safe")]
    pairs += [("ink", "trace-tint"), ("faint", "raised")]
    for text, ground in pairs:
        light, dark = sorted([luminance(palette[text]), luminance(palette[ground])])[::-1]
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_hostile_names_stay_text(audit):
    part = Component(HOSTILE, {HOSTILE: HOSTILE})
    names = {"data": HOSTILE, "model": HOSTILE, "defense": (part,), "attack": part}
    named = record(0, **names, threat=part)
    broken = replace(named, people=(1,), scores={}, baselines={}, error=HOSTILE, truth="other")
    hostile = audit(
        [named, replace(named, seed=1, local=part), broken],
        title=HOSTILE,
        spec=HOSTILE,
        environment={"python": HOSTILE},
    )
    for text in (audit_page(hostile), comparison_page(hostile, hostile)):
        page = Page(text)
        assert not [a for _, a in page.elements if "onerror" in a]
        assert len(page.all("script")) <= 2
        assert HOSTILE in page.text
    quoted = audit_markdown(hostile)
    assert "<script" not in quoted.replace("\\<", "")
    [row, _] = [line for line in quoted.splitlines() if line.startswith("| \\<")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 11


def test_the_script_gets_every_row_and_the_page_the_worst(audit):
    records = [record(n, psnr=20.0 + n / 10) for n in range(WRITTEN + 30)]
    text = audit_page(audit(records, kept=False))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))
    assert len(data["rows"]) == WRITTEN + 30
    assert text.count('<tr><th scope="row">photos #') == WRITTEN
    first = [data["words"][cell] for cell in data["rows"][0]]
    assert first[0] == f"photos #{WRITTEN + 29}"
    assert "42.9" in first


def test_many_people_leave_pictures_to_the_worst_off_and_the_page_says_so(audit):
    records = [record(n, psnr=20.0 + n) for n in range(PEOPLE + 6)]
    page = Page(audit_page(audit(records)))
    assert f"Shown are the {PEOPLE} worst-off of {PEOPLE + 6} people" in page.text
    pictured = [a["alt"] for a in page.all("img")]
    assert f"private input of photos #{PEOPLE + 5}" in pictured
    assert "private input of photos #0" not in pictured


def test_a_persons_truth_is_in_its_card_once(audit):
    defenses = ((), (Component("Sign"),), (Component("Prune", {"ratio": 0.9}),))
    records = [record(0, defense=defense) for defense in defenses]
    page = Page(audit_page(audit(records)))
    truths = [a["src"] for a in page.all("img") if a["alt"] == "private input of photos #0"]
    assert len(truths) == 2, "once beside the verdict, once in the card"
    assert len(set(truths)) == 1


def test_pixels_survive_and_large_images_are_reduced():
    import base64
    import io

    from PIL import Image

    def drawn(image):
        source = re.search(r'base64,([^"]+)"', picture(image, alt="a")).group(1)
        return Image.open(io.BytesIO(base64.b64decode(source)))

    colours = torch.tensor([0.0, 0.2, 1.0]).reshape(3, 1, 1).expand(3, 4, 5)
    assert drawn(colours).getpixel((4, 3)) == (0, 51, 255)
    assert drawn(torch.full((1, 2, 2), torch.nan)).getpixel((0, 0)) == (0, 0, 0)
    assert drawn(torch.rand(3, 500, 250)).size == (LARGEST // 2, LARGEST)


def test_signals_are_drawn_as_lines(audit):
    text = audit_page(audit([record(0)], shape=(2, 30)))
    page = Page(text)
    assert not page.all("img")
    drawings = [a for a in page.all("svg") if a.get("class") == "signal"]
    assert {a["aria-label"] for a in drawings} >= {"private input of photos #0"}
    assert "The one person attacked was identified: recognisable" in page.text
    beat = picture(torch.tensor([[0.0, 1.0, 0.0]]), alt="beat")
    assert 'points="2.0,36.0 48.0,4.0 94.0,36.0"' in beat


def test_a_guessed_signal_is_drawn_over_the_truth_to_the_same_scale():
    drawn = picture(torch.tensor([[0.0, 0.5]]), alt="beat", over=torch.tensor([[0.0, 1.0]]))
    under, over = re.findall(r"<polyline[^>]+>", drawn)
    assert 'class="under" points="2.0,36.0 94.0,4.0"' in under
    assert 'points="2.0,36.0 94.0,20.0"' in over


def test_a_report_of_a_broken_audit_says_what_is_missing(audit):
    broken = replace(record(1), scores={}, error="it does not fit")
    unfinished = audit([record(0), broken], planned=5, damaged=(Path("x.safetensors"),))
    (unfinished.path / "cases" / "case-0.safetensors").write_bytes(b"truncated")
    lacks = "3 cases of 5 not run yet, 1 case failed and 1 file missing or altered"
    words = f"Not complete: {lacks}."
    assert missing(unfinished) == words
    page = Page(audit_page(unfinished))
    assert words in page.text
    assert "not kept" in page.text
    assert "failed: it does not fit" in page.text
    assert missing(audit([record(0)])) is None


def test_a_report_of_an_audit_without_any_result_is_a_page(audit):
    page = Page(audit_page(audit([], planned=3)))
    assert "There is no result yet." in page.text
    assert "3 cases of 3 not run yet" in page.text


def test_flat_rows_name_everything_a_record_has(audit):
    failed = replace(record(1), scores={}, baselines={}, effort={}, error="no")
    rows = result_rows([record(0), failed])
    assert rows[0]["psnr"] == 30.0
    assert rows[0]["level"] == "recognisable"
    assert rows[0]["mean_psnr"] == 11.0
    assert rows[1]["error"] == "no"
    header, first, second = as_csv(rows).splitlines()
    local = "local_optimizer,local_steps,local_epochs,local_batch_size,local_lr,local_momentum"
    named = f"local,local_name,{local},defense,defense_name,threat,attack,attack_name"
    assert header.startswith(
        f"data,person,sampling,model,batch_size,{named},seed,status,level,rank,strangers,gallery"
    )
    assert "photos,0," in first
    assert second.endswith(",no")


def test_large_pictures_stop_before_the_page_grows_too_large(audit, monkeypatch):
    monkeypatch.setattr("seepage.report.page._people_section.BYTES", 1000)
    page = Page(audit_page(audit([record(n, psnr=20.0 + n) for n in range(4)])))
    assert "Shown are the 1 worst-off of 4 people" in page.text
    assert "private input of photos #3" in [a["alt"] for a in page.all("img")]


def test_infinity_is_a_word_in_json():
    assert json.loads(as_json({"a": [float("inf"), -float("inf"), 1.0, "x", None, True]})) == {
        "a": ["inf", "-inf", 1.0, "x", None, True]
    }


def test_dots_stand_for_everybody_and_never_hide_the_worst_off(audit):
    records = [record(n, psnr=20.0 + n / 100) for n in range(450)]
    page = Page(audit_page(audit(records, kept=False)))
    dots = [a for a in page.all("circle") if a["class"].startswith("dot")]
    assert len(dots) == 150
    assert "450 of 450 people identified, one dot for 3" in page.text
    places = [float(a["cx"].removesuffix("%")) for a in dots]
    assert places == sorted(places), "the worst-off is drawn last"
    assert places[-1] == pytest.approx(100 * 24.49 / 60, abs=0.01)
    assert len({a["cy"] for a in dots}) > 50
