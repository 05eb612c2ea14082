"""The pages of results: what falls short of a paper, why, and where a run leaves its files."""

import json
import re
import sys

import pytest
from benchmarks import paper_page, papers, results_page, smoke
from benchmarks.provenance import RESULTS

from seepage_papers.judge import claims
from seepage_papers.reading import load_table, names
from seepage_papers.reproduction import different
from seepage_papers.shortfall import attacks_alone, shortfalls


def line(row, found, *, measure="psnr", statistic="mean"):
    """A recorded number beside a printed 20."""
    kind = {"measure": measure, "statistic": statistic}
    return {"row": row, "column": "", **kind, "seepage": found, "paper": 20.0}


@pytest.mark.parametrize(
    ("measure", "found", "short"),
    [
        ("psnr", 19.1, False),
        ("psnr", 18.9, True),
        ("psnr", 50.0, False),
        ("lpips", 20.02, False),
        ("lpips", 20.04, True),
        ("lpips", 10.0, False),
        ("l1_sum_002", 21.9, False),
        ("l1_sum_002", 22.1, True),
        ("psnr", None, True),
    ],
)
def test_a_cell_that_falls_short_has_its_cause_or_says_that_it_has_none(
    measure, found, short, small_table
):
    table = small_table(measure)
    assert "cause" not in table.cells("smoke")[0].scenario
    lines = [line(row, found, measure=measure) for row in ("3 steps", "b")]
    missed = shortfalls(table, {"lines": lines, "values": {"steps": 3}})
    told = [(one.line["row"], one.cause) for one in missed]
    assert told == ([("3 steps", "Few steps."), ("b", "cause not known")] if short else [])


def test_a_spread_is_never_too_small(small_table):
    table = small_table()
    spread = line("b", 1.0, statistic="deviation")
    assert shortfalls(table, {"lines": [spread], "values": {"steps": 3}}) == []


@pytest.mark.parametrize(
    ("measure", "counts"), [("psnr", True), ("feature_error", True), ("training_loss", False)]
)
def test_what_a_training_costs_is_no_number_of_an_attack(measure, counts):
    assert attacks_alone(line("b", 1.0, measure=measure)) == counts
    assert not attacks_alone({**line("b", 1.0, measure=measure), "paper": None})


def test_a_run_leaves_its_result_and_its_pictures_where_it_is_told(
    data_root, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SEEPAGE_CACHE", str(tmp_path / "cache"))
    asked = ["002-fig4", "--scale", "smoke", "--device", "cpu", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["papers", *asked])
    assert papers.main() == 0
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"002-fig4-smoke.json", "002-fig4-smoke.png"}
    assert (tmp_path / "out" / "002-fig4-smoke.png").stat().st_size < 300_000
    written = json.loads((tmp_path / "out" / "002-fig4-smoke.json").read_text())
    assert str(tmp_path) not in written["command"]


def written(monkeypatch, folder, **runs):
    """The pages of these runs alone: that of all claims, and that of each paper by its number."""
    for name, run in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(run))
    monkeypatch.setattr(results_page, "FOLDER", folder)
    return {path.stem: text for path, text in results_page.pages().items()}


def kept(name):
    return json.loads((RESULTS / "papers" / f"{name}.json").read_text())


def test_the_pages_show_a_run_with_verdict_shortfall_cause_and_pictures(tmp_path, monkeypatch):
    run = {**kept("002-table6f-paper"), "scale": "small"}
    made = written(monkeypatch, tmp_path, **{"002-table6f-small": run})
    first, paper = made["results"], made["002"]
    assert f"Of {len(claims())} claims, 0 hold, 0 do not hold," in first
    beaten = (
        r"\| beaten \| \[With fewer than 12 filters an image does not come back\.\]"
        r"\(results/002\.md#002-table6f\) \| 0\.\d+ \|"
    )
    told = re.search(
        beaten + r" 135 \| -29\.8 \| small \| \[(\d+)\]\(results/002\.md#causes\)", first
    )
    assert told
    assert f"\n{told[1]}. The gradient of the filters gives equations too" in paper
    short = re.search(r"\| 1 filter \| 1019\.\d+ / 728\.00 \(usual 0\.33\) \\\[(\d+)\\\]", paper)
    assert f"\n{short[1]}. One filter gives equations of rank 330" in paper
    assert paper.count("The gradient of the filters gives equations too") == 1
    assert "](002-table6f-small.png)" in paper
    assert "**Scale `small`.**" in paper
    assert "**Scale `paper`.**" not in paper
    assert "| 002-table6f | Filters of one convolution that an image needs" in first
    assert "Of 5 numbers that the papers print for attacks, 1 are missed" in first
    assert "Of these, 0 are *reached*" in first


