"""Bad input is one line on stderr and exit code 2, and leaves nothing behind."""

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from seepage.cli import app, main

GOOD = {
    "head": "",
    "data": '{ name = "photos", people = 2 }',
    "models": '{ name = "mlp", hidden = [8] }',
    "locals": '{ name = "Gradient" }',
    "threats": "{ knows_labels = true }",
    "attacks": '{ name = "analytic_fc" }',
    "defenses": "[[]]",
}


def spec(**changed):
    """A spec that works but for what is changed."""
    lines = {**GOOD, **changed}
    head = lines.pop("head")
    return f"{head}\n[[scenario]]\n" + "\n".join(f"{key} = {v}" for key, v in lines.items())


BAD = {
    "title that is no word": (
        spec(head="title = []"),
        "a spec expects title as words in quotes, got []",
    ),
    "a timeout beyond a year": (
        spec(head="timeout = 1e20"),
        "expected timeout as seconds for each case, a year at most, got 1e+20",
    ),
    "NaN": (
        spec(
            models='{ name = "mlp", loss = { name = "CrossEntropyLoss", label_smoothing = nan } }'
        ),
        "models: expected a number, got nan",
    ),
    "a number of more than 64 bits": (
        spec(data='{ name = "photos", sample_seed = 9223372036854775808 }'),
        "expected whole numbers of 64 bits, got 9223372036854775808",
    ),
    "a mean in words": (
        spec(data='{ name = "photos", mean = "grey" }'),
        "data: expected mean and std as finite numbers, got 'grey' and 1.0",
    ),
    "an infinite deviation": (
        spec(data='{ name = "photos", std = inf }'),
        "expected mean and std as finite numbers, got 0.0 and inf",
    ),
    "a truth value for people": (
        spec(data='{ name = "photos", people = true }'),
        "expected people >= 1, or a list of their numbers, got True",
    ),
    "half people": (
        spec(data='{ name = "photos", people = 1.5 }'),
        "expected people >= 1, or a list of their numbers, got 1.5",
    ),
    "more people than there are": (
        spec(data='{ name = "photos", people = 999999999999999, start = 1 }'),
        "expected people among the 24 of photos, got 999999999999999 from number 1 on",
    ),
    "a model within a list": (
        spec(models="[[1]]"),
        "models: expected a model as a table such as { name = ... }, got [1]",
    ),
    "a name that looks like an emoji": (spec(data='{ name = "a:b:c" }'), "data set 'a:b:c'"),
    "unknown top key": (
        spec(head="seed = [0]"),
        "unknown option 'seed' of a spec; did you mean 'seeds'?",
    ),
    "misspelt scenario key": (
        spec(threat="{}"),
        "scenario 1: unknown option 'threat' of a scenario; did you mean 'threats'?",
    ),
    "unknown attack": (
        spec(attacks='{ name = "analytic_fx" }'),
        "attacks: unknown attack 'analytic_fx'; did you mean 'analytic_fc'?",
    ),
    "attack on texts for images": (
        spec(attacks='{ name = "dager" }'),
        "attacks: dager is for texts, got images; attacks for those: analytic_adam, an",
    ),
    "attack on tables for images": (
        spec(attacks='{ name = "class_fishing", attack = { name = "tableak" } }'),
        "attacks: tableak is for rows of tables, got images; attacks for those: analytic_adam, an",
    ),
    "search for texts": (
        spec(
            data='{ name = "hamlet" }',
            models='{ name = "gpt", width = 8 }',
            attacks='[{ name = "dager" }, { name = "dlg" }]',
        ),
        "attacks: dlg computes with numbers, got texts; attacks for those: bag_of_words, dager, ",
    ),
    "unknown bound": (
        spec(bounds='{ name = "CramerRoa" }'),
        "line 9: scenario 1: bounds: unknown bound 'CramerRoa'; did you mean 'CramerRao'?",
    ),
    "misspelt bound option": (
        spec(bounds='[{ name = "VanTrees", radios = 0.1 }]'),
        "bounds: unknown option 'radios' of VanTrees; did you mean 'radius'?",
    ),
    "impossible bound": (
        spec(bounds='[{ name = "CramerRao", std = -1.0 }]'),
        "bounds: expected std >= 0, got -1.0",
    ),
    "bounds that are none": (
        spec(bounds="[]"),
        "bounds: a scenario expects bounds as one or more tables",
    ),
    "unknown defense": (
        spec(defenses='[[{ name = "Prun", ratio = 0.1 }]]'),
        "defenses: unknown defense 'Prun'; did you mean 'Prune'?",
    ),
    "unknown model": (
        spec(models='{ name = "resnet21" }'),
        "models: unknown model 'resnet21'; did you mean 'resnet",
    ),
    "unknown data": (spec(data='{ name = "photo" }'), "data: unknown data set 'photo'"),
    "unknown metric": (
        spec(head='metrics = ["psnrr"]'),
        "unknown metric 'psnrr'; did you mean 'psnr'?",
    ),
    "metric that is a list": (spec(head='metrics = [["psnr"]]'), "unknown metric"),
    "metrics that are none": (
        spec(head="metrics = []"),
        "a spec expects metrics as one or more tables such as",
    ),
    "unknown local computation": (
        spec(locals='{ name = "FedAvgs" }'),
        "locals: unknown local computation 'FedAvgs'; did you mean 'FedAvg'?",
    ),
    "misspelt data key": (
        spec(data='{ name = "photos", peolpe = 2 }'),
        "data: unknown key 'peolpe'; did you mean 'people'?",
    ),
    "misspelt attack option": (
        spec(attacks='{ name = "inverting_gradients", step = 5 }'),
        "attacks: unknown option 'step' of inverting_gradients; did you mean 'steps'?",
    ),
    "misspelt defense option": (
        spec(defenses='[[{ name = "Prune", ration = 0.5 }]]'),
        "defenses: unknown option 'ration' of Prune; did you mean 'ratio'?",
    ),
    "misspelt model option": (
        spec(models='{ name = "mlp", hiden = [8] }'),
        "models: unknown option 'hiden' of mlp; did you mean 'hidden'?",
    ),
    "misspelt threat": (
        spec(threats="{ knows_label = true }"),
        "threats: unknown option 'knows_label' of Threat; did you mean 'knows_labels'?",
    ),
    "missing defense option": (
        spec(defenses='[[{ name = "Prune" }]]'),
        "defenses: Prune needs the option 'ratio', which is not given",
    ),
    "missing attack": (
        "[[scenario]]\ndata = { name = 'photos' }\nmodels = { name = 'mlp' }",
        "a scenario needs the option 'attacks', which is not given",
    ),
    "a part in words that cannot be read": (
        spec(attacks='"dlg(steps=many)"'),
        "attacks: dlg expects steps as a number, a list or words in quotes, got many",
    ),
    "an unknown part in words": (
        spec(models='["mlp", "lenett"]'),
        "models: unknown model 'lenett'; did you mean 'lenet'?",
    ),
    "a defense in other capitals": (
        spec(defenses='[[{ name = "DP-SGD" }]]'),
        "defenses: unknown defense 'DP-SGD'; did you mean 'dp_sgd'?",
    ),
    "a path for a module": (
        spec(models='{ name = "bad_networks/more.py:build" }'),
        "got the path 'bad_networks/more.py:build'; write bad_networks.more:build",
    ),
    "a path for data": (
        spec(data='{ name = "range.npz" }'),
        "data: expected a data set, got a path; write npz:range.npz",
    ),
    "a folder for data": (
        spec(data='{ name = "empty/" }'),
        "data: expected a data set, got a path; write folder:empty/",
    ),
    "word for a number": (
        spec(defenses='[[{ name = "Prune", ratio = "high" }]]'),
        "defenses: Prune expects ratio as float, got 'high'",
    ),
    "ratio out of range": (
        spec(defenses='[[{ name = "Prune", ratio = 1.5 }]]'),
        "expected a pruning ratio in [0, 1], got 1.5",
    ),
    "word for steps": (
        spec(attacks='{ name = "inverting_gradients", steps = "many" }'),
        "attacks: inverting_gradients expects steps as int | None, got 'many'",
    ),
    "half a step": (
        spec(attacks='{ name = "inverting_gradients", steps = 2.5 }'),
        "inverting_gradients expects steps as int | None, got 2.5",
    ),
    "an engine in words": (
        spec(attacks='{ name = "inverting_gradients", engine = "fast" }'),
        "inverting_gradients expects engine as Engine, got 'fast'",
    ),
    "no steps": (
        spec(attacks='{ name = "inverting_gradients", steps = 0 }'),
        "expected steps >= 1",
    ),
    "impossible order": (
        spec(defenses='[[{ name = "Mean" }, { name = "ClipEach", max_norm = 1.0 }]]'),
        "per-example links come first, then Mean()",
    ),
    "per-example update shared": (
        spec(defenses='[[{ name = "ClipEach", max_norm = 1.0 }]]'),
        "end the chain with Mean()",
    ),
    "per-example clipping of local steps": (
        spec(
            locals='{ name = "FedAvg", lr = 0.1, steps = 2 }',
            defenses='[[{ name = "ClipEach", max_norm = 1.0 }, { name = "Mean" }]]',
        ),
        "use Gradient(), or Clip for ClipEach",
    ),
    "a misspelt option of a defense in words": (
        spec(defenses='"Sign + Prune(rato=0.5)"'),
        "defenses: unknown option 'rato' of Prune; did you mean 'ratio'?",
    ),
    "defenses that are a number": (
        spec(defenses="3"),
        "a scenario expects defenses as one or more tables",
    ),
    "defenses that are none": (
        spec(defenses="[]"),
        "a scenario expects defenses as one or more tables",
    ),
    "contradictory threat": (
        spec(threats="{ knows_labels = true, knows_batch_size = false }"),
        "threats: knowing the labels includes the batch size",
    ),
    "word for a truth value": (
        spec(threats='{ knows_labels = "no" }'),
        "threats: Threat expects knows_labels as true or false, got 'no'",
    ),
    "batch beyond the data": (
        spec(data='{ name = "photos", batch_size = 25 }'),
        "at most the 24 people of photos, got 25",
    ),
    "batch without anybody left": (
        spec(data='{ name = "photos", batch_size = 13 }'),
        "too few to compare 13 people with others",
    ),
    "people fewer than none": (
        spec(data='{ name = "photos", people = -3 }'),
        "data: expected people >= 1, or a list of their numbers, got -3",
    ),
    "people not a multiple": (
        spec(data='{ name = "photos", people = 3, batch_size = 2 }'),
        "expected people to be a multiple of batch_size, got 3 people in batches of 2",
    ),
    "word for people": (
        spec(data='{ name = "photos", people = "all" }'),
        "data: expected people >= 1, or a list of their numbers, got 'all'",
    ),
    "unknown split": (spec(data='{ name = "photos", split = "val" }'), "expected split 'test'"),
    "data without a name": (spec(data="{ people = 2 }"), "expected a table with a name"),
    "data not there": (spec(data='{ name = "cifar10" }'), "set SEEPAGE_DATA to the folder"),
    "invalid TOML": ("[[scenario]\n", "spec.toml is not valid TOML"),
    "scenario that is a number": ("scenario = 3", "expected scenario as one or more [[scenario]]"),
    "empty scenario": ("[[scenario]]", "scenario 1: data: expected data as one or more tables"),
    "nothing": ("", "expected scenario as one or more [[scenario]]"),
    "empty seeds": (spec(head="seeds = []"), "expected seeds as a list of whole numbers, got []"),
    "a seed too large": (
        spec(head="seeds = [0, 9223372036854775808]"),
        "expected a seed between -2**63 and 2**63",
    ),
    "a network's seed too large": (
        spec(models='{ name = "mlp", seed = 9223372036854775808 }'),
        "models: expected a seed between -2**63 and 2**63",
    ),
    "seeds that are words": (spec(head='seeds = ["one"]'), "expected seeds as a list of whole"),
    "labels beyond the classes": (
        spec(data='{ name = "photos", people = [3] }', models='{ name = "mlp", classes = 3 }'),
        "expected labels in 0..2 for mlp(hidden=(256,), classes=3), got others",
    ),
    "network too deep for the pixels": (
        spec(data='{ name = "photos", pixels = 2 }', models='{ name = "convnet", width = 2 }'),
        "models: ",
    ),
    "factory without a module": (
        spec(models='{ name = "no_such_module_here:build" }'),
        "no module 'no_such_module_here' to import",
    ),
    "factory without a function": (spec(models='{ name = "torch.nn" }'), "package.module:factory"),
    "factory that is missing": (
        spec(models='{ name = "bad_networks:bulid" }'),
        "unknown factory 'bulid' in bad_networks",
    ),
    "factory of something else": (
        spec(models='{ name = "bad_networks:no_network" }'),
        "to return a torch.nn.Module, got dict",
    ),
    "factory that raises": (
        spec(models='{ name = "bad_networks:raises" }'),
        "but it raised ZeroDivisionError",
    ),
    "module that raises": (
        spec(models='{ name = "bad_module:build" }'),
        "importing 'bad_module' raised NameError",
    ),
    "network that cannot run": (
        spec(models='{ name = "bad_networks:unrunnable" }'),
        "bad_networks:unrunnable cannot be built or run, it raised KeyError",
    ),
    "network of other classes": (
        spec(models='{ name = "bad_networks:seven" }'),
        "to have 10 outputs, got 7",
    ),
    "weights missing": (
        spec(models='{ name = "mlp", weights = "none.safetensors" }'),
        "models: no weights at 'none.safetensors'",
    ),
    "weights truncated": (
        spec(models='{ name = "mlp", weights = "truncated.safetensors" }'),
        "'truncated.safetensors' is truncated or not a safetensors file",
    ),
    "weights pickled": (
        spec(models='{ name = "mlp", weights = "pickled.pt" }'),
        "pickled Python objects, which could run code and are refused",
    ),
    "weights of other shapes": (
        spec(models='{ name = "mlp", weights = "small.safetensors" }'),
        "the weights in 'small.safetensors' do not fit mlp",
    ),
    "weights that are a number": (
        spec(models='{ name = "mlp", weights = 3 }'),
        "mlp cannot be built or run, it raised TypeError",
    ),
    "archive not there": (spec(data='{ name = "npz:none.npz" }'), "nothing is there"),
    "archive that is no archive": (
        spec(data='{ name = "npz:truncated.safetensors" }'),
        "expected an npz archive of plain arrays",
    ),
    "archive with NaN": (
        spec(data='{ name = "npz:nan.npz" }'),
        "data: expected finite inputs, got NaN or infinity in input 1",
    ),
    "archive out of range": (
        spec(data='{ name = "npz:range.npz" }'),
        "did you forget to undo the normalisation, or to divide by 255?",
    ),
    "folder that is empty": (spec(data='{ name = "folder:empty" }'), "data: "),
}


