"""Steps on texts: the tokens of a classifier are reported by default."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Tokens
from seepage.step._step_inputs import find_mask

LOSS = nn.CrossEntropyLoss()


class Recurrent(nn.Module):
    def __init__(self, vocabulary=300, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, 3)

    def forward(self, tokens):
        return self.out(self.lstm(self.words(tokens))[0][:, -1])


class Masked(nn.Module):
    """An encoder in the manner of transformers: mapping in, logits out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(300, 16, padding_idx=0)
        self.positions = nn.Embedding(20, 16)
        self.mix, self.out = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        features = self.words(input_ids) + self.positions.weight[: input_ids.shape[1]]
        mixed = torch.tanh(self.mix(features)) * mask[..., None]
        return {"logits": self.out(mixed.sum(1) / mask.sum(1, keepdim=True))}


def make_batch(people, length=21):
    tokens = (sp.rng(3).uniform((people, length)) * 299).long() + 1
    return tokens, torch.arange(people) % 3


def test_a_text_of_one_token_that_is_cut_from_a_batch_is_read():
    tokens, labels = make_batch(2)
    told = str(sp.audit_step(Recurrent(), LOSS, (tokens[:1, :1], labels[:1])))
    assert "1 different word of one batch is proved to be in it" in told


def test_sparse_gradients_of_embeddings_give_away_the_same_words():
    tokens, labels = make_batch(2)
    sparse = Recurrent()
    sparse.words = nn.Embedding.from_pretrained(sparse.words.weight, freeze=False, sparse=True)
    result = sp.audit_step(sparse, LOSS, (tokens, labels))
    assert result.scores["token_recall"].tolist() == [1.0, 1.0]
    LOSS(sparse(tokens), labels).backward()
    gradients = {name: p.grad for name, p in sparse.named_parameters()}
    given = sp.audit_step(sparse, LOSS, (tokens, labels), gradients=gradients)
    assert given.scores["token_recall"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("people", [1, 4])
def test_all_tokens_of_a_classifier_are_reported_by_default(people):
    tokens, labels = make_batch(people)
    result = sp.audit_step(Recurrent(), LOSS, (tokens, labels))
    assert result.scores["token_recall"].tolist() == [1.0] * people
    assert result.scores["token_precision"].tolist() == [1.0] * people
    told = str(result)
    assert "100 % of the different words (in no order)" in told
    assert f"{len(set(tokens.flatten().tolist()))} different words of one batch are proved" in told
    assert result.identified or "Words leaked" in told


def test_a_masked_batch_of_several_lengths_is_audited_without_its_padding():
    tokens, labels = make_batch(3, length=10)
    mask = torch.ones_like(tokens)
    for person, length in enumerate((4, 10, 7)):
        mask[person, length:] = 0
    tokens = tokens * mask
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    result = sp.audit_step(Masked(), LOSS, batch)
    assert result.scores["token_recall"].tolist() == [1.0] * 3
    assert result.scores["token_precision"].tolist() == [1.0] * 3
    assert 0 not in result.guess


def test_one_text_with_positions_is_reconstructed():
    tokens, labels = make_batch(1, length=10)
    result = sp.audit_step(Masked(), LOSS, {"input_ids": tokens, "labels": labels})
    assert torch.equal(result.guess, tokens)
    assert result.recognisable


def test_noise_hides_words_and_the_verdict_reassures_nobody():
    result = sp.audit_step(Recurrent(), LOSS, make_batch(2), defense=sp.AddGaussian(10.0))
    assert float(result.scores["token_recall"].max()) < 0.5
    assert "Inconclusive" in str(result)


def test_others_and_names_are_texts_too():
    tokens, labels = make_batch(2)
    others = (sp.rng(8).uniform((40, 21)) * 299).long() + 1
    names = tuple(f"word{number}" for number in range(300))
    domain = Tokens(21, 300, names=names)
    result = sp.audit_step(Recurrent(), LOSS, (tokens, labels), others=others, domain=domain)
    assert result.scores["token_recall"].tolist() == [1.0, 1.0]
    assert "Positive control" in str(result)


def test_the_page_shows_words(tmp_path):
    tokens, labels = make_batch(1)
    domain = Tokens(21, 300, names=tuple(f"word{number}" for number in range(300)))
    result = sp.audit_step(Recurrent(), LOSS, (tokens, labels), domain=domain)
    page = result.report(tmp_path / "out").read_text()
    assert f"word{int(tokens[0, 0])}" in page
    assert "different words" in page


def test_padding_is_what_stands_before_and_after_a_text():
    tokens = torch.tensor([[0, 5, 0, 7, 0], [1, 2, 3, 4, 5]])
    assert find_mask(tokens, 0).tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


BAD = {
    "tokenizer": (lambda t, y: (t + 300, y), {}, InvalidValue, "tokenizer does not fit"),
    "vocabulary": (
        lambda t, y: (t, y), {"domain": Tokens(21, 999)}, InvalidValue, "tokenizer does not fit",
    ),
    "empty": (lambda t, y: (t[:, :0], y), {}, InvalidValue, "at least one token"),
    "images": (
        lambda t, y: (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), y), {}, NotApplicable, "as 255",
    ),
    "a range": (lambda t, y: (t, y), {"domain": (0.0, 1.0)}, InvalidValue, "Tokens"),
    "others": (lambda t, y: (t, y), {"others": torch.rand(20, 21)}, InvalidValue, "others as"),
    "holes": (
        lambda t, y: {
            "input_ids": t, "labels": y,
            "attention_mask": (torch.arange(21) % 2).expand(2, 21),
        }, {}, InvalidValue, "ends of texts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_what_does_not_fit_is_said_in_one_sentence(case):
    change, options, kind, words = BAD[case]
    with pytest.raises(kind, match=words) as caught:
        sp.audit_step(Recurrent(), LOSS, change(*make_batch(2)), **options)
    assert "\n" not in str(caught.value)


def test_a_network_that_looks_nothing_up_takes_no_whole_numbers():
    model = nn.Sequential(nn.Linear(21, 3))
    with pytest.raises((NotApplicable, InvalidValue), match="token"):
        sp.audit_step(model, LOSS, make_batch(2))


def test_models_of_transformers_are_audited_with_their_masks():
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**sizes, num_attention_heads=4, num_labels=3)
    model = transformers.BertForSequenceClassification(config)
    tokens, labels = make_batch(3, length=10)
    mask = torch.ones_like(tokens)
    mask[0, 4:], mask[2, 7:] = 0, 0
    batch = {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}
    result = sp.audit_step(model, LOSS, batch)
    assert result.scores["token_recall"].tolist() == [1.0] * 3
    assert result.scores["token_precision"].tolist() == [1.0] * 3
    alone = {name: values[:1] for name, values in batch.items()}
    assert torch.equal(sp.audit_step(model, LOSS, alone).guess, alone["input_ids"])
