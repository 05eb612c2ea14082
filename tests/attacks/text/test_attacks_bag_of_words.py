"""Which tokens a batch holds: exactly without noise, at a stated rate of mistakes with it."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.text._bag_of_words import UNKNOWN, _adds_to_zero
from seepage.attacks.text._token_table import find_token_table
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tokens
from seepage.numerics._standout_rows import noise_probabilities

HAMLET = sp.data.load("hamlet")


class Classifier(nn.Module):
    """Embeddings, one of three ways to read them, and a linear layer."""

    def __init__(self, kind, *, vocabulary=400, width=32, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, batch_first=True) if kind == "lstm" else None
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2) if kind == "encoder" else None
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        features = self.tokens(tokens)
        if self.kind == "lstm":
            return self.head(self.recurrent(features)[0][:, -1])
        if self.kind == "encoder":
            features = self.encoder(features)
        return self.head(features.mean(1))


class Tied(nn.Module):
    """Predicts the next token with the table that it reads tokens from."""

    def __init__(self, domain, width=24):
        super().__init__()
        torch.manual_seed(1)
        self.tokens = nn.Embedding(domain.vocabulary, width)
        self.hidden = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, domain.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.hidden(self.tokens(tokens))[0][:, -1])


def texts(people, *, length=16, vocabulary=400, classes=3, seed=0):
    domain = Tokens(length, vocabulary)
    labels = torch.arange(people) % classes
    return domain, sp.Batch(domain.sample(people, rng=sp.rng(seed)), labels)


def observe(model, domain, batch, *, defense=None, local=None, threat=None):
    task = sp.Task(model, sp.cross_entropy, domain)
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return (threat or sp.Threat()).observe(client, task, batch, rng=sp.rng(7))


def read(seen, **options):
    return sp.attacks.bag_of_words(**options)(seen, rng=sp.rng(1))


def named(guess):
    return set(guess.inputs.flatten().tolist()) - {UNKNOWN}


@pytest.mark.parametrize("kind", ["mean", "lstm", "encoder"])
@pytest.mark.parametrize("people", [1, 5])
def test_the_tokens_of_a_batch_are_read_and_no_others(kind, people):
    domain, batch = texts(people)
    guess = read(observe(Classifier(kind), domain, batch))
    said = set(batch.inputs.flatten().tolist())
    assert named(guess) == said
    assert guess.certificate.certain == len(said)
    scores = sp.score(guess, batch, domain=domain)
    assert scores["token_recall"].tolist() == [1.0] * people
    assert scores["token_precision"].tolist() == [1.0] * people


@pytest.mark.parametrize(
    "defense",
    [sp.Clip(0.01), sp.chain(sp.ClipEach(0.01), sp.Mean()), sp.SecureAggregation(5)],
    ids=str,
)
def test_what_keeps_zeros_hides_no_token(defense):
    domain, batch = texts(10)
    guess = read(observe(Classifier("encoder"), domain, batch, defense=defense))
    assert named(guess) == set(batch.inputs.flatten().tolist())
    assert guess.certificate.certain == len(named(guess))


def test_pruning_hides_some_tokens_and_adds_none():
    domain, batch = texts(10)
    guess = read(observe(Classifier("encoder"), domain, batch, defense=sp.TopK(9000)))
    said = set(batch.inputs.flatten().tolist())
    assert named(guess) < said
    assert len(named(guess)) > len(said) / 10


def test_five_local_steps_hide_no_token():
    domain, batch = texts(4)
    seen = observe(Classifier("lstm"), domain, batch, local=sp.FedAvg(lr=0.1, steps=5))
    assert named(read(seen)) == set(batch.inputs.flatten().tolist())


@pytest.mark.parametrize("people", [2, 5])
def test_a_mean_of_embeddings_gives_away_which_words_share_a_text(people):
    domain, batch = texts(people, length=20, vocabulary=2000)
    guess = read(observe(Classifier("mean", vocabulary=2000), domain, batch))
    want = sorted(sorted(text) for text in batch.inputs.tolist())
    assert sorted(sorted(text) for text in guess.inputs.tolist()) == want


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_positions_one_text_comes_back_in_order_and_proved(seed):
    batch = HAMLET.batch(1, start=5 + seed)
    task = sp.zoo.gpt(domain=HAMLET.domain, classes=2, width=32, seed=seed)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = read(seen)
    assert torch.equal(guess.inputs, batch.inputs)
    assert guess.certificate.unique
    assert guess.certificate.residual < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_tokens_whose_positions_the_defense_removed_are_named_without_an_order(seed):
    domain = Tokens(6, 150)
    task = sp.zoo.gpt(width=32, layers=1, domain=domain, classes=2, seed=seed)
    batch = sp.Batch(domain.sample(1, rng=sp.rng(seed)), torch.tensor([1]))
    client = sp.Client(sp.Gradient(), sp.Prune(0.9))
    guess = read(sp.Threat().observe(client, task, batch, rng=sp.rng(7)))
    assert guess.certificate.certain == len(named(guess))
    assert named(guess) <= set(batch.inputs.flatten().tolist())


def test_the_positions_are_found_wherever_their_table_begins():
    class Shifted(Classifier):
        def __init__(self):
            super().__init__("encoder")
            self.places = nn.Embedding(40, 32)

        def forward(self, tokens):
            places = self.places(torch.arange(tokens.shape[1]) + 2)
            return self.head(self.encoder(self.tokens(tokens) + places)[:, 0])

    domain, batch = texts(1)
    found = find_token_table(sp.Task(Shifted(), sp.cross_entropy, domain))
    assert (found.weight, found.positions, found.first) == ("tokens.weight", "places.weight", 2)
    assert torch.equal(read(observe(Shifted(), domain, batch)).inputs, batch.inputs)


def test_a_tied_output_layer_does_not_hide_what_was_read():
    domain, batch = texts(3, classes=400)
    guess = read(observe(Tied(domain), domain, batch))
    said = set(batch.inputs.flatten().tolist())
    assert named(guess) <= said
    assert len(named(guess)) > 0.9 * len(said)
    assert guess.certificate.certain is None


@pytest.mark.parametrize("width", [16, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("rate", [1e-2, pytest.param(1e-3, marks=pytest.mark.slow)])
def test_absent_rows_are_named_at_the_stated_rate(kind, width, rate):
    mistakes, tested = 0, 0
    for seed in range(5):
        key = sp.rng(seed)
        rows = key.normal((4000, width))
        if kind == "laplace":
            uniform = key.fork("u").uniform((4000, width)) - 0.5
            rows = -uniform.sign() * torch.log1p(-2 * uniform.abs())
        rows[:200] += 2.0 * (64 / width) ** 0.5
        found = noise_probabilities(rows)
        assert float((found[:200] <= rate).double().mean()) > 0.9
        mistakes += int((found[200:] <= rate).sum())
        tested += 3800
    # Five standard errors of the mistakes above the rate, and some for its estimate.
    assert mistakes <= 1.3 * rate * tested + 5 * (rate * tested) ** 0.5


def noisy_rows(kind, *, seed, signals=10):
    key, shape = sp.rng(seed), (400, 32)
    rows = key.normal(shape)
    if kind == "laplace":
        uniform = key.uniform(shape) - 0.5
        rows = -uniform.sign() * torch.log1p(-2 * uniform.abs())
    rows[:signals] += 1.5 * key.fork("direction").normal((1, 32))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1.0, 0.3])
@pytest.mark.parametrize("kind", ["normal", "laplace"])
def test_no_more_tokens_are_named_by_mistake_than_promised_where_rows_share_a_direction(kind, kept):
    mistakes = found = 0
    for seed in range(200):
        rows = noisy_rows(kind, seed=seed)
        rows *= rows.abs() >= rows.abs().quantile(1 - kept)
        named = noise_probabilities(rows) <= 0.1 / len(rows)
        mistakes, found = mistakes + int(named[10:].sum()), found + int(named[:10].sum())
    # 20 are promised. 40 were named when a row of noise could make a direction of itself.
    assert mistakes <= 28
    assert found > 0.3 * 2000


def test_noise_that_was_pruned_to_a_few_entries_names_no_token():
    for seed in range(20):
        rows = noisy_rows("laplace", seed=seed, signals=0)
        rows *= rows.abs() >= rows.abs().quantile(0.94)
        assert not bool((noise_probabilities(rows) <= 1 / len(rows)).any())


def test_behind_noise_tokens_are_named_and_few_by_mistake():
    domain, batch = texts(4, vocabulary=2000)
    model = Classifier("mean", vocabulary=2000)
    said = set(batch.inputs.flatten().tolist())
    bare = observe(model, domain, batch)
    strength = float(bare.update.tensors["tokens.weight"].norm(dim=1).max())
    weak = read(observe(model, domain, batch, defense=sp.AddGaussian(strength / 20)))
    assert len(named(weak) & said) > 0.9 * len(said)
    assert len(named(weak) - said) <= 3
    assert weak.certificate.certain is None
    drowned = read(observe(model, domain, batch, defense=sp.AddGaussian(100 * strength)))
    assert len(named(drowned)) <= 3


def test_whether_a_defense_keeps_zeros_is_found_out():
    domain, batch = texts(2)
    tried = {
        sp.Clip(1.0): False,
        sp.AddGaussian(1e-3): True,
        sp.AddLaplace(1e-3): True,
        sp.Quantize(8): False,
        sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=2): True,
    }
    for defense, adds in tried.items():
        assert _adds_to_zero(observe(Classifier("mean"), domain, batch, defense=defense)) is adds


def test_an_unknown_defense_lets_nothing_be_proved():
    domain, batch = texts(2)
    blind = sp.Threat(knows_defense=False)
    noisy = read(
        observe(Classifier("mean"), domain, batch, defense=sp.AddGaussian(1.0), threat=blind)
    )
    assert len(named(noisy)) <= 3


def test_frozen_embeddings_are_refused_in_one_sentence():
    domain, batch = texts(2)
    model = Classifier("mean")
    model.tokens.requires_grad_(False)
    with pytest.raises(NotApplicable, match="embeddings are frozen"):
        read(observe(model, domain, batch))


def test_a_vocabulary_of_a_million_is_read():
    domain, batch = texts(2, vocabulary=1_000_000)
    guess = read(observe(Classifier("mean", vocabulary=1_000_000, width=4), domain, batch))
    assert named(guess) == set(batch.inputs.flatten().tolist())


def test_an_impossible_rate_is_refused():
    with pytest.raises(InvalidValue, match="false_tokens > 0"):
        sp.attacks.bag_of_words(false_tokens=0)
