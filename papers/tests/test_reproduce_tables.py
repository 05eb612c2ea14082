"""Every table and figure there is: what it names exists, at every scale, before anything runs."""

import inspect
import json
import re
from itertools import product
from pathlib import Path

import pytest
from benchmarks import results_page
from benchmarks.assemble import find_lines, join_records

from seepage.audit import _spec_entries as entries
from seepage.core.errors import InvalidValue, UnknownName
from seepage.zoo import MODELS
from seepage_papers.chosen import RULES
from seepage_papers.cost import cost
from seepage_papers.measures import MEASURES, STATISTICS
from seepage_papers.prepare import without_preparation
from seepage_papers.reading import load_table, names
from seepage_papers.run import build, source
from seepage_papers.sources import SOURCES
from seepage_papers.substitute import NAME
from seepage_papers.table import SCALES
from seepage_papers.trained import Schooling

BIBLIOGRAPHY = Path(__file__).parents[2] / "docs" / "references.bib"
PUBLISHED = {
    "001": {*(f"table{n}" for n in range(2, 9)), "fig2", "fig3", "fig4"},
    "000": {"fig4", "fig5", "fig7", "fig8", "fig9", "table5"},
    "002": {*(f"fig{n}" for n in range(1, 10)), "table6f"},
    "003": {"table1", *(f"fig{n}" for n in range(2, 11))},
    "004": {"table1", "fig1", "fig2", "fig3"},
}
# What a scale may leave out.
PARTS = frozenset({"rows", "columns"})
EVERY = [(name, scale) for name in names() for scale in SCALES]
AUDITED = [n for n in names() if any(b.by == "audit" for b in load_table(n).published)]


def test_every_table_and_figure_that_is_promised_is_there():
    promised = {f"{paper}-{place}" for paper, places in PUBLISHED.items() for place in places}
    assert promised <= set(names())


def test_figures_are_listed_by_number():
    listed = names()
    assert listed.index("003-fig9") < listed.index("003-fig10")


@pytest.mark.parametrize("name", names())
def test_a_table_says_what_it_is_and_cites_a_paper(name):
    table = load_table(name)
    assert all([table.title, table.place, table.claim.endswith(".")])
    assert f"{{{table.paper}," in BIBLIOGRAPHY.read_text(encoding="utf-8")
    assert tuple(table.scales) == SCALES
    assert len({frozenset(values) - PARTS for values in table.scales.values()}) == 1
    assert not PARTS & table.at("paper").keys(), "the paper's scale has every cell"


@pytest.mark.parametrize("name", names())
def test_every_published_number_has_a_known_convention(name):
    for block in load_table(name).published:
        assert block.by in SOURCES
        assert block.measure in MEASURES
        ranks = block.by == "rank_metric" and re.fullmatch(r"c\(M\)|rd\d", block.statistic)
        assert ranks or block.statistic in STATISTICS
        assert block.values or block.why, "a number that is not printed has a reason"


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_all_that_a_cell_names_exists_at_every_scale(name, scale):
    """Without building a network or reading data: attacks, defenses and options are checked."""
    table = load_table(name)
    cells = table.cells(scale)
    values = table.at(scale)
    rows = values.get("rows", range(len(table.rows)))
    columns = values.get("columns", range(len(table.columns)))
    assert {(cell.row, cell.column) for cell in cells} == set(product(rows, columns))
    assert len({cell.labels for cell in cells}) == len(cells)
    for cell in cells:
        scenario = without_preparation(cell.scenario)
        if "attacks" in scenario:
            attacks = scenario["attacks"]
            for attack in attacks if isinstance(attacks, list) else [attacks]:
                entries.read_attack(attack)
            entries.build_part("threat", scenario["threats"])
            entries.build_part("local computation", scenario.get("locals", {}))
            entries.read_defenses(scenario.get("defenses", [[]]))
        options = {k for k in scenario["models"] if k not in ("name", "double")}
        assert options <= set(inspect.signature(MODELS[scenario["models"]["name"]]).parameters)
        for taught in (cell.scenario["models"].get("schooling"), cell.scenario.get("training")):
            assert taught is None or Schooling(**taught)
        people = cell.scenario["data"].get("people")
        assert not isinstance(people, dict) or people["choose"] in RULES


@pytest.mark.parametrize("name", AUDITED)
def test_small_attacks_at_least_eight_images_in_every_cell(name):
    for cell in load_table(name).cells("small"):
        assert without_preparation(cell.scenario)["data"]["people"] >= 8
    cells = load_table("001-table2").cells("small")
    assert all(cell.scenario["data"]["people"] >= 8 for cell in cells)


