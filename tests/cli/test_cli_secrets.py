"""No private label, text or number reaches an error, a log, a failure's record or the console."""

import logging
import re
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.capture import Capture, Setting
from seepage.cli import app
from seepage.core._whole_file import unseal
from seepage.domains import Tokens
from seepage.step._training_steps import AuditSteps

CLASS, NUMBER, WORD = 7391, 0.73914, "Quetzal"
OUTSIDE = 73.914
SECRET = re.compile(r"7391|0\.739|73\.9|7\.39|Quetzal")

NETWORKS = """
from torch import nn


class Tells(nn.Sequential):
    def __init__(self, tell):
        super().__init__(nn.Flatten(), nn.Linear(64, 4))
        self.tell = tell

    def forward(self, inputs):
        if inputs.min() < inputs.max():  # not the blank input of a check
            self.tell(inputs)
        return super().forward(inputs)


def fail(kind, write):
    def tell(inputs):
        raise kind(write(inputs))

    return lambda: Tells(tell)


tensor = fail(ValueError, lambda inputs: f"cannot read {inputs}")
entries = fail(RuntimeError, lambda inputs: f"strange entries: {inputs.flatten()[:3].tolist()}")
one = fail(AssertionError, lambda inputs: f"{inputs.max():.5f} is too large")
word = fail(KeyError, lambda inputs: "Quetzal")
person = fail(ValueError, lambda inputs: "no blood group for Ann Smith")
leaves = fail(SystemExit, lambda inputs: f"entry {inputs.max():.5f}")
"""
SPEC = """controls = false
metrics = ["psnr"]
[[scenario]]
data = { name = "DATA" }
models = MODEL
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "telling_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("telling_networks", None)


def write_inputs(value=NUMBER, label=1):
    inputs = numpy.random.default_rng(0).random((12, 8, 8)) * value
    inputs[:, 0, :3] = value
    numpy.savez("private.npz", images=inputs, labels=numpy.where(numpy.arange(12) % 2, 3, label))


def invoke(*words):
    """All that a command says, at whatever place."""
    done = CliRunner().invoke(app, words)
    return done.exit_code, f"{done.output}\n{done.stderr}\n{done.exception}"


def audit(data, model='{ name = "mlp", classes = 4 }'):
    Path("spec.toml").write_text(SPEC.replace("DATA", data).replace("MODEL", model))
    return invoke("audit", "spec.toml", "--out", "out")


def read_folder(out):
    """Every word that the plan and the cases hold, and every file for people to read."""
    held = [str(unseal(path.read_bytes())) for path in out.glob("cases/*.safetensors")]
    words = "\n".join([*held, *(p.read_text() for p in out.glob("*.json"))])
    # A checksum may have any digits.
    return re.sub(r"\b[0-9a-f]{64}\b", "", words)


@pytest.mark.parametrize("name", ["tensor", "entries", "one", "word", "leaves"])
def test_what_a_network_says_of_its_inputs_is_not_repeated(place, name):
    write_inputs()
    said = audit("npz:private.npz", f'{{ name = "telling_networks:{name}" }}')[1]
    assert Path("out").exists(), said
    [record] = load_audit("out").records
    assert re.match(r"\w+(Error|Exit): ", record.error), "the case failed, and says of what"
    assert record.error.split(":")[0] in said
    for again in (("audit", "--out", "out", "--resume", "--retry-failed"), ("report", "out")):
        said += invoke(*again)[1]
    page = (place / "out" / "report.html").read_text()
    failed = page[page.index(record.error.split(":")[0]) :][:300]
    assert not SECRET.search(said + failed + read_folder(place / "out"))


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("--timeout", "500"), marks=pytest.mark.slow)]
)
def test_a_name_in_an_error_of_the_users_own_is_shown_and_never_stored(place, workers):
    write_inputs()
    model = '{ name = "telling_networks:person" }'
    Path("spec.toml").write_text(SPEC.replace("DATA", "npz:private.npz").replace("MODEL", model))
    command = ("audit", "spec.toml", "--out", "out", "--fail-above", "identified=0", *workers)
    said = invoke(*command, "--plain")[1]
    assert said.count("Ann Smith") == 1
    assert "ValueError: what it says is not stored" in said
    files = [path for path in Path("out").rglob("*") if path.is_file()]
    assert Path("out/report.html") in files
    assert not [path for path in files if b"Smith" in path.read_bytes()]


def test_the_environment_holds_no_name_and_no_path(place, monkeypatch):
    monkeypatch.setenv("USER", WORD)
    monkeypatch.setenv("HOSTNAME", WORD)
    write_inputs()
    assert audit("npz:private.npz")[0] == 0
    words = (place / "out" / "environment.json").read_text()
    assert not SECRET.search(words)
    assert str(place) not in words
    assert str(Path.home()) not in words


def write_rows(*rows, header="age,name,ill"):
    Path("private.csv").write_text("\n".join([header, *rows]))


def fill_columns(declared):
    rows = [f"{20 + i},w{i % 3},{i % 2}" for i in range(40)]
    write_rows(*rows, f"{OUTSIDE},{WORD},1")
    Path("private.columns.toml").write_text(f"[columns]\n{declared}")
    return "csv:private.csv"


def classes_beyond():
    write_inputs(label=CLASS)
    return "npz:private.npz"


def classes_in_words():
    numpy.savez("private.npz", inputs=numpy.zeros((1, 1, 8, 8)), labels=numpy.array([WORD]))
    return "npz:private.npz"


def numbers_beyond():
    numpy.savez("private.npz", images=numpy.full((1, 8, 8), OUTSIDE), labels=numpy.array([0]))
    return "npz:private.npz"


def a_word_among_numbers():
    write_rows(*(f"{20 + i},w{i % 3},{i % 2}" for i in range(99)), f"{WORD},w1,1")
    return "csv:private.csv"


def no_first_line():
    write_rows(f"{OUTSIDE},{WORD},1", "2,b,0", header=f"{WORD},{WORD},{CLASS}")
    return "csv:private.csv"


def too_many_classes():
    write_rows(*(f"{i},w,{WORD}{i}" for i in range(99)))
    return "csv:private.csv"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (classes_beyond, "expected labels in 0..3"),
        (classes_in_words, "expected integer labels"),
        (numbers_beyond, "64 of 64 values outside"),
        (a_word_among_numbers, "something else in 1 of 100"),
        (no_first_line, "is that line missing"),
        (too_many_classes, "99 different words"),
        (lambda: fill_columns("age = { kind = 'number', low = 0, high = 60 }"), "1 of 41 rows"),
        (lambda: fill_columns("name = { kind = 'number' }"), "something else in 41 of 41 rows"),
    ],
)
def test_data_that_do_not_fit_are_counted_and_not_shown(place, data, said):
    code, told = audit(data())
    assert code != 0
    assert said in told
    assert not SECRET.search(told)
    assert not (place / "out").exists()


def test_known_labels_and_truths_that_do_not_fit_are_not_shown(place):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    setting = Setting(batch_size=1, shape=(1, 8, 8), lr=0.5)
    gradient = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    sp.capture.save(Capture.of(model, gradient, form="gradient", setting=setting), "c.safetensors")
    (place / "linear.py").write_text(
        "from torch import nn\ndef small(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))"
    )
    ask = ("audit", "--model", "linear:small", "--capture", "c.safetensors", "--out", "out")
    code, said = invoke(*ask, "--labels", str(CLASS))
    assert "expected labels in 0..3" in said
    said += invoke(*ask, "--labels", f"{CLASS}{WORD}")[1]
    truths = {
        "class": (torch.full((1, 1, 8, 8), NUMBER), torch.tensor([CLASS])),
        "number": (torch.full((1, 1, 8, 8), OUTSIDE), torch.tensor([1])),
        "shape": (torch.full((1, 1, 9, 9), NUMBER), torch.tensor([CLASS])),
        "count": (torch.full((2, 1, 8, 8), NUMBER), torch.tensor([CLASS])),
    }
    for name, (inputs, labels) in truths.items():
        save_file({"inputs": inputs, "labels": labels}, f"{name}.safetensors")
        code, told = invoke(*ask, "--truth", f"{name}.safetensors")
        assert code != 0, name
        assert "expected" in told, name
        said += told
    assert not SECRET.search(said.replace(str(place), ""))
    sys.modules.pop("linear", None)


def classify(inputs=None, label=1):
    inputs = torch.full((2, 1, 8, 8), NUMBER) if inputs is None else inputs
    return inputs, torch.tensor([label, label])


def tell_labels(outputs, labels):
    raise ValueError(f"no class {labels.tolist()} for {outputs.shape}")


LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
WORDS = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 4))
TOKENS = torch.full((2, 5), CLASS)


@pytest.mark.parametrize(
    ("model", "loss", "batch", "domain", "said"),
    [
        (LINEAR, nn.CrossEntropyLoss(), classify(label=CLASS), (0, 1), "out of bounds|labels in"),
        (LINEAR, nn.CrossEntropyLoss(), classify(label=OUTSIDE), (0, 1), "expected"),
        (LINEAR, nn.MSELoss(), classify(label=OUTSIDE), (0, 1), "size|expected"),
        (LINEAR, tell_labels, classify(label=CLASS), (0, 1), "no class"),
        (LINEAR, nn.CrossEntropyLoss(), classify(), (0, 0.5), "128 of 128 values outside"),
        (LINEAR, nn.CrossEntropyLoss(), classify(torch.full((2, 64), OUTSIDE)), None, "outside it"),
        (WORDS, nn.CrossEntropyLoss(), classify(TOKENS), None, "out of range|tokens in"),
        (WORDS, nn.CrossEntropyLoss(), classify(TOKENS), Tokens(5, 20), "10 of 10 outside"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_audited_shows_nobody(
    tmp_path, caplog, model, loss, batch, domain, said
):
    with pytest.raises(sp.SeepageError) as caught:
        sp.audit_step(model, loss, batch, domain=domain)
    assert re.search(said, str(caught.value))
    assert not SECRET.search(str(caught.value))
    with caplog.at_level(logging.DEBUG):
        assert AuditSteps(tmp_path / "steps", loss=loss, domain=domain)(0, model, batch) is None
    assert "step 0 was not audited" in caplog.text
    assert not SECRET.search(caplog.text)


def test_members_who_do_not_fit_are_not_shown(place):
    write_inputs(value=OUTSIDE, label=CLASS)
    Path("c.safetensors").touch()
    words = ("membership", "c.safetensors", "--model", "mlp", "--public", "npz:private.npz")
    code, said = invoke(*words, "--candidates", "npz:private.npz")
    assert code != 0
    assert not SECRET.search(said)
