"""Which words a batch of texts gives away, through defenses, and how many are named by mistake.

    python -m benchmarks.text_tokens [--seeds N]

Texts are runs of the bundled play, cut to 4 to 12 words and filled up with padding. `bag_of_words`
reads them off the gradient of a small decoder and of a small encoder, whose embeddings are trained.
Each row has the share of the words that were named, and the share of absent words that were named,
where one in a thousand is allowed. `token_span` reads them behind adapters whose base is frozen.

    python -m benchmarks.text_tokens --texts [--seeds N]

reads whole texts by `dager`: off gradients and five local steps, in float32 and bfloat16, with and
without the labels.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import save
from seepage.core import Protection, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens

WIDTH, CLASSES, RATE = 64, 2, 1e-3
SIZES = (1, 4, 16, 64)
RANKS = (4, 16, 32)
CLIENTS = 10


class Encoder(nn.Module):
    """Two blocks that read both ways, over the words that are no padding."""

    def __init__(self, domain: Tokens, width: int) -> None:
        super().__init__()
        self.padding = domain.padding
        self.tokens = nn.Embedding(domain.vocabulary, width)
        self.positions = nn.Embedding(domain.length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        missing = tokens == self.padding
        features = self.tokens(tokens) + self.positions.weight
        # A mask of numbers, since one of truth values is looked at while it runs.
        hidden = torch.where(missing, -1e9, 0.0).to(features)
        features = self.blocks(features, src_key_padding_mask=hidden)
        kept = (~missing)[..., None].to(features)
        return self.head((features * kept).sum(1) / kept.sum(1))


def mixed_texts(people: int, seed: int) -> tuple[Tokens, sp.Batch]:
    """Texts of 4 to 12 words, with one token more than the play has as padding."""
    play = sp.data.load("hamlet")
    domain = Tokens(play.domain.length, play.domain.vocabulary + 1, padding=play.domain.vocabulary)
    order = sp.rng(seed).fork("people").permutation(len(play))[:people]
    batch = play.take(order.tolist())
    lengths = (4 + sp.rng(seed).fork("lengths").uniform((people,)) * 9).long()
    kept = torch.arange(domain.length) < lengths[:, None]
    inputs = torch.where(kept, batch.inputs, torch.full_like(batch.inputs, domain.padding or 0))
    return domain, sp.Batch(inputs, batch.labels)


def network(kind: str, domain: Tokens, seed: int, *, lora: int = 0) -> Task:
    if kind == "decoder":
        options = {"width": WIDTH, "layers": 2, "classes": CLASSES, "seed": seed}
        return sp.zoo.gpt(domain=domain, lora=lora, **options)
    torch.manual_seed(seed)
    return sp.Task(Encoder(domain, WIDTH), sp.cross_entropy, domain, name="encoder")


def defenses(people: int) -> dict[str, Protection]:
    return {
        "none": sp.chain(),
        "clip 0.1": sp.Clip(0.1),
        "top 1 % of entries": sp.TopK(4_000),
        "8 bits": sp.Quantize(8),
        **{f"noise {std:g}": sp.AddGaussian(std) for std in (1e-4, 1e-3, 1e-2, 1e-1)},
        "DP-SGD C=1 sigma=1": sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=people),
        f"sum over {CLIENTS} clients": sp.SecureAggregation(CLIENTS),
    }


def compare(guess: Tensor, batch: sp.Batch, domain: Tokens) -> tuple[int, int, int, int]:
    """Words named of those that were said, and of those that were not, each with its number."""
    said, named = (
        set(texts.flatten().tolist()) - {domain.padding, -1} for texts in (batch.inputs, guess)
    )
    return len(named & said), len(said), len(named - said), domain.vocabulary - 1 - len(said)


def measure(
    kind: str, people: int, defense: Protection, seeds: int, *, lora: int = 0
) -> dict[str, object]:
    counts, exact, seconds = torch.zeros(4), [], []
    for seed in range(seeds):
        domain, batch = mixed_texts(people, seed)
        task = network(kind, domain, seed, lora=lora)
        client = sp.Client(sp.Gradient(), defense)
        seen = sp.Threat().observe(
            client, task, batch, rng=sp.rng(seed).fork(kind, people, str(defense))
        )
        allowed = RATE * domain.vocabulary
        span, bag = sp.attacks.token_span, sp.attacks.bag_of_words
        began = time.process_time()
        try:
            attack = span() if lora else bag(false_tokens=allowed)
            guess = attack(seen, rng=sp.rng(seed))
        except NotApplicable:
            guess = sp.Reconstruction(torch.full_like(batch.inputs, -1))
        seconds.append(time.process_time() - began)
        counts += torch.tensor(compare(guess.inputs, batch, domain), dtype=torch.float)
        exact += sp.score(guess, batch, domain=domain)["exact"].tolist()
    hits, said, mistakes, absent = counts.tolist()
    return {
        "words_said": int(said),
        "named": round(hits / said, 4),
        "false_positives": int(mistakes),
        "false_positive_rate": mistakes / absent,
        "exact_sequences": round(sum(exact) / len(exact), 4),
        "seconds": round(sum(seconds) / len(seconds), 2),
    }


def measure_texts(
    kind: str,
    people: int,
    local: sp.Gradient | sp.FedAvg,
    dtype: torch.dtype,
    labels: bool,
    seeds: int,
) -> dict[str, object]:
    exact: list[float] = []
    right: list[float] = []
    sure, seconds = [], []
    refused = ""
    for seed in range(seeds):
        domain, batch = mixed_texts(people, seed)
        task = network(kind, domain, seed).to(dtype=dtype)
        threat = sp.Threat(knows_labels=labels)
        seen = threat.observe(sp.Client(local), task, batch, rng=sp.rng(seed))
        began = time.process_time()
        try:
            guess = sp.attacks.dager()(seen, rng=sp.rng(seed))
        except NotApplicable as error:
            refused = str(error)
            guess = sp.Reconstruction(torch.full_like(batch.inputs, -1))
        seconds.append(time.process_time() - began)
        scores = sp.score(guess, batch, domain=domain)
        exact += scores["exact"].tolist()
        right += scores["token_accuracy"].tolist()
        sure.append(0.0 if guess.confidence is None else float(guess.confidence.mean()))
    return {
        "exact_texts": round(sum(exact) / len(exact), 4),
        "words_in_place": round(sum(right) / len(right), 4),
        "certain": round(sum(sure) / len(sure), 4),
        "seconds": round(sum(seconds) / len(seconds), 2),
        "refused": refused,
    }


def run_texts(options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = []
    locals_ = {"gradient": sp.Gradient(), "5 local steps": sp.FedAvg(lr=0.01, steps=5)}
    for people in SIZES:
        for kind in ("decoder", "encoder"):
            for what, local in locals_.items():
                for dtype in (torch.float32, torch.bfloat16):
                    for labels in (False, True):
                        if labels and (dtype != torch.float32 or what != "gradient"):
                            continue
                        row = {"network": kind, "people": people, "shared": what}
                        row |= {"precision": str(dtype).removeprefix("torch."), "labels": labels}
                        rows.append(
                            row | measure_texts(kind, people, local, dtype, labels, options.seeds)
                        )
                        print(rows[-1], flush=True)
    print(save("whole_texts", "cpu", {"width": WIDTH, "rows": rows}, options.out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", action="store_true", help="whole texts instead of words")
    parser.add_argument("--seeds", type=int, default=2, help="batches of each row")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    if options.texts:
        run_texts(options)
        return
    rows: list[dict[str, object]] = []
    for kind in ("decoder", "encoder"):
        for people in SIZES:
            for name, defense in defenses(people).items():
                # As many texts for each client.
                whole = people * CLIENTS if "clients" in name else people
                if whole > 160:
                    continue
                row = {"network": kind, "people": whole, "defense": name}
                rows.append(row | measure(kind, whole, defense, options.seeds))
                print(rows[-1], flush=True)
    for rank in RANKS:
        for people in SIZES[:3]:
            row = {"network": f"decoder, adapters of rank {rank}", "people": people}
            row |= {"defense": "none", "budget": min(3 * rank, WIDTH - 1)}
            rows.append(row | measure("decoder", people, sp.chain(), options.seeds, lora=rank))
            print(rows[-1], flush=True)
    print(save("text_tokens", "cpu", {"allowed_rate": RATE, "rows": rows}, options.out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
