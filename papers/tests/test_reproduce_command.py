"""`seepage reproduce`, run as a user runs it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import assemble
from benchmarks.papers import record
from PIL import Image
from typer.testing import CliRunner

from seepage.cli import app, main
from seepage.cli._commands import Audit
from seepage.cli._parser import _list_options
from seepage.report._contact_sheet import GAP, LEFT, LINE, MARGIN
from seepage_papers import pictures, reading
from seepage_papers.command import Reproduce
from seepage_papers.pictures import TILE
from seepage_papers.reading import names
from seepage_papers.table import PAPERS

TINY = """
title = "Inputs in closed form"
paper = "geiping2020inverting"
place = "Proposition 1"
claim = "The input of a fully connected layer can be computed."

[scenario]
data = { name = "photos", people = "$people", start = 0 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }

[[rows]]
label = "mlp"

[[columns]]
label = "no defense"

[[columns]]
label = "noise"
defenses = [[{ name = "AddGaussian", std = 1.0 }]]
why = "Noise hides it."

[[published]]
measure = "l1_sum_002"
values = [[0.0, "-"]]

[scale.smoke]
people = 2
"""

TWO_ROWS = TINY.replace(
    '[[columns]]\nlabel = "no defense"',
    '[[rows]]\nlabel = "wide"\nmodels = { hidden = [16] }\n\n[[columns]]\nlabel = "no defense"',
).replace('[[0.0, "-"]]', '[[0.0, "-"], [0.0, "-"]]')


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("SEEPAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def reproduce(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_an_option_that_an_audit_has_too_is_the_same():
    theirs, ours = (
        {entry.field.name: (entry.type, entry.option) for entry in _list_options(command)}
        for command in (Audit, Reproduce)
    )
    shared = theirs.keys() & ours.keys()
    assert shared == {
        *("out", "device", "workers", "resume", "overwrite", "dry_run", "plain", "quiet")
    }
    for name in shared - {"out"}:
        assert theirs[name] == ours[name]


def test_the_command_is_in_the_help_and_can_be_asked_for_help():
    assert "reproduce" in CliRunner().invoke(app, ["--help"]).output
    asked = reproduce("--help")
    assert asked.exit_code == 0
    assert "seepage reproduce" in asked.output


def test_the_code_of_its_page_runs(capsys):
    page = Path(__file__).parents[1] / "docs" / "reproduce.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    assert "cases" in capsys.readouterr().out


def test_the_list_names_everything_with_its_cost():
    listed = " ".join(reproduce("--list").output.split())
    assert all(name in listed for name in names())
    assert "160 cases, 20M steps" in listed, "003-table1 in full"
    assert all(listed.count(told[:20]) == 1 for told in PAPERS.values())


def test_the_rank_metric_is_the_papers_to_the_last_digit(place):
    result = reproduce("004-table1", "--quiet")
    assert result.exit_code == 0, result.output
    lines = json.loads((place / "004-table1-smoke" / "table.json").read_text())["lines"]
    printed = [line for line in lines if line["paper"] is not None]
    assert len(printed) == 8 + 6 + 2 + 8
    assert all(line["difference"] == 0 for line in printed)
    assert "no number here says anything" not in result.output
    assert result.output.count("This holds") == 2, "counts are the paper's at every scale"
    rehearsed = reproduce("004-table1", "--dry-run")
    assert rehearsed.output == "004-table1 (smoke): a count; it needs no audit\n"


@pytest.fixture
def tiny(place, monkeypatch):
    folder = place / "papers"
    folder.mkdir()
    (folder / "999-table0.toml").write_text(TINY)
    monkeypatch.setattr(reading, "FOLDER", folder)


def test_a_table_puts_ours_beside_the_papers(tiny, place):
    result = reproduce("999-table0", "--plain")
    assert result.exit_code == 0, result.output
    found = json.loads((place / "999-table0-smoke" / "table.json").read_text())
    free, noisy = found["lines"]
    assert (free["row"], free["column"], free["people"]) == ("mlp", "no defense", 2)
    assert free["paper"] == 0.0
    assert 0 < free["seepage"] == free["difference"] < 1.0
    assert free["interval"][0] <= free["seepage"] <= free["interval"][1]
    assert noisy["seepage"] > 100
    assert (noisy["paper"], noisy["difference"], noisy["why"]) == (None, None, "Noise hides it.")
    table = (place / "999-table0-smoke" / "table.md").read_text()
    assert "| mlp, noise | not printed |" in table
    assert "Noise hides it." in result.output


def test_a_row_or_a_column_can_be_made_alone(tiny, place):
    (reading.FOLDER / "999-table0.toml").write_text(TWO_ROWS)
    alone = reproduce("999-table0", "--row", "wide", "--column", "no defense", "--plain")
    assert alone.exit_code == 0, alone.output
    found = json.loads((place / "999-table0-smoke" / "table.json").read_text())
    assert {(line["row"], line["column"]) for line in found["lines"]} == {("wide", "no defense")}
    unknown = reproduce("999-table0", "--row", "wider")
    assert "unknown row 'wider'" in str(unknown.exception)
    assert "known: mlp, wide" in str(unknown.exception)
    unknown = reproduce("999-table0", "--column", "wide")
    assert "unknown column 'wide' (known: no defense, noise)" in str(unknown.exception)


def test_a_table_can_be_put_together_from_the_cells_of_others(tiny, place, monkeypatch):
    (reading.FOLDER / "999-table0.toml").write_text(TWO_ROWS)
    for row in ("mlp", "wide"):
        record("999-table0", "smoke", "cpu", None, place / row, (row,))
    monkeypatch.setattr(assemble, "FOLDER", place)
    kept = [str(place / row / "999-table0-smoke.json") for row in ("mlp", "wide")]
    monkeypatch.setattr(sys, "argv", ["assemble", "999-table0", "--of", *kept])
    assemble.main()
    whole = json.loads((place / "999-table0-smoke.json").read_text())
    parts = [json.loads(Path(one).read_text())["lines"] for one in kept]
    assert whole["lines"] == [*parts[0], *parts[1]]
    assert whole["note"].startswith("Put together from cells of 999-table0")
    (reading.FOLDER / "999-table0.toml").write_text(TWO_ROWS.replace("[8]", "[9]"))
    monkeypatch.setattr(sys, "argv", ["assemble", "999-table0", "--of", *kept[:1]])
    (place / "mlp" / "999-table0-smoke.json").write_text(json.dumps({**whole, "lines": []}))
    with pytest.raises(SystemExit, match="found none"):
        assemble.main()


def test_what_it_leaves_is_an_ordinary_audit_that_can_be_run_again(tiny, place):
    reproduce("999-table0", "--out", "here")
    files = {path.name for path in (place / "here").iterdir()}
    made = {"figure.html", "pictures.png", "table.json", "table.md"}
    assert files == {"audit", "spec.toml", *made}
    again = CliRunner().invoke(app, ["audit", "here/spec.toml", "--out", "here/audit", "--resume"])
    assert again.exit_code == 0
    assert "4 cases are done, 0 to run" in again.output
    resumed = reproduce("999-table0", "--out", "here", "--resume")
    assert "4 cases are done, 0 to run" in resumed.output


def test_the_figure_is_one_page_with_the_papers_value_as_a_ring(tiny, place):
    reproduce("999-table0")
    page = (place / "999-table0-smoke" / "figure.html").read_text()
    assert page.count('class="dot paper"') == 1
    assert "Inputs in closed form" in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_pictures_show_each_column_with_the_truth_above_what_came_back(tiny, place):
    reproduce("999-table0", "--out", "here")
    wide = LEFT + 2 * (TILE + GAP) + MARGIN
    with Image.open(place / "here" / "pictures.png") as drawn:
        assert drawn.size[0] == MARGIN + 2 * wide, "two columns, two people"
        sheet = np.asarray(drawn.convert("RGB"), dtype=float)

    def tile(row, column, person):
        x = MARGIN + column * wide + LEFT + person * (TILE + GAP)
        y = MARGIN + LINE + GAP + row * (TILE + LINE + GAP)
        return sheet[y : y + TILE, x : x + TILE]

    for person in range(2):
        truth = tile(0, 0, person)
        assert np.array_equal(truth, tile(0, 1, person))
        assert np.abs(truth - tile(1, 0, person)).mean() < 2, "computed, and so the same"
        assert np.abs(truth - tile(1, 1, person)).mean() > 20, "hidden by noise"
    assert np.abs(tile(0, 0, 0) - tile(0, 0, 1)).mean() > 10, "two different people"


def test_pictures_are_dropped_until_the_file_is_small(tiny, place, monkeypatch):
    sizes = []
    for most in (10**9, 1):
        monkeypatch.setattr(pictures, "BYTES", most)
        reproduce("999-table0", "--out", "here", "--overwrite")
        with Image.open(place / "here" / "pictures.png") as drawn:
            sizes.append(drawn.size[0])
    assert sizes[0] - sizes[1] == 2 * (TILE + GAP), "one person less in either column"


def test_what_was_interrupted_is_a_table_of_the_cells_that_are_done(tiny, place, monkeypatch):
    module = sys.modules["seepage.audit._run_case"]
    run_case = module.run_case

    def interrupted(case):
        if case.client.chain.links:
            raise KeyboardInterrupt
        return run_case(case)

    monkeypatch.setattr(module, "run_case", interrupted)
    assert record("999-table0", "smoke", "cpu", None, place / "kept") == 0
    made = json.loads((place / "kept" / "999-table0-smoke.json").read_text())
    assert "time limit" in made["stopped"]
    assert [line["people"] for line in made["lines"]] == [2, 0]


def test_a_dry_run_runs_nothing(tiny, place):
    result = reproduce("999-table0", "--dry-run")
    assert result.exit_code == 0
    assert "4 cases to run, about" in result.output
    assert not (place / "999-table0-smoke").exists()


def test_a_wrong_name_or_wish_is_one_sentence(tiny, monkeypatch, capsys):
    for arguments, said in (
        (["999-table1"], "unknown reproduction '999-table1'; did you mean '999-table0'?"),
        (["999-table0", "--scale", "paper"], "unknown scale 'paper'"),
        (["999-table0", "--resume", "--overwrite"], "expected --resume or --overwrite, got both"),
        (["999-table0", "--out", "papers/999-table0.toml/out"], "choose another --out"),
    ):
        monkeypatch.setattr(sys, "argv", ["seepage", "reproduce", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


def test_a_number_that_is_missing_is_told_by_the_exit_code(tiny, place):
    broken = TINY.replace('models = { name = "mlp", hidden = [8] }', 'models = { name = "lenet" }')
    (place / "papers" / "999-table0.toml").write_text(broken)
    result = reproduce("999-table0", "--quiet")
    assert result.exit_code == 1
    found = json.loads((place / "999-table0-smoke" / "table.json").read_text())
    assert found["lines"][0]["seepage"] is None
    assert len(found["failed"]) == 1
    assert "Failed: " in (place / "999-table0-smoke" / "table.md").read_text()


# Training, choosing and flipping; signals; a batch whose labels are not known.
@pytest.mark.parametrize("name", [pytest.param("003-fig8", marks=pytest.mark.slow), "002-fig1"])
def test_a_published_figure_runs_at_smoke(name, data_root, place, monkeypatch, request):
    if name == "003-fig8":
        request.getfixturevalue("narrow_training")
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    result = reproduce(name, "--quiet", "--device", "cpu")
    assert result.exit_code == 0, result.output
    found = json.loads((place / f"{name}-smoke" / "table.json").read_text())
    assert found["failed"] == []
    assert all(line["seepage"] is not None for line in found["lines"])
