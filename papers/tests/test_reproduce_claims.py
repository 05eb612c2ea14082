"""Claims of papers, judged by numbers; and cells that fall short of them."""

import json
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from benchmarks import results_page
from safetensors.torch import load_file

from seepage.core.errors import UnknownName
from seepage.zoo._wide_head import wide_head_resnet18
from seepage_papers.comparisons import Between, Close, Extreme, Rising
from seepage_papers.contrasts import Less, Printed, Somewhere, Varied, Widens
from seepage_papers.evidence import Comparison, Term, margin
from seepage_papers.judge import NO_PREMISE, NOT_RUN, Claim, Premise, claims, judged
from seepage_papers.lines import Line
from seepage_papers.lines import line as make_line
from seepage_papers.numbers import Numbers
from seepage_papers.place import Place
from seepage_papers.reading import load_table, names
from seepage_papers.reproduction import Reproduction
from seepage_papers.sources import Sample
from seepage_papers.substitute import filled, laid_over
from seepage_papers.table import SCALES
from seepage_papers.trained import trained


def run(numbers, *, measure="psnr", values=None, paper=None):
    """A recorded run: numbers by row and column; several in a cell are of several people."""
    lines = []
    for (row, column), found in numbers.items():
        each = {f"p{i}": x for i, x in enumerate(found)} if isinstance(found, list) else {}
        line = {"row": row, "column": column, "measure": measure, "statistic": "mean"}
        line |= {"seepage": fmean(found) if each else found, "each": each, "people": len(each) or 1}
        lines.append({**line, "paper": (paper or {}).get((row, column))})
    return {"lines": lines, "values": values or {}, "scale": "small"}


def verdict(test, *runs, limit=False):
    tables = {f"table{number}": one for number, one in enumerate(runs)}
    return judged(Claim("table0", "It does.", test, limit=limit), tables)


@pytest.mark.parametrize(("least", "word"), [(12.0, "holds"), (12.5, NO_PREMISE)])
def test_a_claim_whose_premise_fails_is_not_judged(least, word):
    """Of another measure than the claim's; and it is told what was too little."""
    lines = [
        *run({("none", "x"): 0.1, ("pruned", "x"): 0.2}, measure="lpips")["lines"],
        *run({("none", "x"): 12.2, ("pruned", "x"): 12.0})["lines"],
    ]
    claim = Claim(
        "table0",
        "Pruning protects.",
        Rising(along=["pruned", "none"]),
        measure="lpips",
        provided=(Premise("Much leaks.", Between(low=least, along=["none"]), "psnr"),),
    )
    found = judged(claim, {"table0": {"lines": lines, "values": {}, "scale": "small"}})
    assert found.word == word
    assert (found.numbers == "Much leaks. Found: none (x) 12.2") == (word == NO_PREMISE)


def test_a_claim_whose_premise_has_no_number_was_not_run():
    claim = Claim(
        "table0",
        "Pruning protects.",
        Rising(along=["a", "b"]),
        provided=(Premise("Much leaks.", Between(low=1.0), "ssim"),),
    )
    assert judged(claim, {"table0": run(GRID)}).word == "not run"


