"""DAGER: its parts against independent code, and whole texts from a real play."""

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks._applicability import attacks_on
from seepage.attacks.text._readers import find_readers, run_reader
from seepage.attacks.text._span_check import SpanCheck
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tokens
from seepage.exposure._inspection import _token_budget
from seepage.numerics._row_span import row_span, share_outside
from seepage.zoo._gpt import TransformerBlock

HAMLET = sp.data.load("hamlet")


def text_task(**options):
    return sp.zoo.gpt(**{"domain": HAMLET.domain, "classes": 2, "width": 64, **options})


def observed(people, *, start=0, task=None, local=None, defense=None, threat=None):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    batch = HAMLET.batch(people, start=start)
    threat = threat or sp.Threat()
    return threat.observe(client, task or text_task(), batch, rng=sp.rng(0)), batch


def test_a_block_is_the_transformer_layer_of_torch():
    block = TransformerBlock(16, 4, 7).double()
    theirs = nn.TransformerEncoderLayer(
        16, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    ours = block.attention
    with torch.no_grad():
        parts = (ours.query, ours.key, ours.value)
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
    for mine, yours in (
        (ours.out, theirs.self_attn.out_proj),
        (block.up, theirs.linear1),
        (block.down, theirs.linear2),
    ):
        yours.load_state_dict(mine.state_dict())
    features = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.manual_seed(0))
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(block(features), theirs(features, src_mask=mask))


def test_the_span_holds_what_the_layer_read_and_nothing_else():
    read = np.random.default_rng(0).normal(size=(5, 20))
    slopes = np.random.default_rng(1).normal(size=(5, 30))
    gradient = torch.from_numpy(slopes.T @ read)
    basis = row_span(gradient, tolerance=1e-9)
    assert len(basis) == np.linalg.matrix_rank(read) == 5
    assert float(share_outside(basis, torch.from_numpy(read)).max()) < 1e-12
    other = np.random.default_rng(2).normal(size=20)
    solved, *_ = np.linalg.lstsq(read.T, other, rcond=None)
    expected = np.linalg.norm(other - read.T @ solved) / np.linalg.norm(other)
    assert float(share_outside(basis, torch.from_numpy(other))) == pytest.approx(expected)


def test_the_readers_are_the_first_attention_and_what_is_above_it():
    task = text_task()
    found = find_readers(task, tolerance=1e-6)
    token, prefixes = found.token, found.later
    assert found.reads_last
    assert not found.both_ways
    projections = ("query", "key", "value")
    assert token == tuple(f"blocks.0.attention.{p}" for p in projections)
    assert tuple(f"blocks.1.attention.{p}" for p in projections) in prefixes
    assert not any(layer.startswith("blocks.2.up") for layers in prefixes for layer in layers)
    texts = HAMLET.inputs[:2]
    norm = task.model.blocks[0].norm1
    expected = norm(task.model.tokens(texts) + task.model.positions.weight)
    torch.testing.assert_close(run_reader(task, token, texts), expected.detach())


@pytest.mark.parametrize("short", [True, False], ids=["prefixes", "whole texts"])
@pytest.mark.parametrize("layer", ["blocks.1.down", "blocks.1.attention.query"])
def test_prefixes_in_common_are_read_once_and_what_lies_inside_is_measured_exactly(short, layer):
    task, position = text_task(), 5
    texts = HAMLET.inputs[:2].repeat_interleave(30, 0)
    texts[:, position] = torch.arange(60)
    read = run_reader(task, (layer,), texts)[:, position]
    # A small part of what the layer reads, or most of it.
    basis = row_span(read[:30], tolerance=1e-6)
    expected = share_outside(basis, read)
    assert int((expected < 1e-6).sum()) == 30
    rows = []
    with task.network.get_submodule("blocks.0.up").register_forward_hook(
        lambda _, given, outputs: rows.append(given[0].shape[:-1].numel())
    ):
        found = SpanCheck((layer,), basis, 0.05).measure_last(task, texts, position, short=short)
    length = position + 1 if short else texts.shape[1]
    assert rows == [60 + 2 * (length - 1)]
    # Single precision would find up to 1e-3 as one minus the share inside.
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("people", [1, 2, 4])
@pytest.mark.parametrize("embeddings", [True, False], ids=["trained", "frozen"])
def test_whole_texts_come_back_word_by_word(people, embeddings):
    seen, batch = observed(people, start=10 * people, task=text_task(embeddings=embeddings))
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    scores = sp.score(guess, batch)
    assert batch.inputs.shape[1] == 12
    assert scores["exact"].tolist() == [1.0] * people
    assert scores["label_accuracy"].tolist() == [1.0] * people
    assert guess.certificate.residual < 1e-5
    assert guess.certificate.unique


def test_the_last_blocks_of_a_classifying_decoder_alone_give_whole_texts_away():
    model = text_task().model.requires_grad_(False)
    for part in (*model.blocks[1:], model.head):
        part.requires_grad_(True)
    task = sp.Task(model, sp.cross_entropy, HAMLET.domain)
    assert find_readers(task, tolerance=1e-6).token is None
    assert "up to 63 tokens of a batch leak exactly (dager)" in _token_budget(task).advice
    seen, batch = observed(2, start=30, task=task)
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    scores = sp.score(guess, batch)
    assert scores["exact"].tolist() == [1.0, 1.0]
    assert scores["label_accuracy"].tolist() == [1.0, 1.0]
    with pytest.raises(NotApplicable, match="expected at most 100 tokens to try"):
        sp.attacks.dager(at_most=100)(seen, rng=sp.rng(1))