@pytest.mark.parametrize("name", AUDITED)
def test_a_smoke_run_is_small(name):
    assert cost(load_table(name), "smoke").steps <= 4000
    assert cost(load_table(name), "smoke").epochs <= 20


def test_every_round_of_a_threat_costs_a_search():
    row = load_table("000-fig8").only(["Intra-InstaHide 4"], "small")
    once, often = (row.with_values("small", {"rounds": rounds}) for rounds in (1, 20))
    assert cost(often, "small").steps == 20 * cost(once, "small").steps
    assert cost(often, "small").cases == cost(once, "small").cases


def test_instahide_is_decoded_over_the_rounds_of_the_paper():
    cells = load_table("000-fig8").cells("paper")
    hidden = [cell.scenario for cell in cells if "InstaHide" in cell.labels[0]]
    assert [scenario["threats"]["rounds"] for scenario in hidden] == [20, 20, 20]
    assert all(scenario["attacks"]["unmix"] for scenario in hidden)
    assert all("rounds" not in c.scenario["threats"] for c in cells if "MixUp" in c.labels[0])


# One of every kind of data, network and source.
BUILT = ["000-fig8", "002-fig1", "002-fig3", "003-fig2", "003-fig9"]


@pytest.mark.parametrize("name", BUILT)
def test_a_spec_has_one_scenario_per_cell_and_as_many_cases_as_counted(name, data_root):
    table = load_table(name)
    spec = build(table, "smoke")
    assert spec is not None
    assert len(spec.parts) == len(table.cells("smoke"))
    assert sum(len(p.audit.cases(p.batches)) for p in spec.parts) == cost(table, "smoke").cases


def test_a_table_without_an_audit_has_no_spec():
    assert source(load_table("004-table1"), "paper") is None


def test_a_missing_name_is_one_sentence():
    with pytest.raises(UnknownName, match="did you mean '003-table1'"):
        load_table("003-tabel1")


def test_numbers_that_do_not_fit_the_table_are_refused(small_table):
    with pytest.raises(InvalidValue, match="expected 2 rows of 1 values of psnr in 999-table0"):
        small_table(values="[[1.0]]")


def test_the_pages_of_results_are_what_the_records_make():
    for path, text in results_page.pages().items():
        assert path.read_text(encoding="utf-8") == text


def test_a_record_that_is_older_than_its_table_says_how_it_was_made():
    """It lacks a value that its cells have today, as the step size of a search."""
    for name, scale in EVERY:
        run = results_page.recorded(name).get(scale)
        if run is None or scale == "smoke":
            continue
        table = load_table(name)
        made = [
            every[i]
            for kind, every in (("rows", table.rows), ("columns", table.columns))
            for i in run["values"].get(kind, range(len(every)))
        ]
        told = json.dumps([table.scenario, *(part for e in made for part in (e.set, e.change))])
        named = set(NAME.findall(told)) - {"start", *(key for e in made for key in e.set)}
        assert named <= run["values"].keys() or "note" in run, (name, scale)


def test_a_label_where_there_is_none_to_choose_is_one_sentence():
    with pytest.raises(InvalidValue, match="003-table1 has only one without a label, got 'nope'"):
        load_table("003-table1").only([], "small", columns=["nope"])


def test_a_value_of_a_scale_that_does_not_exist_is_refused():
    table = load_table("001-table7")
    assert table.with_values("small", {"steps": 7}).at("small")["steps"] == 7
    with pytest.raises(UnknownName, match="unknown value 'stepz'; did you mean 'steps'"):
        table.with_values("small", {"stepz": 7})


def test_parts_of_a_table_are_put_together_by_settings_and_people():
    def part(steps, each):
        values = load_table("001-table7").at("small")
        line = {"row": "B = 4", "column": "GradClip 4", "measure": "psnr", "statistic": "mean"}
        mean = sum(each.values()) / len(each)
        found = {"seepage": mean, "interval": None, "people": len(each), "standard": None}
        return {
            "name": "001-table7",
            "scale": "small",
            "values": {**values, "steps": steps},
            "lines": [{**line, **found, "paper": 23.93, "each": each, "why": ""}],
        }

    parts = [part(7, {"a.0": 1.0, "a.1": 3.0}), part(7, {"b.0": 8.0}), part(9, {"c.0": 50.0})]
    table = load_table("001-fig4").with_values("small", {"steps": 7})
    [found] = find_lines(table, "small", join_records(parts))
    assert (found.row, found.column) == ("GradClip 4", "with feature matching")
    assert (found.seepage, found.people) == (4.0, 3)