GRID = {
    ("a", "x"): 10.0,
    ("a", "y"): 11.0,
    ("b", "x"): 12.0,
    ("b", "y"): 14.0,
    ("c", "x"): 30.0,
    ("c", "y"): 20.0,
}


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (Rising(along=["a", "b", "c"]), True),
        (Rising(along=["a", "b", "c"], by=2.5), False),
        (Rising(along=["a", "c"], most=15.0), False),
        (Rising(along=["a", "c"], most=15.0, at=["y"]), True),
        (Rising(along=["x", "y"], axis="columns"), False),
        (Rising(along=["x", "y"], axis="columns", at=["a", "b"]), True),
        (Close(along=["b"], to="a", within=3.0), True),
        (Close(along=["b", "c"], to="a", within=3.0), False),
        (Close(along=["b", "c"], to="a", within=3.0, at_least=True), True),
        (Close(along=["a"], to="c", within=3.0, at_least=True), False),
        (Extreme(labels=["c"], most=True), True),
        (Extreme(labels=["b"], most=True), False),
        (Extreme(labels=["b"], most=True, among=["a"]), True),
        (Extreme(labels=["a", "b"], most=False), True),
        (Extreme(labels=["c"], most=True, by=5.0), True),
        (Extreme(labels=["c"], most=True, by=7.0), False),
        (Extreme(labels=["x"], most=True, axis="columns"), False),
        (Extreme(labels=["x"], most=True, axis="columns", strongest=True), True),
        (Extreme(labels=["x"], most=True, axis="columns", strongest=True, by=11.0), False),
        (Between(low=10.0, high=30.0), True),
        (Between(high=25.0), False),
        (Between(high=25.0, along=["a", "b"]), True),
        (Widens(along=["a", "b"], at=["x", "y"]), True),
        (Widens(along=["a", "c"], at=["x", "y"]), False),
        (Varied(along=["a", "b"]), False),
        (Varied(along=["x", "y"], axis="columns"), True),
    ],
    ids=repr,
)
def test_a_claim_holds_where_its_numbers_compare_as_it_says(test, holds):
    assert verdict(test, run(GRID)).word == ("holds" if holds else "does not hold")


def test_more_is_what_leaks_more_whichever_way_a_measure_counts():
    test = Rising(along=["c", "b", "a"])
    assert verdict(test, run(GRID)).word == "does not hold"
    assert verdict(test, run(GRID, measure="lpips")).word == "holds"


def test_the_verdict_tells_the_comparison_that_decides():
    closest = verdict(Rising(along=["a", "b", "c"]), run(GRID))
    assert (closest.word, closest.numbers) == ("holds", "a (x) 10, b (x) 12")
    assert (closest.scale, closest.comparisons, closest.margin.value) == ("small", 4, 2.0)
    worst = verdict(Between(low=11.5), run(GRID))
    assert (worst.word, worst.numbers) == ("does not hold", "a (x) 10")


def people(seed, count, *, level=0.0, spread=1.0, like=None):
    """Values of so many people, each near their own of `like`."""
    drawn = random.Random(seed)
    base = like or [0.0] * count
    return [x + level + drawn.gauss(0.0, spread) for x in base]


def test_people_are_compared_with_themselves():
    """Hard and easy people differ by 10 dB, an attack by 1: unpaired that is lost in noise."""
    easy = people(0, 16, level=20.0, spread=10.0)
    better = people(1, 16, level=1.0, spread=0.3, like=easy)
    paired = verdict(Rising(along=["a", "b"]), run({("a", ""): easy, ("b", ""): better}))
    assert (paired.word, paired.margin.paired, paired.margin.people) == ("holds", True, 16)
    found = run({("a", ""): easy, ("b", ""): better})
    found["lines"][1]["each"] = {f"q{i}": x for i, x in enumerate(better)}
    apart = verdict(Rising(along=["a", "b"]), found)
    assert (apart.word, apart.margin.paired) == ("within noise", False)
    assert apart.margin.value == pytest.approx(paired.margin.value)


@pytest.mark.parametrize(
    ("level", "word"), [(5.0, "holds"), (0.0, "within noise"), (-5.0, "does not hold")]
)
def test_what_chance_may_have_made_is_within_noise(level, word):
    """0.02 apart in a spread of 2; a premise is met by its estimate alone."""
    base = people(2, 12, level=20.0, spread=3.0)
    other = [x + level + e for x, e in zip(base, [2.0, -2.02] * 6, strict=True)]
    found = verdict(Rising(along=["a", "b"]), run({("a", ""): base, ("b", ""): other}))
    assert found.word == word


