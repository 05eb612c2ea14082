"""Local training against the loops that people write around torch.optim."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap

import seepage as sp
from seepage.clients import SoftLocal
from seepage.clients._step_rules import OPTIMIZERS, WarmState, make_rule, take_steps
from seepage.core.errors import InvalidValue, UnknownName

SHARES = st.sampled_from([0.0, 0.5, 0.9])
DECAYS = st.sampled_from([0.0, 1e-2])
EPS = st.sampled_from([1e-8, 1e-3])
OPTIONS = {
    "SGD": st.one_of(
        st.fixed_dictionaries({"momentum": SHARES, "dampening": SHARES, "weight_decay": DECAYS}),
        st.fixed_dictionaries({"momentum": st.just(0.9), "nesterov": st.just(True)}),
    ),
    **dict.fromkeys(
        ("Adam", "AdamW"),
        st.fixed_dictionaries(
            {"betas": st.tuples(SHARES, SHARES), "eps": EPS, "weight_decay": DECAYS}
        ),
    ),
    "Adagrad": st.fixed_dictionaries({"eps": EPS, "weight_decay": DECAYS}),
    "RMSprop": st.fixed_dictionaries(
        {"alpha": SHARES, "eps": EPS, "weight_decay": DECAYS, "momentum": SHARES}
    ),
}
# An optimizer and its options; without any they are torch's defaults.
OPTIMISED = st.sampled_from(sorted(OPTIONS)).flatmap(
    lambda name: st.tuples(st.just(name), st.just({}) | OPTIONS[name])
)
RATES = st.lists(st.sampled_from([0.3, 1e-2, 1e-3]), min_size=1, max_size=4).map(tuple)
TRAINING = st.fixed_dictionaries(
    {
        "local_batch_size": st.sampled_from([None, 1, 2, 3]),
        "accumulate": st.sampled_from([1, 2]),
        "clip_norm": st.sampled_from([None, 0.1]),
        "clip_value": st.sampled_from([None, 1e-3]),
        "label_smoothing": st.sampled_from([0.0, 0.1]),
        "proximal": st.sampled_from([0.0, 0.1]),
    }
)


def tiny() -> sp.Task:
    return sp.zoo.mlp(hidden=(6,), domain=sp.domains.Image((3, 8, 8)))


def four(seed: int = 0) -> sp.Batch:
    inputs = sp.rng(seed).uniform((4, 3, 8, 8), like=torch.zeros(1))
    return sp.Batch(inputs, torch.tensor([0, 3, 3, 7]))


def trained_by_torch(task: sp.Task, batch: sp.Batch, local: sp.Local, options, steps):
    """How far torch.optim moves the parameters in an ordinary loop."""
    model = copy.deepcopy(task.model)
    optimizer = getattr(torch.optim, local.optimizer)(model.parameters(), lr=1.0, **options)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    criterion = nn.CrossEntropyLoss(label_smoothing=local.label_smoothing)
    size, rates, done = local.local_batch_size or len(batch), local.list_rates(steps), 0
    while done < steps:
        starts = range(0, len(batch), size)
        for number, start in enumerate(starts, start=1):
            window = slice(start, start + size)
            outputs = model(task.domain.normalise(batch.inputs[window]))
            (criterion(outputs, batch.labels[window]) / local.accumulate).backward()
            if (number % local.accumulate and number < len(starts)) or done == steps:
                continue
            if local.proximal:
                pull = sum((p - before[n]).square().sum() for n, p in model.named_parameters())
                (local.proximal / 2 * pull).backward()
            if local.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), local.clip_norm)
            if local.clip_value:
                nn.utils.clip_grad_value_(model.parameters(), local.clip_value)
            optimizer.param_groups[0]["lr"] = rates[done]
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return {n: p.detach() - before[n] for n, p in model.named_parameters()}


def test_every_optimizer_has_options_to_be_drawn():
    assert OPTIONS.keys() == OPTIMIZERS.keys()


@given(OPTIMISED, RATES, st.integers(0, 2**16))
@settings(deadline=None, max_examples=150)
def test_the_steps_equal_those_of_torch_bit_for_bit(optimised, rates, seed):
    name, options = optimised
    key = sp.rng(seed)
    start = key.fork("start").normal((7, 5), like=torch.zeros(1))
    scales = 10.0 ** torch.linspace(-24, 2, 35).reshape(7, 5)
    gradients = [
        key.fork("gradient", i).normal((7, 5), like=start) * scales for i in range(len(rates))
    ]
    gradients[0][0] = 0.0  # as of units that are dead
    parameter = nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([parameter], lr=1.0, **options)
    for lr, gradient in zip(rates, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = gradient.clone()
        optimizer.step()
    after = take_steps(
        make_rule(name, options), {"w": start}, lambda _, step: {"w": gradients[step]}, rates
    )
    assert torch.equal(after["w"], parameter.detach())


@given(OPTIMISED, st.integers(1, 4), st.integers(0, 2**16))
@settings(deadline=None, max_examples=60)
def test_a_warm_optimizer_steps_as_that_of_torch_bit_for_bit(optimised, taken, seed):
    name, options = optimised
    key = sp.rng(seed)
    start = key.fork("start").normal((4, 3), like=torch.zeros(1))
    gradients = [key.fork("gradient", i).normal((4, 3), like=start) for i in range(taken + 2)]
    parameter = nn.Parameter(start.clone())
    optimizer = getattr(torch.optim, name)([parameter], lr=0.0, **options)
    rule = make_rule(name, options)
    warm = WarmState.fresh(rule, {"w": start})
    for step, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = 0.0 if step < taken else 0.1
        parameter.grad = gradient.clone()
        optimizer.step()
        warm = warm.see(rule, {"w": start}, {"w": gradient}) if step < taken else warm
    after = take_steps(
        rule, {"w": start}, lambda _, i: {"w": gradients[taken + i]}, (0.1, 0.1), warm=warm
    )
    assert torch.equal(after["w"], parameter.detach())


@given(OPTIMISED, RATES, TRAINING)
@settings(deadline=None, max_examples=60)
def test_what_is_sent_is_what_a_loop_around_torch_sends(optimised, rates, training):
    name, options = optimised
    local = sp.Local(optimizer=name, lr=rates, steps=len(rates), **options, **training)
    task, batch = tiny(), four()
    sent = local(task, batch.inputs, batch.labels)
    assert sent.kind == "difference"
    for name, expected in trained_by_torch(task, batch, local, options, len(rates)).items():
        # Two ways to differentiate round differently, and Adam divides by what is nearly zero.
        apart = (sent.tensors[name] - expected).abs().max()
        assert apart <= 1e-2 * max(rates), name


def test_fedavg_is_local_sgd(photos):
    task = sp.zoo.cnn(variant="cnn3-v2")
    options = {"lr": 0.1, "epochs": 3, "local_batch_size": 3, "momentum": 0.9}
    averaged = sp.FedAvg(**options)(task, photos.inputs, photos.labels)
    local = sp.Local(optimizer="SGD", **options)(task, photos.inputs, photos.labels)
    assert torch.equal(averaged.flat(), local.flat())


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, (1.0, 1.0, 1.0, 1.0)),
        ({"schedule": "linear"}, (1.0, 0.75, 0.5, 0.25)),
        ({"schedule": "linear", "warmup": 2}, (0.5, 1.0, 1.0, 0.5)),
        ({"schedule": "cosine"}, (1.0, 0.853553, 0.5, 0.146447)),
        ({"warmup": 4}, (0.25, 0.5, 0.75, 1.0)),
    ],
    ids=str,
)
def test_schedules_scale_the_learning_rate_of_every_step(options, rates):
    local = sp.Local(optimizer="Adam", lr=0.1, steps=4, **options)
    assert local.list_rates(4) == pytest.approx([0.1 * rate for rate in rates], rel=1e-5)


def test_a_cosine_without_warmup_is_that_of_torch():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    rates = []
    for _ in range(7):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    local = sp.Local(optimizer="Adam", lr=0.1, steps=7, schedule="cosine")
    assert local.list_rates(7) == pytest.approx(rates)


def test_steps_of_an_epoch_are_counted_with_batches_that_accumulate():
    local = sp.Local(optimizer="Adam", lr=0.1, epochs=3, local_batch_size=4, accumulate=2)
    assert local.count_steps(examples=10) == 6


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("soft", [False, True])
def test_the_derivative_in_the_inputs_is_that_of_finite_differences(name, soft):
    task, batch = tiny().to(dtype=torch.float64), four()
    local = sp.Local(optimizer=name, lr=0.01, steps=2, local_batch_size=2)
    local = local.soften() if soft else local
    inputs = batch.inputs.double().requires_grad_()
    weigh = sp.rng(1).normal((sum(p.numel() for p in task.parameters.values()),), like=inputs)
    direction = sp.rng(2).normal(inputs.shape, like=inputs)

    def value(x):
        sent = local(task, x, batch.labels).flat()
        return sent @ weigh, sent

    (slope,) = torch.autograd.grad(value(inputs)[0], inputs)
    assert torch.isfinite(slope).all()
    if soft:  # the floor is held fixed, so that differences do not see the same function
        return
    step = 1e-7
    ahead, behind = value(inputs + step * direction)[0], value(inputs - step * direction)[0]
    numeric = (ahead - behind) / (2 * step)
    assert torch.isclose((slope * direction).sum(), numeric, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_network_whose_units_are_dead_has_a_finite_derivative(name):
    task, batch = tiny(), four()
    with torch.no_grad():
        task.model[1].bias.fill_(-100.0)
    inputs = batch.inputs.requires_grad_()
    local = sp.Local(optimizer=name, lr=0.01, steps=3)
    (slope,) = torch.autograd.grad(local(task, inputs, batch.labels).norm(), inputs)
    assert torch.isfinite(slope).all()


def test_soft_steps_keep_a_slope_where_adam_has_none():
    task, batch = tiny(), four()
    local = sp.Local(optimizer="Adam", lr=1e-3, steps=1)
    slopes = []
    for computed in (local, local.soften()):
        inputs = batch.inputs.clone().requires_grad_()
        sent = computed(task, inputs, batch.labels).flat()
        (slope,) = torch.autograd.grad(sent.sum(), inputs)
        slopes.append(float(slope.norm()))
    assert slopes[1] > 10 * slopes[0]


def test_soft_steps_point_as_the_true_ones_do():
    task, batch = tiny(), four()
    local = sp.Local(optimizer="AdamW", lr=1e-3, steps=3)
    hard, soft = (f(task, batch.inputs, batch.labels).flat() for f in (local, local.soften()))
    assert torch.cosine_similarity(hard, soft, dim=0) > 0.8
    assert local.soften() == SoftLocal(local, 0.3)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("soft", [False, True])
def test_local_training_works_under_vmap(name, soft):
    task, batch = tiny(), four()
    local = sp.Local(optimizer=name, lr=0.01, steps=2, clip_norm=0.1, accumulate=2)
    local = local.soften() if soft else local
    candidates = torch.stack([batch.inputs, batch.inputs.flip(0)])
    together = vmap(lambda x: local(task, x, batch.labels).flat())(candidates)
    apart = torch.stack([local(task, x, batch.labels).flat() for x in candidates])
    assert torch.allclose(together, apart, atol=1e-3)


HIDDEN = [{"warm": 3}, {"shuffle": True, "local_batch_size": 1}]


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
def test_what_the_server_does_not_see_is_drawn_with_the_clients_key(hidden):
    task, batch = tiny(), four()
    local = sp.Local(optimizer="AdamW", lr=1e-2, epochs=3, **hidden)
    client = sp.Client(local)
    sent = [client(task, batch, rng=sp.rng(seed)).flat() for seed in (0, 0, 1)]
    assert torch.equal(sent[0], sent[1])
    assert (sent[0] - sent[2]).norm() > 1e-2 * sent[0].norm()


@pytest.mark.parametrize("hidden", HIDDEN, ids=str)
def test_the_server_simulates_a_fresh_optimizer_and_the_order_of_its_guess(hidden):
    task, batch = tiny(), four()
    options = {"optimizer": "AdamW", "lr": 1e-2, "epochs": 3}
    client = sp.Client(sp.Local(**options, **hidden))
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    plain = {**options, "local_batch_size": hidden.get("local_batch_size")}
    expected = sp.Local(**plain)(task, batch.inputs, batch.labels).flat()
    simulated = seen.simulate(batch.inputs, batch.labels).flat()
    assert torch.equal(simulated, expected)
    assert (seen.update.flat() - simulated).norm() > 1e-2 * simulated.norm()


def test_the_order_within_a_batch_of_everybody_changes_nothing():
    task, batch = tiny(), four()
    client = sp.Client(sp.Local(optimizer="SGD", lr=1e-2, epochs=3, shuffle=True))
    sent = client(task, batch, rng=sp.rng(0)).flat()
    expected = client.expected(task, batch.inputs, batch.labels).flat()
    assert (sent - expected).norm() < 1e-4 * expected.norm()


def test_a_shuffled_epoch_trains_on_every_example_once():
    """With a loss that is linear in the weights, the order of an epoch changes nothing."""
    domain = sp.domains.Image((3, 8, 8))
    task = sp.Task(
        nn.Sequential(nn.Flatten(), nn.Linear(192, 1)),
        lambda outputs, labels: outputs.flatten(),
        domain,
    )
    client = sp.Client(
        sp.Local(optimizer="SGD", lr=1e-2, epochs=2, local_batch_size=1, shuffle=True)
    )
    batch = sp.Batch(four().inputs, torch.zeros(4, dtype=torch.long))
    sent = client(task, batch, rng=sp.rng(0)).flat()
    expected = client.expected(task, batch.inputs, batch.labels).flat()
    assert (sent - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam", "steps": 1}, "unknown optimizer 'adam'; did you mean 'Adam'"),
        ({"optimizer": "Adam"}, "either steps or epochs"),
        ({"optimizer": "Adam", "steps": 1, "epochs": 1}, "either steps or epochs"),
        ({"optimizer": "Adam", "steps": 1, "lr": 0.0}, "lr > 0"),
        ({"optimizer": "Adam", "steps": 1, "momentum": 0.9}, "Adam has no option momentum, only"),
        ({"optimizer": "SGD", "steps": 1, "betas": (0.9, 0.9)}, "SGD has no option betas, only"),
        ({"optimizer": "Adam", "steps": 1, "betas": (0.9, 1.0)}, "two betas"),
        ({"optimizer": "Adam", "steps": 1, "betas": (0.9,)}, "two betas"),
        ({"optimizer": "SGD", "steps": 1, "nesterov": True}, "nesterov with momentum"),
        ({"optimizer": "Adam", "steps": 2, "lr": (0.1,)}, "each of 2 steps, got 1"),
        ({"optimizer": "Adam", "steps": 1, "lr": (-0.1,)}, r"lr\[0\] >= 0"),
        ({"optimizer": "Adam", "steps": 1, "lr": (0.1,), "warmup": 1}, "one learning rate with a"),
        ({"optimizer": "Adam", "steps": 1, "schedule": "step"}, "'linear' or 'cosine'"),
        ({"optimizer": "Adam", "steps": 1, "clip_norm": 0.0}, "clip_norm > 0"),
        ({"optimizer": "Adam", "steps": 1, "accumulate": 0}, "accumulate >= 1"),
        ({"optimizer": "Adam", "steps": 1, "label_smoothing": 1.0}, r"label_smoothing in \[0, 1\)"),
        ({"optimizer": "Adam", "steps": 1, "proximal": -1.0}, "proximal >= 0"),
        ({"optimizer": "Adam", "steps": 1, "warm": -1}, "warm >= 0"),
    ],
    ids=str,
)
def test_impossible_options_are_refused_with_the_value(options, said):
    with pytest.raises((InvalidValue, UnknownName), match=said):
        sp.Local(**{"lr": 0.1, **options})


def test_a_learning_rate_for_each_step_must_fit_the_epochs():
    task, batch = tiny(), four()
    local = sp.Local(optimizer="Adam", lr=(0.1, 0.1, 0.1), epochs=1, local_batch_size=2)
    with pytest.raises(InvalidValue, match="each of 2 steps, got 3"):
        local(task, batch.inputs, batch.labels)


def test_labels_of_another_loss_are_not_smoothed():
    task = sp.Task(nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), nn.MSELoss(), tiny().domain)
    local = sp.Local(optimizer="Adam", lr=0.1, steps=1, label_smoothing=0.1)
    with pytest.raises(InvalidValue, match="expected a cross-entropy for label_smoothing"):
        local(task, four().inputs, torch.zeros(4, 1))


def test_clipping_each_example_is_refused_at_construction():
    with pytest.raises(InvalidValue, match="produces only aggregate"):
        sp.Client(
            sp.Local(optimizer="Adam", lr=0.1, steps=2), sp.chain(sp.ClipEach(1.0), sp.Mean())
        )