# Mistakes of the file as a whole.
WITHOUT_LINE = {"invalid TOML", "nothing"}


def mistaken_lines(text):
    """The lines in which a spec differs from the good one."""
    pairs = enumerate(zip_longest(text.splitlines(), spec().splitlines()), start=1)
    return [number for number, (ours, good) in pairs if ours != good]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to run in, with every file that a bad spec can name."""
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    images = np.full((4, 1, 4, 4), 0.5, dtype=np.float32)
    labels = np.arange(4)
    np.savez("range.npz", images=images * 255, labels=labels)
    images[1, 0, 2, 2] = np.nan
    np.savez("nan.npz", images=images, labels=labels)
    save_file({"head.weight": torch.zeros(2, 2)}, "small.safetensors")
    Path("truncated.safetensors").write_bytes(Path("small.safetensors").read_bytes()[:20])
    torch.save({"weights": pytest.Item}, "pickled.pt")
    Path("bad_module.py").write_text("build = undefined\n")
    Path("bad_networks.py").write_text(
        "from torch import nn\n"
        "def no_network(): return {}\n"
        "def raises(): return 1 / 0\n"
        "def seven(): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 7))\n"
        "class unrunnable(nn.Linear):\n"
        "    def __init__(self): super().__init__(1, 1)\n"
        "    def forward(self, inputs): return {}['logits']\n"
    )
    yield tmp_path
    for module in ("bad_module", "bad_networks"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_spec_is_one_line_and_leaves_nothing_behind(name, refused, place):
    text, expected = BAD[name]
    (place / "spec.toml").write_text(text)
    said = refused("audit", "spec.toml", "--out", "out")
    assert expected in said
    found = re.match(r"seepage: spec\.toml, line (\d+): ", said)
    assert (found is None) == (name in WITHOUT_LINE)
    assert found is None or int(found[1]) in mistaken_lines(text)
    assert not (place / "out").exists()


MANY_LINES = """
title = "Long"