def test_of_a_run_that_lacks_cells_only_a_contradiction_can_be_told():
    found = run({("a", ""): 10.0, ("b", ""): 11.0, ("c", ""): None})
    assert verdict(Rising(along=["a", "b", "c"]), found).word == "not run"
    assert verdict(Rising(along=["b", "a", "c"]), found).word == "does not hold"
    assert verdict(Extreme(labels=["b"], most=True), found).word == "not run"
    assert verdict(Extreme(labels=["b"], most=True, strongest=True), found).word == "not run"


def test_runs_recorded_without_people_are_judged_by_the_intervals_of_their_means():
    found = run({("a", ""): 10.0, ("b", ""): 11.0})
    for line in found["lines"]:
        line |= {"people": 16, "interval": [line["seepage"] - 1, line["seepage"] + 1]}
    assert verdict(Rising(along=["a", "b"]), found).word == "within noise"
    for line in found["lines"]:
        line["interval"] = [line["seepage"] - 0.1, line["seepage"] + 0.1]
    assert verdict(Rising(along=["a", "b"]), found).word == "holds"
    found["lines"][0]["interval"] = None
    assert verdict(Rising(along=["a", "b"]), found).word == "within noise", "16 without interval"


@pytest.mark.parametrize("together", [1, 4])
def test_an_interval_covers_the_truth_as_often_as_it_says(together):
    """1000 draws of 12 updates; 95 % within four of its own standard errors.

    People whose gradients were summed come back together or not at all.
    """
    for centre in ("mean", "median"):
        missed = 0
        for seed in range(1000):
            shared = [x for x in people(seed, 12, level=3.0) for _ in range(together)]
            line = run({("a", ""): people(-seed, 12 * together, spread=0.5, like=shared)})["lines"][
                0
            ]
            each = enumerate(line["each"].values())
            line["each"] = {f"u{i // together}.{i % together}": value for i, value in each}
            found = margin(Comparison([Term(1.0, line)], -3.0, "{}"), centre=centre)
            assert (found.people, found.updates) == (12 * together, 12)
            missed += not found.low <= 0.0 <= found.high
        assert missed / 1000 <= 0.05 + 4 * (0.05 * 0.95 / 1000) ** 0.5
        assert missed > 5, "an interval that never misses tells nothing"


def test_people_of_one_update_are_one_draw():
    """However many they are, nothing tells how much another update would differ."""
    found = run({("a", ""): [9.0, 9.1, 9.2, 9.3]})
    found["lines"][0]["each"] = {f"u.{i}": 9.0 + i / 10 for i in range(4)}
    assert verdict(Between(low=3.0), found).word == "within noise"


def test_one_lost_search_does_not_decide_a_median():
    base, ahead = [1.0] * 12, [0.5] * 11 + [90.0]
    cells = run({("a", ""): base, ("b", ""): ahead}, measure="l1")
    claim = Claim("table0", "It does.", Rising(along=["a", "b"]))
    by_mean = judged(claim, {"table0": cells})
    by_median = judged(replace(claim, centre="median"), {"table0": cells})
    assert (by_mean.word, by_mean.other) == ("within noise", "by the median +0.5")
    assert (by_median.word, by_median.other) == ("holds", "by the mean -6.96")


def test_what_came_back_exactly_is_compared_by_its_median():
    exact = run({("a", ""): [30.0] * 8, ("b", ""): [math.inf] * 7 + [31.0]})
    assert verdict(Rising(along=["a", "b"]), exact).word == "holds"


def test_one_comparison_of_many_contradicts_a_claim_only_beyond_what_picking_it_explains():
    """40 cells of pure chance: one would miss its own 95 %, none the interval for 40."""
    cells = {("a", str(i)): people(i, 8) for i in range(40)}
    lone = [verdict(Between(low=0.0), run({cell: x})).word for cell, x in cells.items()]
    assert "does not hold" in lone
    assert verdict(Between(low=0.0), run(cells)).word == "within noise"


