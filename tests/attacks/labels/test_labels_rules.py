"""Labels come back from the update alone, in every unit and orientation it can have."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.labels import IDLG, CountAware, SignRule, YinMinimum, count_classes
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.domains import Signal
from seepage.probing._heads import classifier_head
from seepage.scoring import count_error
from seepage.zoo import load_weights

RULES = [SignRule(), YinMinimum(), CountAware()]
LOCALS = [
    sp.Gradient(),
    sp.Gradient(reduction="sum"),
    sp.FedAvg(lr=0.01, steps=1),
    sp.FedAvg(lr=0.01, steps=5),
    sp.FedAvg(lr=0.001, epochs=2, local_batch_size=2, momentum=0.5),
]


def observe(task, batch, *, local=None, defense=None, **knowledge):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(**knowledge).observe(client, task, batch, rng=sp.rng(0))


def linear_task(*, bias=True, scale=1.0, classes=10, features=24):
    """A linear softmax model: its features are its inputs, so that all is computable by hand."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(features, classes, bias=bias))
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return sp.Task(model, sp.cross_entropy, Signal((1, features)), name="linear")


def noise_batch(task, labels):
    return sp.Batch(task.domain.sample(len(labels), rng=sp.rng(0)), torch.tensor(labels))


@pytest.fixture(scope="module")
def cifar(data_root):
    return sp.data.load("cifar10")


@pytest.fixture(scope="module")
def trained(data_root):
    path = data_root / "weights" / "cifar10_resnet20-12fca82f.safetensors"
    if not path.exists():
        pytest.skip("trained weights not found in the data folder")
    return load_weights(sp.zoo.resnet20(), path)


def drawn(data, size, seed):
    rows = sp.rng(seed).permutation(len(data.inputs))[:size]
    return sp.Batch(data.inputs[rows], data.labels[rows])


def accuracies(rules, task, batches):
    """Mean over batches of the overlap of multisets, for each rule."""
    seen = [observe(task, batch) for batch in batches]
    pairs = list(zip(seen, batches, strict=True))
    wrong = [sum(count_error(rule(s), b.labels) / len(b) for s, b in pairs) for rule in rules]
    return [1 - share / len(batches) for share in wrong]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [0.1, 5.0, 30.0])
def test_the_label_of_one_person_is_found_by_every_rule(bias, scale):
    task = linear_task(bias=bias, scale=scale)
    for label in (0, 3, 9):
        seen = observe(task, noise_batch(task, [label]))
        assert all(rule(seen).tolist() == [label] for rule in (IDLG(), *RULES))


def test_counts_follow_from_the_bias_gradient_where_predictions_are_known():
    task = linear_task(scale=0.0)
    with torch.no_grad():
        task.model[1].bias.copy_(torch.linspace(-1, 1, 10))
    task = replace(task)
    batch = noise_batch(task, [2, 2, 2, 5, 7, 7])
    seen = observe(task, batch)
    predicted = torch.softmax(task.model[1].bias.detach(), 0)
    by_hand = (6 * (predicted - seen.update.tensors["1.bias"])).round().long()
    assert by_hand.tolist() == [0, 0, 3, 0, 0, 1, 0, 2, 0, 0]
    assert torch.equal(count_classes(seen), by_hand)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("local", LOCALS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_distinct_labels_come_back_from_gradients_and_differences(photos, local, rule, bias):
    batch = sp.Batch(photos.inputs, torch.tensor([1, 3, 7, 8]))
    seen = observe(sp.zoo.mlp(hidden=(32,), bias=bias), batch, local=local)
    assert rule(seen).tolist() == [1, 3, 7, 8]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_duplicates_come_back_from_gradients_and_differences(photos, local, bias):
    batch = sp.Batch(photos.inputs, torch.tensor([4, 4, 4, 0]))
    seen = observe(sp.zoo.mlp(hidden=(32,), bias=bias), batch, local=local)
    assert CountAware()(seen).tolist() == [0, 4, 4, 4]


@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.01, steps=5)], ids=str)
def test_the_label_of_one_person_is_read_off_a_difference_too(photos, local):
    person = sp.Batch(photos.inputs[:1], torch.tensor([6]))
    assert IDLG()(observe(sp.zoo.lenet(), person, local=local)).tolist() == [6]


def test_present_classes_and_not_the_absent_ones_are_read_off_a_difference(photos):
    batch = sp.Batch(photos.inputs[:3], torch.tensor([1, 3, 7]))
    seen = observe(sp.zoo.mlp(hidden=(32,)), batch, local=sp.FedAvg(lr=0.01, steps=5))
    assert SignRule()(replace(seen, batch_size=None)).tolist() == [1, 3, 7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "size"),
    [(sp.zoo.resnet20, 8), (sp.zoo.lenet, 8), (sp.zoo.lenet, 32)],
    ids=["resnet20-8", "lenet-8", "lenet-32"],
)
def test_an_untrained_network_gives_nearly_all_labels_away(cifar, factory, size):
    batches = [drawn(cifar, size, seed) for seed in range(2)]
    (counted,) = accuracies([CountAware()], factory(), batches)
    assert counted >= 0.95


