"""Models of transformers in a training step: their own loss, masks, adapters, and whole texts."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.text._token_span import list_token_readers
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.step._model_loss import find_model_loss
from seepage.step._step_inputs import read_mask

transformers = pytest.importorskip("transformers", reason="needs transformers")

VOCABULARY, LENGTH = 300, 7
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96}
BLOCKS = {"num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2(kind=transformers.GPT2LMHeadModel, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    quiet = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return kind(transformers.GPT2Config(**sizes, **quiet, **options))


def llama(kind=transformers.LlamaForCausalLM, **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **BLOCKS, num_key_value_heads=2, **options)
    return kind(config)


def bert(kind=transformers.BertForSequenceClassification, **options):
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(transformers.BertConfig(**SIZES, **BLOCKS, **quiet, num_labels=3, **options))


def make_texts(lengths):
    tokens = (sp.rng(3).uniform((len(lengths), LENGTH)) * (VOCABULARY - 2)).long() + 1
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def next_tokens(lengths):
    batch = make_texts(lengths)
    labels = torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)
    return {**batch, "labels": labels}


def masked_tokens(lengths, mask_token=VOCABULARY - 1):
    batch = make_texts(lengths)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, 1] = batch["input_ids"][:, 1]
    batch["input_ids"][:, 1] = mask_token
    return {**batch, "labels": labels}


def classes(lengths):
    return {**make_texts(lengths), "labels": torch.arange(len(lengths)) % 3}


MODELS = {
    "gpt2, next token": (gpt2, next_tokens),
    "llama, next token": (llama, next_tokens),
    "llama, tied, next token": (lambda: llama(tie_word_embeddings=True), next_tokens),
    "bert, masked token": (lambda: bert(transformers.BertForMaskedLM), masked_tokens),
    "bert, classes": (bert, classes),
    "gpt2, classes": (
        lambda: gpt2(transformers.GPT2ForSequenceClassification, pad_token_id=0, num_labels=3),
        classes,
    ),
}


def test_pairs_of_texts_are_refused_in_one_sentence():
    batch = {"input_ids": torch.ones(1, 4, dtype=torch.long), "token_type_ids": torch.ones(1, 4)}
    with pytest.raises(InvalidValue, match="expected single texts, got token_type_ids"):
        read_mask(batch)
    assert read_mask({**batch, "token_type_ids": torch.zeros(1, 4)}) is None


@pytest.mark.parametrize("kind", MODELS)
def test_whole_texts_of_several_lengths_come_back(kind):
    make, fill = MODELS[kind]
    batch = fill((LENGTH, 4, 5))
    result = sp.audit_step(make(), None, batch, attacks=["dager"])
    assert torch.equal(result.guess, batch["input_ids"])
    assert result.difference == ""


@pytest.mark.parametrize("at_most", [8_192, 300], ids=["every token", "likely tokens"])
def test_the_head_of_a_decoder_alone_gives_whole_texts_away(at_most):
    model, batch = gpt2(tie_word_embeddings=False).requires_grad_(False), next_tokens((7, 4, 5))
    model.lm_head.requires_grad_(True)
    result = sp.audit_step(model, None, batch, attacks=[sp.attacks.dager(at_most=at_most)])
    assert torch.equal(result.guess, batch["input_ids"])
    assert (result.outcomes[0].record.certificate["unique"] is True) is (at_most == 8_192)


def test_the_audited_step_is_that_of_the_model_itself():
    model, batch = gpt2(), next_tokens((LENGTH, 4))
    model(**batch).loss.backward()
    own = {name: p.grad for name, p in model.named_parameters()}
    given = sp.audit_step(model, None, batch, attacks=["bag_of_words"], gradients=own)
    assert given.difference == ""
    assert not any("differs" in note for note in given.notes)


@pytest.mark.parametrize(
    ("make", "fill"),
    [
        (gpt2, next_tokens),
        (bert, classes),
        (lambda: bert(transformers.BertForMaskedLM), masked_tokens),
        (lambda: bert(transformers.BertForTokenClassification), lambda n: every_place(n)),
    ],
    ids=["next token", "classes", "masked token", "every place"],
)
def test_the_loss_of_a_model_is_found_out(make, fill):
    model, batch = make(), fill((LENGTH, 4, 5))
    loss = find_model_loss(model, batch)
    returned = model.eval()(**batch)
    torch.testing.assert_close(loss(returned.logits, batch["labels"]), returned.loss)


def every_place(lengths):
    batch = make_texts(lengths)
    labels = torch.where(batch["attention_mask"].bool(), batch["input_ids"] % 3, -100)
    return {**batch, "labels": labels}


def test_a_class_for_every_place_is_audited():
    batch = every_place((LENGTH, 4))
    result = sp.audit_step(bert(transformers.BertForTokenClassification), None, batch)
    assert result.scores["token_recall"].tolist() == [1.0, 1.0]


def test_a_loss_that_is_not_known_is_refused_in_one_sentence():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bert()

        def forward(self, input_ids, attention_mask=None, labels=None):
            found = self.inner(input_ids, attention_mask=attention_mask)
            return {"loss": found.logits.sum() + 7, "logits": found.logits}

    with pytest.raises(InvalidValue, match="give loss="):
        sp.audit_step(Odd(), None, classes((LENGTH, 4)))
    with pytest.raises(InvalidValue, match="mapping with labels"):
        sp.audit_step(Odd(), None, (torch.ones(2, 3).long(), torch.zeros(2).long()))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_words_of_a_model_in_half_precision_come_back(dtype):
    batch = next_tokens((LENGTH, 4))
    result = sp.audit_step(llama().to(dtype), None, batch)
    found = {t for text in result.guess.tolist() for t in text}
    read = {t for text in batch["input_ids"].tolist() for t in text[:-1]} - {0}
    assert len(read & found) >= 0.8 * len(read)


@pytest.mark.parametrize("whole", ["lm_head", pytest.param("wte", marks=pytest.mark.slow)])
def test_layers_that_peft_trains_whole_beside_adapters_are_audited(whole):
    """`modules_to_save` keeps a copy of a layer, which is trained instead of the layer itself."""
    peft = pytest.importorskip("peft", reason="needs peft")
    options = {"target_modules": ["c_attn"], "task_type": "CAUSAL_LM", "fan_in_fan_out": True}
    config = peft.LoraConfig(r=4, modules_to_save=[whole], **options)
    adapted = peft.get_peft_model(gpt2(tie_word_embeddings=False), config)
    result = sp.audit_step(adapted, None, next_tokens((LENGTH,)), seconds=60.0)
    assert "IndexError" not in str(result)
    assert result.identified
    assert float(result.scores["token_recall"].min()) >= 0.8


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_adapters_of_peft_give_words_away(kind, dora):
    peft = pytest.importorskip("peft", reason="needs peft")
    model, targets, task = {
        "gpt2": (gpt2, ["c_attn"], "CAUSAL_LM"),
        "llama": (llama, ["q_proj", "k_proj", "v_proj"], "CAUSAL_LM"),
        "bert": (bert, ["query", "key", "value"], "SEQ_CLS"),
    }[kind]
    config = peft.LoraConfig(
        r=16,
        target_modules=targets,
        task_type=task,
        fan_in_fan_out=kind == "gpt2",
        use_dora=dora,
        lora_dropout=0.1 if dora else 0.0,
    )
    adapted = peft.get_peft_model(model(), config)
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    batch = (classes if kind == "bert" else next_tokens)((LENGTH, 4))
    result = sp.audit_step(adapted, None, batch)
    assert float(result.scores["token_recall"].min()) >= 0.6
    assert float(result.scores["token_precision"].min()) >= 0.9


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_prefixes_of_peft_give_words_away(kind):
    peft = pytest.importorskip("peft", reason="needs peft")
    model, task = {
        "gpt2": (gpt2, "CAUSAL_LM"),
        "llama": (llama, "CAUSAL_LM"),
        "bert": (bert, "SEQ_CLS"),
    }[kind]
    config = peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=24)
    tuned = peft.get_peft_model(model(), config)
    batch = (classes if kind == "bert" else next_tokens)((4, 3))
    result = sp.audit_step(tuned, None, batch)
    # A decoder does not read the last word.
    assert float(result.scores["token_recall"].min()) >= 0.6
    assert float(result.scores["token_precision"].min()) >= 0.9


TUNED = {
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 8}),
    "scales": (
        "IA3Config",
        {"target_modules": ["c_attn"], "feedforward_modules": [], "fan_in_fan_out": True},
    ),
    "projected prefix": (
        "PrefixTuningConfig",
        {"num_virtual_tokens": 8, "prefix_projection": True, "encoder_hidden_size": 16},
    ),
}


@pytest.mark.parametrize("kind", TUNED)
def test_small_parts_that_peft_trains_give_one_text_away(kind):
    peft = pytest.importorskip("peft", reason="needs peft")
    config, options = TUNED[kind]
    torch.manual_seed(0)
    model = peft.get_peft_model(gpt2(), getattr(peft, config)(task_type="CAUSAL_LM", **options))
    batch = {name: tokens[:, :5] for name, tokens in next_tokens((LENGTH,)).items()}
    result = sp.audit_step(model, None, batch)
    assert torch.equal(result.guess, batch["input_ids"])
    assert result.outcomes[0].record.certificate["unique"] is True


@pytest.mark.slow
def test_biases_alone_give_one_text_away_with_padding_behind_it():
    model, batch = gpt2(), next_tokens((5,))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    result = sp.audit_step(model, None, batch)
    assert torch.equal(result.guess, batch["input_ids"])
    assert result.outcomes[0].record.certificate["unique"] is True


def test_the_head_of_a_decoder_alone_is_read_at_the_defaults():
    model, batch = gpt2(tie_word_embeddings=False).requires_grad_(False), next_tokens((LENGTH,))
    model.lm_head.requires_grad_(True)
    result = sp.audit_step(model, None, batch)
    assert torch.equal(result.guess, batch["input_ids"])


@pytest.mark.parametrize("kind", ["prompt", "last layer"])
def test_where_nothing_reads_single_tokens_nobody_is_reassured(kind):
    batch = classes((LENGTH, 4))
    if kind == "last layer":
        model = bert().requires_grad_(False)
        model.classifier.requires_grad_(True)
    else:
        peft = pytest.importorskip("peft", reason="needs peft")
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        model = peft.get_peft_model(gpt2(), config)
        batch = next_tokens((LENGTH, 4))
    told = str(sp.audit_step(model, None, batch))
    assert "no evidence that nothing leaks" in told
    assert "token_span: expected" in told
    # With one text dW = (p - y) f^T: the features are known, up to their scale.
    assert ("tells the features that it reads of a single text" in told) == (kind == "last layer")


def test_an_empty_text_and_frozen_embeddings_are_audited():
    batch = make_texts((LENGTH, 0))
    batch["labels"] = torch.tensor([0, 1])
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    result = sp.audit_step(model, None, batch)
    assert float(result.scores["token_recall"][0]) == 1.0


def test_weights_that_were_untied_are_read_as_they_are():
    model = gpt2(tie_word_embeddings=False)
    batch = next_tokens((LENGTH, 4))
    assert torch.equal(
        sp.audit_step(model, None, batch, attacks=["dager"]).guess, batch["input_ids"]
    )


def test_chosen_steps_of_a_loop_use_the_loss_of_the_model_itself(tmp_path):
    model, batch = gpt2(), next_tokens([LENGTH, LENGTH])
    audit = sp.AuditSteps(tmp_path, at=(1,), loss=None, attacks=["bag_of_words"], steps=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(2):
        model(**batch).loss.backward()
        audit(number, model, batch)
        optimizer.step()
        optimizer.zero_grad()
    [(number, result)] = audit.results.items()
    assert number == 1
    assert not result.difference
    assert result.scores["token_recall"].min() > 0.8
    assert (audit.path(1) / "report.html").is_file()


def test_a_class_for_the_one_token_of_a_text_is_audited():
    batch = {"input_ids": torch.tensor([[7], [9]]), "labels": torch.tensor([[2], [1]])}
    result = sp.audit_step(bert(transformers.BertForTokenClassification), None, batch, steps=5)
    assert result.scores["token_recall"].tolist() == [1.0, 1.0]


BAD = {
    "lists": (lambda b: {n: t.tolist() for n, t in b.items()}, "input_ids: list"),
    "strings": (lambda b: {"text": ["one"], "labels": b["labels"]}, "text: list"),
    "no labels": (lambda b: {"input_ids": b["input_ids"]}, "own loss, got input_ids;"),
    "tokenizer": (lambda b: {**b, "input_ids": b["input_ids"] + 300}, "tokenizer does not fit"),
    "one ignored": (lambda b: {**b, "labels": torch.tensor([1, -100])}, "the loss ignores, such"),
    "all ignored": (lambda b: {**b, "labels": torch.tensor([-100] * 2)}, "ignores every label"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_batch_that_is_no_tokenizers_is_refused_by_what_is_wrong(case):
    change, words = BAD[case]
    with pytest.raises(InvalidValue, match=words) as caught:
        sp.audit_step(bert(), None, change(classes([7, 7])))
    assert "\n" not in str(caught.value)


def test_a_frozen_model_is_named():
    with pytest.raises(InvalidValue, match=r"^BertForSequenceClassification has no trainable"):
        sp.audit_step(bert().requires_grad_(False), None, classes([7, 5]))


def test_adapters_in_their_first_step_are_audited_later():
    task = sp.zoo.gpt(width=32, layers=2, lora=4)
    for name, parameter in task.model.named_parameters():
        if "lora_B" in name:
            nn.init.zeros_(parameter)
    with pytest.raises(NotApplicable, match=r"lora_A, whose gradient is zero.*audit a later step"):
        list_token_readers(task)