def test_a_premise_asks_for_one_cell_that_leaks():
    claim = Claim("table0", "S.", Between(low=0.0))
    for leaks, word in ((29.0, "holds"), (31.0, NO_PREMISE)):
        given = replace(claim, provided=(Premise("Much leaks.", Somewhere(leaks=leaks)),))
        assert judged(given, {"table0": run(GRID)}).word == word
    less = Premise("Much leaks.", Somewhere(leaks=9.0))
    found = judged(replace(claim, provided=(less,)), {"table0": run(GRID, measure="lpips")})
    assert found.numbers == "Much leaks. Found: at most a (x) 10"


def test_every_claim_has_a_premise_unless_it_says_itself_that_something_came_back():
    free = [claim for claim in claims() if not claim.provided]
    assert all(isinstance(claim.test, Between | Printed) for claim in free)
    assert all(not claim.limit for claim in free)


def test_what_does_not_protect_may_leak_more():
    words = ("not protect", "not hide", "hardly protects", "costs the attack at most", "benefit")
    told = [c for c in claims() if any(w in c.says for w in words) and isinstance(c.test, Close)]
    assert len(told) == 6
    assert all(claim.test.at_least for claim in told)


def test_a_premise_is_met_by_an_attack_that_the_claim_is_about():
    """What our stronger attack brings back says nothing of the paper's own."""
    for claim in claims():
        run = results_page.recorded(claim.table).get("small")
        if run is None or any(premise.table for premise in claim.provided):
            continue
        table = load_table(claim.table)
        known = {**table.at("small"), **run["values"]}
        every = [*table.rows, *table.columns]
        ours = {str(filled(one.label, known)) for one in every if one.ours}
        for premise in claim.provided:
            stray = compared_labels(premise, run) - compared_labels(claim, run)
            assert not stray & ours, (claim.says, premise.says)


def compared_labels(one, run):
    """Labels of the rows and columns that a claim or a premise compares in a run."""
    kind = (one.measure, one.statistic)
    numbers = Numbers.of(run, *kind, usual=getattr(one, "usual", False))

    def others(name):
        return Numbers.of(results_page.recorded(name)["small"], *kind)

    terms = [term for comparison in one.test(numbers, others) for term in comparison.terms]
    return {term.line[axis] for term in terms if term.line for axis in ("row", "column")}


def test_a_limit_that_an_attack_passes_is_beaten():
    assert verdict(Between(high=25.0), run(GRID), limit=True).word == "beaten"
    assert verdict(Between(high=30.0), run(GRID), limit=True).word == "holds"


def test_what_is_missing_was_not_run():
    lacking = run({**GRID, ("b", "y"): None})
    for test in (Rising(along=["a", "b"]), Between(low=0.0), Varied()):
        assert verdict(test, lacking).word == "not run"
    assert verdict(Rising(along=["a", "d"]), run(GRID)).word == "not run"
    assert verdict(Between(low=0.0)).word == "not run"
    assert verdict(Less(than="table1"), run(GRID)).word == "not run"


def test_a_table_is_compared_with_another_where_both_have_a_cell():
    less = run({("b", "x"): 11.0, ("b", "y"): 14.0, ("z", "x"): 99.0})
    assert verdict(Less(than="table1"), less, run(GRID)).word == "holds"
    assert verdict(Less(than="table1", by=0.5), less, run(GRID)).word == "does not hold"


def test_printed_numbers_are_met_or_not():
    paper = {("a", "x"): 10.0, ("c", "y"): 20.4}
    assert verdict(Printed(within=0.5), run(GRID, paper=paper)).word == "holds"
    missed = verdict(Printed(within=0.0), run(GRID, paper=paper))
    told = (missed.word, missed.numbers, missed.printed)
    assert told == ("does not hold", "c (y) 20", "20.4")


