"""Losses and labels as people have them: the same gradient as in training, and what it leaks."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.core._loss import TrainingLoss, adapt_loss, take_any_target
from seepage.core.errors import InvalidValue
from seepage.step._step_loss import read_loss

CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
CHEAP = {"seconds": 600.0, "steps": 15, "domain": (0, 1)}


@pytest.fixture(autouse=True)
def seeded():
    """Networks that are the same in every order of tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def weighted(outputs, labels, weights):
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return (losses * weights).sum() / weights.sum()


def masked(outputs, targets, mask):
    return ((outputs - targets).square() * mask).sum() / mask.sum()


def two_classes(outputs, classes):
    return sum(functional.cross_entropy(outputs[:, 3 * i :][:, :3], classes[:, i]) for i in (0, 1))


def one_logit(outputs, labels):
    return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), labels.float())


def seeds(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


CLASSES = torch.tensor([0, 1, 2, 2])
SHARES = (3 * seeds(4, 3)).softmax(1)
MASK = torch.tensor([[1.0, 0, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]])
# Outputs, the loss, and everything behind the inputs in a batch of four.
LOSSES = {
    "squared errors": (2, nn.MSELoss(), (3 * seeds(4, 2),)),
    "sum of squared errors": (2, nn.MSELoss(reduction="sum"), (3 * seeds(4, 2),)),
    "absolute errors": (2, nn.L1Loss(), (3 * seeds(4, 2),)),
    "Huber": (2, nn.HuberLoss(delta=0.5), (3 * seeds(4, 2),)),
    "several labels": (3, nn.BCEWithLogitsLoss(), ((seeds(4, 3) > 0.5).float(),)),
    "one label": (1, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), (seeds(4, 1).round(),)),
    "one whole label": (1, one_logit, (torch.tensor([0, 1, 1, 0]),)),
    "class weights": (3, nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), (CLASSES,)),
    "label smoothing": (3, nn.CrossEntropyLoss(label_smoothing=0.1), (CLASSES,)),
    "shares of classes": (3, nn.CrossEntropyLoss(), (SHARES,)),
    "a class left out": (3, nn.CrossEntropyLoss(ignore_index=1), (CLASSES,)),
    "sample weights": (3, weighted, (CLASSES, torch.tensor([0.3, 1.0, 2.0, 0.5]))),
    "two classes each": (6, two_classes, (torch.stack([CLASSES, CLASSES.flip(0)], 1),)),
    "a mask": (3, masked, (3 * seeds(4, 3), MASK)),
    "no labels": (12, nn.MSELoss(), ()),
}
# torch differentiates this one by another formula if it is asked for a function.
ROUNDED = ("several labels", "one label")


def dense(outputs, width=192):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, outputs))


def share(model, loss, batch, **options):
    """Audit a step; return the shared update by the names of the model, and the result."""
    result = sp.audit_step(model, loss, batch, **{**CHEAP, **options})
    shared = result.cases[0].observe().update.tensors
    return {name.removeprefix("model."): tensor for name, tensor in shared.items()}, result


