"""Several audits at once, in threads of one process."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import seepage as sp
from seepage.core._device import differentiable_twice, precision
from seepage.core._draws import PrivateDraws


class Checkpointed(nn.Module):
    """Computes a layer twice to save memory, drops some units, and notes how often it ran."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.reentrant, self.ran = reentrant, []

    def forward(self, inputs):
        hidden = self.first(inputs)
        hidden = checkpoint.checkpoint(self.compute, hidden, use_reentrant=self.reentrant)
        return self.last(nn.functional.dropout(hidden, 0.5, self.training))

    def compute(self, hidden):
        self.ran.append(1)
        return self.middle(hidden).relu()


def run_together(*tasks):
    """Run functions in a thread each; return the errors."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task) for task in tasks]
    return [error for one in running if (error := one.exception()) is not None]


def test_four_threads_audit_at_once_and_leave_the_process_as_it_was():
    alone = [sp.audit_step(*step(number), steps=20, seconds=600.0) for number in range(4)]
    before = settings()
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    found, steps = {}, [step(number) for number in range(4)]

    def audit(number):
        found[number] = sp.audit_step(*steps[number], steps=20, seconds=600.0)

    assert run_together(*(partial(audit, number) for number in range(4))) == []
    for number, result in enumerate(alone):
        assert found[number].difference == result.difference
        assert [r.scores for r in found[number].records] == [r.scores for r in result.records]
    assert settings() == before
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert np.array_equal(np.random.get_state()[1], drawn[2])
    for reentrant in (False, True):
        model = Checkpointed(reentrant)
        model(torch.rand(1, 16)).sum().backward()
        assert len(model.ran) == 2


def step(number):
    with torch.random.fork_rng():
        torch.manual_seed(number)
        model, inputs = Checkpointed(number % 2 == 0).train(), torch.rand(1, 16)
    return model, nn.CrossEntropyLoss(), (inputs, torch.tensor([number]))


def settings():
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return (
        *(cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        *(cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark),
        torch.backends.mkldnn.enabled,
        checkpoint._checkpoint_without_reentrant_generator,
        "apply" in vars(checkpoint.CheckpointFunction),
    )


def test_another_thread_draws_and_computes_twice_as_if_nothing_were_audited():
    models = [Checkpointed(reentrant).eval() for reentrant in (False, True)]
    one = step(1)
    torch.manual_seed(5)
    wanted = torch.rand(20_000).tolist()
    torch.manual_seed(5)
    drawn, ended = [], threading.Event()

    def draw():
        while not ended.is_set() and len(drawn) < len(wanted):
            drawn.append(float(torch.rand(1)))
            models[len(drawn) % 2](torch.ones(1, 16)).sum().backward()

    def audit():
        try:
            sp.audit_step(*one, steps=20, seconds=600.0)
        finally:
            ended.set()

    assert run_together(draw, audit) == []
    assert drawn == wanted[: len(drawn)]
    assert sum(len(model.ran) for model in models) == 2 * len(drawn)


@pytest.mark.parametrize("inner", [True, False])
def test_a_setting_that_two_threads_hold_is_restored_by_the_last(inner):
    first, second, before = differentiable_twice(recurrent=inner), precision("float32"), settings()
    third = differentiable_twice(recurrent=False)
    for held in (first, second, third):
        held.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cudnn.allow_tf32
    second.__exit__(None, None, None)
    third.__exit__(None, None, None)
    assert settings() == before


def test_private_draws_are_those_of_the_shared_generators_and_leave_them():
    torch.manual_seed(7)
    layer = nn.GRU(4, 4, num_layers=2, dropout=0.5)

    def draw():
        return (
            torch.randn(3),
            torch.rand_like(torch.ones(3)),
            torch.randint(9, (3,)),
            torch.randperm(5),
            torch.bernoulli(torch.full((3,), 0.5)),
            nn.functional.dropout(torch.ones(9)),
            torch.empty(3).normal_(),
            layer(torch.ones(2, 1, 4))[0].detach(),
            nn.Linear(3, 2).weight.detach(),
        )

    before = torch.get_rng_state()
    with PrivateDraws() as draws:
        private = draw()
    assert draws.drew
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, private, draw()))
    with PrivateDraws() as draws:
        nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 4, 8))
        torch.ones(2).normal_(generator=torch.Generator())
    assert not draws.drew
    torch.manual_seed(3)
    with PrivateDraws(3):
        seeded = torch.rand(4)
    assert torch.equal(seeded, torch.rand(4))
