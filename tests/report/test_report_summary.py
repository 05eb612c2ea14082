"""Records to rows, table and contact sheet: the worst-off person first."""

import io
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tests.report.records import make_record

import seepage as sp
from seepage.audit import Outcome
from seepage.core._construct import Component
from seepage.report import decibels, defense_words, leak_table, save_contact_sheet, summarise
from seepage.report._contact_sheet import (
    GAP,
    LEFT,
    LINE,
    MARGIN,
    PAPER,
    SHOWN,
    TILE,
    PictureStrip,
    SheetBlock,
    _make_blocks,
    _wrap_words,
    draw,
)
from seepage.scoring._identification import Identification


def links(*defenses):
    """Defenses as the values that records hold."""
    return tuple(map(Component.of, defenses))


FIRST = Identification(1, 99, "same label", 9.0, 3.0, True, 5e3, 1e3, 2e4)


def record(psnr, *, people=None, exact=None, baseline=None, seconds=1.0, **changed):
    """A record of these scores, one per person."""
    people = tuple(people or range(len(psnr)))
    base = tuple(baseline or [11.0] * len(psnr))
    plain = {
        "people": people,
        "scores": {
            "psnr": tuple(psnr),
            "ssim": tuple(0.5 + person / 100 for person in people),
            "exact": tuple(exact or [0.0] * len(psnr)),
        },
        "baselines": {"mean": {"psnr": base}, "draw": {"psnr": tuple(b - 1 for b in base)}},
        "effort": {"steps": 0, "restarts": 0, "seconds": seconds, "device": "cpu"},
    }
    return make_record(**plain | changed)


def failed(reason="it does not fit", **changed):
    return replace(record([0.0]), scores={}, baselines={}, effort={}, error=reason, **changed)


def test_rows_are_ordered_by_their_worst_off_person_not_by_their_mean():
    rows = summarise(
        [
            record([20.0, 20.0, 20.0], defense=links(sp.Clip(1.0))),
            record([5.0, 5.0, 50.0], defense=links(sp.Prune(0.9))),
            record([math.inf], defense=()),
            failed(defense=links(sp.Sign())),
        ]
    )
    assert [defense_words(row.defense) for row in rows] == [
        "no defense",
        "Prune 0.9",
        "Clip C=1",
        "Sign",
    ]


def test_people_and_seeds_of_one_scenario_share_a_row():
    [row] = summarise(
        [
            record([30.0], people=[0], exact=[1.0], seconds=0.5),
            record([20.0], people=[1], baseline=[12.0], seconds=0.5),
            record([40.0], people=[2], baseline=[13.0], seconds=1.0),
            record([10.0], people=[0], seed=7),
        ]
    )
    assert (row.people, row.worst, row.worst_person) == (3, 40.0, 2)
    assert row.median == 30.0, "over people: the best of two seeds counts"
    assert row.baseline == 13.0
    assert row.other["ssim"] == 0.52
    assert (row.exact, row.seconds, row.failed) == (1, 3.0, 0)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("data", "digits"),
        ("model", "lenet"),
        ("local", Component("FedAvg")),
        ("threat", Component("Threat", {"knows_labels": False})),
        ("attack", Component("dlg")),
        ("defense", (Component("Sign"),)),
    ],
)
def test_whatever_else_differs_makes_a_row_of_its_own(axis, value):
    rows = summarise([record([20.0]), record([30.0], **{axis: value})])
    assert getattr(rows[0], axis) == value
    assert len(rows) == 2


def test_batches_of_different_sizes_have_rows_of_their_own():
    rows = summarise([record([20.0]), record([30.0, 25.0])])
    assert [row.batch_size for row in rows] == [2, 1]
    text = rendered([record([20.0]), record([30.0, 25.0])], 80)
    assert "batch" in text
    assert "batch" not in rendered([record([20.0])], 80)