def test_labels_have_the_values_of_the_scale():
    found = run({("8", ""): 1.0, ("16", ""): 2.0}, values={"w1": 8, "w2": 16})
    assert verdict(Rising(along=["$w1", "$w2"]), found).word == "holds"


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: f"{claim.table}: {claim.says[:40]}")
def test_every_claim_is_of_cells_and_numbers_that_its_table_has(claim):
    table = load_table(claim.table)
    kinds = [(b.measure, b.statistic) for b in table.published]
    wanted = claim.measure or kinds[0][0], claim.statistic
    assert wanted in kinds or (wanted[0] in dict(kinds) and not claim.statistic)
    for scale in SCALES:
        cells = {cell.labels for cell in table.cells(scale)}
        rows, columns = ({cell[axis] for cell in cells} for axis in (0, 1))
        along = columns if getattr(claim.test, "axis", "rows") == "columns" else rows
        options = vars(claim.test)
        named = [*options.get("along", ()), *options.get("labels", ()), *options.get("among", ())]
        named += [options["to"]] if "to" in options else []
        values = table.at(scale)
        assert {str(filled(label, values)) for label in named} <= along
        other = rows if along is columns or isinstance(claim.test, Less) else columns
        assert {str(filled(label, values)) for label in options.get("at", ())} <= other
        assert {str(filled(label, values)) for label in options.get("columns", ())} <= columns


def printed(name):
    """A table as if the run had found what the paper printed."""
    table = load_table(name)
    lines = [
        {
            "row": cell.labels[0],
            "column": cell.labels[1],
            "measure": block.measure,
            "statistic": block.statistic,
            "seepage": value,
            "paper": value,
        }
        for block in table.published
        for cell in table.cells("paper")
        if not block.columns or cell.column in block.columns
        for value in [block.value(cell.row, cell.column)]
    ]
    return {"lines": lines, "values": table.at("paper"), "scale": "paper"}


def by_alexnet(claim):
    """Whether it says how far others' images are by AlexNet's LPIPS; the printed one is VGG's."""
    return isinstance(claim.test, Between) and "nearer to the images than others" in claim.says


def test_what_a_paper_printed_contradicts_none_of_its_claims():
    runs = {name: printed(name) for name in names()}
    # Premises are of measures that papers do not print.
    told = [replace(claim, provided=()) for claim in claims() if not by_alexnet(claim)]
    words = [(claim.table, claim.says, judged(claim, runs).word) for claim in told]
    assert [told for told in words if told[2] not in ("holds", "not run")] == []
    assert len([told for told in words if told[2] == "holds"]) > 30


def test_every_table_has_a_claim_and_every_claim_judges_its_smoke_run_somehow():
    assert {claim.table for claim in claims()} == set(names())
    kept = {name: results_page.recorded(name) for name in names()}
    runs = {name: scales["smoke"] for name, scales in kept.items() if "smoke" in scales}
    words = [judged(claim, runs).word for claim in claims() if claim.table in runs]
    assert {"holds", "does not hold"} <= set(words)


def test_verdicts_of_the_recorded_runs_follow_from_what_they_found():
    found = results_page.recorded("002-table6f")["paper"]
    for line in found["lines"]:
        line["column"] = "as published"
    few, many = [claim for claim in claims() if claim.table == "002-table6f"][::-1]
    assert (judged(few, {few.table: found}).word, judged(many, {many.table: found}).word) == (
        "beaten",
        "holds",
    )
    worse = json.loads(json.dumps(found))
    for line in worse["lines"][:-1]:
        line["seepage"] = 500.0
    assert judged(few, {few.table: worse}).word == "holds"
    worse["lines"][-1]["seepage"] = 500.0
    assert judged(few, {few.table: worse}).word == NO_PREMISE
    assert judged(many, {many.table: worse}).word == "does not hold"


def found_at(scale, *levels):
    """The wide and the narrow of 003-fig3, as if a run had found them."""
    table = load_table("003-fig3")
    blank = {"statistic": "mean", "paper": None, "interval": None, "people": 1, "why": ""}
    kind = "psnr_normalised_003"
    found = [(cell.labels, levels[cell.row]) for cell in table.cells(scale)]
    lines = [Line(*at, kind, seepage=x, standard=x + 12.0, **blank) for at, x in found]
    return Reproduction(table, scale, lines, 0.0)


