"""Networks of other packages: built from their configuration, told clearly where that fails."""

import importlib.util

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue, MissingExtra

DOMAIN = sp.domains.Image((3, 12, 12))
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32, "patch_size": 4}  # fmt: skip


def test_a_vision_transformer_of_transformers_is_a_task_like_any_other():
    pytest.importorskip("transformers", reason="pip install 'seepage[huggingface]'")
    options = {"domain": DOMAIN, "classes": 7, "config": SMALL}
    task = sp.zoo.build("hf:vit", options=options)
    again = sp.zoo.build("hf:vit", options=options)
    assert task.classes == 7
    assert task.digest == again.digest
    assert sp.zoo.build("hf:vit", options={**options, "seed": 1}).digest != task.digest
    assert task.name.startswith("hf:vit(config={'hidden_size': 16")
    batch = sp.Batch(torch.rand(2, 3, 12, 12), torch.tensor([1, 5]))
    update = sp.Client(sp.Gradient())(task, batch, rng=sp.rng(0))
    assert float(update.norm()) > 0


def test_a_kind_that_transformers_does_not_know_is_named():
    pytest.importorskip("transformers", reason="pip install 'seepage[huggingface]'")
    with pytest.raises(InvalidValue, match="hf:nonsense"):
        sp.zoo.build("hf:nonsense", options={"domain": DOMAIN})


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("hf:vit", "transformers", "huggingface"), ("timm:resnet18", "timm", "timm")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(name, package, extra, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install .*\[{extra}\]"):
        sp.zoo.build(name, options={"domain": DOMAIN})


@pytest.mark.skipif(
    not (importlib.util.find_spec("timm") and importlib.util.find_spec("torchvision")),
    reason="timm needs a torchvision that loads beside this torch",
)
def test_a_network_of_timm_is_a_task_like_any_other():
    task = sp.zoo.build("timm:resnet18", options={"domain": DOMAIN, "classes": 7})
    assert task.classes == 7
