"""Which words a batch of texts gives away, through defenses, and how many are named by mistake.

    python -m benchmarks.text_tokens [--seeds N]

Texts are runs of the bundled play, cut to 4 to 12 words and filled up with padding. `bag_of_words`
reads them off the gradient of a small decoder and of a small encoder, whose embeddings are trained.
Each row has the share of the words that were named, and the share of absent words that were named,
where one in a thousand is allowed, with its 95 % interval. `token_span` reads them behind adapters
whose base is frozen.

    python -m benchmarks.text_tokens --texts [--seeds N] [--device cuda] [--sizes 1 4 16 64]
        [--networks decoder encoder] [--cells gradient/float32 gradient/float32/labels ...]
        [--seconds 600] [--name whole_texts]

reads whole texts by `dager`: off gradients and five local steps, in float32 and bfloat16, with and
without the labels. The tokens of a batch must be fewer than the network is wide, so larger batches
are read by wider networks. `bag_of_words` names the words of the same updates. The same command
goes on where it was ended. A batch that takes longer than `--seconds` counts as not read, and the
row says how far `dager` came.

    python -m benchmarks.text_tokens --last [--seeds N] [--sizes 1 4 16]

reads whole texts by `dager` off a small GPT-2 of random weights that predicts the next token, all
of it frozen but the last block, the output layer, or both.

    python -m benchmarks.text_tokens --prefix [--seeds N] [--sizes 1 4 16]

reads words by `token_span` and texts by `dager` off a GPT-2 and a Llama of random weights in which
nothing but the keys and values of prefix tuning is trained (PEFT, not part of this project).

    python -m benchmarks.text_tokens --peer [--steps N] [--sizes 1 4]

gives the same updates to TAG of the peer `breaching` (from PyPI, not part of this project).
"""

from __future__ import annotations

import argparse
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import seepage as sp
from benchmarks.peer import reconstruct_texts
from benchmarks.provenance import continue_rows, save
from seepage.audit.results._intervals import share_interval
from seepage.core import Protection, Task
from seepage.core._progress import listen
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens
from seepage.step import StepAudit

WIDTH, CLASSES, RATE = 64, 2, 1e-3
SIZES = (1, 4, 16, 64)
# Networks that have room for all tokens of so many texts; decoders read padding as well.
WIDTHS = {1: 64, 4: 64, 16: 256, 64: 768}
WIDEST = 1_024
RANKS, KEYS = (4, 16, 32), (4, 16, 64)
CLIENTS = 10
CELLS = {
    f"{short}/{str(dtype).removeprefix('torch.')}{'/labels' * labels}": (shared, dtype, labels)
    for short, shared in (("gradient", "gradient"), ("steps", "5 local steps"))
    for dtype in (torch.float32, torch.bfloat16)
    for labels in (False, True)
}


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


def network(kind: str, domain: Tokens, seed: int, *, lora: int = 0, width: int = WIDTH) -> Task:
    if kind == "decoder":
        options = {"width": width, "layers": 2, "classes": CLASSES, "seed": seed}
        return sp.zoo.gpt(domain=domain, lora=lora, **options)
    torch.manual_seed(seed)
    return sp.Task(Encoder(domain, width), sp.cross_entropy, domain, name="encoder")


