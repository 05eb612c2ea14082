"""What servers that cheat get, and what vetting says of them and of honest networks.

    python -m benchmarks.malicious_servers [--only defended]

`defended`, which is kept apart: robbing_the_fed behind defenses, by a server that knows of them and
by one that does not, with short columns and with long ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.core import Protection
from seepage.data._dataset import data_root
from seepage.exposure import concentration
from seepage.scoring import METRICS
from seepage.zoo import MODELS

PEOPLE, BATCHES = 64, 3
SHARES = (60.0, 20.0)
# What papers' tables plant, the last, was chosen on test images 1000 to 1063.
COLUMNS = (1e-2, 100.0, 1e4)
CHEATING = sp.Threat(server="malicious")
TRAINED = {
    "resnet20": "cifar10_resnet20-12fca82f.safetensors",
    "resnet56": "cifar10_resnet56-4bfd9763.safetensors",
}
# Narrow where the width changes nothing but the time.
NARROW = {
    "convnet": {"width": 16},
    "resnet18": {"width": 16},
    "resnet50": {"width": 8},
    "resnet152": {"width": 4},
    "wide_head_resnet18": {"width": 8},
}


def trained(name: str) -> sp.Task:
    return sp.zoo.load_weights(MODELS[name](), data_root() / "weights" / TRAINED[name])


def attacked(attack, task, batch, client, threat=CHEATING) -> tuple[list[float], sp.Task, float]:
    began = time.perf_counter()
    planted = attack.plant(task, rng=sp.rng(2))
    seen = threat.observe(client, planted, batch, rng=sp.rng(0))
    guess = attack(seen, rng=sp.rng(1))
    scores = sp.score(guess, batch, metrics=(METRICS["psnr"],))["psnr"].clamp(max=200)
    return scores.tolist(), planted, time.perf_counter() - began


def agreement(task: sp.Task, planted: sp.Task, batch: sp.Batch) -> float:
    """How often both networks predict the same class."""
    with torch.no_grad():
        both = [t.outputs(t.parameters, batch.inputs).argmax(1) for t in (task, planted)]
    return float((both[0] == both[1]).double().mean())


def robbing() -> Iterator[dict[str, object]]:
    photos = sp.data.load("cifar10")
    batches = [photos.batch(PEOPLE, start=n * PEOPLE) for n in range(BATCHES)]
    walks = {
        "one epoch": sp.FedAvg(lr=0.01, epochs=1, local_batch_size=16),
        "two epochs": sp.FedAvg(lr=0.01, epochs=2, local_batch_size=16),
    }
    nets = {"untrained": sp.zoo.resnet20(), "trained": trained("resnet20")}
    runs = [
        (state, {"bins": bins, "variant": variant}, "gradient", sp.Gradient())
        for state in nets
        for variant in ("sparse", "cumulative")
        for bins in (128, 512)
    ]
    runs += [("untrained", {"bins": 2048}, "gradient", sp.Gradient())]
    runs += [("untrained", {"public": "cifar10"}, "gradient", sp.Gradient())]
    runs += [
        ("untrained", {"variant": v}, n, w)
        for v in ("sparse", "cumulative")
        for n, w in walks.items()
    ]
    for state, options, update, local in runs:
        attack, psnr, seconds, same = sp.attacks.robbing_the_fed(**options), [], [], []
        for batch in batches:
            scores, planted, took = attacked(attack, nets[state], batch, sp.Client(local))
            psnr += scores
            seconds.append(took)
            same.append(agreement(nets[state], planted, batch))
        yield {
            "network": f"resnet20, {state}",
            "options": options,
            "update": update,
            "people": len(psnr),
            "alone_in_theory": round((1 - 1 / attack.bins) ** (PEOPLE - 1), 4),
            **{f"above_{s:.0f}": round(statistics.fmean(p > s for p in psnr), 4) for s in SHARES},
            "psnr_median": round(statistics.median(psnr), 1),
            "same_predictions": round(statistics.fmean(same), 4),
            "seconds": round(statistics.median(seconds), 2),
        }


def defended() -> Iterator[dict[str, object]]:
    photos, task = sp.data.load("cifar10"), sp.zoo.resnet20()
    batches = [photos.batch(PEOPLE, start=n * PEOPLE) for n in range(BATCHES)]
    runs: list[tuple[Protection, dict[str, float], bool]] = [(sp.chain(), {}, True)]
    runs += [(sp.Clip(1.0), {}, True), (sp.Prune(0.9), {}, True), (sp.Prune(0.99), {}, True)]
    runs += [(sp.Dropout(r), {}, knows) for r in (0.3, 0.5, 0.7, 0.9) for knows in (False, True)]
    for std in (0.001, 0.01, 0.1):
        runs += [(sp.AddGaussian(std), {"column": column}, True) for column in COLUMNS]
    private = sp.chain(sp.Clip(1.0), sp.AddGaussian(0.001))
    runs += [(private, {"column": column}, True) for column in COLUMNS]
    for defense, options, knows in runs:
        attack = sp.attacks.robbing_the_fed(bins=512, **options)
        client = sp.Client(sp.Gradient(), defense)
        threat = CHEATING if knows else CHEATING.forget_defense()
        psnr = [v for b in batches for v in attacked(attack, task, b, client, threat)[0]]
        yield {
            "defense": repr(defense),
            "options": options,
            "knows_defense": knows,
            "people": len(psnr),
            **{f"above_{s:.0f}": round(statistics.fmean(p > s for p in psnr), 4) for s in SHARES},
            "psnr_median": round(statistics.median(psnr), 1),
        }


def others() -> Iterator[dict[str, object]]:
    photos = sp.data.load("cifar10")
    single = sp.Client(sp.Gradient())
    rgap = sp.attacks.rgap()
    for name in ("lenet", "cnn2-v1", "cnn3-v3"):
        task = sp.zoo.build(name, options={})
        attack = sp.attacks.identity_convolutions()
        psnr = [attacked(attack, task, photos.batch(1, start=n), single)[0][0] for n in range(8)]
        yield row("identity_convolutions", task, 1, psnr)
    task = trained("resnet20")
    first = sp.attacks.first_layer_fc()
    psnr = [attacked(first, task, photos.batch(1, start=n), single)[0][0] for n in range(8)]
    yield row("first_layer_fc", task, 1, psnr)
    task = sp.zoo.build("cnn3-v3", options={})
    found = []
    for batch in (photos.batch(16, start=16 * n) for n in range(4)):
        target = int((batch.labels.bincount(minlength=10) == 1).nonzero()[0])
        fishing = sp.attacks.class_fishing(attack=rgap, target=target)
        found.append(max(attacked(fishing, task, batch, single)[0]))
    yield row("class_fishing, best of each batch", task, 16, found)


def flipping() -> Iterator[dict[str, object]]:
    """How large the gradients of single photographs are before and after, which is the point."""
    photos, task = sp.data.load("cifar10"), trained("resnet20")
    planted = sp.attacks.label_flip().plant(task, rng=sp.rng(2))
    client = sp.Client(sp.Gradient())
    for number in range(16):
        batch = photos.batch(1, start=number)
        honest, flipped = (float(client(t, batch, rng=sp.rng(0)).norm()) for t in (task, planted))
        yield {"person": number, "honest_norm": honest, "flipped_norm": flipped}


def row(attack: str, task: sp.Task, people: int, psnr: list[float]) -> dict[str, object]:
    return {
        "attack": attack,
        "network": task.name.replace(TRAINED["resnet20"], "trained"),
        "people": people,
        "psnr": [round(value, 2) for value in psnr],
        "psnr_mean": round(statistics.fmean(psnr), 2),
    }


def vetting() -> Iterator[dict[str, object]]:
    cifar = sp.data.load("cifar10")
    own = {"mnist_convnet": sp.data.load("mnist"), "gpt": sp.data.load("hamlet")}
    for name, make in MODELS.items():
        data = own.get(name, cifar)
        task = make(domain=data.domain, **NARROW.get(name, {}))
        yield judged("honest, untrained", task, data.batch(16))
    for name in TRAINED:
        for start in range(0, 64, 16):
            yield judged("honest, trained", trained(name), cifar.batch(16, start=start))
    plants = {
        "robbing_the_fed": trained("resnet20"),
        "first_layer_fc": trained("resnet20"),
        "class_fishing": trained("resnet20"),
        "label_flip": trained("resnet20"),
        "identity_convolutions": sp.zoo.lenet(),
    }
    for name, task in plants.items():
        planted = sp.attacks.ATTACKS[name]().plant(task, rng=sp.rng(2))
        for batch in (None, cifar.batch(16)):
            yield judged(name, planted, batch)


def judged(kind: str, task: sp.Task, batch: sp.Batch | None) -> dict[str, object]:
    began = time.perf_counter()
    verdict = sp.vet(task, batch)
    seconds = time.perf_counter() - began
    spread = None if batch is None else concentration(task, batch)
    return {
        "kind": kind,
        "network": task.name,
        "with_data": batch is not None,
        "judgement": verdict.judgement,
        "findings": [f"{found.level}: {found.check}" for found in verdict.findings],
        "dsnr": None if spread is None else round(spread.plain, 3),
        "dsnr_relative": None if spread is None else round(min(spread.relative, 1e6), 3),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    options = parse_options(__doc__, only=("", "defended"))
    parts = {"robbing": robbing, "others": others, "flipping": flipping, "vetting": vetting}
    if options.only:
        parts = {options.only: defended}
    content: dict[str, object] = {}
    for name, part in parts.items():
        content[name] = []
        for found in part():
            content[name].append(found)
            print(found, flush=True)
    name = "-".join(filter(None, ("malicious_servers", options.only)))
    print(save(name, "cpu", content, options.out))


if __name__ == "__main__":
    main()
