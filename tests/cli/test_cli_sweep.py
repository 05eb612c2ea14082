"""`seepage sweep`: one knob at several values, leakage beside accuracy."""

import csv
import io

import pytest
from typer.testing import CliRunner

from seepage.audit import load_audit
from seepage.cli import app
from seepage.cli.sweep_command import DELTA, _find_noise, read_values
from seepage.core.errors import InvalidValue
from seepage.defenses.clip import gaussian_epsilon

FLAT = ("--model", "mlp", "--attack", "analytic_fc", "--people", "2", "--plain", "--quiet")


def sweep(*words):
    return CliRunner().invoke(app, ["sweep", *map(str, words)], catch_exceptions=False)


def rows(out):
    return list(csv.DictReader(io.StringIO((out / "sweep.csv").read_text(encoding="utf-8"))))


def test_more_noise_leaks_less_and_the_page_has_the_curve(tmp_path):
    out = tmp_path / "out"
    knob = ("--noise", "0,50", "--batch-size", 1, "--train-steps", 20)
    done = sweep(*knob, *FLAT, "--out", out)
    assert done.exit_code == 0, done.output
    bare, noisy = rows(out)
    assert (bare["identified"], noisy["identified"]) == ("2", "0")
    assert float(bare["median"]) > 60 > 20 > float(noisy["median"])
    assert 0 <= float(bare["accuracy"]) <= 1
    page = (out / "sweep.html").read_text(encoding="utf-8")
    assert page.count("<polyline") == 2
    assert "Leakage against noise" in page
    assert "data:image" not in page


def test_the_model_that_is_swept_and_trained_has_the_options_given(tmp_path):
    out = tmp_path / "out"
    knob = ("--noise", "0", "--batch-size", 1, "--train-steps", 1, "-o", "hidden=[5]")
    assert sweep(*knob, *FLAT, "--out", out).exit_code == 0
    assert {record.model for record in load_audit(out).records} == {"mlp(hidden=(5,))"}


def test_epsilon_is_that_of_one_update_and_is_shown_beside(tmp_path):
    out = tmp_path / "out"
    knob = ("--epsilon", "1,16", "--batch-size", 1, "--train-steps", 0)
    assert sweep(*knob, *FLAT, "--out", out).exit_code == 0
    assert [round(float(row["epsilon"]), 3) for row in rows(out)] == [1.0, 16.0]
    assert {row["accuracy"] for row in rows(out)} == {""}
    assert gaussian_epsilon(noise_multiplier=_find_noise(2.5), delta=DELTA) == pytest.approx(2.5)


def test_batch_sizes_are_swept_like_defenses(tmp_path):
    out = tmp_path / "out"
    assert sweep("--batch-sizes", "1,2", "--train-steps", 0, *FLAT, "--out", out).exit_code == 0
    assert [row["people"] for row in rows(out)] == ["2", "2"]
    sizes = {record.batch_size for record in load_audit(out).records}
    assert sizes == {1, 2}


def test_one_knob_at_a_time():
    with pytest.raises(InvalidValue, match="got none"):
        sweep()
    with pytest.raises(InvalidValue, match="got 2; sweep one at a time"):
        sweep("--noise", "0,1", "--prune", "0.5")


@pytest.mark.parametrize(
    ("knob", "written"),
    [("noise", "a"), ("noise", "1,1"), ("noise", "-1"), ("batch_size", "1.5"), ("epsilon", "0"),
     ("noise", "nan"), ("noise", "")],
)  # fmt: skip
def test_values_that_mean_nothing_are_one_sentence(knob, written):
    with pytest.raises(InvalidValue, match="as different numbers from"):
        read_values(knob, written)
