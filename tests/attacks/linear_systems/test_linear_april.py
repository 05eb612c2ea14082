"""One image of a vision transformer in closed form, against the photograph itself."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.linear_systems.april import find_patches
from seepage.core.errors import NotApplicable

PHOTOS = sp.data.load("photos", pixels=16)


def vit(**config):
    pytest.importorskip("transformers", reason="needs transformers")
    from seepage.zoo.foreign import hugging_face

    sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 64}
    changed = {**sizes, "num_hidden_layers": 2, "patch_size": 4, **config}
    return hugging_face("vit", config=changed, classes=PHOTOS.classes, domain=PHOTOS.domain)


def observe(task, people=1, *, start=0, defense=None, local=None):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    batch = PHOTOS.batch(people, start=start)
    return sp.Threat().observe(client, task, batch, rng=sp.rng(0)), batch


@pytest.mark.parametrize("start", range(2))
@pytest.mark.parametrize(
    ("defense", "local"),
    [(None, None), (sp.Clip(0.1), None), (None, sp.FedAvg(lr=0.1, steps=1))],
    ids=["gradient", "clipped", "one step"],
)
def test_one_photograph_comes_back_exactly(start, defense, local):
    seen, batch = observe(vit(), start=start, defense=defense, local=local)
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert float(sp.score(guess, batch)["psnr"]) > 60
    assert guess.certificate.residual < 1e-3
    worst = float((guess.inputs - batch.inputs).abs().max())
    assert guess.certificate.error is None or worst <= guess.certificate.error


def test_auto_and_a_step_find_it():
    batch = PHOTOS.batch(1)
    result = sp.audit_step(
        vit().model, nn.CrossEntropyLoss(), (batch.inputs, batch.labels), steps=5
    )
    assert result.recognisable
    assert "april" in str(result)


def test_what_is_found_is_where_the_slopes_are():
    task = vit()
    found = find_patches(task)
    assert found.grid == (4, 4)
    assert found.first == 1
    assert found.positions.endswith("position_embeddings")
    assert isinstance(task.model.get_submodule(found.layer), nn.Conv2d)


@pytest.mark.parametrize("case", ["several", "frozen positions", "no patches", "many patches"])
def test_what_cannot_be_solved_is_refused_in_one_sentence(case):
    people = 1
    if case == "no patches":
        task = sp.zoo.lenet(domain=PHOTOS.domain)
    elif case == "many patches":
        task = vit(patch_size=2)
    else:
        task = vit()
    if case == "frozen positions":
        model = task.model
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("position" not in name)
        task = sp.Task(model, sp.cross_entropy, PHOTOS.domain)
    people = 2 if case == "several" else 1
    seen, _ = observe(task, people)
    with pytest.raises(NotApplicable) as caught:
        sp.attacks.april()(seen, rng=sp.rng(1))
    assert "\n" not in str(caught.value)


def test_adapters_alone_hold_no_patches():
    task = sp.zoo.add_lora(vit(), rank=4, targets=("query", "value"))
    seen, _ = observe(task)
    with pytest.raises(NotApplicable, match="patches"):
        sp.attacks.april()(seen, rng=sp.rng(1))
    assert torch.is_tensor(next(iter(seen.update)))
