"""A decoder's next-token loss gives one text away by whichever parameters are trained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks._applicability import check_applicability
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tokens
from seepage.zoo._foreign import LossOfInputs, WithInputs

WIDTH, HEADS, VOCABULARY, LENGTH, PROMPT = 64, 4, 500, 6, 8
DOMAIN = Tokens(LENGTH, VOCABULARY)
GRADIENT = sp.Client(sp.Gradient())


class Decoder(nn.Module):
    """Two blocks that predict the next token, behind a prompt of trained vectors."""

    def __init__(self, *, prompt: int, both_ways: bool = False) -> None:
        super().__init__()
        self.both_ways = both_ways
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(PROMPT + LENGTH + 1, WIDTH))
        self.prompt = nn.Parameter(torch.randn(prompt, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        self.attend = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        features = self.tokens(tokens)
        features = torch.cat([self.prompt.expand(len(tokens), -1, -1), features], dim=1)
        features = features + self.positions[: features.shape[1]]
        length = features.shape[1]
        hidden = torch.full((length, length), 0.0 if self.both_ways else -1e9).triu(1)
        for block in range(2):
            parts = self.attend[block](self.norms[2 * block](features)).chunk(3, dim=-1)
            query, key, value = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
            mixed = (query @ key.mT / math.sqrt(WIDTH // HEADS) + hidden).softmax(-1) @ value
            features = features + mixed.transpose(1, 2).flatten(2)
            read = self.norms[2 * block + 1](features)
            features = features + self.down[block](nn.functional.gelu(self.up[block](read)))
        return self.head(self.norms[4](features))


def predict_next(logits, tokens):
    """Mean loss of the next token, one value for each text."""
    tokens = tokens.round().long()
    prompt = logits.shape[1] - tokens.shape[1]
    predicted = logits[:, max(0, prompt - 1) : -1].transpose(1, 2)
    wanted = tokens[:, 0 if prompt else 1 :]
    return nn.functional.cross_entropy(predicted, wanted, reduction="none").mean(1)


def make_task(trained, *, seed=0, loss=predict_next, **options):
    torch.manual_seed(seed)
    prompt = PROMPT if trained == "prompt" else 0
    model = Decoder(prompt=prompt, **options)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    joined = LossOfInputs(loss, (prompt + LENGTH, VOCABULARY), (LENGTH,))
    return sp.Task(WithInputs(model), joined, DOMAIN, name="decoder", target_shape=(0,))


def make_batch(seed=0, size=1):
    texts = DOMAIN.sample(size, rng=sp.rng(seed).fork("private"))
    return sp.Batch(texts, torch.zeros(size, 0))


def observe(task, batch, client=GRADIENT, threat=sp.Threat()):  # noqa: B008
    return threat.observe(client, task, batch, rng=sp.rng(0))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_soft_prompt_gives_the_text_away_and_proves_it(seed):
    batch = make_batch(seed)
    seen = observe(make_task("prompt", seed=seed), batch)
    guess = sp.attacks.next_words()(seen, rng=sp.rng(1))
    assert torch.equal(guess.inputs, batch.inputs)
    assert guess.certificate.unique is True
    assert guess.confidence.tolist() == [[1.0] * LENGTH]


@pytest.mark.parametrize("trained", ["bias", "norms"])
def test_any_small_part_of_a_decoder_gives_the_text_away(trained):
    batch = make_batch(3)
    guess = sp.attacks.next_words()(observe(make_task(trained), batch), rng=sp.rng(1))
    assert torch.equal(guess.inputs, batch.inputs)
    assert guess.certificate.unique is True


def test_one_local_step_of_an_unknown_batch_size_is_read_as_well():
    batch = make_batch(4)
    client = sp.Client(sp.FedAvg(lr=0.3, steps=1))
    threat = sp.Threat(knows_batch_size=False)
    seen = observe(make_task("prompt"), batch, client, threat)
    guess = sp.attacks.next_words()(seen, rng=sp.rng(1))
    assert torch.equal(guess.inputs, batch.inputs)


def test_behind_noise_nothing_is_claimed():
    task, batch = make_task("prompt"), make_batch()
    update = observe(task, batch).update.flat()
    std = 0.1 * float(update.norm()) / math.sqrt(len(update))
    seen = observe(task, batch, sp.Client(sp.Gradient(), sp.AddGaussian(std)))
    guess = sp.attacks.next_words(widths=(4,))(seen, rng=sp.rng(1))
    assert guess.certificate.unique is not True
    assert guess.certificate.residual > 1e-2
    assert not guess.confidence.any()


def test_a_text_of_other_people_is_not_claimed_for_an_update_it_does_not_explain():
    task = make_task("prompt")
    one, other = (observe(task, make_batch(seed)).update for seed in (0, 1))
    mixed = sp.Update({name: (t + other.tensors[name]) / 2 for name, t in one.tensors.items()})
    seen = sp.Observation(task, mixed, observe(task, make_batch()).simulate, batch_size=1)
    guess = sp.attacks.next_words(widths=(4,))(seen, rng=sp.rng(1))
    assert guess.certificate.unique is not True
    assert not guess.confidence.any()


def squared(logits, tokens):
    return logits.square().flatten(1).mean(1) + 0 * tokens.sum(1)


@pytest.mark.parametrize(
    ("task", "size", "local", "reason"),
    [
        (make_task("prompt"), 2, sp.Gradient(), "expected an update of one text, got 2"),
        (make_task("prompt", both_ways=True), 1, sp.Gradient(), "from left to right"),
        (make_task("prompt", loss=squared), 1, sp.Gradient(), "got another loss"),
        (make_task("prompt"), 1, sp.FedAvg(lr=3.0, steps=3), "several local steps"),
        (make_task("head"), 1, sp.Gradient(), "use dager"),
        (sp.zoo.gpt(width=16, layers=1, domain=DOMAIN), 1, sp.Gradient(), "a logit for each of"),
    ],
    ids=["two texts", "encoder", "another loss", "local steps", "head alone", "classifier"],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(task, size, local, reason):
    batch = sp.Batch(make_batch(size=size).inputs, task.blank_labels(size))
    seen = observe(task, batch, sp.Client(local))
    assert reason in check_applicability(seen).refused["next_words"]
    with pytest.raises(NotApplicable, match=reason):
        sp.attacks.next_words()(seen, rng=sp.rng(1))


def test_a_network_that_takes_too_long_is_refused_with_the_time():
    seen = observe(make_task("prompt"), make_batch())
    with pytest.raises(NotApplicable, match=r"in 0.001 s, got about \d+ s"):
        sp.attacks.next_words(seconds=0.001)(seen, rng=sp.rng(1))


@pytest.mark.parametrize("options", [{"widths": ()}, {"widths": (0,)}, {"seconds": 0.0}], ids=str)
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidValue):
        sp.attacks.next_words(**options)


def test_auto_goes_on_where_a_closed_form_knows_some_words_alone():
    """The last word is predicted and not looked up, so the table of words does not show it."""
    batch = make_batch(5)
    seen = observe(make_task(""), batch)
    partly = sp.attacks.bag_of_words()(seen, rng=sp.rng(1))
    assert int((partly.inputs < 0).sum()) >= 1
    attack = sp.auto(effort="quick", budget=20)
    guess = attack(seen, rng=sp.rng(1))
    assert len(set(guess.inputs[0].tolist()) & set(batch.inputs[0].tolist())) >= LENGTH - 1
