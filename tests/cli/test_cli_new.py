"""`seepage new` and `seepage list KIND NAME`: finding out what a spec can say."""

import pytest
from typer.testing import CliRunner

from seepage.audit import load_spec
from seepage.cli import app
from seepage.core.errors import InvalidValue, UnknownName
from seepage.rehearsal import ALL_ATTACKS


def seepage(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def spec(tmp_path):
    return tmp_path / "audit.toml"


def test_a_new_spec_can_be_run_as_it_is_and_says_what_each_entry_means(spec):
    done = seepage("new", spec, "--batch-size", 1, "--batch-size", 2, "--local-steps", 3)
    assert done.exit_code == 0, done.output
    assert f"seepage audit {spec} --dry-run" in done.output.replace("\n", "")
    text = spec.read_text()
    for key in ("data", "models", "locals", "defenses", "threats", "attacks"):
        before, _, _ = text.partition(f"\n{key} = ")
        assert before.splitlines()[-1].startswith("# ")
    [small, large] = load_spec(spec).parts
    assert [len(part.batches[0].people) for part in (small, large)] == [1, 2]
    assert small.audit.locals[0].steps == 3


def test_parts_are_given_by_name_and_options(spec):
    noise = "Clip:max_norm=1.0+AddGaussian:std=0.1"
    seepage("new", spec, "--defense", noise, "--attack", "dlg:iterations=3,restarts=1")
    [part] = load_spec(spec).parts
    assert [len(defense.links) for defense in part.audit.defenses] == [0, 2]
    assert [str(name) for name in part.audit.attacks] == ["dlg(iterations=3, restarts=1)"]


def test_the_model_can_be_given_options(spec):
    seepage("new", spec, "--model", "mlp", "-o", "hidden=[16]", "--option", "activation=tanh")
    [part] = load_spec(spec).parts
    assert [task.name for task in part.audit.tasks] == ["mlp(hidden=(16,), activation='tanh')"]


def test_a_quotation_mark_in_a_name_is_no_mistake_in_the_spec(spec, tmp_path):
    (tmp_path / 'my "own".csv').write_text("age,ill\n" + "31,no\n62,yes\n18,no\n" * 8)
    data = f'csv:{tmp_path}/my "own".csv'
    done = seepage("new", spec, "--model", "mlp", "--data", data, "--people", 1, "--batch-size", 1)
    assert done.exit_code == 0, done.output
    assert load_spec(spec).title == f"mlp on {data}"


def test_a_file_is_not_replaced_unasked_and_a_mistake_leaves_none(spec):
    with pytest.raises(UnknownName, match="did you mean 'Prune'"):
        seepage("new", spec, "--defense", "Prun:ratio=0.5")
    assert not spec.exists()
    assert seepage("new", spec).exit_code == 0
    with pytest.raises(InvalidValue, match="is there already"):
        seepage("new", spec)
    assert seepage("new", spec, "--overwrite").exit_code == 0


@pytest.mark.parametrize("name", ALL_ATTACKS)
def test_every_attack_tells_its_options_its_cost_and_its_paper(name):
    said = seepage("list", "attacks", name).output
    assert said.startswith(f"{name}: ")
    assert "\npaper: " in said
    assert "\ncost: " in said


def test_defaults_are_written_as_a_spec_writes_them():
    said = seepage("list", "attacks", "dlg").output
    assert ["restarts     1 " in said, "line_search  true" in said] == [True, True]
    assert "as torch counts them" in seepage("list", "attacks", "idlg").output
    assert "Of the weights" in seepage("list", "models", "resnet56").output
    assert "needs: the labels" in seepage("list", "attacks", "inverting_gradients").output
    assert "needs: a malicious server" in seepage("list", "attacks", "robbing_the_fed").output
    assert "ratio  needed" in seepage("list", "defenses", "Prune").output


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        seepage("list", "attacks", "dgl")


def test_the_command_to_run_it_is_quoted_for_the_shell(tmp_path):
    done = seepage("new", tmp_path / "two words.toml")
    assert "to run it: seepage audit '/" in done.output.replace("\n", " ").replace("  ", " ")
