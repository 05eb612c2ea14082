"""The benchmark of defenses, at a scale for a CPU."""

import json
from xml.etree import ElementTree

import pytest
from benchmarks import defense_rows, defenses

import seepage as sp
from seepage.core.task import batchnorm_layers


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
    assert table["front"] == ["prune 0.99", "none"]
    assert {"command", "commit", "machine"} <= table.keys()
    picture = ElementTree.parse(tmp_path / "defenses-psnr-small.svg").getroot()
    names = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"none", "prune 0.99"} <= set(names)


def test_runs_in_several_folders_make_one_table_that_names_them(tmp_path):
    for run, row in (("first", "none"), ("second", "prune 0.9")):
        folder = tmp_path / run
        folder.mkdir()
        kept = {"command": run, "commit": "c", "machine": {}, "rows": {row: {"wall_seconds": 1}}}
        (folder / "defenses-utility.json").write_text(json.dumps(kept))
    found = defenses.gathered("utility", [tmp_path / "second", tmp_path / "first"], "")
    assert list(found["rows"]) == ["none", "prune 0.9"]
    assert [(r["command"], r["rows"]) for r in found["runs"]] == [
        ("second", ["prune 0.9"]),
        ("first", ["none"]),
    ]


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