def test_a_failed_case_counts_as_failed_and_not_as_safe():
    [row] = summarise([record([20.0]), failed(people=(1,))])
    assert (row.people, row.failed, row.worst) == (1, 1, 20.0)


def test_a_group_without_any_result_has_no_worst_off_person():
    [row] = summarise([failed(), failed()])
    assert (row.people, row.failed, row.worst, row.worst_person) == (0, 2, -math.inf, None)


def test_a_person_without_a_score_was_attacked_but_has_no_part_in_the_median():
    [row] = summarise([record([None, 20.0])])
    assert (row.people, row.worst_person, row.median) == (2, 1, 20.0)


def rendered(records, width):
    text = io.StringIO()
    console = Console(file=text, width=width)
    console.print(leak_table(summarise(records), width=width))
    return text.getvalue()


BLIND = Component("Threat", {"knows_labels": False})
RECORDS = [
    record([20.0], defense=links(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.01))),
    record(
        [41.25, 31.0],
        exact=[1.0, 0.0],
        attack=Component("inverting_gradients", {"steps": 400}),
        identification=(FIRST, replace(FIRST, rank=40, recognisable=False)),
    ),
    failed(defense=links(sp.Sign())),
]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_fits_the_terminal_and_leads_with_the_worst_off(width):
    lines = rendered(RECORDS, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.index("41.2 #0") < text.index("20.0 #0") < text.index("failed")
    assert "inverting_gradients" in text
    assert "1/2" in text
    assert "11.0" in text


GRID = [
    record(
        [10.0 + number + 0.1 * size] * size,
        attack=Component(attack, {"steps": 400}),
        local=local,
        model=model,
        defense=links(*defense),
    )
    for number, (attack, local, model, defense) in enumerate(
        product(
            ("inverting_gradients", "rgap"),
            (Component("Gradient"), Component("FedAvg", {"steps": 2, "lr": 0.1})),
            ("mlp(hidden=(32,))", "lenet(classes=10)"),
            ((), (sp.Prune(0.9),)),
        )
    )
    for size in (1, 8)
]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_every_axis_has_a_column_and_no_number_is_cut(width):
    text = rendered(GRID, width)
    assert max(map(len, text.splitlines())) <= width
    for title in ("network", "attack", "batch", "client", "defense", "found", "worst-off"):
        assert width < 80 or title in text
    assert len(summarise(GRID)) == len(GRID)
    for row in summarise(GRID):
        assert text.count(f"{row.worst:.1f} #0") == 1
    assert ("no update" in text) == (width > 80)


def test_people_drawn_in_another_way_have_a_line_of_their_own():
    drawn, ordered = (record([20.0], sampling=how) for how in ("at random", "in order"))
    text = rendered([drawn, ordered], 80)
    assert [word in text for word in ("drawn", "at random", "in order")] == [True] * 3
    assert "drawn" not in rendered([drawn, drawn], 80)


def test_names_are_broken_between_words_and_not_inside_them():
    unaware = record(
        [18.0],
        attack=Component("unaware inverting_gradients", {"steps": 4}),
        defense=links(sp.Dropout(0.7)),
    )
    text = rendered([*RECORDS, unaware], 80)
    for word in ("photos", "unaware", "inverting_gradients", "Dropout 0.7", "defense", "found"):
        assert word in text


def test_whether_anybody_came_back_exactly_is_not_shown_where_nobody_asked():
    one = record([20.0])
    unasked = replace(one, scores={"psnr": one.scores["psnr"]})
    assert "exact" in rendered([one], 140)
    assert "exact" not in rendered([unasked], 140).lower()


def test_a_wide_table_also_names_model_metrics_and_time():
    narrow, wide = rendered(RECORDS, 80), rendered(RECORDS, 140)
    for word in ("network", "ssim", "seconds", "mlp(hidden=(8,))", "0.500"):
        assert word in wide
        assert word not in narrow


def test_what_an_unaware_attack_did_not_know_is_said_by_its_name():
    """A column of threats beside it would leave no room for anything else."""
    adapted = record([20.0], attack=Component("dlg", {"adaptive": True}))
    unaware = record([18.0], attack=Component("unaware dlg", {"adaptive": True}), threat=BLIND)
    shown = rendered([adapted, unaware], 80)
    assert "unaware dlg" in shown
    assert "adversary" not in shown
    assert "adversary" in rendered([adapted, record([18.0], threat=BLIND)], 80)


def test_what_clients_compute_is_shown_where_it_varies():
    same = rendered([record([20.0])], 140)
    varied = rendered(
        [record([20.0]), record([30.0], local=Component("FedAvg", {"steps": 4}))], 140
    )
    assert "FedAvg 4 steps" in varied
    assert "gradient" not in same


def test_a_network_is_shown_where_lines_would_be_the_same_without_it():
    two = [record([20.0]), record([30.0], model="lenet(classes=10)")]
    assert "lenet" in rendered(two, 80)
    other_attack = [record([20.0]), record([30.0], model="lenet()", attack=Component("dlg"))]
    assert "lenet" not in rendered(other_attack, 50)


def test_nobody_is_said_not_to_be_exact_where_that_was_not_measured():
    unmeasured = record([90.0], scores={"psnr": (90.0,)})
    [row] = summarise([unmeasured])
    assert row.exact is None
    assert rendered([unmeasured], 140).count("0/1") == 1, "nobody identified, nothing on exact"


def test_an_empty_table_renders():
    assert "What leaked" in rendered([], 80)


def test_values_are_written_for_people():
    assert (decibels(math.inf), decibels(-math.inf), decibels(12.34)) == ("exact", "-", "12.3 dB")
    assert defense_words(links(sp.Sign())) == "Sign"


def outcome(*pixels, psnr=30.0, people=None, channels=3, **changed):
    """One person per pixel value: a truth of that grey, and a guess of its negative."""
    truth = torch.stack([torch.full((channels, 4, 4), value) for value in pixels])
    kept = record([psnr] * len(pixels), people=people, **changed)
    return Outcome(kept, truth, 1 - truth)


def sheet_of(outcomes, path):
    assert save_contact_sheet(outcomes, path)
    with Image.open(path) as sheet:
        return sheet.convert("RGB")


def tile(sheet, *, row, column):
    """The colour in the middle of a tile of the first block."""
    x = MARGIN + LEFT + column * (TILE + GAP) + TILE // 2
    y = MARGIN + LINE + GAP + row * (TILE + LINE + GAP) + TILE // 2
    return sheet.getpixel((x, y))


def size_of(*, rows, columns, blocks=1, lines=1):
    width = MARGIN + blocks * (LEFT + columns * (TILE + GAP) + MARGIN)
    return width, MARGIN + lines * LINE + GAP + rows * (TILE + LINE + GAP) + MARGIN


def test_the_sheet_shows_the_truth_above_what_came_back_behind_each_defense(tmp_path):
    outcomes = [
        outcome(0.0, people=[0]),
        outcome(0.2, people=[1]),
        outcome(0.0, people=[0], defense=links(sp.Clip(1.0))),
        outcome(0.2, people=[1], defense=links(sp.Clip(1.0))),
    ]
    sheet = sheet_of(outcomes, tmp_path / "sheet.png")
    assert sheet.size == size_of(rows=3, columns=2)
    greys = [[tile(sheet, row=r, column=c) for c in range(2)] for r in range(3)]
    assert greys[0] == [(0, 0, 0), (51, 51, 51)]
    assert greys[1] == greys[2] == [(255, 255, 255), (204, 204, 204)]
    assert len(sheet.getcolors(100_000)) > 10, "headings and captions are written"


def test_a_failed_case_is_an_empty_frame(tmp_path):
    missing = outcome(0.0, people=[1])
    missing = replace(missing, guess=None, record=failed(people=(1,)))
    sheet = sheet_of([outcome(0.0), missing], tmp_path / "sheet.png")
    assert sheet.size == size_of(rows=2, columns=2)
    assert tile(sheet, row=1, column=1) == PAPER


def test_two_scenarios_stand_side_by_side(tmp_path):
    outcomes = [outcome(0.0), outcome(0.0, data="digits", channels=1)]
    sheet = sheet_of(outcomes, tmp_path / "sheet.png")
    assert sheet.size == size_of(rows=2, columns=1, blocks=2, lines=2)


def test_a_large_batch_shows_its_first_people(tmp_path):
    sheet = sheet_of([outcome(*[0.1] * (SHOWN + 3))], tmp_path / "sheet.png")
    assert sheet.size == size_of(rows=2, columns=SHOWN)


def test_every_pixel_of_a_large_image_counts_and_signals_are_lines():
    checked = torch.tensor([0.0, 1.0]).repeat(3, 2 * TILE, TILE)
    beat = torch.zeros(1, 50)
    beat[0, 25] = 1.0
    drawn = draw([SheetBlock("both", (PictureStrip("", (checked, beat), ("", "")),))])
    grey = np.asarray(drawn)[MARGIN + LINE + GAP :][:TILE, MARGIN + LEFT :].astype(int)
    assert np.abs(grey[:, :TILE] - 128).max() <= 1
    inked = grey[1:-1, TILE + GAP + 1 : 2 * TILE + GAP - 1, 0] < 100
    highest = inked.argmax(axis=0)[3:-3]
    assert highest.argmin() == pytest.approx(len(highest) / 2, abs=3), "its beat is in the middle"
    assert highest.min() < 5
    assert np.median(highest) > TILE - 10


def test_lines_of_one_attack_with_several_numbers_of_steps_show_them():
    searches = [
        record([20.0 + steps / 100], attack=Component("search", {"steps": steps}))
        for steps in (100, 200)
    ]
    assert "steps" in rendered(searches, 80)
    assert re.search(r"search +200 ", rendered(searches, 80))
    assert "steps" not in rendered(searches[:1], 80)


def test_long_titles_and_labels_stay_beside_each_other():
    words = "photos, inverting_gradients on a network with a long name, FedAvg 4 steps, seed 7"
    blank = PictureStrip(
        "Gaussian noise then clipping then more noise", (torch.ones(1, 8, 8),), ("",)
    )
    drawn = np.asarray(draw([SheetBlock(words, (blank,))] * 2))[:, :, 0]
    wide = (drawn.shape[1] - MARGIN) // 2
    assert drawn[:, MARGIN + wide - MARGIN : MARGIN + wide].min() == 255, "between the titles"
    label = drawn[-(TILE + LINE + GAP + MARGIN) :, MARGIN + LEFT - GAP : MARGIN + LEFT]
    assert label.min() == 255, "between label and picture"


def test_greek_letters_are_spelled_out_in_pictures():
    label = defense_words(links(sp.AddGaussian(0.5)))
    assert _wrap_words(label, width=500, size=12) == ["Gaussian noise sigma=0.5"]


def test_blocks_with_the_same_title_are_told_apart_by_what_differs():
    two = [replace(outcome(0.0), record=record([30.0], seed=seed)) for seed in (0, 1)]
    titles = [block.heading for block in _make_blocks(two)]
    assert titles == [f"photos, analytic_fc on mlp(hidden=(8,)), seed {seed}" for seed in (0, 1)]


def test_signals_leave_no_sheet(tmp_path):
    beats = torch.zeros(1, 1, 30)
    only = Outcome(record([30.0]), beats, beats)
    assert not save_contact_sheet([only], tmp_path / "sheet.png")
    assert not save_contact_sheet([], tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []


def test_signals_are_left_out_of_a_sheet_of_images(tmp_path):
    beats = torch.zeros(1, 1, 30)
    both = [outcome(0.0), Outcome(record([30.0], data="ecg"), beats, beats)]
    assert sheet_of(both, tmp_path / "sheet.png").size == size_of(rows=2, columns=1, lines=2)