[[scenario]]
data = [
  { name = "photos" },  # a comment with a ] and a "
  { name = "digits" },
]
models = { name = "mlp" }
attacks = { name = "analytic_fc" }

[[scenario]]
data = { name = "photos" }
models = [
  { name = "mlp" },
  { name = "cnn2-v2" },
]
defenses = [
  [],
  [
    { name = "Clip", max_norm = 1.0 },
    { name = "AddGaussian", std = 0.1 },
  ],
]

[[scenario.attacks]]
name = "analytic_fc"

[[scenario.attacks]]
name = "inverting_gradients"
steps = 5
"""


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ('{ name = "digits" }', '{ name = "digit" }', 7),
        ('"cnn2-v2"', '"cnn2-v22"', 16),
        ("std = 0.1", "sdt = 0.1", 22),
        ("max_norm = 1.0", "max_norm = -1.0", 21),
        ("steps = 5", "steps = 0", 29),
        ("steps = 5", "step = 5", 31),
    ],
)
def test_the_line_is_found_in_lists_and_tables_that_span_many(right, wrong, line, refused, place):
    assert MANY_LINES.count(right) == 1
    (place / "spec.toml").write_text(MANY_LINES.replace(right, wrong))
    said = refused("audit", "spec.toml", "--out", "out")
    assert said.startswith(f"seepage: spec.toml, line {line}: scenario ")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--resume", "--overwrite"], "expected --resume or --overwrite, got both"),
        (["--retry-failed"], "--retry-failed goes with --resume"),
        (["--trust"], "--trust goes with --resume"),
        (["--fail-above", "pnsr=20"], "unknown metric 'pnsr' in --fail-above pnsr=20; did you"),
        (["--fail-above", "psnr"], "expected --fail-above METRIC=NUMBER, got 'psnr'"),
        (["--fail-above", "psnr=high"], "expected --fail-above METRIC=NUMBER, got 'psnr=high'"),
        (["--fail-above", "psnr=nan"], "expected --fail-above METRIC=NUMBER"),
        (["--fail-above", "psnr=inf"], "expected --fail-above METRIC=NUMBER"),
        (["--fail-if-worse", "nowhere"], "no audit in 'nowhere'"),
        (["--timeout", "nan"], "timeout"),
        (["--timeout", "inf"], "expected timeout as seconds for each case"),
        (["--fail-above", "ssim=0.5"], "which spec.toml does not measure; add it to metrics"),
    ],
)
def test_options_that_make_no_sense_are_refused(flags, expected, refused, place):
    (place / "spec.toml").write_text(spec(head='metrics = ["psnr"]'))
    assert expected in refused("audit", "spec.toml", "--out", "out", *flags)
    assert not (place / "out").exists()


def test_there_is_nothing_to_go_on_with_without_a_spec_or_an_audit(refused, place):
    assert "no audit in 'out' to go on with" in refused("audit", "--out", "out", "--resume")
    assert not (place / "out").exists()


def test_the_spec_that_the_bad_ones_differ_from_is_good(place, monkeypatch):
    (place / "spec.toml").write_text(spec())
    monkeypatch.setattr(sys, "argv", ["seepage", "audit", "spec.toml", "--out", "out", "--quiet"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("none.toml", "cannot read the spec 'none.toml': No such file or directory"),
        ("empty", "cannot read the spec 'empty': expected a file"),
        ("range.npz", "cannot read the spec 'range.npz': it is not text"),
        ("small.safetensors", "got 'small.safetensors'; a captured update goes with --capture"),
    ],
)
def test_a_spec_that_cannot_be_read_is_one_line(path, expected, refused, place):
    assert expected in refused("audit", path, "--out", "out")
    assert not (place / "out").exists()


@pytest.mark.parametrize("flag", [[], ["--overwrite"]])
def test_an_out_that_is_not_an_audit_is_refused_and_untouched(flag, refused, place):
    (place / "spec.toml").write_text(spec())
    (place / "out").mkdir()
    (place / "out" / "thesis.tex").write_text("years of work")
    line = refused("audit", "spec.toml", "--out", "out", *flag)
    assert "'out' holds something else" in line
    assert [p.name for p in (place / "out").iterdir()] == ["thesis.tex"]


def test_a_spec_without_scenarios_says_how_one_begins(refused, place):
    (place / "spec.toml").write_text("seeds = [0]")
    assert "expected scenario as one or more [[scenario]] sections, got nothing" in refused(
        "audit", "spec.toml"
    )


def test_an_audit_in_place_of_a_spec_says_what_shows_it(refused, place):
    (place / "spec.toml").write_text(spec())
    assert CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out"]).exit_code == 0
    assert "to see the audit in it: seepage report" in refused("audit", "out")


@pytest.mark.parametrize("name", ["npz", "folder", "folder:PATH", "csv:mine.csv"])
def test_data_that_a_prefix_names_can_be_looked_up(name):
    told = CliRunner().invoke(app, ["list", "data", name])
    assert told.exit_code == 0
    assert told.output.startswith(f"{name.partition(':')[0]}:PATH: ")


def test_an_out_that_is_a_file_is_refused(refused, place):
    (place / "spec.toml").write_text(spec())
    assert "holds something else" in refused("audit", "spec.toml", "--out", "nan.npz")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_device_is_refused(refused, place):
    (place / "spec.toml").write_text(spec())
    line = refused("audit", "spec.toml", "--out", "out", "--device", "cuda")
    assert "no CUDA device is available here; use --device cpu or auto" in line
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["audit", "--speed", "9"], "no such option '--speed'"),
        (["audit", "--step", "9"], "no such option '--step'; did you mean"),
        (["audit", "--effort", "hard"], "'hard' is not one of 'quick'"),
        (["audit", "--effort", "hard"], "seepage: --effort: "),
        (["audit", "--people", "few"], "seepage: --people: "),
        (["audit", "--out"], "option '--out' requires an argument (see `seepage audit --help`)"),
        (["report"], "expected DIRECTORIES, got nothing (see `seepage report --help`)"),
        (["list", "wishes"], "'wishes' is not one of 'attacks'"),
        (["list", "wishes"], "seepage: KIND: "),
        (["frobnicate"], "no such command 'frobnicate' (see `seepage --help`)"),
        (["adit"], "no such command 'adit'; did you mean 'audit'? (see `seepage --help`)"),
        (["--versoin"], "no such option '--versoin'; did you mean '--version'?"),
    ],
)
def test_bad_usage_is_one_sentence_with_the_same_exit_code(arguments, told, refused):
    assert told in " ".join(refused(*arguments).replace('"', "'").split())


def test_no_arguments_show_the_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["seepage"])
    with pytest.raises(SystemExit):
        main()
    assert "Usage: seepage" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "name", ["unknown attack", pytest.param("factory that raises", marks=pytest.mark.slow)]
)
def test_the_installed_command_says_the_same(name, place):
    text, expected = BAD[name]
    (place / "spec.toml").write_text(text)
    result = subprocess.run(
        [sys.executable, "-c", "from seepage.cli import main; main()", "audit", "spec.toml"],
        env={**os.environ, "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    [number] = mistaken_lines(text)
    assert line.startswith(f"seepage: spec.toml, line {number}: scenario 1: ")
    assert expected in line
    assert result.stdout == ""
    assert not (place / "seepage-audit").exists()
