"""Defenses of the network and of the batch: Soteria, PRECODE and OASIS, each against naive code."""

import pytest
import torch

import seepage as sp
from seepage.core import PreparedBatch
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.defenses._representation import VariationalBottleneck

KEY = sp.rng(0)


@pytest.fixture(scope="module")
def small():
    """Three photos at 8 pixels and a network with a hidden layer, in double precision."""
    data = sp.data.load("photos", pixels=8)
    task = sp.zoo.mlp(hidden=(12, 9), domain=data.domain).to(dtype=torch.float64)
    return task, data.batch(3).to(dtype=torch.float64)


def naive_sensitivity(task, batch) -> torch.Tensor:
    """Feature by feature and person by person, through the layers below the last."""
    body = list(task.model.children())[:-1]
    total = torch.zeros(9, dtype=torch.float64)
    for person in batch.inputs:
        for feature in range(9):
            x = person[None].clone().requires_grad_()
            r = task.domain.normalise(x)
            for layer in body:
                r = layer(r)
            (slope,) = torch.autograd.grad(r[0, feature], x)
            size = float(r[0, feature].detach().abs())
            total[feature] += float(slope.norm()) / size if size else torch.inf
    return total


def test_sensitivity_is_that_of_a_naive_loop(small):
    task, batch = small
    ours = sp.Soteria(0.5).sensitivity(PreparedBatch.undefended(task, batch))
    assert torch.allclose(ours, naive_sensitivity(task, batch))


def test_soteria_is_the_gradient_of_a_pruned_representation(small):
    """The head's weight gradient is residual times representation, with its columns pruned."""
    task, batch = small
    shared = sp.Client(sp.Gradient(), sp.Soteria(0.5))(task, batch, rng=KEY)
    plain = sp.Gradient()(task, batch.inputs, batch.labels)
    *_, (weight, _), (bias, _) = task.parameters.items()
    features, logits = task.domain.normalise(batch.inputs), None
    for layer in task.model.children():
        logits = layer(features)
        features, before = logits, features
    pruned = naive_sensitivity(task, batch).argsort()[:4]
    kept = before.detach().clone()
    kept[:, pruned] = 0.0
    residual = logits.softmax(1) - torch.nn.functional.one_hot(batch.labels, 10)
    assert torch.allclose(shared.tensors[weight], residual.T @ kept / 3)
    assert torch.equal(shared.tensors[bias], plain.tensors[bias])
    others = [name for name in plain.tensors if name != weight]
    assert all(torch.equal(shared.tensors[n], plain.tensors[n]) for n in others)


def test_soteria_prunes_nothing_or_everything_at_the_ends(small):
    task, batch = small
    plain = sp.Gradient()(task, batch.inputs, batch.labels)
    none = sp.Client(sp.Gradient(), sp.Soteria(0.0))(task, batch, rng=KEY)
    every = sp.Client(sp.Gradient(), sp.Soteria(1.0))(task, batch, rng=KEY)
    assert torch.equal(none.flat(), plain.flat())
    *_, (weight, _), _ = task.parameters.items()
    assert not every.tensors[weight].any()


def test_soteria_defends_every_example_of_dp_sgd(small):
    task, batch = small
    private = sp.dp_sgd(max_norm=100.0, noise_multiplier=0.0, batch_size=3)
    chained = sp.Client(sp.Gradient(), sp.chain(sp.Soteria(0.5), private))
    alone = sp.Client(sp.Gradient(), sp.Soteria(0.5))
    each = chained(task, batch, rng=KEY).flat()
    assert torch.allclose(each, alone(task, batch, rng=KEY).flat())


def test_the_bottleneck_is_what_its_formula_says(small):
    task, batch = small
    client = sp.Client(sp.Gradient(), sp.Precode(5))
    held = client.broadcast(task)
    (prepared,) = client.share(held, batch, rng=KEY).prepared_batches
    (bottleneck,) = (
        m for m in prepared.task.model.modules() if isinstance(m, VariationalBottleneck)
    )
    assert bottleneck.noise.shape == (3, 5)
    features = task.domain.normalise(batch.inputs)
    for layer in list(task.model.children())[:-1]:
        features = layer(features)
    encoder, decoder = bottleneck.encoder, bottleneck.decoder
    code = features @ encoder.weight.T + encoder.bias
    code = code[:, :5] + (code[:, 5:] / 2).exp() * bottleneck.noise
    head = list(task.model.children())[-1]
    naive = (code @ decoder.weight.T + decoder.bias) @ head.weight.T + head.bias
    assert torch.allclose(prepared.task.outputs(prepared.task.parameters, batch.inputs), naive)


