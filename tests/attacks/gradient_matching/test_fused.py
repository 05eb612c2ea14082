"""Steps that are replayed or compiled: the same numbers, or not used at all."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import seepage as sp
from seepage.search import Adam, Engine
from seepage.search import _runner as runner
from seepage.search._runner import Runner, _is_worth_compiling
from seepage.search.fast import _captured_step as fusing
from seepage.search.fast._captured_step import _fit_to_compiler, trace_step

ATEN = torch.ops.aten


@pytest.fixture
def seen():
    digits = sp.data.load("digits")
    task, batch = sp.zoo.mlp(hidden=(4,), domain=digits.domain), digits.batch(1)
    client = sp.Client(sp.FedAvg(lr=1e-3, steps=2))
    return sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))


def attacked(seen, *, fuse):
    attack = sp.attacks.inverting_gradients(steps=6, restarts=1, engine=Engine(fuse=fuse))
    return attack(seen, rng=sp.rng(1))


def test_a_program_takes_what_it_held_as_inputs_and_computes_the_same():
    weight = torch.linspace(-1, 1, 6).reshape(2, 3)

    inputs = torch.linspace(0, 1, 6).reshape(2, 3), torch.linspace(0, 2, 6).reshape(3, 2)
    other = torch.linspace(0, 2, 9).reshape(3, 3)

    def step(a, b):
        return [torch.add(weight, (a @ other).view(2, 3), alpha=-0.5), (a - b.T).sub(a, alpha=3)]

    program = make_fx(step)(*inputs)
    assert any("alpha" in node.kwargs for node in program.graph.nodes)
    held = _fit_to_compiler(program)
    assert len(held) == 2
    assert not any("alpha" in node.kwargs for node in program.graph.nodes)
    assert not any(node.op == "get_attr" for node in program.graph.nodes)
    assert not any(node.target == ATEN.view.default for node in program.graph.nodes)
    for ours, theirs in zip(program(*inputs, *held), step(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False)])
def test_gradients_of_a_convolution_have_the_layout_that_is_foretold(mask):
    last = torch.channels_last
    inputs = torch.randn(2, 3, 6, 6, generator=torch.manual_seed(0)).contiguous(memory_format=last)
    weight = torch.randn(4, 3, 3, 3, generator=torch.manual_seed(1))
    slopes = torch.randn(2, 4, 6, 6, generator=torch.manual_seed(2))
    rest = ([4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask))
    arguments = (slopes, inputs, weight, *rest)
    torch.library.opcheck(
        torch.ops.seepage.convolution_backward.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )
    ours = torch.ops.seepage.convolution_backward(*arguments)
    theirs = ATEN.convolution_backward(*arguments)
    likes = inputs, weight, torch.empty(4)
    for wanted, like, mine, other in zip(mask, likes, ours, theirs, strict=True):
        if wanted:
            assert mine.stride() == like.stride()
            torch.testing.assert_close(mine, other)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling on a CPU needs g++")
def test_a_compiled_run_is_the_plain_one_and_is_remembered(seen, monkeypatch):
    made = []
    compiled = fusing._compile
    monkeypatch.setattr(fusing, "_compile", lambda *a: made.append(compiled(*a)) or made[-1])
    told = counters["aot_autograd"]
    before = told["autograd_cache_saved"] + told["autograd_cache_hit"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = attacked(seen, fuse=True)
    plain = attacked(seen, fuse=False)
    assert None not in made
    assert len(made) == 1
    assert told["autograd_cache_saved"] + told["autograd_cache_hit"] == before + 1
    torch.testing.assert_close(fast.inputs, plain.inputs, rtol=0, atol=1e-5)
    torch.testing.assert_close(fast.trace.objective, plain.trace.objective, rtol=1e-4, atol=1e-6)


def test_a_compiled_step_with_other_numbers_is_not_used(seen, monkeypatch, caplog):
    caplog.set_level("INFO")

    def wrong(program, inputs):
        return lambda *tensors: [
            1.01 * t if t.is_floating_point() else t for t in program(*tensors)
        ]

    monkeypatch.setattr(torch._inductor, "compile", wrong)
    guess = attacked(seen, fuse=True)
    assert "compiled it gives other numbers" in caplog.text
    assert torch.equal(guess.inputs, attacked(seen, fuse=False).inputs)


def test_a_step_that_fails_once_compiled_is_not_used(seen, monkeypatch, caplog):
    caplog.set_level("INFO")

    def stumbling(program, inputs):
        def run(*tensors):
            raise AssertionError("expected another stride")

        return run

    monkeypatch.setattr(torch._inductor, "compile", stumbling)
    attacked(seen, fuse=True)
    assert "not fusing the step: AssertionError: expected another stride" in caplog.text


ATTACKS = {
    "signed": {},
    "unsigned": {"signed": False},
    "L-BFGS": {"optimiser": "lbfgs", "step_size": 1.0},
    "layerwise": {"layerwise": 2.5},
    "unboxed, L2": {"boxed": False, "distance": "l2"},
}


@pytest.mark.parametrize("options", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=1e-3, steps=2)], ids=repr)
def test_a_replayed_run_is_the_plain_one_to_the_bit(options, local, monkeypatch):
    photos = sp.data.load("photos", pixels=16)
    task = sp.zoo.lenet(domain=photos.domain)
    threat = sp.Threat(knows_labels=True)
    seen = threat.observe(sp.Client(local), task, photos.batch(1), rng=sp.rng(0))
    used = []
    monkeypatch.setattr(runner, "trace_step", lambda *a: used.append(trace_step(*a)) or used[-1])
    monkeypatch.setattr(runner, "WORTH_TRACING", 1)
    found = [
        sp.attacks.inverting_gradients(steps=5, restarts=1, engine=Engine(capture=c), **options)(
            seen, rng=sp.rng(1)
        )
        for c in (True, False)
    ]
    assert len(used) == 1
    assert None not in used
    assert torch.equal(found[0].inputs, found[1].inputs)
    assert found[0].trace.objective == found[1].trace.objective


def test_a_step_that_cannot_be_traced_is_taken_as_it_is(caplog):
    def step(state):
        return state._replace(step=state.step + int(state.lowest.isfinite().all()))

    state = Runner(evaluate=None, optimiser=Adam(), schedule=None, steps=3).begin(torch.zeros(1, 2))
    with caplog.at_level("INFO"):
        assert trace_step(step, state) is None
    assert "not replaying the step" in caplog.text


def test_a_replayed_step_with_other_numbers_is_dropped_without_a_word_to_users(monkeypatch, caplog):
    def step(state):
        return state._replace(step=state.step + 1)

    def wrong(advance, tensors):
        return lambda *given: [t + 1 for t in advance(*given)]

    monkeypatch.setattr(fusing, "record", wrong)
    state = Runner(evaluate=None, optimiser=Adam(), schedule=None, steps=3).begin(torch.zeros(1, 2))
    with caplog.at_level("INFO"):
        assert trace_step(step, state) is None
    assert "gives other numbers" in caplog.text
    # Python prints a log of warnings that nobody has asked for.
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_what_the_compiler_cannot_do_the_plain_step_does(seen, monkeypatch, caplog):
    caplog.set_level("INFO")

    def broken(program, inputs):
        raise RuntimeError("no such kernel\nand much more")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    guess = attacked(seen, fuse=True)
    assert "not fusing the step: RuntimeError: no such kernel" in caplog.text
    assert "much more" not in caplog.text
    assert torch.equal(guess.inputs, attacked(seen, fuse=False).inputs)


@pytest.mark.parametrize(("each", "left", "long"), [(0.01, 4_000, False), (0.1, 24_000, True)])
def test_steps_are_compiled_if_the_rest_would_take_long(each, left, long):
    assert _is_worth_compiling(each, left) is long
