"""Recorded functions: the same numbers from fewer operations, or a refusal."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import seepage as sp
from seepage.domains import Image
from seepage.search import Engine
from seepage.search import _runner as runner
from seepage.search.fast._captured_step import trace_step
from seepage.search.fast._recorded_step import _Unrecordable, record


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(24, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.transpose(1, 2).flatten(2))[0][:, -1])


class Attentive(nn.Module):
    """Self-attention between the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.transpose(1, 2).flatten(2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(self.norm(mixed + tokens).mean(1))


class Deciding(nn.Module):
    """Reads a number of its input to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        with torch.no_grad():
            bright = bool(flat.mean() > 100)
        return self.head(-flat if bright else flat)


def pooled(pool):
    first = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), pool
    second = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2), nn.GELU(), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(16, 4))


MODELS = {
    "max pooling": lambda: pooled(nn.MaxPool2d(2)),
    "average pooling": lambda: pooled(nn.AvgPool2d(2)),
    "adaptive pooling": lambda: pooled(nn.AdaptiveAvgPool2d(4)),
    "recurrent": Recurrent,
    "attention": Attentive,
}


def observe(model, *, size=2, batchnorm="running", local=None):
    domain = Image((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    task = sp.Task(model, sp.cross_entropy, domain).to(dtype=torch.float64)
    batch = sp.Batch(domain.sample(size, rng=sp.rng(0)).double(), torch.arange(size))
    client = sp.Client(local or sp.Gradient())
    return sp.Threat(knows_labels=True, batchnorm=batchnorm).observe(
        client, task, batch, rng=sp.rng(0)
    )


def attacked(seen, monkeypatch, *, steps=6, **engine):
    """Attack with steps that are replayed however few they are; and say whether they were."""
    used = []
    monkeypatch.setattr(runner, "WORTH_TRACING", 1)
    monkeypatch.setattr(runner, "trace_step", lambda *a: used.append(trace_step(*a)) or used[-1])
    attack = sp.attacks.inverting_gradients(
        steps=steps, restarts=engine.get("rows", 1), tv=1e-2, engine=Engine(**engine)
    )
    return attack(seen, rng=sp.rng(1)), [step is not None for step in used]


def loop(seen, steps):
    """The objectives of the loop that anybody would write, in which torch differentiates twice."""
    task, domain, observed = seen.task, seen.task.domain, seen.update.flat()
    parameters = list(task.network.parameters())
    shape = (len(seen.labels), *domain.shape)
    point = sp.rng(1).fork("restart", 0).normal(shape, like=observed).requires_grad_()
    optimiser = torch.optim.Adam([point], lr=0.1)
    values = []
    for step in range(steps):
        loss = nn.functional.cross_entropy(task.network(point), seen.labels)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([g.flatten() for g in gradients])
        cosine = flat @ observed / (flat.norm() * observed.norm())
        rough = point.diff(dim=-1).abs().mean() + point.diff(dim=-2).abs().mean()
        value = 1 - cosine + 1e-2 * rough
        values.append(value.item())
        point.grad = torch.autograd.grad(value, point)[0].sign()
        optimiser.param_groups[0]["lr"] = 0.1 * sp.search.StepDecay()(step, steps)
        optimiser.step()
        with torch.no_grad():
            point.copy_(domain.normalise(domain.project(domain.denormalise(point))))
    return values


@pytest.mark.parametrize("batchnorm", ["running", "exact"])
@pytest.mark.parametrize("model", MODELS)
def test_a_replayed_search_goes_where_the_plain_loop_goes(model, batchnorm, monkeypatch):
    torch.manual_seed(0)
    seen = observe(MODELS[model](), batchnorm=batchnorm)
    found, replayed = attacked(seen, monkeypatch)
    # torch's fused attention cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        expected = loop(seen, 6)
    assert replayed == [True]
    assert found.trace.objective[:6] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.1, steps=2)], ids=repr)
@pytest.mark.parametrize("rows", [1, 3])
def test_replayed_rows_are_the_plain_ones_to_the_bit(rows, local, monkeypatch):
    torch.manual_seed(0)
    seen = observe(MODELS["max pooling"](), local=local)
    ours, replayed = attacked(seen, monkeypatch, rows=rows)
    plain, none = attacked(seen, monkeypatch, rows=rows, capture=False)
    assert (replayed, none) == ([True], [])
    assert torch.equal(ours.inputs, plain.inputs)
    assert ours.trace.objective == plain.trace.objective


def test_a_network_that_reads_its_input_is_searched_without_replay(monkeypatch, caplog):
    with caplog.at_level("INFO"):
        found, replayed = attacked(observe(Deciding()), monkeypatch)
    assert replayed == [False]
    assert "it reads a number of a tensor" in caplog.text
    assert found.trace.objective[-1] < found.trace.objective[0]


class Counting(TorchDispatchMode):
    """Counts the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.names.append(operation._schema.name.removeprefix("aten::"))
        return operation(*arguments, **(options or {}))


def operations(program, *arguments):
    with Counting() as counting:
        program(*arguments)
    return counting.names


def test_only_what_depends_on_the_arguments_is_replayed():
    held = torch.linspace(0, 1, 6)

    def function(x):
        scale = (held.square().sum().sqrt() * 2).exp()
        ones = torch.ones_like(x)
        again = x.unsqueeze(0).squeeze(0).reshape(2, 3).t().t().flatten()
        unused = x.cos()
        assert unused is not None
        scaled = torch.add(torch.zeros_like(x), scale * (again.sin() + x.sin()), alpha=3)
        return [scaled * 1.0 * ones.mean() + torch.zeros_like(x)]

    program = record(function, [torch.zeros(6)])
    x = torch.linspace(-1, 1, 6)
    assert torch.equal(program(x)[0], function(x)[0])
    assert operations(program, x) == ["sin", "add", "mul", "add"]


def test_a_gradient_of_a_convolution_that_nobody_reads_is_not_computed():
    weight = torch.randn(4, 3, 3, 3)

    def gradients(slopes, inputs):
        return torch.ops.aten.convolution_backward(
            slopes,
            inputs,
            weight,
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [True, True, False],
        )[:2]

    class Masks(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            if operation is torch.ops.aten.convolution_backward.default:
                seen.append(arguments[-1])
            return operation(*arguments, **(options or {}))

    arguments = torch.randn(1, 4, 6, 6), torch.randn(1, 3, 8, 8)
    for kept, mask in (((0, 1), [True, True, False]), ((1,), [False, True, False])):
        seen = []
        program = record(lambda *given, kept=kept: [gradients(*given)[k] for k in kept], arguments)
        with Masks():
            found = program(*arguments)
        assert seen == [mask]
        for one, k in zip(found, kept, strict=True):
            assert torch.equal(one, gradients(*arguments)[k])


def test_sums_in_place_are_replayed_and_leave_constants_alone():
    start = torch.ones(3)

    def function(x):
        into = x * 2
        into.add_(x)
        fresh = torch.zeros(3)
        fresh += x
        return [into + fresh, torch.stack([start, start.clone().mul_(x)])]

    program = record(function, [torch.zeros(3)])
    for x in (torch.arange(3.0), torch.ones(3)):
        for ours, theirs in zip(program(x), function(x), strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(start, torch.ones(3))


def read_through_a_view(x):
    doubled = x * 2
    view = doubled.view(3, 1)
    doubled.add_(1)
    return [view + 1]


REFUSED = {
    "a view of a tensor that was written to": read_through_a_view,
    "writes into an argument": lambda x: [x.add_(1)],
    "is random": lambda x: [x + torch.rand(3)],
    "reads a number": lambda x: [x * x.sum().item()],
}


@pytest.mark.parametrize(("why", "function"), REFUSED.items(), ids=REFUSED)
def test_what_a_list_of_operations_cannot_repeat_is_refused(why, function):
    with pytest.raises(_Unrecordable, match=why):
        record(function, [torch.ones(3)])
