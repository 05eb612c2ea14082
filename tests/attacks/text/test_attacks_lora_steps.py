"""Adapters after their first steps, whose gradients differ in size a thousandfold."""

import pytest
import torch

import seepage as sp
from seepage.zoo._lora import adapt

transformers = pytest.importorskip("transformers", reason="needs transformers")

LENGTH, WORDS, RANK = 16, 1500, 16
QUERY_VALUE = ("q_lin", "v_lin")
ALL = ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2")


def encoder(seed):
    """DistilBERT with random weights."""
    sizes = {"dim": 128, "hidden_dim": 256, "n_layers": 2, "n_heads": 4}
    torch.manual_seed(seed)
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=32, num_labels=2, **sizes
    )
    return transformers.DistilBertForSequenceClassification(config).eval()


def add_adapters(model, targets, seed):
    """Adapters as they begin: A as a linear layer, B zero."""
    adapt(model, rank=RANK, targets=targets, spread=0.0, seed=seed)
    return model


def add_peft(model, targets, seed):
    peft = pytest.importorskip("peft", reason="needs peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=RANK, lora_alpha=RANK, target_modules=list(targets)
    )
    return peft.get_peft_model(model, config).eval()


def draw_texts(seed, count):
    return torch.randint(WORDS, (count, LENGTH), generator=torch.manual_seed(seed))


def train(model, optimizer, seed):
    """One step of SGD, or three of AdamW, on other texts."""
    trained = [p for p in model.parameters() if p.requires_grad]
    made, steps = {
        "SGD": (torch.optim.SGD(trained, lr=0.1), 1),
        "AdamW": (torch.optim.AdamW(trained, lr=2e-4), 3),
    }[optimizer]
    for step in range(steps):
        texts, labels = draw_texts(1000 * seed + step, 4), torch.arange(4) % 2
        made.zero_grad()
        model(input_ids=texts, labels=labels).loss.backward()
        made.step()
    made.zero_grad()


def read_words(model, seed):
    """Which words are in a text, and which were read."""
    text = draw_texts(77 + seed, 1)
    batch = {
        "input_ids": text,
        "attention_mask": torch.ones_like(text),
        "labels": torch.tensor([1]),
    }
    result = sp.audit_step(model, None, batch, attacks=["token_span"])
    if result.guess is None:
        return set(text[0].tolist()), set()
    return set(text[0].tolist()), set(result.guess[0].tolist()) - {-1}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adapters_of_query_and_value_give_all_words_away_and_no_others(optimizer, seed):
    model = add_adapters(encoder(seed), QUERY_VALUE, seed)
    train(model, optimizer, seed)
    text, read = read_words(model, seed)
    assert read == text


@pytest.mark.parametrize("targets", [(*QUERY_VALUE, "k_lin"), ALL], ids=len)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_more_adapters_hide_no_word(optimizer, targets):
    model = add_adapters(encoder(3), targets, 3)
    train(model, optimizer, 3)
    text, read = read_words(model, 3)
    assert read == text


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_those_of_peft_give_all_words_away_and_no_others(optimizer):
    model = add_peft(encoder(4), QUERY_VALUE, 4)
    train(model, optimizer, 4)
    text, read = read_words(model, 4)
    assert read == text