def test_a_table_ends_with_what_became_of_the_papers_claims():
    rising, falling = found_at("small", 1.0, 1.5, 3.0, 5.0), found_at("small", 1.0, 1.5, 3.0, 2.5)
    first, third = (rising.lines[number].row for number in (0, 4))
    for column, told in zip(("ConvNet", "ResNet-20"), rising.verdicts, strict=True):
        assert f"This holds: {first} ({column}) 1, " in told
    for column, told in zip(("ConvNet", "ResNet-20"), falling.verdicts, strict=True):
        assert f"This does not hold: {third} ({column}) 3, " in told
    assert set(falling.verdicts) <= set(falling.notes)
    assert found_at("smoke", 1.0, 2.0, 3.0, 2.5).verdicts == []


def test_an_unknown_test_of_a_claim_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\ntable = "t"\nsays = "S."\ntest = { name = "risin" }\n')
    monkeypatch.setattr("seepage_papers.judge.FILE", path)
    with pytest.raises(UnknownName, match="unknown test of a claim 'risin'; did you mean 'rising'"):
        claims.__wrapped__()


def test_a_number_that_is_not_there_is_not_a_number():
    numbers = Numbers.of(run(GRID))
    assert math.isnan(numbers.term(1.0, "rows", "a", "z").value)
    cells = numbers.term(1.0, "columns", "y", "c"), numbers.term(1.0, "rows", "c", "y")
    assert [cell.value for cell in cells] == [20.0, 20.0]


def test_a_network_is_read_once_and_judged_by_no_more_examples_than_taught_it(
    data_root, tmp_path, monkeypatch
):
    schooling = {"epochs": 1, "examples": 20, "batch_size": 20, "augmented": False}
    model = {"name": "mlp", "hidden": [8], "schooling": schooling}
    place = Place(folder=tmp_path)
    first = trained({"data": {"name": "mnist"}, "models": model}, place)
    assert (first.accuracy * 20) % 1 == pytest.approx(0, abs=1e-6)
    built = []
    monkeypatch.setattr("seepage_papers.trained.entries.read_model", built.append)
    again = laid_over({"models": model}, {"data": {"name": "mnist", "people": 3, "start": 0}})
    assert trained(again, place) is first
    assert built == []


def test_random_neurons_are_put_in_after_the_training(data_root, tmp_path):
    """They are as drawn, and have had no part in it: another draw leaves the rest the same."""
    schooling = {"steps": 2, "examples": 16, "batch_size": 8, "augmented": False, "inserted": True}
    model = {
        "name": "wide_head_resnet18",
        "width": 1,
        "neurons": 12,
        "trained": 4,
        "deviation": 1.0,
    }
    place, found = Place(folder=tmp_path), []
    for seed in (0, 1):
        made = {**model, "head_seed": seed, "schooling": schooling}
        found.append(load_file(trained({"data": {"name": "cifar10"}, "models": made}, place).path))
    drawn = wide_head_resnet18(width=1, neurons=12, trained=4, deviation=1.0).parameters
    name = "fc.hidden.weight"
    assert torch.equal(found[0][name][4:], drawn[name][4:])
    assert not torch.isclose(found[0][name][4:], found[1][name][4:]).any()
    assert torch.equal(found[0][name][:4], found[1][name][:4])
    assert not torch.equal(found[0][name][:4], drawn[name][:4])


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_claim_can_be_judged_by_the_cells_that_a_scale_has(scale):
    runs = {}
    for name in names():
        table = load_table(name)
        lines = [
            make_line(table, cell, block, Sample((1.0, 1.0), standard=(1.0, 1.0)))
            for block in table.published
            for cell in table.cells(scale)
            if not block.columns or cell.column in block.columns
        ]
        plain = [one.plain() for one in lines]
        runs[name] = {"scale": scale, "values": table.at(scale), "lines": plain}
    assert [c.says for c in claims() if judged(c, runs).word == NOT_RUN] == []