def defenses(people: int) -> dict[str, Protection]:
    return {
        "none": sp.chain(),
        "clip 0.1": sp.Clip(0.1),
        "top 1 % of entries": sp.TopK(4_000),
        "8 bits": sp.Quantize(8),
        **{f"noise {std:g}": sp.AddGaussian(std) for std in (1e-4, 1e-3, 1e-2, 1e-1)},
        # As strong as normal noise of 0.001.
        "Laplace noise 0.001": sp.AddLaplace(1e-3 / 2**0.5),
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
    kind: str, people: int, defense: Protection, options: argparse.Namespace, *, lora: int = 0
) -> dict[str, object]:
    counts, exact, seconds = torch.zeros(4), [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
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
    hits, said, mistakes, absent = counts.long().tolist()
    found = share_interval([True] * mistakes + [False] * (absent - mistakes))
    return {
        "words_said": said,
        "named": round(hits / said, 4),
        "false_positives": mistakes,
        "absent": absent,
        "false_positive_rate": mistakes / absent,
        "interval": [round(found.low, 6), round(found.high, 6)],
        "exact_sequences": round(sum(exact) / len(exact), 4),
        "seconds": round(sum(seconds) / len(seconds), 2),
    }


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise TimeoutError with the last reported progress after so many seconds; 0 for no limit."""
    reached = "before the first report"

    def hear(step: int, total: int, _: float) -> None:
        nonlocal reached
        reached = f"after {step} of {total} positions or rounds"

    def stop(*_: object) -> None:
        raise TimeoutError(f"not ended in {seconds:g} s, stopped {reached}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with listen(hear):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure_texts(
    kind: str,
    people: int,
    local: sp.Gradient | sp.FedAvg,
    labels: bool,
    options: argparse.Namespace,
    dtype: torch.dtype,
) -> dict[str, object]:
    exact: list[float] = []
    right: list[float] = []
    sure, seconds, tokens, named = [], [], [], []
    refused = ""
    width = WIDEST if kind == "decoder" and people == SIZES[-1] else WIDTHS[people]
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        domain, batch = mixed_texts(people, seed)
        task = network(kind, domain, seed, width=width)
        task = task.to(device=options.device, dtype=dtype)
        threat = sp.Threat(knows_labels=labels)
        held = batch.to(device=torch.device(options.device))
        seen = threat.observe(sp.Client(local), task, held, rng=sp.rng(seed))
        bag = sp.attacks.bag_of_words()(seen, rng=sp.rng(seed))
        hits, said, *_ = compare(bag.inputs.cpu(), batch, domain)
        named.append(hits / said)
        began = time.perf_counter()
        try:
            with limit_time(options.seconds):
                guess = sp.attacks.dager()(seen, rng=sp.rng(seed))
        except (NotApplicable, TimeoutError) as error:
            refused = str(error)
            guess = sp.Reconstruction(torch.full_like(batch.inputs, -1))
        seconds.append(time.perf_counter() - began)
        tokens.append(int((batch.inputs != domain.padding).sum()))
        scores = sp.score(replace(guess, inputs=guess.inputs.cpu()), batch, domain=domain)
        exact += scores["exact"].tolist()
        right += scores["token_accuracy"].tolist()
        sure.append(0.0 if guess.confidence is None else float(guess.confidence.mean()))
    return {
        "width": width,
        "tokens": tokens,
        "exact_texts": round(sum(exact) / len(exact), 4),
        "words_in_place": round(sum(right) / len(right), 4),
        "words_named": round(sum(named) / len(named), 4),
        "certain": round(sum(sure) / len(sure), 4),
        "seconds": round(sum(seconds) / len(seconds), 2),
        "refused": refused,
    }


def run_texts(options: argparse.Namespace) -> None:
    rows = continue_rows(options.name, options.device, options.out)
    shared = {"gradient": sp.Gradient(), "5 local steps": sp.FedAvg(lr=0.01, steps=5)}
    for people, kind in ((p, k) for p in options.sizes for k in options.networks):
        for what, dtype, labels in (CELLS[name] for name in options.cells):
            row = {"network": kind, "people": people, "shared": what}
            row |= {"precision": str(dtype).removeprefix("torch."), "labels": labels}
            if any(row.items() <= done.items() for done in rows):
                continue
            rows.append(row | measure_texts(kind, people, shared[what], labels, options, dtype))
            print(rows[-1], flush=True)
            save(options.name, options.device, {"rows": rows}, options.out)


def gpt2(domain: Tokens, width: int, seed: int) -> nn.Module:
    """A decoder of random weights that predicts the next token."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"n_embd": width, "n_layer": 3, "n_head": 4, "n_positions": 2 * WIDTH}
    config = {"vocab_size": domain.vocabulary, "tie_word_embeddings": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **config)).eval()


