"""Whole texts from soft prompts, scaled activations, biases and projected prefixes of a decoder.

    python -m benchmarks.next_words [--seeds N] [--first-seed N] [--seconds 60] [--name NAME]
        [--kinds IA3,biases] [--lengths 4,8,16] [--weights random,trained]

A GPT-2 of two blocks, with random weights or trained on the first nine tenths of the bundled play,
is tuned by PEFT (not part of this project): nothing but the small part that is named is trained.
`audit_step` attacks the gradient of one text of the last tenth by `next_words`. Each row counts the
texts that came back exactly, words in place, texts that were claimed, and claims that were false. A
search that takes longer than `--seconds` is not widened. The same command goes on where it was
ended.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch
from torch import nn

import seepage as sp
from benchmarks.provenance import continue_rows, parse_options, save

WIDTH, STEPS, RATE, TOGETHER = 64, 1_500, 2e-3, 32
# What is trained, and texts of how many words are attacked.
TUNED = {
    "prompt of 8": (4, 8, 16),
    "prompt of 20": (4, 8, 16),
    "IA3": (8,),
    "biases": (8,),
    "projected prefix of 8": (8,),
}


@cache
def read_play() -> tuple[torch.Tensor, int]:
    """All words of the play in order, and the size of the vocabulary."""
    play = sp.data.load("hamlet")
    return play.inputs.flatten(), play.domain.vocabulary


def build(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64}
    quiet = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=read_play()[1], **sizes, **quiet)
    return transformers.GPT2LMHeadModel(config).eval()


@cache
def train() -> tuple[dict[str, torch.Tensor], float]:
    """Weights of a network that learned the play, and its last loss."""
    model, words = build(0), read_play()[0]
    words = words[: int(0.9 * len(words))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        chance = sp.rng(0).fork("train", step).uniform((TOGETHER, 1))
        first = (chance * (len(words) - 20)).long()
        texts = words[first + torch.arange(20)]
        loss = model(input_ids=texts, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict(), round(float(loss.detach()), 3)


def tune(model: Any, kind: str) -> nn.Module:
    """Freeze a model but for one small part."""
    import peft

    count = int(kind.split()[-1]) if "of" in kind else 0
    if kind == "biases":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return model
    if kind == "IA3":
        parts = {"target_modules": ["c_attn", "mlp.c_proj"], "feedforward_modules": ["mlp.c_proj"]}
        config = peft.IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True, **parts)
    elif kind.startswith("prompt"):
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=count)
    else:
        projection = {"prefix_projection": True, "encoder_hidden_size": 32}
        config = peft.PrefixTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=count, **projection
        )
    return peft.get_peft_model(model, config).eval()


def measure(kind: str, weights: str, length: int, options: Any) -> dict[str, object]:
    words, _ = read_play()
    last = int(0.9 * len(words))
    exact = right = claimed = mistaken = 0
    seconds = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        model = build(seed)
        if weights == "trained":
            model.load_state_dict(train()[0])
        chance = float(sp.rng(seed).fork("text", length).uniform((1,)))
        start = last + int(chance * (len(words) - last - length))
        text = words[None, start : start + length]
        batch = {"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text}
        torch.manual_seed(seed)
        attack = sp.attacks.next_words(seconds=options.seconds)
        began = time.perf_counter()
        result = sp.audit_step(tune(model, kind), None, batch, attacks=[attack])
        seconds.append(time.perf_counter() - began)
        proof = result.outcomes[0].record.certificate
        same = (result.guess == text)[0] if result.guess is not None else torch.zeros(length)
        sure = proof is not None and proof["unique"] is True
        exact, right = exact + bool(same.all()), right + int(same.sum())
        claimed, mistaken = claimed + sure, mistaken + (sure and not bool(same.all()))
    return {
        "texts": options.seeds,
        "exact_texts": exact,
        "words_in_place": right,
        "words": options.seeds * length,
        "claimed": claimed,
        "false_claims": mistaken,
        "seconds": round(sum(seconds) / len(seconds), 1),
        "slowest": round(max(seconds), 1),
    }


def main() -> None:
    options = parse_options(
        __doc__,
        seeds=4,
        first_seed=700,
        seconds=60.0,
        kinds=",".join(TUNED),
        lengths="4,8,16",
        weights="random,trained",
        name="next_words",
    )
    rows = continue_rows(options.name, "cpu", options.out)
    asked = set(map(int, options.lengths.split(",")))
    cells = [(kind, n) for kind in options.kinds.split(",") for n in TUNED[kind] if n in asked]
    for weights in options.weights.split(","):
        for kind, length in cells:
            row = {"trained": kind, "weights": weights, "length": length}
            if any(row.items() <= done.items() for done in rows):
                continue
            rows.append(row | measure(kind, weights, length, options))
            print(rows[-1], flush=True)
            content = {"vocabulary": read_play()[1], "width": WIDTH, "rows": rows}
            if weights == "trained":
                content["loss"] = train()[1]
            save(options.name, "cpu", content, options.out)


if __name__ == "__main__":
    main()
