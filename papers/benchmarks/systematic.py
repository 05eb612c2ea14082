"""The strong attack of Liu et al. (2024) beside those it is compared with, on a card.

    python -m benchmarks.systematic --device cuda --train-only build/victim.safetensors
    python -m benchmarks.systematic --device cuda --network build/victim.safetensors
        [--only comparison,ablation,forcing] [--sizes 4,16] [--attacks pixels,prior] [--steps 2000]
        [--first-layer 10]

Needs CIFAR-10 in SEEPAGE_DATA. The network is `wide_head_resnet18`, trained by SGD for as many
steps as one epoch of CIFAR-10 has, on the 20 000 images there are; its random neurons stay as they
were drawn. Without `--network` it is trained first. Labels and batch statistics are known
to every attack, and the batches of one size are attacked side by side. `comparison` has six
attacks at batches of 4, 8, 16 and 32 test images, the last two of which are `teacher_forced`;
`ablation` the three rows of the paper's Table 6, on pixels: the joint cosine without feature
matching, which is `gradattack_strongest`, the reweighted one without, and with it; `forcing` what
`teacher_forced` is made of: statistics given alone, features alone, both with the paper's weights
of the cosines, and both. Each attack runs once.

Truth and guesses of the first batch are drawn, one above the other in the order of the attacks,
into `--sheets`. Filters cut a run into parts for processes of their own; each result is named by
what ran. `--scale narrow` is for a CPU, with a network of 16 channels; `--scale smoke` runs the
same code with next to nothing, to see that it works.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import seepage as sp
from benchmarks.provenance import save
from seepage.attacks._systematic import Systematic
from seepage.attacks.feature_recovery import (
    FeatureRecovery,
    cocktail_party,
    exact_features,
    tensor_features,
)
from seepage.core import Attack, Batch, Paired, SideBySide, Task
from seepage.scoring import METRICS, pair
from seepage.utility import Training, train

SEEN = ("psnr", "lpips")
# Images there are at least of the smallest sizes.
SMALLEST = 16
FEATURES = {recipe.__name__: recipe for recipe in (exact_features, tensor_features, cocktail_party)}


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    width: int
    neurons: int
    trained: int
    training: int
    sizes: tuple[int, ...]
    batches: int
    steps: int
    prior: int
    first_layer: float = 1.0


SCALES = {
    "paper": Scale(64, 16_384, 2_048, 782, (4, 8, 16, 32), 2, 10_000, 64),
    "narrow": Scale(16, 2_048, 256, 782, (8,), 1, 800, 16),
    "smoke": Scale(2, 64, 16, 2, (2,), 2, 3, 8),
}


def untrained(scale: Scale) -> Task:
    return sp.zoo.wide_head_resnet18(
        width=scale.width,
        neurons=scale.neurons,
        trained=scale.trained,
        domain=sp.data.load("cifar10", split="train").domain,
    )


def network(scale: Scale, device: str) -> Task:
    """ResNet-18 with the wide head after one epoch's worth of steps of 64 images."""
    data = sp.data.load("cifar10", split="train")
    task = untrained(scale).to(device=device)
    count = min(20_000, 64 * scale.training)
    known, unseen = data.batch(count), sp.data.load("cifar10").batch(256, start=1000)
    plan = Training(steps=scale.training, batch_size=64, lr=0.1, momentum=0.9)
    made = train(
        task,
        known.to(device=device),
        held_out=unseen.to(device=device),
        plan=plan,
        delta=None,
        rng=sp.rng(0),
    )
    print(f"accuracy {made.accuracy[-1]:.3f}, training loss {made.training_loss:.3f}", flush=True)
    return made.task


def save_weights(task: Task, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous().cpu() for n, t in task.model.state_dict().items()}, path)
    print(f"trained {task.name}, saved as {path.name}", flush=True)


def attacks(scale: Scale, features: FeatureRecovery) -> dict[str, Attack]:
    steps, known = scale.steps, sp.attacks
    first = scale.first_layer
    plain = known.systematic(steps=steps, first_layer=first)
    forced = known.teacher_forced(features=features, steps=steps)
    entries = known.teacher_forced(features=features, weighting="entries", steps=steps)
    assert isinstance(plain, Systematic)
    assert isinstance(forced, Systematic)
    prior = known.PriorNetwork(width=scale.prior)
    return {
        "inverting_gradients": known.inverting_gradients(steps=steps, restarts=1, tv=1e-2),
        "gradattack_strongest": known.gradattack_strongest(steps=steps),
        "pixels": replace(plain, features=features),
        "prior": known.systematic(features=features, prior=prior, steps=steps, first_layer=first),
        "reweighted": plain,
        "forced_pixels": forced,
        "forced_prior": known.teacher_forced(features=features, prior=prior, steps=steps),
        "given_features": replace(forced, search=replace(forced.search, given_statistics=False)),
        "given_statistics": replace(forced, given=None),
        "by_entries": entries,
    }


PARTS = {
    "comparison": (
        "inverting_gradients",
        "gradattack_strongest",
        "pixels",
        "prior",
        "forced_pixels",
        "forced_prior",
    ),
    "ablation": ("gradattack_strongest", "reweighted", "pixels"),
    "forcing": ("pixels", "given_statistics", "given_features", "by_entries", "forced_pixels"),
}


