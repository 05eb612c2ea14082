"""The benchmark of defenses, at a scale for a CPU."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from benchmarks import defense_chart, defense_rows, defense_table, defenses

import seepage as sp
from seepage.core._construct import Component
from seepage.core._task import batchnorm_layers


@pytest.mark.slow
def test_accuracy_stands_beside_the_strongest_attack(tmp_path, data_root):
    common = ["--scale", "small", "--out", str(tmp_path)]
    defenses.main(["--part", "utility", "--only", "none", *common])
    defenses.main(["--part", "utility", "--only", "prune 0.99,DP-SGD 1.0", *common])
    defenses.main(["--part", "attack", "--only", "none,prune 0.99", *common])
    defenses.main(["--part", "table", *common])
    kept = json.loads((tmp_path / "defenses-utility-small.json").read_text())
    assert list(kept["rows"]) == ["none", "prune 0.99", "DP-SGD 1.0"]
    assert kept["rows"]["DP-SGD 1.0"]["noise_multiplier"] == pytest.approx(1.0)
    table = json.loads((tmp_path / "defenses-small.json").read_text())
    none, pruned = (table["rows"][name] for name in ("none", "prune 0.99"))
    assert none["accuracy"] > max(0.6, pruned["accuracy"])
    assert none["psnr_mean"] > pruned["psnr_mean"] + 1
    assert table["front"]["psnr"] == ["prune 0.99", "none"]
    assert none["psnr_mean"] > table["guess"]["psnr"]
    assert none["psnr_ahead"] >= 3
    assert {"command", "commit", "machine"} <= table.keys()
    picture = ElementTree.parse(tmp_path / "defenses-psnr-small.svg").getroot()
    names = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"none", "prune 0.99"} <= set(names)


def test_rows_alike_attack_one_network_that_was_taught_once(data_root):
    scale = replace(defense_rows.SMALL, schooled=1, examples=128)
    rows = defense_rows.ROWS
    taught = defense_rows.victim(scale, rows["prune 0.9"], "cpu")
    assert taught is defense_rows.victim(scale, rows["MixUp 4"], "cpu")
    fresh = defense_rows.victim(replace(scale, schooled=0), rows["none"], "cpu")
    assert fresh.digest == defense_rows.network(scale, rows["none"], "cpu").digest
    assert taught.digest != fresh.digest


def test_runs_in_several_folders_make_one_table_that_names_them(tmp_path):
    for run, row in (("first", "none"), ("second", "prune 0.9")):
        folder = tmp_path / run
        folder.mkdir()
        kept = {"command": run, "commit": "c", "machine": {}, "rows": {row: {"wall_seconds": 1}}}
        (folder / "defenses-utility.json").write_text(json.dumps(kept))
    found = defense_table.gathered("utility", [tmp_path / "second", tmp_path / "first"], "")
    assert list(found["rows"]) == ["none", "prune 0.9"]
    assert [(r["command"], r["rows"]) for r in found["runs"]] == [
        ("second", ["prune 0.9"]),
        ("first", ["none"]),
    ]


def test_rows_that_are_not_made_again_keep_what_made_them(tmp_path, data_root):
    before = {"command": "earlier", "commit": "c", "machine": {}, "rows": ["none", "clip 2"]}
    rows = {name: {"records": []} for name in before["rows"]}
    path = tmp_path / "defenses-attack-small.json"
    path.write_text(json.dumps({**before, "runs": [before], "rows": rows}))
    asked = ["--schooled", "0", "--steps", "2", "--only", "clip 2"]
    defenses.main(["--part", "attack", "--scale", "small", "--out", str(tmp_path), *asked])
    kept = json.loads(path.read_text())
    assert [run["rows"] for run in kept["runs"]] == [["none"], ["clip 2"]]
    assert kept["runs"][0]["command"] == "earlier"
    assert kept["rows"]["clip 2"]["asked"] == {"epochs": None, "steps": 2, "schooled": 0}
    assert kept["rows"]["none"] == {"records": []}


def test_nothing_is_ranked_where_the_undefended_network_leaks_no_more_than_a_guess():
    def record(attack, psnr):
        named = {"data": "d", "people": (0,), "model": "", "local": Component(""), "seed": 0}
        scores = {"psnr": (psnr,)}
        return sp.audit.Record(
            defense=(), threat=Component("Threat"), attack=Component(attack), scores=scores, **named
        )

    def made(guess):
        cost = {"loss": [1.0], "training_loss": 1.0, "overhead": 1.0, "epsilon": None}
        costs = {
            name: cost | {"accuracy": [accuracy], "noise_multiplier": None}
            for name, accuracy in (("none", 0.9), ("prune 0.9", 0.8))
        }
        leaks = {
            name: {"records": [record("a", psnr).plain(), record("b", 5.0).plain()]}
            for name, psnr in (("none", 20.0), ("prune 0.9", 12.0))
        }
        return defense_table.table(costs, leaks, [record("mean", guess), record("draw", 3.0)])

    ranked, unranked = made(guess=15.0), made(guess=21.0)
    assert ranked["front"] == {"psnr": ["prune 0.9", "none"]}
    assert ranked["within_5_points"] == {"psnr": ["none"]}
    assert [row["psnr_ahead"] for row in ranked["rows"].values()] == [1, 0]
    assert unranked["front"] == unranked["within_5_points"] == {"psnr": []}
    rows = ranked["rows"]
    shown = defense_chart.chart(rows, metric="psnr", guess=21.0, front=[])
    assert "nothing is ranked" in shown
    assert "a guess without any update" in shown


def test_group_normalisation_takes_the_place_of_batch_normalisation():
    task = sp.zoo.resnet20(width=2)
    grouped = defense_rows.with_group_norm(task)
    assert batchnorm_layers(task.model)
    assert not batchnorm_layers(grouped.model)
    assert set(grouped.parameters) == set(task.parameters)
    photos = sp.data.bundled("photos", size=2)
    client = sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=2))
    assert client(grouped, photos, rng=sp.rng(0)).norm() <= 1 + 1e-5


def test_every_row_is_a_client_at_both_sizes():
    for row in defenses.ROWS.values():
        for size in (defense_rows.FULL.batch_size, defense_rows.FULL.attacked):
            assert sp.Client(sp.Gradient(), row.defend(size))
