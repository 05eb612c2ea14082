"""Trained keys before those of a text give its words away, as adapters do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.text._prefix_keys import find_prefix_keys
from seepage.attacks.text._readers import run_reader
from seepage.domains import Tokens
from seepage.exposure._inspection import _token_budget
from seepage.numerics._row_span import row_span, share_outside

HAMLET = sp.data.load("hamlet")
WIDTH, HEADS = 128, 2
SIZE = WIDTH // HEADS


class PrefixTuned(nn.Module):
    """A frozen decoder of two blocks; each attention reads trained keys and values first."""

    def __init__(self, domain: Tokens, *, prefix: int, shared: int, fused: bool) -> None:
        super().__init__()
        self.shared, self.fused = shared, fused
        self.tokens = nn.Embedding(domain.vocabulary, WIDTH)
        self.positions = nn.Embedding(domain.length, WIDTH)
        sizes = (WIDTH, WIDTH // shared, WIDTH // shared)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, size) for size in (*sizes, 2 * WIDTH)) for _ in range(2)
        )
        self.outs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)
        self.requires_grad_(False)
        # Keys and values of both layers stand one after the other for each virtual token.
        self.prefix = nn.Parameter(torch.randn(prefix, 2, 2, HEADS // shared, SIZE))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        features = self.tokens(tokens) + self.positions.weight[:length]
        hidden = torch.ones(length, len(self.prefix) + length).triu(len(self.prefix) + 1).bool()
        mask = torch.zeros(hidden.shape).masked_fill(hidden, -1e9)
        for number, (*projections, up) in enumerate(self.layers):
            read = nn.functional.layer_norm(features, (WIDTH,))
            query, key, value = (
                one(read).unflatten(-1, (-1, SIZE)).transpose(1, 2) for one in projections
            )
            before = (
                self.prefix[:, number]
                .permute(1, 2, 0, 3)[:, None]
                .expand(-1, len(tokens), -1, -1, -1)
            )
            key, value = (
                torch.cat(pair, 2).repeat_interleave(self.shared, 1)
                for pair in zip(before, (key, value), strict=True)
            )
            if self.fused:
                mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask)
            else:
                mixed = (query @ key.mT / math.sqrt(SIZE) + mask).softmax(-1) @ value
            features = features + mixed.transpose(1, 2).flatten(2)
            features = features + self.outs[number](nn.functional.gelu(up(features)))
        return self.head(features.mean(1))


def prefix_task(prefix, *, shared=1, fused=False):
    torch.manual_seed(0)
    model = PrefixTuned(HAMLET.domain, prefix=prefix, shared=shared, fused=fused)
    return sp.Task(model, sp.cross_entropy, HAMLET.domain)


def observe(task, people, local=None):
    batch = HAMLET.batch(people)
    return sp.Threat().observe(sp.Client(local or sp.Gradient()), task, batch, rng=sp.rng(0)), batch


@pytest.mark.parametrize("fused", [False, True], ids=["products", "fused"])
@pytest.mark.parametrize("shared", [1, 2], ids=["own keys", "shared keys"])
def test_the_gradient_of_keys_spans_the_queries_that_met_them(shared, fused):
    task = prefix_task(40, shared=shared, fused=fused)
    seen, batch = observe(task, 1)
    first, second = find_prefix_keys(task, batch.inputs[0])
    assert (first.heads, first.shared) == (HEADS, shared)
    gradient = seen.update.tensors["prefix"]
    for number, keys in enumerate((first, second)):
        (queries,) = run_reader(task, (keys,), batch.inputs)
        for head in range(HEADS):
            rows = gradient[:, number, 0, head // shared]
            torch.testing.assert_close(
                keys.stack_gradients(seen.update.tensors)[
                    head * 40 : (head + 1) * 40, head * SIZE : (head + 1) * SIZE
                ],
                rows,
            )
            basis = row_span(rows, tolerance=1e-6)
            assert len(basis) == 12 * shared
            own = queries[:, head * SIZE : (head + 1) * SIZE]
            assert float(share_outside(basis, own).max()) < 1e-3


@pytest.mark.parametrize("local", [sp.Gradient(), sp.FedAvg(lr=0.1, steps=5)], ids=repr)
@pytest.mark.parametrize(("shared", "people"), [(1, 1), (1, 3), (2, 2)])
def test_texts_come_back_while_keys_outnumber_their_tokens(shared, people, local):
    seen, batch = observe(prefix_task(56, shared=shared), people, local)
    named = sp.attacks.token_span()(seen, rng=sp.rng(1))
    scores = sp.score(named, batch, domain=HAMLET.domain)
    assert float(scores["token_recall"].min()) == 1
    assert float(scores["token_precision"].min()) == 1
    if local == sp.Gradient():
        read = sp.attacks.dager()(seen, rng=sp.rng(1))
        assert bool(sp.score(read, batch)["exact"].all())


def test_fewer_keys_than_tokens_name_no_absent_word():
    seen, batch = observe(prefix_task(8), 2)
    named = sp.attacks.token_span()(seen, rng=sp.rng(1))
    said = set(batch.inputs.flatten().tolist()) | {-1}
    assert len(set(named.inputs.flatten().tolist()) - said) <= 1


@pytest.mark.parametrize(("prefix", "shared", "tokens"), [(8, 1, 8), (100, 1, 63), (100, 2, 31)])
def test_the_budget_counts_keys_and_the_width_of_a_head(prefix, shared, tokens):
    budget = _token_budget(prefix_task(prefix, shared=shared))
    assert budget.tokens == tokens
    assert "prefix (keys before attention 0)" in budget.advice


def test_a_network_without_trained_keys_has_none():
    assert not find_prefix_keys(sp.zoo.gpt(width=16, layers=1), torch.arange(12))
    frozen = prefix_task(8)
    frozen.model.prefix.requires_grad_(False)
    frozen.model.head.requires_grad_(True)
    task = sp.Task(frozen.model, sp.cross_entropy, HAMLET.domain)
    assert not find_prefix_keys(task, HAMLET.inputs[0])
