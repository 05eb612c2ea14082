"""Opacus: the step is Opacus's own, and the chain that stands for it is the same computation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.integrations.opacus import is_private, protection, shared_gradient, spent

pytest.importorskip("opacus", reason="opacus is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
]

DIGITS = sp.data.load("digits")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 32), nn.ReLU(), nn.Linear(32, 10))


def private(noise_multiplier, *, loss_reduction="mean", clipping="flat"):
    from opacus import PrivacyEngine

    model, batch = network(), DIGITS.batch(8)
    norm = 0.5 if clipping == "flat" else [0.5] * len(list(model.parameters()))
    data = torch.utils.data.TensorDataset(DIGITS.domain.normalise(batch.inputs), batch.labels)
    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=4),
        noise_multiplier=noise_multiplier,
        max_grad_norm=norm,
        loss_reduction=loss_reduction,
        clipping=clipping,
        poisson_sampling=False,
    )
    return engine, *made


def gradient(model, optimizer, batch, *, reduction="mean", seed=0):
    seen = DIGITS.domain.normalise(batch.inputs)
    loss = nn.CrossEntropyLoss(reduction=reduction)
    return shared_gradient(model, optimizer, loss, seen, batch.labels, rng=sp.rng(seed))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("size", [4, 3], ids=["as expected", "fewer than expected"])
def test_without_noise_the_chain_is_what_opacus_computes(reduction, size):
    _, model, optimizer, _ = private(0.0, loss_reduction=reduction)
    batch = DIGITS.batch(size)
    task = sp.Task(network(), sp.cross_entropy, DIGITS.domain)
    ours = sp.Client(sp.Gradient(), protection(optimizer))(task, batch, rng=sp.rng(0)).tensors
    theirs = gradient(model, optimizer, batch, reduction=reduction)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(tensor, ours[name], rtol=1e-4, atol=1e-7)


def test_the_noise_has_the_deviation_that_the_chain_says():
    _, model, optimizer, _ = private(2.0)
    batch = DIGITS.batch(4)
    noise = [gradient(model, optimizer, batch, seed=seed)["1.weight"] for seed in (1, 2)]
    assert protection(optimizer).links[-1] == sp.AddGaussian(2.0 * 0.5 / 4)
    assert float((noise[0] - noise[1]).std()) == pytest.approx(0.25 * 2**0.5, rel=0.02)


def test_nothing_of_the_users_is_changed():
    engine, model, optimizer, _ = private(1.0)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    generator = torch.get_rng_state()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    gradient(model, optimizer, DIGITS.batch(4))
    assert torch.equal(generator, torch.get_rng_state())
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert any(hooks)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and p.grad_sample is None for p in model.parameters())
    assert spent(engine, delta=1e-5) == 0.0


def test_epsilon_is_that_of_the_steps_taken():
    engine, model, optimizer, data = private(1.0)
    for inputs, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    rate = 4 / 8
    expected = sp.epsilon(
        noise_multiplier=1.0, sample_rate=rate, steps=2, delta=1e-5, accountant="prv"
    )
    assert spent(engine, delta=1e-5) == pytest.approx(expected, rel=0.02)


def test_an_optimiser_of_opacus_is_told_from_others():
    _, model, optimizer, _ = private(1.0)
    assert is_private(optimizer)
    assert not is_private(torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_is_not_private_or_clips_by_other_rules_is_refused():
    _, model, optimizer, _ = private(1.0)
    plain = model.to_standard_module()
    with pytest.raises(InvalidValue, match="that make_private returned"):
        gradient(plain, optimizer, DIGITS.batch(4))
    _, _, layered, _ = private(1.0, clipping="per_layer")
    with pytest.raises(NotApplicable, match="flat or ghost clipping"):
        protection(layered)


def audited(engine, model, optimizer, size=1, **options):
    batch = DIGITS.batch(size)
    return sp.audit_step(
        model,
        nn.CrossEntropyLoss(),
        (batch.inputs, batch.labels),
        optimizer,
        domain=DIGITS.domain,
        privacy_engine=engine,
        steps=20,
        seconds=5,
        **options,
    )


def test_a_step_of_a_private_model_is_audited_as_opacus_computes_it():
    found = {}
    for noise in (0.0, 4.0):
        engine, model, optimizer, _ = private(noise)
        found[noise] = audited(engine, model, optimizer)
    # Clipping alone changes the scale of a single example, which a closed form does not mind.
    assert float(found[0.0].scores["psnr"]) > 60
    assert float(found[4.0].scores["psnr"]) < 15
    case = found[4.0].cases[0]
    observed = case.observe().update.tensors["model.1.weight"]
    plain = gradient(model, optimizer, DIGITS.batch(1), seed=0)
    assert observed.shape == plain["1.weight"].shape
    assert float(observed.std()) == pytest.approx(4.0 * 0.5 / 4, rel=0.05)


def test_the_report_of_a_private_step_tells_epsilon(tmp_path):
    engine, model, optimizer, data = private(1.0)
    for inputs, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    result = audited(engine, model, optimizer)
    spending = f"epsilon {spent(engine, delta=1e-5):.3g} by Opacus"
    assert spending in str(result)
    assert spending in result.report(tmp_path / "audit").read_text()


def test_another_defense_on_top_of_opacus_is_refused():
    engine, model, optimizer, _ = private(1.0)
    with pytest.raises(InvalidValue, match="Opacus is the defense"):
        audited(engine, model, optimizer, defense=sp.Prune(0.5))


def test_ghost_clipping_is_audited_as_the_flat_clipping_that_it_is():
    from opacus import PrivacyEngine

    batch = DIGITS.batch(4)
    data = torch.utils.data.TensorDataset(DIGITS.domain.normalise(batch.inputs), batch.labels)
    model = network()
    ghost, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=torch.utils.data.DataLoader(data, batch_size=4),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    ours = gradient(ghost, optimizer, batch)
    criterion(ghost(data.tensors[0]), batch.labels).backward()
    optimizer.pre_step()
    for name, parameter in ghost.named_parameters():
        torch.testing.assert_close(ours[name.removeprefix("_module.")], parameter.grad)
    step = (ghost, criterion, (batch.inputs, batch.labels), optimizer)
    found = sp.audit_step(*step, domain=DIGITS.domain, attacks=["analytic_fc"])
    assert "clipped to 0.5 per example" in str(found)


def test_a_private_model_without_its_optimizer_or_with_another_reduction_is_refused():
    _, model, optimizer, _ = private(1.0)
    batch = DIGITS.batch(2)
    pair = (batch.inputs, batch.labels)
    with pytest.raises(InvalidValue, match="the optimizer that make_private returned"):
        sp.audit_step(model, nn.CrossEntropyLoss(), pair, domain=DIGITS.domain)
    with pytest.raises(InvalidValue, match="reduced by 'mean', as make_private was told"):
        sp.audit_step(
            model, nn.CrossEntropyLoss(reduction="sum"), pair, optimizer, domain=DIGITS.domain
        )