def run(attack: Attack, task: Task, batches: Sequence[Batch]) -> tuple[dict, Paired]:
    """What is scored, and the first batch beside its guess."""
    threat, client = sp.Threat(knows_labels=True, batchnorm="exact"), sp.Client(sp.Gradient())
    seen = [threat.observe(client, task, one, rng=sp.rng(i)) for i, one in enumerate(batches)]
    began = time.perf_counter()
    assert isinstance(attack, SideBySide)
    guesses = attack.many(seen, rngs=[sp.rng(1000 + i) for i in range(len(seen))])
    seconds = time.perf_counter() - began
    paired = [pair(guess, batch) for guess, batch in zip(guesses, batches, strict=True)]
    scores = {name: [v for one in paired for v in METRICS[name](one).tolist()] for name in SEEN}
    means = {name: round(statistics.fmean(values), 4) for name, values in scores.items()}
    rounded = {f"{name}s": [round(v, 3) for v in values] for name, values in scores.items()}
    return {"batches": len(batches), **means, "seconds": round(seconds, 1), **rounded}, paired[0]


def draw(shown: Sequence[Paired], path: Path) -> None:
    """The truth above what each attack guessed of it."""
    rows = [shown[0].truth, *(paired.guess for paired in shown)]
    strips = [torch.cat(list(images.cpu()), dim=2) for images in rows]
    whole: Tensor = torch.cat(strips, dim=1).clamp(0, 1).mul(255).byte().permute(1, 2, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(whole.numpy()).save(path)


def measure(options: argparse.Namespace, task: Task, scale: Scale) -> Iterator[dict]:
    """One row for each size and attack that is wanted; sheets on the way."""
    data, device = sp.data.load("cifar10"), options.device
    for people in scale.sizes:
        count = max(scale.batches, SMALLEST // people)
        batches = [data.batch(people, start=i * people).to(device=device) for i in range(count)]
        shown: dict[str, Paired] = {}
        for name, attack in attacks(scale, FEATURES[options.features]()).items():
            if name in options.wanted:
                made, shown[name] = run(attack, task, batches)
                yield {"people": people, "attack": name, **made}
        for part in options.parts if options.sheets else ():
            drawn = [shown[name] for name in PARTS[part] if name in shown]
            if drawn:
                draw(drawn, options.sheets / f"{title(options)}-{part}-{people}.png")


def title(options: argparse.Namespace) -> str:
    """What ran, as the name of a file: every filter that leaves something out."""
    chosen = (options.only, options.attacks, options.sizes)
    kept = [words.replace(",", "+") for words in chosen if words]
    scale = [options.scale] if options.scale != "paper" else []
    return "-".join(["systematic", *scale, *kept])


def chosen_scale(options: argparse.Namespace) -> Scale:
    scale = SCALES[options.scale]
    sizes = tuple(int(size) for size in options.sizes.split(",") if size) or scale.sizes
    return replace(
        scale,
        sizes=sizes,
        steps=options.steps or scale.steps,
        prior=options.prior or scale.prior,
        batches=options.batches or scale.batches,
        first_layer=options.first_layer,
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", default="paper", choices=list(SCALES))
    parser.add_argument("--features", default="exact_features", choices=list(FEATURES))
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--attacks", default="", help="attacks of these parts, by comma")
    parser.add_argument("--sizes", default="", help="batch sizes, by comma")
    parser.add_argument("--steps", type=int, default=None, help="of every search")
    parser.add_argument("--prior", type=int, default=None, help="width of the prior network")
    parser.add_argument("--first-layer", type=float, default=1.0, help="of batch statistics")
    parser.add_argument("--batches", type=int, default=None, help="of each size, at least")
    parser.add_argument("--train-only", type=Path, default=None, help="train, save here and end")
    parser.add_argument("--network", type=Path, default=None, help="weights that were so saved")
    parser.add_argument("--sheets", type=Path, default=None, help="folder for pictures")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    options.parts = list(filter(None, options.only.split(","))) or list(PARTS)
    known = {name for part in options.parts for name in PARTS[part]}
    options.wanted = set(filter(None, options.attacks.split(","))) or known
    if unknown := options.wanted - known:
        parser.error(f"expected attacks among {sorted(known)}, got {sorted(unknown)}")
    return options


def main() -> None:
    options = parsed()
    scale = chosen_scale(options)
    if options.train_only is not None:
        save_weights(network(scale, options.device), options.train_only)
        return
    task = (
        network(scale, options.device)
        if options.network is None
        else sp.zoo.load_weights(untrained(scale), options.network).to(device=options.device)
    )
    about = {
        "scale": asdict(scale),
        "features": options.features,
        "network": task.name,
        "parts": {part: PARTS[part] for part in options.parts},
    }
    rows: list[dict] = []
    for row in measure(options, task, scale):
        rows.append(row)
        print({name: row[name] for name in row if name not in ("psnrs", "lpipss")}, flush=True)
        # After every attack, so that nothing is lost to a time limit.
        path = save(title(options), options.device, {**about, "rows": rows}, options.out)
    print(path)


if __name__ == "__main__":
    main()