@pytest.mark.slow
def test_counting_beats_the_other_rules_on_a_trained_network(cifar, trained):
    batches = [drawn(cifar, 4, seed) for seed in range(4)]
    sign, minimum, counted = accuracies(RULES, trained, batches)
    assert counted >= max(sign, minimum) + 0.15


@pytest.mark.slow
def test_one_person_is_never_hidden_by_a_trained_network(cifar, trained):
    people = [sp.Batch(cifar.inputs[i : i + 1], cifar.labels[i : i + 1]) for i in range(12)]
    assert accuracies([IDLG(), CountAware()], trained, people) == [1, 1]


@pytest.mark.slow
def test_a_large_batch_on_a_trained_network_is_counted_no_worse_than_by_the_others(cifar, trained):
    batches = [drawn(cifar, 32, seed) for seed in range(2)]
    sign, minimum, counted = accuracies(RULES, trained, batches)
    assert counted >= max(sign, minimum) - 0.05


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 6, 0], [9, 9, 9, 9]], ids=str)
def test_a_confident_network_hides_no_label_of_four_people(bias, labels):
    task = linear_task(bias=bias, scale=30.0)
    assert CountAware()(observe(task, noise_batch(task, labels))).tolist() == sorted(labels)


@pytest.mark.parametrize("seed", range(4))
def test_clipping_that_is_known_hides_no_class(photos, seed):
    """How often each class occurs is found on most networks, not on all of them."""
    batch = sp.Batch(photos.inputs, torch.tensor([2, 2, 6, 8]))
    seen = observe(sp.zoo.mlp(hidden=(32,), seed=seed), batch, defense=sp.Clip(1e-3))
    assert {2, 6, 8} <= set(CountAware()(seen).tolist())


def test_little_noise_hides_no_label(photos):
    batch = sp.Batch(photos.inputs, torch.tensor([2, 2, 6, 8]))
    seen = observe(sp.zoo.mlp(hidden=(32,)), batch, defense=sp.AddGaussian(1e-3))
    assert CountAware()(seen).tolist() == [2, 2, 6, 8]


@pytest.mark.parametrize("rule", [IDLG(), *RULES], ids=repr)
def test_every_rule_is_deterministic_sorted_and_leaves_the_observation_alone(rule):
    task = linear_task(scale=30.0)
    seen = observe(task, noise_batch(task, [3] if rule == IDLG() else [3, 3, 1, 8, 8]))
    before = seen.update.flat().clone()
    first = rule(seen)
    torch.rand(1)
    assert torch.equal(first, rule(seen))
    assert torch.equal(first, first.sort().values)
    assert len(first) == seen.batch_size
    assert torch.equal(before, seen.update.flat())


def test_sign_and_minimum_see_no_duplicates_but_fill_the_batch():
    task = linear_task(scale=0.1)
    seen = observe(task, noise_batch(task, [2, 2, 2, 6]))
    assert SignRule()(seen).tolist() == [2, 2, 6, 6]
    assert len(set(YinMinimum()(seen).tolist())) == 4