def train(model, loss, inputs, targets):
    """The gradient of the user's own training loop."""
    loss(model(inputs), *(targets or (inputs,))).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_has_the_bits_of_the_training_loop_and_a_batch_of_rows_comes_back(name):
    outputs, loss, targets = LOSSES[name]
    model, inputs = dense(outputs), seeds(4, 12)
    shared, result = share(model, loss, (inputs, *targets))
    trained = train(model, loss, inputs, targets)
    for parameter, gradient in trained.items():
        if name in ROUNDED:
            torch.testing.assert_close(shared[parameter], gradient, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(shared[parameter], gradient)
    # An example that does not count leaves no trace in the gradient.
    absent = {"a class left out": [1], "a mask": [3]}.get(name, [])
    for person in set(range(4)) - set(absent):
        assert float(result.scores["psnr"][person]) > 60


@pytest.mark.parametrize("name", LOSSES)
def test_one_row_comes_back_exactly_although_nobody_knows_its_target(name):
    outputs, loss, targets = LOSSES[name]
    inputs, row = seeds(4, 12), slice(0, 1)
    batch = (inputs[row], *(target[row] for target in targets))
    _, result = share(dense(outputs, width=24), loss, batch)
    assert float(result.scores["psnr"]) > 60


@pytest.mark.parametrize("defense", [None, sp.Clip(0.1)], ids=["bare", "clipped"])
@pytest.mark.parametrize("size", [1, 2])
def test_rows_with_shares_of_classes_come_back_exactly_in_no_declared_range(size, defense):
    """Searches take a class for the label, and the range that they find would cut the rows."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(size, 12, generator=generator)
        shares = torch.randn(size, 5, generator=generator).softmax(1)
        model = dense(5, width=24)
        result = sp.audit_step(model, nn.CrossEntropyLoss(), (rows, shares), defense=defense)
        assert result.recognisable
        assert (result.guess - rows).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["squared errors", "Huber", "several labels", "one label"])
def test_the_target_of_one_row_is_read_off_its_update(name):
    outputs, loss, targets = LOSSES[name]
    batch = seeds(1, 12), targets[0][:1]
    _, result = share(dense(outputs, width=24), loss, batch, attacks=["analytic_fc"])
    assert float(result.scores["label_accuracy"]) == 1
    assert result.records[0].certificate["unique"]


# What a network of three outputs ends in, the loss, and the targets of four.
PROBABILITIES = {
    "log-softmax": (nn.LogSoftmax(1), nn.NLLLoss(), CLASSES),
    "log-softmax, class weights": (nn.LogSoftmax(1), nn.NLLLoss(CLASS_WEIGHTS), CLASSES),
    "log-softmax, a function": (nn.LogSoftmax(1), lambda o, t: functional.nll_loss(o, t), CLASSES),
    "log-softmax, shares": (nn.LogSoftmax(1), nn.KLDivLoss(reduction="batchmean"), SHARES),
    "sigmoid": (nn.Sigmoid(), nn.BCELoss(), seeds(4, 3).round()),
    "sigmoid, a function": (nn.Sigmoid(), functional.binary_cross_entropy, seeds(4, 3).round()),
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", PROBABILITIES)
def test_rows_come_back_from_networks_that_return_probabilities(name, size):
    end, loss, targets = PROBABILITIES[name]
    inputs, targets = seeds(4, 12)[:size], targets[:size]
    model = nn.Sequential(dense(3), end)
    shared, result = share(model, loss, (inputs, targets))
    for parameter, gradient in train(model, loss, inputs, (targets,)).items():
        torch.testing.assert_close(shared[parameter], gradient, rtol=1e-5, atol=1e-7)
    assert float(result.scores["psnr"].min()) > 60


@pytest.mark.parametrize("name", ["log-softmax", "log-softmax, a function", "sigmoid"])
def test_a_search_runs_behind_networks_that_return_probabilities(name, photo):
    end, loss, targets = PROBABILITIES[name]
    batch, model = (photo.repeat(2, 1, 1, 1), targets[:2]), nn.Sequential(convolutional(3), end)
    result = sp.audit_step(model, loss, batch, **CHEAP)
    assert result.records, result.refused
    if targets.ndim == 1:
        assert float(result.scores["label_accuracy"].min()) == 1


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 3.0])], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy_is_that_of_torch_and_goes_on_straight(reduction, weight):
    given, targets = 0.1 + 0.8 * seeds(3, 2), seeds(3, 2)
    plain = nn.BCELoss(weight, reduction=reduction)
    ours = take_any_target(plain)
    torch.testing.assert_close(ours(given, targets), plain(given, targets))
    near, far = (plain(given, at * torch.ones(3, 2)) for at in (0.0, 1.0))
    torch.testing.assert_close(ours(given, 3 * torch.ones(3, 2)), near + 3 * (far - near))


@pytest.mark.parametrize("name", LOSSES)
def test_the_values_of_examples_have_the_mean_and_the_slopes_of_the_batch(name):
    outputs, loss, targets = LOSSES[name]
    given, inputs = 3 * seeds(4, outputs) - 1, seeds(4, 12)
    read = read_loss(loss, given, inputs, targets)
    joined = torch.cat([given, inputs], dim=1) if read.joined else given
    leaf = joined.clone().requires_grad_()
    losses = read.loss(leaf, read.labels)
    assert losses.shape == (4,)
    total = losses.mean() if read.reduction == "mean" else losses.sum()
    (slope,) = torch.autograd.grad(total, leaf)
    own = given.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(own, *(targets or (inputs,))), own)
    torch.testing.assert_close(slope[:, :outputs], expected)


def convolutional(outputs):
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, padding=2, stride=2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(12 * 9, outputs),
    )  # fmt: skip


@pytest.fixture(scope="module")
def photo():
    images = sp.data.bundled("photos", size=1).inputs
    return functional.interpolate(images, size=12, mode="area")


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "name", ["squared errors", "several labels", "class weights", "label smoothing"]
)
def test_a_search_recognises_a_photo_behind_convolutions(name, known, photo):
    outputs, loss, (targets,) = LOSSES[name]
    result = sp.audit_step(
        convolutional(outputs), loss, (photo, targets[:1]), domain=(0, 1), steps=800,
        attacks=["inverting_gradients"], threat=sp.Threat(knows_labels=known),
    )  # fmt: skip
    assert float(result.scores["psnr"]) > 17  # a guess without the update reaches 12


def segmenting():
    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.Sigmoid(), nn.Conv2d(8, 2, 5))


def detecting(outputs, classes, boxes):
    """Two heads, whose outputs the network joins."""
    return functional.cross_entropy(outputs[:, :5], classes) + functional.smooth_l1_loss(
        outputs[:, 5:], boxes
    )


CLASSES_OF_PIXELS = seeds(1, 8, 8).round().long()
WITHOUT_CORNER = torch.where(torch.arange(8) < 2, 255, CLASSES_OF_PIXELS)
DENSE = {
    "pixels": (segmenting, nn.CrossEntropyLoss(), (CLASSES_OF_PIXELS,)),
    "pixels to ignore": (segmenting, nn.CrossEntropyLoss(ignore_index=255), (WITHOUT_CORNER,)),
    "boxes": (lambda: convolutional(9), detecting, (torch.tensor([3]), seeds(1, 4))),
}


@pytest.mark.parametrize("name", DENSE)
def test_heads_of_segmentation_and_detection_are_audited_with_known_targets(name, photo):
    build, loss, targets = DENSE[name]
    model, others = build(), seeds(12, 3, 12, 12)
    threat = sp.Threat(knows_labels=True)
    shared, result = share(model, loss, (photo, *targets), threat=threat, others=others)
    assert [record.error for record in result.records] == [None]
    assert not result.difference
    expected = train(model, loss, photo, targets)
    assert all(torch.equal(shared[name], expected[name]) for name in expected)


def test_classes_of_pixels_that_nobody_knows_are_searched_for(photo):
    loss, batch = nn.CrossEntropyLoss(), (photo, CLASSES_OF_PIXELS)
    result = sp.audit_step(segmenting(), loss, batch, **CHEAP)
    assert [record.error for record in result.records] == [None]
    ignored = nn.CrossEntropyLoss(ignore_index=255)
    result = sp.audit_step(segmenting(), ignored, (photo, WITHOUT_CORNER), **CHEAP)
    assert "Threat(knows_labels=True)" in result.refused["inverting_gradients"]


@pytest.mark.slow
def test_a_segmented_photo_comes_back_if_its_classes_are_known(photo):
    model = segmenting()
    classes = (photo.mean(1) > 0.4).long()[:, 2:-2, 2:-2]
    known = sp.audit_step(
        model, nn.CrossEntropyLoss(), (photo, classes), domain=(0, 1), steps=600,
        attacks=["inverting_gradients"], threat=sp.Threat(knows_labels=True),
    )  # fmt: skip
    assert float(known.scores["psnr"]) > 14


def test_attacks_that_read_classes_say_that_they_do_not_apply_to_numbers():
    model, batch = nn.Sequential(nn.Linear(12, 4)), (seeds(2, 12), seeds(2, 4))
    names = ["softmax_features", "analytic_fc"]
    result = sp.audit_step(model, nn.MSELoss(), batch, attacks=names, **CHEAP)
    assert "targets of sequential that are classes" in result.refused["softmax_features"]
    assert [record.attack.name for record in result.records] == ["analytic_fc"]


def test_an_update_of_weighted_classes_is_not_split_by_example():
    with pytest.raises(InvalidValue, match="weights each example by the others"):
        sp.audit_step(
            dense(3), nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), (seeds(4, 12), CLASSES),
            defense=sp.defenses.dp_sgd(max_norm=1.0, noise_multiplier=0.1, batch_size=4), **CHEAP,
        )  # fmt: skip


def test_a_task_takes_losses_of_torch_with_any_reduction_and_knows_them_apart():
    domain = sp.domains.Signal((1, 12))
    model = nn.Sequential(nn.Flatten(), *dense(3))
    tasks = [
        sp.Task(model, loss, domain)
        for loss in (
            nn.CrossEntropyLoss(),
            nn.CrossEntropyLoss(label_smoothing=0.1),
            nn.CrossEntropyLoss(weight=CLASS_WEIGHTS),
            nn.MSELoss(),
            nn.BCEWithLogitsLoss(),
        )
    ]
    assert len({task.digest for task in tasks}) == len(tasks)
    assert [task.target_shape for task in tasks] == [None, None, None, (3,), (3,)]
    with pytest.raises(InvalidValue, match=r"expected targets \(B, 3\) as floats"):
        tasks[3].check(sp.Batch(seeds(2, 1, 12), torch.tensor([0, 1])))
    with pytest.raises(InvalidValue, match=r"class numbers \(B,\) as int64"):
        sp.Task(model, sp.cross_entropy, domain).check(sp.Batch(seeds(2, 1, 12), seeds(2)))


def test_a_weighted_loss_moves_with_the_network():
    loss = adapt_loss(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS))
    assert isinstance(loss, TrainingLoss)
    moved = loss.to(dtype=torch.float64)
    outputs = seeds(4, 3).double()
    torch.testing.assert_close(moved(outputs, CLASSES), loss(outputs.float(), CLASSES).double())


BEYOND = (
    "got others in 1 of 4 examples, the first at place 2 counted from 0, though the network has 3"
)


@pytest.mark.parametrize("wrong", [3, 917, -1])
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=CLASS_WEIGHTS),
        nn.CrossEntropyLoss(ignore_index=-7),
        functional.cross_entropy,
        lambda outputs, labels: functional.cross_entropy(outputs, labels),
        lambda outputs, labels: functional.nll_loss(outputs.log_softmax(1), labels),
    ],
)
def test_a_label_beyond_the_classes_is_named_by_its_place(loss, wrong):
    labels = torch.tensor([0, 1, wrong, 2])
    with pytest.raises(InvalidValue, match=BEYOND) as caught:
        sp.audit_step(dense(3), loss, (seeds(4, 12), labels), **CHEAP)
    assert "917" not in str(caught.value)


def test_a_label_beyond_the_classes_is_named_by_its_place_to_clients_too():
    task = sp.Task(dense(3), sp.cross_entropy, sp.domains.Vector((12,)))
    batch = sp.Batch(seeds(4, 12), torch.tensor([0, 1, 917, 2]))
    client = sp.Client(sp.Gradient())
    for run in (client, partial(sp.Threat().observe, client)):
        with pytest.raises(InvalidValue, match=BEYOND) as caught:
            run(task, batch, rng=sp.rng(0))
        assert "917" not in str(caught.value)


def guess_targets(observation, *, rng):
    """Every input is its target, up to noise."""
    noise = 0.02 * rng.normal(tuple(observation.labels.shape))
    return sp.Reconstruction(observation.labels + noise, trace=sp.Trace())


def test_targets_that_canaries_share_with_the_batch_do_not_count_against_an_attack():
    rows = seeds(60, 6)
    options = {**CHEAP, "others": rows[8:], "threat": sp.Threat(knows_labels=True)}
    batch, attacks = (rows[:4], rows[:4]), [guess_targets]
    result = sp.audit_step(nn.Linear(6, 6), nn.MSELoss(), batch, attacks=attacks, **options)
    assert result.identified
    assert all(record.control.negative == (0, 0, 0.0) for record in result.records)
    assert "cannot be trusted" not in str(result)
