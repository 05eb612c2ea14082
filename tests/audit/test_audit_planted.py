"""Attacks that plant, in a grid and from a spec."""

import pytest

import seepage as sp
from seepage.audit import Audit, load_spec, run_case, select_targets
from seepage.core.errors import InvalidValue

SPEC = """controls = false
[[scenario]]
data = { name = "photos", people = 8, batch_size = 8, start = 0, pixels = 16 }
models = { name = "mlp", hidden = [16] }
threats = { knows_labels = true, server = "SERVER" }
attacks = [
  { name = "robbing_the_fed", std = 0.15 },
  { name = "class_fishing", target = 2, attack = { name = "analytic_fc", adaptive = true } },
]
"""


def written(folder, text):
    path = folder / "planted.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_spec_names_attacks_that_plant_and_the_attacks_they_end_in(tmp_path):
    robbing, fishing = load_spec(written(tmp_path, SPEC.replace("SERVER", "malicious"))).cases
    assert "analytic_fc" in str(fishing.attack_name)
    assert type(fishing.attack.attack).__name__ == "Adaptive"
    record = run_case(robbing).record
    assert record.error is None
    assert sum(value > 60 for value in record.scores["psnr"]) >= 4
    assert record.vetted == "malicious"
    assert record.threat.arguments["server"] == "malicious"
    assert record.model == "mlp(hidden=(16,))"
    assert max(run_case(fishing).record.scores["psnr"]) > 60


def test_an_honest_server_cannot_plant_and_the_line_says_so(tmp_path):
    with pytest.raises(InvalidValue, match=r"line 5.*server = 'malicious'"):
        load_spec(written(tmp_path, SPEC.replace("SERVER", "honest")))


def test_a_server_is_honest_or_malicious(tmp_path):
    with pytest.raises(InvalidValue, match="'honest' or 'malicious'"):
        load_spec(written(tmp_path, SPEC.replace("SERVER", "lazy")))


def test_what_plants_is_adapted_by_what_it_ends_in(tmp_path):
    wrong = SPEC.replace("SERVER", "malicious").replace("std = 0.15", "adaptive = true")
    with pytest.raises(InvalidValue, match="the attack it ends in"):
        load_spec(written(tmp_path, wrong))


def test_the_network_that_was_broadcast_is_the_planted_one_and_the_same_each_time():
    photos = sp.data.load("photos", pixels=16)
    audit = Audit(
        tasks=[sp.zoo.lenet(domain=photos.domain)],
        attacks={"robbing": sp.attacks.robbing_the_fed(std=0.15), "dlg": sp.attacks.dlg()},
        threats=[sp.Threat(server="malicious")],
    )
    robbing, passive = audit.cases(select_targets(photos, people=4, batch_size=4, start=0))
    again, _ = audit.cases(select_targets(photos, people=4, batch_size=4, start=0))
    assert robbing.broadcast.digest == again.broadcast.digest != robbing.task.digest
    assert robbing.id == again.id != passive.id
    assert passive.broadcast is passive.task