def test_the_server_holds_the_bottleneck_but_not_the_noise(small):
    task, batch = small
    client = sp.Client(sp.Gradient(), sp.Precode(5))
    seen, other = (
        sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(s)) for s in (0, 1)
    )
    assert set(seen.update.tensors) == set(seen.task.parameters)
    (bottleneck,) = (m for m in seen.task.model.modules() if isinstance(m, VariationalBottleneck))
    assert not bottleneck.noise.any()
    assert not torch.allclose(seen.update.flat(), other.update.flat(), atol=1e-3)
    added = {n for n in seen.task.parameters if ".encoder." in n or ".decoder." in n}
    assert len(added) == 4


def test_the_noise_of_the_bottleneck_is_standard_normal(small):
    from scipy import stats

    task, batch = small
    defense = sp.Precode(400)
    prepared = defense.prepare(PreparedBatch.undefended(defense.broadcast(task), batch), rng=KEY)
    (bottleneck,) = (
        m for m in prepared.task.model.modules() if isinstance(m, VariationalBottleneck)
    )
    assert stats.kstest(bottleneck.noise.flatten().numpy(), "norm").pvalue > 0.01


def test_the_decoder_gives_the_mean_code_back_only_without_the_noise(small):
    task, batch = small
    one = sp.Batch(batch.inputs[:1], batch.labels[:1])
    held = sp.Precode(5).broadcast(task)

    def code(client) -> torch.Tensor:
        tensors = client(held, one, rng=KEY).tensors
        (weight,) = (t for n, t in tensors.items() if n.endswith("decoder.weight"))
        (bias,) = (t for n, t in tensors.items() if n.endswith("decoder.bias"))
        row = bias.abs().argmax()
        return weight[row] / bias[row]

    # The gradient of a fully connected layer is its input, weighed by that of its bias.
    features = task.domain.normalise(one.inputs)
    for layer in list(task.model.children())[:-1]:
        features = layer(features)
    (bottleneck,) = (m for m in held.model.modules() if isinstance(m, VariationalBottleneck))
    mean = bottleneck.encoder(features)[0, :5].detach()
    assert torch.allclose(code(sp.Client(sp.Gradient())), mean)
    assert float((code(sp.Client(sp.Gradient(), sp.Precode(5))) - mean).norm()) > 0.5


def test_precode_without_its_network_or_per_example_is_refused(small):
    task, batch = small
    with pytest.raises(InvalidValue, match=r"use client.broadcast\(task\)"):
        sp.Client(sp.Gradient(), sp.Precode(5))(task, batch, rng=KEY)
    private = sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=3)
    client = sp.Client(sp.Gradient(), sp.chain(sp.Precode(5), private))
    with pytest.raises(InvalidValue, match="does not fit ClipEach or local batches"):
        sp.Threat().observe(client, task, batch, rng=KEY)


def test_oasis_trains_on_every_turn_and_mirror_image(small):
    task, batch = small
    shared = sp.Client(sp.Gradient(), sp.Oasis(flips=True)).share(task, batch, rng=KEY)
    (prepared,) = shared.prepared_batches
    naive = torch.zeros_like(shared.update.flat())
    for x, y in zip(batch.inputs.numpy(), batch.labels, strict=True):
        views = [x]
        views += [x.transpose(0, 2, 1)[:, ::-1]]  # counter-clockwise: transpose, then upside down
        views += [x[:, ::-1, ::-1]]
        views += [x.transpose(0, 2, 1)[:, :, ::-1]]
        views += [x[:, :, ::-1], x[:, ::-1]]
        for view in views:
            image = torch.from_numpy(view.copy())[None]
            naive += sp.Gradient()(task, image, y[None]).flat() / (6 * 3)
    assert len(prepared.batch) == 18
    assert torch.allclose(shared.update.flat(), naive)


