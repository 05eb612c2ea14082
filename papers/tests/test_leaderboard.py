"""`seepage leaderboard`, on a board of one person and a few steps."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.audit.results import Level
from seepage.cli import app
from seepage.cli._commands import Audit, Shown
from seepage.cli._parser import _list_options
from seepage.core.errors import InvalidValue, UnknownName
from seepage_papers import leaderboard as module
from seepage_papers.board import BOARD, SMOKE, Board, find_sizes, list_lines, parse_links
from seepage_papers.board_chart import draw_board
from seepage_papers.leaderboard import make_leaderboard
from seepage_papers.leaderboard_command import Leaderboard
from seepage_papers.standing import Standing, Status, Tally, judge
from seepage_papers.standings import Standings

TINY = replace(SMOKE, people=1, batch_sizes=(1,), training_steps=2)
PRUNED = '[{ name = "Prune", ratio = 0.95 }]'


def make(out, **options):
    board, dry_run = options.pop("board", TINY), options.pop("dry_run", False)
    shown = Shown(plain=True, dry_run=dry_run)
    asked = Leaderboard(
        out=out, **{"only": ("Prune 0.9",), "device": "cpu", "shown": shown, **options}
    )
    with Path(out.parent / "shown.txt").open("w") as file:
        code = make_leaderboard(asked, Console(file=file, width=200), board=board)
    return code, (out.parent / "shown.txt").read_text()


def read(out):
    return json.loads((out / "leaderboard.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("board") / "out"
    return out, *make(out)


def test_a_line_has_its_accuracy_its_cost_and_who_was_identified(made):
    out, code, shown = made
    assert code == 0
    found = read(out)
    assert found["board"] == 1
    assert found["setting"]["training_steps"] == 2
    rows = {row["defense"]: row for row in found["rows"]}
    assert rows.keys() == {"no defense", "Prune 0.9"}
    free, pruned = rows["no defense"], rows["Prune 0.9"]
    assert free["lost_points"] == 0
    lost = 100 * (free["accuracy"] - pruned["accuracy"])
    assert pruned["lost_points"] == pytest.approx(lost)
    counted = free["batch_sizes"]["1"]
    assert (counted["people"], counted["identified"], free["status"]) == (1, 1, "leaks")
    assert counted["interval"] == pytest.approx([0.05, 1.0])
    assert free["attack"] == "analytic_fc", "an exact closed form"
    assert pruned["toml"] == '[{ name = "Prune", ratio = 0.9 }]'
    text = (out / "leaderboard.md").read_text()
    assert "| no defense |" in text
    assert "1 of 1 (5-100 %)" in text
    assert "1 of 1 (5-100 %)" in shown


def test_it_leaves_an_ordinary_audit_and_a_figure(made):
    out = made[0]
    audit = load_audit(out / "audit")
    assert audit.complete
    assert {record.attack.name for record in audit.records} == {"auto"}
    assert audit.controls
    picture = ElementTree.parse(out / "leaderboard.svg").getroot()
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"no defense", "Prune 0.9"} <= set(texts)


def test_a_line_is_added_to_what_is_there_and_stays(made, tmp_path, monkeypatch):
    out = made[0]
    before, trained = load_audit(out / "audit"), json.loads((out / "utility.json").read_text())
    asked = []
    monkeypatch.setattr(
        module, "measure_utility", lambda _b, line, *_: asked.append(line.label) or {"accuracy": 0}
    )
    # Twice the same is one line.
    code, shown = make(
        out, only=("Prune 0.95", "Prune 0.9"), add=(PRUNED, PRUNED[1:-1]), resume=True
    )
    assert code == 0
    assert asked == ["Prune 0.95"], "the other rows were kept"
    assert "11 cases are done, 3 to run" in shown
    after = load_audit(out / "audit")
    assert {r.case for r in before.records} < {r.case for r in after.records}
    assert "0.95" in after.spec
    now = json.loads((out / "utility.json").read_text())["rows"]
    assert now.keys() - trained["rows"].keys() == {PRUNED}
    labels = [row["defense"] for row in read(out)["rows"]]
    assert sorted(labels) == ["Prune 0.9", "Prune 0.95", "no defense"]
    _, shown = make(out, only=("Prune 0.95",), resume=True)
    assert asked == ["Prune 0.95"]
    assert "11 cases are done, 0 to run" in shown, "an added line need not be named again"
    assert len(read(out)["rows"]) == 3, "lines of earlier runs stay in the table"
    with pytest.raises(InvalidValue, match="effort was 'quick' and is now 'standard'"):
        make(out, board=replace(TINY, effort="standard"), resume=True)
    with pytest.raises(InvalidValue, match="already holds a leaderboard"):
        make(out)
    (out / "utility.json").write_text("{")
    with pytest.raises(sp.core.errors.UnreadableFile, match="delete it to train again"):
        make(out, resume=True)


def test_an_interrupted_run_goes_on_with_the_row_it_was_at(tmp_path, monkeypatch):
    done = []

    def interrupted(_board, line, *_):
        if done:
            raise KeyboardInterrupt
        done.append(line.label)
        return {"accuracy": 0.5}

    monkeypatch.setattr(module, "measure_utility", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "utility.json").read_text())["rows"]
    assert [row["accuracy"] for row in rows.values()] == [0.5]
    monkeypatch.setattr(
        module, "perform", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    monkeypatch.setattr(
        module, "measure_utility", lambda _b, line, *_: done.append(line.label) or {"accuracy": 0.4}
    )
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "out", resume=True)
    assert done == ["no defense", "Prune 0.9"]


def test_a_dry_run_tells_what_it_costs_and_writes_nothing(tmp_path):
    code, shown = make(tmp_path / "out", dry_run=True)
    assert code == 0
    assert "Prune 0.9: 3 cases, 48 steps of searches" in shown
    assert "2 trainings of 2 steps, 11 cases" in shown
    assert "an estimate from a few steps" in shown
    assert not (tmp_path / "out").exists()


def tally(*levels, undecided=0, psnr=10.0):
    return Tally(tuple(levels), (psnr,) * len(levels), undecided, {"dlg": len(levels)})


def standing(label, accuracy, *levels, undecided=0, psnr=10.0, **options):
    tallies = {1: tally(*levels, undecided=undecided, psnr=psnr)} if levels else {}
    text = "[]" if label == "none" else f'[{{ name = "{label}" }}]'
    return Standing(label, text, accuracy, tallies, **options)


SAFE, FOUND, WEAK = Level.not_shown, Level.recognisable, Level.inconclusive
LINES = [
    standing("none", 0.95, FOUND, FOUND, psnr=60.0),
    standing("safe", 0.945, SAFE, SAFE),
    standing("half", 0.94, FOUND, SAFE),
    standing("weak", 0.95, WEAK, WEAK, undecided=2, psnr=5.0),
    standing("dear", 0.80, SAFE, SAFE),
    standing("dear and weak", 0.80, SAFE, WEAK, undecided=1),
    standing("diverged", None, SAFE, SAFE),
    standing("broken", 0.95, errors=("no",)),
    standing("half broken", 0.95, SAFE, errors=("no",)),
]


def test_inconclusive_lines_stand_apart_and_never_as_safe():
    blocks = Standings(TINY, LINES, 1.0).blocks()
    names = {title.split(":")[0]: [line.label for line in b] for title, b in blocks.items()}
    assert names == {
        "within 1 point of no defense": ["safe", "half", "none"],
        "within 1 point of no defense, inconclusive": ["broken", "half broken", "weak"],
        "cost more than 1 point": ["dear", "diverged"],
        "cost more than 1 point, inconclusive": ["dear and weak"],
    }
    assert [line.status for line in LINES[3:6]] == [
        Status.inconclusive,
        Status.not_shown,
        Status.inconclusive,
    ]
    wide = Standings(TINY, LINES, 20.0).blocks()
    assert "cost more than 20 points" in wide, "a training that diverged costs more than anything"


def test_people_who_are_undecided_count_as_identified_in_the_order():
    lines = [standing("none", 0.9, FOUND, FOUND, FOUND), standing("a", 0.9, FOUND, FOUND, SAFE)]
    lines.append(standing("b", 0.9, FOUND, WEAK, WEAK, undecided=2, psnr=1.0))
    [block] = Standings(TINY, lines, 1.0).blocks().values()
    assert [line.label for line in block] == ["a", "b", "none"]
    assert block[1].tallies[1].words() == "1 of 3 (1-91 %), 2 undecided"


def test_a_control_that_a_closed_form_passed_is_told(made):
    audit = load_audit(made[0] / "audit")
    lines = [line for line in list_lines([], size=16) if line.label in ("no defense", "Prune 0.9")]
    hidden = [
        replace(r, identification=(replace(r.identification[0], rank=50),), scores={"psnr": (9.0,)})
        if r.defense
        else r
        for r in audit.records
    ]
    reasons = {line: {1: ""} for line in lines}
    free, pruned = judge(TINY, reasons, hidden, audit.controls, {}).values()
    assert free.untested == ()
    assert pruned.untested == (1,)
    assert "control computed, not searched (B=1)" in pruned.remarks


def test_only_decided_lines_are_drawn_full_and_joined():
    drawn = ElementTree.fromstring(draw_board(Standings(TINY, LINES, 1.0)))
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    rings = [circle for circle in circles if circle.get("fill") != circle.get("stroke")]
    assert {ring.get("class") for ring in rings} == {"inconclusive"}
    assert len(rings) == 3
    assert len(circles) == 7, "without accuracy or guess there is no place"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{ name = ", "expected --add with a defense in TOML such as"),
        ("3", "expected --add with a defense such as"),
        ("[]", "expected --add with a defense such as"),
        ("[{ name = 'Sign' }]\nmore = 1", "expected --add with a defense such as"),
        ("[{ name = 'Prone' }]", "unknown defense 'Prone'; did you mean 'Prune'"),
        ("[{ name = 'Prune', ratio = 7 }]", "expected a pruning ratio in"),
        ("[{ name = 'Prune' }]", "Prune needs the option 'ratio'"),
        ("[{ name = 'MixUp', k = 100 }]", "MixUp k=100 does not fit mlp"),
    ],
)
def test_a_bad_line_is_one_sentence(text, said, tmp_path):
    board = replace(TINY, people=2, batch_sizes=(1, 2))
    with pytest.raises(InvalidValue) as found:
        make(tmp_path / "out", board=board, only=(), add=(text,))
    assert said in str(found.value)
    assert not (tmp_path / "out").exists()


def test_other_bad_wishes_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match=r"unknown line 'Prune 0\.8'; did you mean 'Prune 0\.9'"):
        make(tmp_path / "out", only=("Prune 0.8",))
    with pytest.raises(InvalidValue, match="--resume or --overwrite, got both"):
        make(tmp_path / "out", resume=True, overwrite=True)
    with pytest.raises(InvalidValue, match="--points >= 0"):
        make(tmp_path / "out", points=-1.0)
    with pytest.raises(UnknownName, match="unknown effort"):
        Board(effort="much")
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    with pytest.raises(sp.core.errors.DataNotFound, match=r"mnist_10k\.npz.*set SEEPAGE_DATA"):
        make(tmp_path / "out", board=BOARD)


def test_dp_sgd_takes_the_size_of_every_batch_unless_it_is_given():
    lines = {line.label: line for line in list_lines([], size=64)}
    line = lines["DP-SGD C=1 σ=1"]  # noqa: RUF001
    assert sp.utility.noise_multiplier(line.build(1)) == 1.0
    assert line.build(4) == sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=4)
    [fixed] = parse_links("{ name = 'dp_sgd', max_norm = 1, noise_multiplier = 1, batch_size = 9 }")
    assert fixed["batch_size"] == 9


def test_every_line_fits_the_board_but_mixup_alone(data_root, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    people = BOARD.load_people()
    lines = list_lines([], size=BOARD.batch_size)
    reasons = find_sizes(BOARD, lines, people, BOARD.build_network(people))
    unfit = [(line.label, size) for line, w in reasons.items() for size in w if w[size]]
    assert unfit == [("MixUp k=2", 1)]
    assert len(lines) == 18


def test_the_command_has_the_options_of_an_audit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    theirs, ours = (
        {entry.field.name: (entry.type, entry.option) for entry in _list_options(command)}
        for command in (Audit, Leaderboard)
    )
    for name in ("device", "workers", "resume", "overwrite", "dry_run", "plain", "quiet"):
        assert theirs[name] == ours[name]
    asked = ["--smoke", "--dry-run", "--only", "Sign", "--device", "cpu", "--steps", "30"]
    result = CliRunner().invoke(app, ["leaderboard", *asked])
    assert result.exit_code == 0, result.output
    assert "Sign: " in result.output