def test_neither_the_batch_size_nor_the_scale_of_the_update_is_needed():
    blind = sp.Threat(knows_batch_size=False)
    step = sp.FedAvg(lr=0.01, steps=1)
    clipped = sp.Clip(0.05)
    seen, batch = observed(2, start=50, local=step, defense=clipped, threat=blind)
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["exact"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("people", [1, 2])
def test_local_steps_leave_texts_whole(people):
    steps = sp.FedAvg(lr=0.01, steps=5)
    seen, batch = observed(people, start=70, local=steps, task=text_task(layers=2))
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["exact"].tolist() == [1.0] * people
    # What local steps leave is told apart by simulation, which is no proof.
    assert float(guess.confidence.max()) == 0


def test_a_search_whose_every_text_has_ended_returns_what_it_has():
    domain = Tokens(12, HAMLET.domain.vocabulary + 1, padding=HAMLET.domain.vocabulary)
    inputs = torch.where(torch.arange(12) < 6, HAMLET.inputs[:1], domain.padding)
    client = sp.Client(sp.FedAvg(lr=0.1, steps=5))
    task = text_task(domain=domain, layers=2)
    batch = sp.Batch(inputs, HAMLET.labels[:1])
    seen = sp.Threat(knows_batch_size=False).observe(client, task, batch, rng=sp.rng(0))
    assert sp.attacks.dager()(seen, rng=sp.rng(1)).inputs.shape[1] == 12


def test_known_labels_go_to_the_texts_they_belong_to():
    seen, batch = observed(4, start=60, threat=sp.Threat(knows_labels=True))
    scores = sp.score(sp.attacks.dager()(seen, rng=sp.rng(1)), batch)
    assert scores["label_accuracy"].tolist() == [1.0] * 4


def test_behind_noise_nothing_is_claimed():
    seen, batch = observed(1, defense=sp.AddGaussian(0.01))
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    assert float(sp.score(guess, batch)["token_accuracy"]) < 0.5
    assert guess.certificate.residual > 0.1
    assert guess.certificate.unique is None


def test_a_batch_that_fills_the_space_is_refused():
    seen, _ = observed(6)  # 72 tokens, 64 directions
    with pytest.raises(NotApplicable, match="too many tokens for this width"):
        sp.attacks.dager()(seen, rng=sp.rng(1))


class Bag(nn.Module):
    """Reads all words at once, wherever they stand."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        features = torch.tanh(self.first(self.tokens(tokens)))
        mixed = features + features.mean(1, keepdim=True)
        return self.head(torch.tanh(self.second(mixed)).mean(1))


def test_a_network_that_reads_words_in_no_order_is_refused():
    domain = Tokens(6, 50)
    task = sp.Task(Bag(), sp.cross_entropy, domain)
    batch = sp.Batch(domain.sample(1, rng=sp.rng(0)), torch.tensor([1]))
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    with pytest.raises(NotApplicable, match="in no order"):
        sp.attacks.dager()(seen, rng=sp.rng(1))


def test_images_are_refused_and_searches_refuse_texts():
    photo = sp.data.bundled("photos", size=1)
    seen = sp.Threat().observe(
        sp.Client(sp.Gradient()), sp.zoo.mlp(hidden=(8,)), photo, rng=sp.rng(0)
    )
    with pytest.raises(NotApplicable, match="token sequences"):
        sp.attacks.dager()(seen, rng=sp.rng(1))
    text, _ = observed(1, threat=sp.Threat(knows_labels=True))
    for name in set(sp.attacks.ATTACKS) - set(attacks_on(text.task.domain)):
        with pytest.raises(NotApplicable):
            sp.attacks.ATTACKS[name]()(text, rng=sp.rng(1))


def test_any_guess_of_a_text_can_be_certified_but_not_as_unique():
    seen, batch = observed(1)
    proof = sp.certify(seen, sp.Reconstruction(batch.inputs, batch.labels))
    assert proof.residual < 1e-6
    assert proof.unique is None


@pytest.mark.parametrize(
    "options", [{"tolerance": 0.0}, {"rank_tolerance": 1.0}, {"at_most": 0}], ids=str
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InvalidValue, match="expected"):
        sp.attacks.dager(**options)


def test_texts_of_several_lengths_come_back_with_their_padding():
    domain = Tokens(12, HAMLET.domain.vocabulary + 1, padding=HAMLET.domain.vocabulary)
    batch = HAMLET.batch(3, start=20)
    kept = torch.arange(12) < torch.tensor([5, 12, 8])[:, None]
    padded = sp.Batch(torch.where(kept, batch.inputs, domain.padding), batch.labels)
    task = sp.zoo.gpt(width=64, classes=2, domain=domain, embeddings=False)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, padded, rng=sp.rng(0))
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    assert sp.score(guess, padded, domain=domain)["exact"].tolist() == [1.0] * 3
    assert bool((guess.confidence == 1).all())


def test_an_attack_that_may_try_few_texts_ends_and_claims_no_uniqueness():
    seen, _ = observed(4, start=60)
    guess = sp.attacks.dager(at_most=40)(seen, rng=sp.rng(1))
    assert guess.inputs.shape == (4, 12)
    assert guess.certificate.unique is None


class Encoder(nn.Module):
    """One block that reads both ways, and a head on the mean."""

    def __init__(self, domain, width):
        super().__init__()
        self.tokens = nn.Embedding(domain.vocabulary, width)
        self.positions = nn.Embedding(domain.length, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.block(self.tokens(tokens) + self.positions.weight).mean(1))


def test_texts_of_an_encoder_are_put_together():
    torch.manual_seed(0)
    task = sp.Task(Encoder(HAMLET.domain, 128), sp.cross_entropy, HAMLET.domain)
    seen, batch = observed(6, start=80, task=task)
    guess = sp.attacks.dager()(seen, rng=sp.rng(1))
    assert sp.score(guess, batch)["exact"].tolist() == [1.0] * 6
