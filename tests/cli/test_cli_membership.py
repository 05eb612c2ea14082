"""`seepage membership`: from captures and candidates to p-values."""

import json

import numpy
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app


def save(path, batch):
    pixels = (255 * batch.inputs).round().byte().squeeze(1)
    numpy.savez(path, images=pixels.numpy(), labels=batch.labels.numpy())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Captures of two rounds and of another network, candidates, and public inputs."""
    monkeypatch.chdir(tmp_path)
    digits = sp.data.load("digits")
    about = sp.capture.Setting(batch_size=6, shape=(1, 28, 28))
    domain = sp.domains.Image((1, 28, 28))
    for name, hidden in (("one", 32), ("two", 32), ("other", 16)):
        task = sp.zoo.mlp(hidden=(hidden,), domain=domain)
        update = sp.Client(sp.Gradient())(task, digits.take(range(6)), rng=sp.rng(0))
        capture = sp.capture.Capture.of(
            task.model, dict(update.tensors), form="gradient", setting=about
        )
        sp.capture.save(capture, tmp_path / f"{name}.safetensors")
    save("candidates.npz", digits.take(range(9)))
    save("public.npz", digits.take(range(9, 100)))
    photos = sp.data.load("photos").take(range(3))
    pixels = (255 * photos.inputs).round().byte().permute(0, 2, 3, 1)
    numpy.savez("photos.npz", images=pixels.numpy(), labels=photos.labels.numpy())


def ask(*captures, candidates="candidates.npz", more=()):
    command = ["membership", *captures, "--model", "mlp", "-o", "hidden=[32]"]
    data = ["--candidates", f"npz:{candidates}", "--public", "npz:public.npz"]
    return CliRunner().invoke(app, [*command, *data, *more])


@pytest.mark.parametrize("captures", [("one.safetensors",), ("one.safetensors", "two.safetensors")])
def test_members_have_the_lowest_p_values(place, captures):
    done = ask(*captures, more=("--format", "json"))
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    p_values = [one["p_value"] for one in found["candidates"]]
    assert max(p_values[:6]) <= 1 / (found["strangers"] + 1)
    assert min(p_values[6:]) > 0.02
    assert len(found["test"]) == len(captures)
    assert found["power"]["found"] == found["power"]["of"]


def test_the_text_says_which_test_it_was_and_what_it_can_tell(place):
    done = ask("one.safetensors")
    assert "test: span of hidden1" in done.output
    assert "so no p-value is below" in done.output


@pytest.mark.parametrize(
    ("captures", "candidates", "words"),
    [
        (("one.safetensors",), "photos.npz", "expected inputs of shape (1, 28, 28)"),
        (("one.safetensors", "other.safetensors"), "candidates.npz", "hidden1"),
        (("none.safetensors",), "candidates.npz", "none.safetensors"),
        (("one.safetensors",), "nobody.npz", "nobody.npz"),
    ],
)
def test_bad_input_gets_one_sentence_and_code_2(place, captures, candidates, words):
    done = ask(*captures, candidates=candidates)
    assert isinstance(done.exception, SystemExit | sp.SeepageError)
    said = done.output + str(done.exception)
    assert words in said
    assert "Traceback" not in done.output
