"""Images of a vision transformer by closed forms and spans, against the photographs themselves."""

import pytest
from torch import nn

import seepage as sp
from seepage.attacks.linear_systems import _patch_span as patch_span
from seepage.attacks.linear_systems._april import _find_patches
from seepage.core.errors import NotApplicable
from seepage.exposure._inspection import inspection
from seepage.numerics._least_squares import least_squares

PHOTOS = sp.data.load("photos", pixels=16)
LARGE = {"patch_size": 8, "num_hidden_layers": 3}


def vit(**config):
    pytest.importorskip("transformers", reason="needs transformers")
    from seepage.zoo._foreign import hugging_face

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


@pytest.mark.parametrize("start", [0, 2])
def test_a_photograph_of_few_patches_is_proved(start):
    seen, batch = observe(vit(**LARGE), start=start)
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert guess.certificate.unique
    assert float((guess.inputs - batch.inputs).abs().max()) <= guess.certificate.error


@pytest.mark.parametrize("start", range(2))
def test_fewer_channels_than_patches_leave_the_smoothest_photograph(start):
    seen, batch = observe(vit(hidden_size=12), start=start)
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    grey = sp.Reconstruction(batch.inputs.mean((2, 3), keepdim=True).expand_as(batch.inputs))
    found, flat = (float(sp.score(one, batch)["psnr"]) for one in (guess, grey))
    assert found > flat + 3
    assert not guess.certificate.unique


@pytest.mark.parametrize(
    ("people", "config"),
    [(1, {}), *(pytest.param(people, LARGE, marks=pytest.mark.slow) for people in (2, 4))],
)
def test_auto_and_a_step_find_it(people, config):
    batch = PHOTOS.batch(people)
    model = vit(**config).model
    result = sp.audit_step(model, nn.CrossEntropyLoss(), (batch.inputs, batch.labels), steps=5)
    assert [attempt.level.name for attempt in result.people.values()] == ["reconstructed"] * people
    assert "april" in str(result)


def test_what_is_found_is_where_the_slopes_are():
    task = vit()
    found = _find_patches(task)
    assert found.grid == (4, 4)
    assert found.first == 1
    assert found.positions.endswith("position_embeddings")
    assert isinstance(task.model.get_submodule(found.layer), nn.Conv2d)


@pytest.mark.parametrize("case", ["too many", "noise", "five steps", "no patches", "too small"])
def test_what_cannot_be_solved_is_refused_in_one_sentence(case):
    task = sp.zoo.lenet(domain=PHOTOS.domain) if case == "no patches" else vit()
    people = {"too many": 3, "noise": 2, "five steps": 2}.get(case, 1)
    defense = sp.AddGaussian(1e-3) if case == "noise" else None
    local = sp.FedAvg(lr=0.1, steps=5) if case == "five steps" else None
    if case == "too small":
        task = sp.zoo.add_lora(task, rank=4, targets=("query", "value"))
    seen, _ = observe(task, people, defense=defense, local=local)
    with pytest.raises(NotApplicable) as caught:
        sp.attacks.april()(seen, rng=sp.rng(1))
    assert "\n" not in str(caught.value)


def test_several_photographs_come_back_from_the_spans():
    seen, batch = observe(vit(**LARGE), 3)
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    scores = sp.score(guess, batch)
    assert float(scores["psnr"].min()) > 50
    assert sorted(guess.labels.tolist()) == sorted(batch.labels.tolist())
    assert guess.certificate.residual < 1e-3
    assert guess.confidence.all()


def test_a_photograph_that_is_found_again_is_not_counted_twice(monkeypatch):
    ends = []

    def solve(outside, start, *, steps):
        # The second search ends where the first did.
        ends.append(ends[0] if len(ends) == 1 else least_squares(outside, start, steps=steps))
        return ends[-1]

    monkeypatch.setattr(patch_span, "least_squares", solve)
    seen, batch = observe(vit(**LARGE), 2)
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert len(ends) > 2
    assert (sp.score(guess, batch)["psnr"] > 50).all()


def test_clipping_does_not_hide_a_batch():
    seen, batch = observe(vit(**LARGE), 2, defense=sp.Clip(0.1))
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert float(sp.score(guess, batch)["psnr"].min()) > 50


@pytest.mark.parametrize(
    ("rank", "images"), [(1, 0), (2, 1), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_adapters_give_away_as_many_images_as_they_have_rows_for(rank, images):
    # Query, key and value have 3 rows a rank; an image has 4 patches, and the class its own place.
    network = vit(**LARGE, hidden_size=224)
    task = sp.zoo.add_lora(network, rank=rank, targets=("query", "key", "value"))
    budget = inspection(task).patches
    assert (budget.rank, budget.patches, budget.images) == (3 * rank, 4, images)
    assert ("april" in budget.advice) == bool(images)
    seen, batch = observe(task, max(1, images))
    if images:
        guess = sp.attacks.april()(seen, rng=sp.rng(1))
        assert float(sp.score(guess, batch)["psnr"].min()) > 40
    else:
        with pytest.raises(NotApplicable, match="too few for 1 x 4 patches"):
            sp.attacks.april()(seen, rng=sp.rng(1))


def test_adapters_beside_a_narrow_embedding_tell_no_patches():
    # 48 channels of a frozen embedding cannot tell the 192 entries of a patch.
    task = sp.zoo.add_lora(vit(**LARGE), rank=8, targets=("query", "key", "value"))
    assert inspection(task).patches.images == 0
    with pytest.raises(NotApplicable, match="192 entries"):
        sp.attacks.april()(observe(task)[0], rng=sp.rng(1))


def test_frozen_embeddings_do_not_hide_one_photograph():
    model = vit(hidden_size=96).model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("embeddings" not in name)
    seen, batch = observe(sp.Task(model, sp.cross_entropy, PHOTOS.domain))
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert float(sp.score(guess, batch)["psnr"]) > 50


def cifar():
    try:
        return sp.data.load("cifar10")
    except sp.SeepageError as error:
        pytest.skip(str(error))


def cifar_vit(images, **config):
    pytest.importorskip("transformers", reason="needs transformers")
    from seepage.zoo._foreign import hugging_face

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = {**sizes, "num_hidden_layers": 3, **config}
    return hugging_face("vit", config=config, classes=images.classes, domain=images.domain)


@pytest.mark.slow
def test_a_batch_of_cifar_comes_back():
    images = cifar()
    batch = images.batch(4, start=10)
    task = cifar_vit(images, patch_size=16)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = sp.attacks.april()(seen, rng=sp.rng(1))
    assert float(sp.score(guess, batch)["psnr"].min()) > 50
    assert guess.certificate.residual < 1e-3