def test_a_number_is_counted_once_by_the_largest_run(tmp_path, monkeypatch):
    large = kept("002-table6f-paper")
    small = {**large, "scale": "small", "lines": [{**n, "seepage": None} for n in large["lines"]]}
    made = written(monkeypatch, tmp_path, **{"002-table6f-small": small})
    assert "Of 5 numbers that the papers print for attacks, 5 are missed" in made["results"]
    made = written(monkeypatch, tmp_path, **{"002-table6f-paper": large})
    assert "Of 5 numbers that the papers print for attacks, 1 are missed" in made["results"]


def test_a_missed_number_is_reached_by_an_experiment_or_in_part(tmp_path, monkeypatch):
    made = written(monkeypatch, tmp_path, **{"001-table2-small": kept("001-table2-small")})
    assert "48 numbers that the papers print for attacks, 45 are missed" in made["results"]
    assert "Of these, 45 are *reached*" in made["results"]
    alone = kept("003-fig4-small")
    made = written(monkeypatch, tmp_path, **{"003-fig4-small": alone})
    assert "52 numbers that the papers print for attacks, 46 are missed" in made["results"]
    assert "Of these, 46 are *reached*" in made["results"]
    for number in alone["lines"]:
        number["each"] = {}
    made = written(monkeypatch, tmp_path, **{"003-fig4-small": alone})
    assert "Of these, 45 are *reached*" in made["results"]


def test_a_claim_is_judged_by_a_smaller_run_if_the_largest_lacks_its_cells(tmp_path, monkeypatch):
    small = kept("002-fig5-small")
    digits = [line for line in small["lines"] if "digits" in line["row"]]
    large = {**small, "scale": "paper", "lines": digits}
    made = written(monkeypatch, tmp_path, **{"002-fig5-small": small, "002-fig5-paper": large})
    told = [line for line in made["results"].splitlines() if "#002-fig5) |" in line]
    assert any("Eight digits" in line and "| paper |" in line for line in told)
    assert any("Four images" in line and "| small |" in line for line in told)


def test_another_table_is_compared_at_the_same_scale(tmp_path, monkeypatch):
    def told(**more):
        small = {f"{name}-small": kept(f"{name}-small") for name in ("001-table7", "001-table8")}
        lines = written(monkeypatch, tmp_path, **small, **more)["results"].splitlines()
        return [line for line in lines if "#001-table8) |" in line]

    before = told()
    longer = kept("001-table7-small")
    for number in longer["lines"]:
        number["each"] = {who: value + 50 for who, value in number["each"].items()}
        number["seepage"] += 50
    assert told(**{"001-table7-paper": {**longer, "scale": "paper"}}) == before
    assert "| small |" in before[0]


def test_a_verdict_against_the_paper_has_its_cause_or_says_that_it_has_none(tmp_path, monkeypatch):
    run = kept("003-fig3-small")
    for line in run["lines"]:
        line["seepage"] *= -1
    made = written(monkeypatch, tmp_path, **{"003-fig3-small": run})
    told = [line for line in made["results"].splitlines() if "#003-fig3) |" in line]
    unknown = "| small | cause not known |"
    assert [line.endswith(unknown) for line in told if "| does not hold |" in line] == [True] * 2
    assert "The cause of 0 of the 2 that do not hold names an experiment," in made["results"]


def test_every_record_that_a_cause_names_is_there():
    told = [claim.because for claim in claims()]
    told += [
        entry.cause for n in names() for t in [load_table(n)] for entry in (*t.rows, *t.columns)
    ]
    told += [block.cause for name in names() for block in load_table(name).published]
    named = {record for why in told for record in paper_page.RECORD.findall(why)}
    assert len(named) > 10
    assert [record for record in named if not (RESULTS / record).is_file()] == []


def test_what_differs_from_the_papers_scale_is_told():
    table = load_table("000-fig4")
    apart = different(table, table.at("small"))
    several = "8 people instead of 16, 2000 steps instead of 10000"
    assert apart == [f"Different from scale paper: {several}."]
    parts = table.only(["0.0", "1e-3"], "small")
    assert different(parts, parts.at("small")) == [
        f"Different from scale paper: {several}, 2 of 7 rows."
    ]
    assert different(table, table.at("paper")) == []


@pytest.mark.slow
def test_a_name_that_fails_fails_the_smoke_run_and_stops_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smoke, "BUILD", tmp_path)
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", ["smoke", "002-fig4", "004-table1"])
    assert smoke.main() == 1
    said = capsys.readouterr().out
    assert "002-fig4     failed" in said
    assert "004-table1   made" in said
    assert "1 of 2 made" in said
    assert "002-fig4 failed with exit code" in said


def test_what_takes_longest_is_begun_first():
    ordered = smoke.longest_first(names())
    assert ordered[0] == "001-table4"
    assert ordered.index("001-table2") < 10, "48 cells, none of them an audit"
    assert ordered[-1] == "003-fig7", "one image of one network"
    assert sorted(ordered) == sorted(names())
