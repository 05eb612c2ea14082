"""Tokens in the span of the first layer's gradient: encoders, adapters, frozen embeddings."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.text._token_span import list_token_readers
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tokens
from seepage.exposure._inspection import _token_budget, inspection
from seepage.numerics._row_span import row_span, share_outside, split_span
from seepage.zoo._lora import LowRank, adapt, add_lora

HAMLET = sp.data.load("hamlet")


class Encoder(nn.Module):
    """Reads both ways, knows no positions, and scales by the root mean square."""

    def __init__(self, domain, *, width=64, heads=4, shared=2):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(domain.vocabulary, width).requires_grad_(False)
        self.norm = nn.RMSNorm(width)
        self.query, self.heads, self.shared = nn.Linear(width, width), heads, shared
        # Grouped queries: fewer keys and values than queries.
        self.key, self.value = (nn.Linear(width, width // heads * shared) for _ in range(2))
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens):
        features = self.norm(self.tokens(tokens))
        query, key, value = (
            layer(features).unflatten(-1, (count, -1)).transpose(1, 2)
            for layer, count in (
                (self.query, self.heads), (self.key, self.shared), (self.value, self.shared)
            )
        )  # fmt: skip
        times = self.heads // self.shared
        key, value = (part.repeat_interleave(times, 1) for part in (key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(torch.tanh(self.out(mixed.transpose(1, 2).flatten(2))).mean(1))


def observe(task, batch, *, defense=None, local=None):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat().observe(client, task, batch, rng=sp.rng(0))


def scored(task, batch, **options):
    guess = sp.attacks.token_span()(observe(task, batch, **options), rng=sp.rng(1))
    return guess, sp.score(guess, batch, domain=task.domain)


def adapted(rank, *, width=96, **options):
    return sp.zoo.gpt(width=width, layers=2, classes=2, domain=HAMLET.domain, lora=rank, **options)


def multiply(layer, _):
    layer.lora_B(layer.lora_A(torch.eye(layer.lora_A.in_features)))


def test_adapters_that_are_multiplied_first_as_those_of_dora_are_read_all_the_same():
    task, batch = adapted(16), HAMLET.batch(2)
    _, expected = scored(task, batch)
    for module in task.network.modules():
        if isinstance(module, LowRank):
            module.register_forward_pre_hook(multiply)
    _, scores = scored(task, batch)
    assert torch.equal(scores["token_recall"], expected["token_recall"])
    assert float(expected["token_recall"].min()) > 0.9


@pytest.mark.parametrize("start", [0, 40, 80])
def test_adapters_give_away_as_many_tokens_as_they_have_rows(start):
    batch = HAMLET.batch(4, start=start)  # 48 places, and 3 adapters of rank 16
    guess, scores = scored(adapted(16), batch)
    assert scores["token_recall"].tolist() == [1.0] * 4
    assert scores["token_precision"].tolist() == [1.0] * 4
    assert guess.certificate.unique is None


def claimed(guess, batch):
    """Which words are claimed to stand at their place, and which do."""
    there = (guess.inputs[:, None] == batch.inputs[None]).any(1)
    return guess.confidence > 0.5, there


@pytest.mark.parametrize("people", [1, 2, 4])
def test_the_place_of_a_word_is_claimed_only_where_it_is_told(people):
    count = 0
    for start in range(0, 64, 16):
        batch = HAMLET.batch(people, start=start)
        guess, scores = scored(adapted(16), batch)
        sure, there = claimed(guess, batch)
        assert bool(there[sure].all())
        assert scores["token_recall"].tolist() == [1.0] * people
        count += int(sure.sum())
    assert count >= 24


def test_two_words_that_change_places_are_named_without_their_places():
    domain = HAMLET.domain
    text = torch.arange(100, 100 + domain.length)
    changed = text.clone()
    changed[[2, 5]] = text[[5, 2]]
    changed[7] = 300
    batch = sp.Batch(torch.stack([text, changed]), torch.tensor([0, 1]))
    guess, scores = scored(adapted(16), batch)
    sure, there = claimed(guess, batch)
    assert scores["token_recall"].tolist() == [1.0, 1.0]
    assert not bool((sure & torch.isin(guess.inputs, text[[2, 5]])).any())
    assert bool(sure[:, 7].all())
    assert bool(there[sure].all())


def test_by_a_part_of_what_was_read_no_place_is_claimed():
    batch = HAMLET.batch(4)
    guess, _ = scored(adapted(4), batch)
    assert int((guess.inputs >= 0).sum()) > 12
    assert not bool(guess.confidence.any())


def test_beyond_the_budget_fewer_tokens_leak():
    batch = HAMLET.batch(8)
    shares = [float(scored(adapted(rank), batch)[1]["token_recall"].mean()) for rank in (2, 8, 32)]
    assert shares[0] < 0.5
    assert shares[0] < shares[2]
    assert shares[2] == 1.0


def resembling(share, *, rank):
    """A network in which the last tokens are nearly the same as the first tokens of a batch."""
    task, batch = adapted(rank), HAMLET.batch(4)
    said = sorted(set(batch.inputs.flatten().tolist()))
    absent = [t for t in range(HAMLET.domain.vocabulary - 1, 0, -1) if t not in said][: len(said)]
    table = task.model.tokens.weight.data
    noise = share * torch.randn(len(said), table.shape[1], generator=torch.manual_seed(3))
    table[absent] = table[said] + noise * table.std()
    return task, batch, set(said), set(absent)


def test_tokens_that_resemble_one_of_the_batch_are_not_named():
    task, batch, said, absent = resembling(0.03, rank=16)
    named = set(scored(task, batch)[0].inputs.flatten().tolist()) - {-1}
    assert named == said
    assert not named & absent


def test_beyond_the_budget_only_the_nearest_of_tokens_alike_is_named():
    task, batch, said, absent = resembling(0.03, rank=4)
    named = set(scored(task, batch)[0].inputs.flatten().tolist()) - {-1}
    assert len(named - said - absent) <= 2
    assert len(named) <= 24


def test_tokens_that_are_nearly_dependent_are_told_from_rounding():
    rows = torch.randn(40, 30, generator=torch.manual_seed(0), dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(60, 30, generator=torch.manual_seed(1)).double())[0]
    strength = torch.logspace(0, -6.7, 30, dtype=torch.float64)
    gradient = (rows * strength) @ turned.T
    rounding = 1e-9 * float(gradient.norm()) / 49 * torch.randn(40, 60).double()
    basis, angle = split_span(gradient + rounding, tolerance=1e-6)
    assert len(basis) == 30
    assert angle < 0.1
    assert len(row_span(gradient + rounding, tolerance=1e-6)) < 30
    assert float(share_outside(basis, turned.T).max()) < 0.1


def test_one_text_behind_adapters_comes_back_in_order_and_proved():
    batch = HAMLET.batch(1, start=3)
    guess, _ = scored(adapted(8), batch)
    assert torch.equal(guess.inputs, batch.inputs)
    assert guess.certificate.unique


def test_before_the_first_step_the_other_matrix_gives_tokens_away():
    base = sp.zoo.gpt(width=96, layers=2, classes=2, domain=HAMLET.domain)
    task, batch = add_lora(base, rank=32, spread=0.0), HAMLET.batch(2)
    seen = observe(task, batch)
    gradients = seen.update.tensors
    assert not any(bool(t.any()) for name, t in gradients.items() if "lora_A" in name)
    _, scores = scored(task, batch)
    assert scores["token_recall"].tolist() == [1.0, 1.0]
    assert scores["token_precision"].tolist() == [1.0, 1.0]


def test_the_row_space_of_an_adapter_is_spanned_by_what_it_read():
    layer = LowRank(nn.Linear(20, 6), rank=8, spread=1.0).double()
    read = torch.randn(5, 20, dtype=torch.float64, generator=torch.manual_seed(0))
    layer(read).square().sum().backward()
    solved = torch.linalg.lstsq(read.T, layer.lora_A.weight.grad.T).solution
    torch.testing.assert_close(read.T @ solved, layer.lora_A.weight.grad.T)
    assert layer.base.weight.grad is None


@pytest.mark.parametrize("people", [1, 3])
def test_an_encoder_with_frozen_embeddings_gives_its_tokens_away(people):
    domain = Tokens(12, 600)
    batch = sp.Batch(domain.sample(people, rng=sp.rng(5)), torch.arange(people) % 2)
    task = sp.Task(Encoder(domain), sp.cross_entropy, domain)
    _, scores = scored(task, batch)
    assert scores["token_recall"].tolist() == [1.0] * people
    assert scores["token_precision"].tolist() == [1.0] * people


def test_clipping_hides_nothing_and_strong_noise_everything():
    batch = HAMLET.batch(2)
    _, clipped = scored(adapted(16), batch, defense=sp.Clip(1e-3))
    assert clipped["token_recall"].tolist() == [1.0, 1.0]
    _, noisy = scored(adapted(16), batch, defense=sp.AddGaussian(1.0))
    assert float(noisy["token_recall"].nan_to_num().mean()) < 0.2


def test_auto_reads_texts_behind_adapters():
    batch = HAMLET.batch(1, start=8)
    guess = sp.auto(effort="quick")(observe(adapted(8), batch), rng=sp.rng(1))
    assert torch.equal(guess.inputs, batch.inputs)


@pytest.mark.parametrize(("rank", "tokens"), [(4, 12), (16, 48), (64, 95)])
def test_the_budget_counts_rows_below_the_width(rank, tokens):
    found = inspection(adapted(rank)).texts
    assert found.tokens == tokens
    assert f"up to {tokens} tokens" in found.advice
    assert found.table is None


def test_the_budget_of_trained_embeddings_is_every_token():
    task = sp.zoo.gpt(width=32, layers=2, classes=2, domain=HAMLET.domain)
    assert "every token" in _token_budget(task).advice


def test_a_network_that_trains_its_last_layer_alone_tells_no_token():
    task = sp.zoo.gpt(width=32, layers=2, classes=2, domain=HAMLET.domain)
    model = task.model.requires_grad_(False)
    model.head.requires_grad_(True)
    frozen = sp.Task(model, sp.cross_entropy, HAMLET.domain)
    with pytest.raises(NotApplicable, match="reads the vector of one token"):
        list_token_readers(frozen)
    assert _token_budget(frozen).tokens == 0


@pytest.mark.parametrize("options", [{"false_tokens": 0}, {"tolerance": 1.0}], ids=str)
def test_impossible_options_are_refused(options):
    with pytest.raises(InvalidValue, match="expected"):
        sp.attacks.token_span(**options)


def test_adapters_without_a_layer_to_go_beside_are_refused():
    with pytest.raises(InvalidValue, match="expected targets"):
        add_lora(sp.zoo.gpt(width=16, layers=1), targets=("q_proj",))


def test_adapters_go_beside_the_transposed_layers_of_gpt2():
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 300}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    adapt(model, rank=12, targets=("c_attn",), head=False)
    texts = torch.tensor([[12, 7, 81, 40, 5, 3]])
    batch = {"input_ids": texts, "attention_mask": torch.ones_like(texts), "labels": texts}
    result = sp.audit_step(model, None, batch, attacks=["token_span"])
    assert torch.equal(result.guess[:, :-1], texts[:, :-1])