def test_the_informed_adversary_mirrors_its_candidate_alike(small):
    task, batch = small
    client = sp.Client(sp.FedAvg(lr=0.1, steps=2), sp.Oasis(rotations=False, flips=True))
    informed, ignorant = (
        sp.Threat(knows_labels=True, knows_defense=known).observe(client, task, batch, rng=KEY)
        for known in (True, False)
    )
    assert informed.batch_size == len(informed.labels) == 3
    at_truth = informed.simulate(batch.inputs, informed.labels)
    assert torch.allclose(at_truth.flat(), informed.update.flat())
    plain = ignorant.simulate(batch.inputs, ignorant.labels)
    assert not torch.allclose(plain.flat(), ignorant.update.flat(), atol=1e-3)


def test_an_update_of_all_rotations_does_not_tell_which_way_up_an_image_is(small):
    task, batch = small
    turned = sp.Batch(batch.inputs.rot90(1, (-2, -1)), batch.labels)
    client = sp.Client(sp.Gradient(), sp.Oasis())
    one, other = (client(task, b, rng=KEY).flat() for b in (batch, turned))
    assert torch.allclose(one, other)
    plain = sp.Gradient()(task, batch.inputs, batch.labels).flat()
    assert torch.equal(client.expected(task, batch.inputs, batch.labels).flat(), plain)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: sp.Soteria(1.5), r"in \[0, 1\], got 1.5"),
        (lambda: sp.Precode(0), "length >= 1, got 0"),
        (lambda: sp.Oasis(rotations=False), "got neither"),
        (lambda: sp.TopK(0), "k >= 1 entries, got 0"),
        (lambda: sp.chain(sp.Prune(0.5), sp.MixUp(4)), r"MixUp\(4\) cannot come after Prune"),
        (lambda: sp.chain(sp.Oasis(), sp.MixUp(4)), "mix the data .once., add to it"),
        (lambda: sp.chain(sp.MixUp(4), sp.InstaHide(4)), r"InstaHide\(4\) cannot come after MixUp"),
        (lambda: sp.chain(sp.Precode(4), sp.Oasis()), r"Oasis\(\) cannot come after Precode\(4\)"),
    ],
)
def test_impossible_defenses_are_refused_at_construction(build, said):
    with pytest.raises(InvalidValue, match=said):
        build()


def test_what_a_defense_cannot_work_on_is_refused_at_first_sight(photos):
    wide = sp.domains.Image((1, 4, 6))
    batch = sp.Batch(torch.zeros(2, 1, 4, 6), torch.zeros(2).long())
    with pytest.raises(InvalidValue, match="square images, got 4 x 6"):
        sp.Client(sp.Gradient(), sp.Oasis())(sp.zoo.mlp(domain=wide), batch, rng=KEY)
    signal = sp.domains.Signal((1, 8))
    heard = sp.Batch(torch.zeros(2, 1, 8), torch.zeros(2).long())
    with pytest.raises(InvalidValue, match=r"got inputs of shape \(1, 8\)"):
        sp.Client(sp.Gradient(), sp.Oasis())(sp.zoo.mlp(domain=signal), heard, rng=KEY)
    flat = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 32), torch.nn.Flatten())
    headless = sp.Task(flat, sp.cross_entropy, sp.domains.CIFAR10)
    for defense in (sp.Soteria(0.5), sp.Precode(4)):
        with pytest.raises(NotApplicable, match="a fully connected one"):
            sp.Threat().observe(sp.Client(sp.Gradient(), defense), headless, photos, rng=KEY)
    with pytest.raises(InvalidValue, match=r"at most 4 entries to keep, .* got 5"):
        sp.TopK(5)(sp.Update({"w": torch.ones(2, 2)}), rng=KEY)


def test_top_k_keeps_exactly_k_entries_even_among_ties():
    update = sp.Update({"w": torch.ones(6, 7), "b": torch.tensor([-2.0, 0.5])})
    kept = sp.TopK(5)(update, rng=KEY)
    assert int((kept.flat() != 0).sum()) == 5
    assert kept.tensors["b"].tolist() == [-2.0, 0.0]
    assert int((sp.Prune(1 - 5 / 44)(update, rng=KEY).flat() != 0).sum()) != 5