class Late(nn.Module):
    """The head stands first, and another layer is as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(5, 5)
        self.read = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(torch.relu(self.read(x.reshape(len(x), -1))))


def test_the_head_is_found_by_what_it_gives_not_by_its_place():
    head = classifier_head(sp.Task(Late(), sp.cross_entropy, Signal((1, 8))))
    assert (head.weight, head.bias) == ("classify.weight", "classify.bias")


def test_a_network_without_a_linear_head_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Tanh())
    task = sp.Task(model, sp.cross_entropy, Signal((1, 8)))
    seen = observe(task, noise_batch(task, [1, 2]))
    for rule in (SignRule(), YinMinimum()):
        with pytest.raises(NotApplicable, match="to end in a linear layer"):
            rule(seen)


def opposite(outputs, labels):
    return -sp.cross_entropy(outputs, labels)


def weighted(outputs, labels):
    return sp.cross_entropy(outputs, labels) * (1 + 9 * (labels == 2))


@pytest.mark.parametrize(
    ("loss", "end"),
    [
        (sp.cross_entropy, nn.Softmax(1)),
        (sp.cross_entropy, nn.Tanh()),
        (opposite, nn.Identity()),
        (weighted, nn.Identity()),
    ],
    ids=["softmax", "tanh", "another loss", "weights"],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_labels_that_no_head_holds_are_found_by_simulating_each_class(loss, end, frozen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 5), end)
    model[3].requires_grad_(not frozen)
    task = sp.Task(model, loss, Signal((1, 24)))
    for label in range(5):
        seen = observe(task, sp.Batch(torch.rand(1, 1, 24), torch.tensor([label])))
        assert CountAware()(seen).tolist() == [label]
    pair = observe(task, noise_batch(task, [1, 1, 3, 3]))
    assert set(CountAware()(pair).tolist()) & {1, 3}


def test_classes_too_many_to_simulate_are_a_reason():
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 200), nn.Softmax(1))
    task = sp.Task(model, sp.cross_entropy, Signal((1, 8)))
    with pytest.raises(NotApplicable, match="to end in a linear layer"):
        CountAware()(observe(task, noise_batch(task, [1])))


def test_labels_behind_a_log_softmax_are_those_of_the_logits():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(8, 5))
    for model in (plain, nn.Sequential(*plain, nn.LogSoftmax(1))):
        task = sp.Task(model, sp.cross_entropy, Signal((1, 8)))
        seen = observe(task, noise_batch(task, [1, 2, 2]))
        assert CountAware()(seen).tolist() == [1, 2, 2]


def test_a_frozen_bias_still_counts():
    task = linear_task(scale=3.0)
    task.model[1].bias.requires_grad_(False)
    task = replace(task)
    seen = observe(task, noise_batch(task, [1, 4, 4]))
    assert CountAware()(seen).tolist() == [1, 4, 4]


def test_a_loss_that_is_no_cross_entropy_is_refused():
    task = replace(linear_task(), loss=opposite)
    with pytest.raises(NotApplicable, match="cross-entropy"):
        SignRule()(observe(task, noise_batch(task, [1, 2])))


@pytest.mark.parametrize("rule", [IDLG(), *RULES], ids=repr)
def test_an_update_of_zeros_is_refused(rule):
    task = linear_task()
    seen = observe(task, noise_batch(task, [1]))
    nothing = replace(seen, update=seen.update.map(torch.zeros_like))
    with pytest.raises(NotApplicable, match="zero everywhere"):
        rule(nothing)


def test_an_update_that_leaves_the_head_alone_is_refused(photos):
    seen = observe(sp.zoo.mlp(hidden=(16,)), photos)
    weight = classifier_head(seen.task).weight
    tensors = {n: torch.zeros_like(t) if n == weight else t for n, t in seen.update.tensors.items()}
    with pytest.raises(NotApplicable, match="say nothing of labels"):
        SignRule()(replace(seen, update=sp.Update(tensors)))


def test_idlg_refuses_a_batch():
    task = linear_task()
    with pytest.raises(NotApplicable, match="use CountAware"):
        IDLG()(observe(task, noise_batch(task, [1, 2])))


@pytest.mark.parametrize("rule", [YinMinimum(), CountAware()], ids=repr)
def test_a_rule_that_needs_the_batch_size_says_so(rule):
    task = linear_task()
    seen = observe(task, noise_batch(task, [1, 2]), knows_batch_size=False)
    with pytest.raises(MissingKnowledge, match="batch size"):
        rule(seen)


SIGNED = {"tanh": nn.Tanh, "gelu": nn.GELU, "layer norm": lambda: nn.LayerNorm(32)}


def unbiased_head(signed, *, scale, seed, classes=10):
    """A network whose head has no bias and reads features of both signs."""
    photos = sp.data.load("photos", pixels=8)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, head = nn.Linear(192, 32), nn.Linear(32, classes, bias=False)
    with torch.no_grad():
        head.weight.mul_(scale)
    layers = nn.Flatten(), first, SIGNED[signed](), head
    return sp.Task(nn.Sequential(*layers), sp.cross_entropy, photos.domain), photos


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("signed", SIGNED)
def test_the_label_of_one_person_needs_no_bias_and_no_features_of_one_sign(signed, scale):
    for seed in range(12):
        task, photos = unbiased_head(signed, scale=scale, seed=seed)
        batch = photos.batch(1, start=seed % 4)
        changes = [{}, {"defense": sp.Clip(1e-3)}, {"local": sp.Gradient(reduction="sum")}]
        if scale == 1.0:
            # A sure network moves its weights by less than they are rounded.
            changes += [{"local": sp.FedAvg(lr=0.01, steps=steps)} for steps in (1, 3)]
        for change in changes:
            seen = observe(task, batch, **change)
            assert CountAware()(seen).tolist() == batch.labels.tolist(), (seed, change)


@pytest.mark.parametrize("signed", SIGNED)
def test_a_class_that_is_nearly_as_opposed_as_the_true_one_is_not_mistaken_for_it(signed):
    # Two rows are as long to nine digits; the third tells by its sign which is the label.
    for seed, label in [(0, 0), (1, 1), (2, 2), (3, 0)]:
        task, photos = unbiased_head(signed, scale=1.0, seed=seed, classes=3)
        features = torch.linspace(-1, 1, 32)
        shares = torch.full((3,), 1e-9)
        shares[label], shares[(label + 1) % 3] = -1.0, 1.0 - 1e-9
        for sign in (1, -1):
            rows = torch.outer(shares, sign * features)
            tensors = {n: torch.zeros_like(p) for n, p in task.parameters.items()}
            seen = observe(task, photos.batch(1))
            update = replace(seen.update, tensors={**tensors, "3.weight": rows})
            assert CountAware()(replace(seen, update=update)).tolist() == [label]
