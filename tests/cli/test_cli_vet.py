"""`seepage vet`, run as a client runs it."""

import json

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app

pytestmark = pytest.mark.usefixtures("wide_place")


def vet(*arguments, code):
    result = CliRunner().invoke(app, ["vet", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_an_honest_network_is_clean_and_what_it_exposes_is_said():
    said = vet("mlp", "--option", "hidden=[16]", "--data", "photos", code=0)
    assert "mlp(hidden=(16,))   clean" in said
    assert "exposed: 'hidden1' is fully connected with a bias" in said
    assert "D-SNR" in said
    assert "no sign of manipulation was found, but trap weights and weights" in " ".join(
        said.split()
    )
    assert "not for" not in said
    few = vet("mlp", "--data", "photos", "--people", "8", code=0)
    assert "not for flipped labels, which takes --data with 12 examples" in few


def test_weights_that_were_received_are_vetted(wide_place):
    planted = sp.attacks.class_fishing(target=2).plant(sp.zoo.lenet(), rng=sp.rng(0))
    save_file(planted.model.state_dict(), wide_place / "received.safetensors")
    said = vet("lenet", "--weights", "received.safetensors", code=4)
    assert "malicious" in said
    assert "9 of 10 classes have a row of zeros in 'head'" in said


def test_a_network_of_ones_own_is_vetted_as_json(wide_place):
    (wide_place / "received_network.py").write_text(
        "import seepage as sp\n"
        "def build():\n"
        "    task = sp.zoo.cnn(variant='cnn2-v2')\n"
        "    return sp.attacks.robbing_the_fed(bins=16).plant(task, rng=sp.rng(0)).model\n"
    )
    found = json.loads(vet("received_network:build", "--format", "json", code=4))
    assert found["judgement"] == "malicious"
    assert found["findings"][0]["check"] == "bins of biases"
    assert found["findings"][0]["layer"] == "bins"


def test_what_is_only_strange_has_a_code_of_its_own(wide_place):
    (wide_place / "strange_network.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Both(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.convolution, self.beside = nn.Conv2d(3, 2, 3), nn.Linear(192, 4)\n"
        "        self.head = nn.Linear(76, 4)\n"
        "    def forward(self, x):\n"
        "        parts = self.convolution(x).flatten(1), self.beside(x.flatten(1))\n"
        "        return self.head(torch.cat(parts, 1).tanh())\n"
    )
    said = vet("strange_network:Both", "--shape", "3x8x8", code=3)
    assert "suspicious: 'beside' is fully connected and reads the input" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lenett"], "did you mean 'lenet'?"),
        (["lenet", "--data", "photo"], "did you mean 'photos'?"),
        (["lenet", "--weights", "none.safetensors"], "no weights at"),
        (["lenet", "--shape", "3x"], "such as 3x32x32"),
    ],
    ids=str,
)
def test_bad_usage_is_one_sentence(arguments, said, refused):
    assert said in refused("vet", *arguments)