def llama(domain: Tokens, width: int, seed: int) -> nn.Module:
    """The same with rotary positions, and two heads of queries for each one of keys."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, vocab_size=domain.vocabulary)
    return transformers.LlamaForCausalLM(config).eval()


def audit_next_words(
    model: nn.Module, domain: Tokens, batch: sp.Batch, attack: str
) -> tuple[StepAudit, list[bool], list[bool]]:
    """Audit a step, and tell which texts came back, all of them or up to the last word."""
    texts, mask = batch.inputs, batch.inputs != domain.padding
    given = {"input_ids": texts, "attention_mask": mask.long()}
    given["labels"] = torch.where(mask, texts, -100)
    result = sp.audit_step(model, None, given, domain=domain, attacks=[attack])
    rows = [] if result.guess is None else result.guess.tolist()
    found = {tuple(text) for text in rows}
    known = {text[: text.index(-1)] for text in found if -1 in text}
    exact = [tuple(text) in found for text in texts.tolist()]
    begun = [
        whole or tuple(text[: length - 1]) in known
        for whole, text, length in zip(exact, texts.tolist(), mask.sum(1).tolist(), strict=True)
    ]
    return result, exact, begun


def measure_last(parts: str, people: int, options: argparse.Namespace) -> dict[str, object]:
    """Texts of a decoder that trains its last layers alone; its last words are only predicted."""
    exact, begun, proved = [], [], []
    seconds = 0.0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        domain, batch = mixed_texts(people, seed)
        model = gpt2(domain, WIDTHS[people], seed).requires_grad_(False)
        for name, part in (("block", model.transformer.h[-1]), ("head", model.lm_head)):
            part.requires_grad_(name in parts)
        began = time.perf_counter()
        result, whole, almost = audit_next_words(model, domain, batch, "dager")
        seconds += time.perf_counter() - began
        exact += whole
        begun += almost
        proof = result.outcomes[0].record.certificate
        proved.append(proof is not None and proof["unique"] is True)
    return {
        "width": WIDTHS[people],
        "vocabulary": domain.vocabulary,
        "texts": len(exact),
        "exact_texts": sum(exact),
        "all_but_last": sum(begun),
        "batches_proved": sum(proved),
        "seconds": round(seconds / options.seeds, 1),
    }


def run_last(options: argparse.Namespace) -> None:
    rows = continue_rows("text_last_layers", "cpu", options.out)
    for people, parts in ((p, k) for p in options.sizes for k in ("head", "block", "block, head")):
        row = {"trained": parts, "people": people}
        if any(row.items() <= done.items() for done in rows):
            continue
        rows.append(row | measure_last(parts, people, options))
        print(rows[-1], flush=True)
        save("text_last_layers", "cpu", {"rows": rows}, options.out)


def measure_prefix(
    build: Callable[..., nn.Module], keys: int, people: int, options: argparse.Namespace
) -> dict[str, object]:
    """Words and texts of a decoder in which nothing but a prefix of PEFT is trained."""
    import peft

    read, named, wrong, begun = 0, 0, 0, []
    seconds = 0.0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        domain, batch = mixed_texts(people, seed)
        config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=keys)
        model = peft.get_peft_model(build(domain, WIDTHS[SIZES[2]], seed), config).eval()
        began = time.perf_counter()
        words, *_ = audit_next_words(model, domain, batch, "token_span")
        seconds += time.perf_counter() - began
        _, _, almost = audit_next_words(model, domain, batch, "dager")
        begun += almost
        # The last word of a text is predicted, but never read.
        mask = (batch.inputs != domain.padding)[:, 1:]
        said = set(batch.inputs[:, :-1][mask].tolist())
        found = set() if words.guess is None else set(words.guess.flatten().tolist())
        found -= {domain.padding, -1}
        read, named, wrong = read + len(said), named + len(said & found), wrong + len(found - said)
    return {
        "words_read": read,
        "named": named,
        "named_by_mistake": wrong,
        "texts": len(begun),
        "all_but_last": sum(begun),
        "seconds": round(seconds / options.seeds, 1),
    }


def run_prefix(options: argparse.Namespace) -> None:
    rows = continue_rows("text_prefix", "cpu", options.out)
    for build, keys, people in itertools.product((gpt2, llama), KEYS, options.sizes):
        row = {"network": build.__name__, "keys": keys, "people": people}
        if any(row.items() <= done.items() for done in rows):
            continue
        rows.append(row | measure_prefix(build, keys, people, options))
        print(rows[-1], flush=True)
        save("text_prefix", "cpu", {"rows": rows}, options.out)


class PlainEncoder(nn.Module):
    """The encoder without a mask, as the peer can search its embeddings."""

    def __init__(self, domain: Tokens, width: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(domain.vocabulary, width)
        self.positions = nn.Embedding(domain.length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.encoder(tokens) + self.positions.weight).mean(1))


def run_peer(options: argparse.Namespace) -> None:
    """Compare with the peer's TAG on the same updates of texts of 12 words, labels unknown."""
    play, rows = sp.data.load("hamlet"), []
    for people in options.sizes:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            torch.manual_seed(seed)
            task = sp.Task(PlainEncoder(play.domain, WIDTH), sp.cross_entropy, play.domain)
            order = sp.rng(seed).fork("people").permutation(len(play))[:people]
            batch = play.take(order.tolist())
            seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(seed))
            theirs, seconds = reconstruct_texts(task, seen, people, steps=options.steps)
            found = {"peer's tag": (sp.Reconstruction(theirs), seconds)}
            for name in ("dager", "bag_of_words"):
                began = time.perf_counter()
                guess = getattr(sp.attacks, name)()(seen, rng=sp.rng(seed))
                found[name] = (guess, time.perf_counter() - began)
            for name, (guess, took) in found.items():
                scores = sp.score(guess, batch, domain=play.domain)
                names = ("token_recall", "token_precision", "token_accuracy", "exact")
                row = {n: round(float(scores[n].nan_to_num().mean()), 4) for n in names}
                rows.append({"people": people, "seed": seed, "attack": name, **row})
                rows[-1]["seconds"] = round(took, 1)
                print(rows[-1], flush=True)
            save("text_peer", "cpu", {"steps": options.steps, "rows": rows}, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", action="store_true", help="whole texts instead of words")
    parser.add_argument("--last", action="store_true", help="last layers trained alone")
    parser.add_argument("--prefix", action="store_true", help="prefixes trained alone")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS, help="of --texts")
    parser.add_argument("--peer", action="store_true", help="the peer breaching, if installed")
    parser.add_argument("--steps", type=int, default=1_000, help="of the peer")
    parser.add_argument("--seeds", type=int, default=2, help="batches of each row")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="for --texts")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="for --texts")
    parser.add_argument("--networks", nargs="+", default=["decoder", "encoder"], help="for --texts")
    parser.add_argument("--seconds", type=float, default=0, help="of a batch of --texts, at most")
    parser.add_argument("--name", default="whole_texts", help="of the result of --texts")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    for mode in (run_texts, run_peer, run_last, run_prefix):
        if getattr(options, mode.__name__.removeprefix("run_")):
            mode(options)
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
                rows.append(row | measure(kind, whole, defense, options))
                print(rows[-1], flush=True)
    for rank in RANKS:
        for people in SIZES[:3]:
            row = {"network": f"decoder, adapters of rank {rank}", "people": people}
            row |= {"defense": "none", "budget": min(3 * rank, WIDTH - 1)}
            rows.append(row | measure("decoder", people, sp.chain(), options, lora=rank))
            print(rows[-1], flush=True)
    print(save("text_tokens", "cpu", {"allowed_rate": RATE, "rows": rows}, options.out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
