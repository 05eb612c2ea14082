"""Why results of the papers come out otherwise here, by experiment.

    python -m benchmarks.causes [--only lbfgs,sure,measures,state,alone,effort,conventions]

`lbfgs`: Table 1's two variants that fail there and not here, on an untrained ConvNet, beside
torch's own L-BFGS on the same objective, on a multiple of it and, as signed Adam has it, by the
signs of its gradient.
`sure`: the smallest gradients of the trained ResNet-20, honest in single and double precision, with
flipped labels, and with the gradient at the logits read off the last layer. `measures`: what each
measure gives for guesses that are no attack's. All of Geiping et al. (2020).
`state`: batches of four behind a narrow ResNet-18 that normalises by its batch, before training and
after one pass over 12 800 images, as Huang et al. (2021) do not say which; with candidates
normalised by their own statistics, by the batch's, and by features that are known.
`alone`: the same with one image at a time, by how long the network was taught, by its own
statistics or by running ones, and with a prior network in place of the total variation.
`effort`: the attack of Liu et al. (2024), all of it, on a narrow network with a wide head: trained
for one pass over 20 000 images or for as many steps as one over 50 000 has, and searched for four
times as long.
`conventions`: two ways to count the RMSE of the guesses that audits keep, which `--audits` names.
Needs CIFAR-10 in SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

import torch

import seepage as sp
from benchmarks.provenance import save
from seepage.audit import Audit, Outcome, load_audit, select_targets, serial
from seepage.core import Paired, SideBySide
from seepage.core.errors import InvalidValue, UnknownName
from seepage.data import Dataset
from seepage.domains import IMAGENET, Image
from seepage.scoring import METRICS
from seepage.utility import Training, train
from seepage_papers.chosen import gradient_norms
from seepage_papers.legacy import rmse_gradattack
from seepage_papers.measures import lpips_gradattack

Row = dict[str, object]
# The first test images, of whom `sure` takes those of the smallest gradient.
AMONG = 200
# Decibels from which on it does not matter how many they are.
EXACT = 40
# How many batches others stand for, and where they begin.
BATCHES, OTHERS = 8, 1000
STRONGEST = sp.Threat.strongest()
# What a row has the mean of.
MEANT = (METRICS["psnr"], METRICS["lpips"])
Attacker = Callable[[sp.Observation, int], sp.Reconstruction]


def lbfgs(options: argparse.Namespace) -> list[Row]:
    """PSNR of each image, variant by variant."""
    task = sp.zoo.convnet(width=options.width)
    data = sp.data.load("cifar10")
    variants: dict[str, Attacker] = {
        "signed Adam, cosine": _ours(options),
        "signed Adam, l2": _ours(options, distance="l2"),
        "Adam, l2": _ours(options, distance="l2", signed=False),
        "L-BFGS, cosine": _ours(options, optimiser="lbfgs", step_size=1.0),
        "torch's L-BFGS, cosine": _torchs(options.steps),
        "torch's L-BFGS, cosine times 1e4": _torchs(options.steps, scale=1e4),
        "torch's L-BFGS of signs": _torchs(options.steps, signed=True),
    }
    rows: list[Row] = []
    for name, attack in variants.items():
        psnr = []
        for i in range(options.images):
            batch = data.batch(1, start=i)
            threat = sp.Threat(knows_labels=True)
            seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(i))
            psnr.append(round(_psnr(attack(seen, i), batch), 2))
        rows.append({"variant": name, "psnr": psnr, "mean": round(sum(psnr) / len(psnr), 2)})
        print(rows[-1], flush=True)
    return rows


def _ours(options: argparse.Namespace, **changed: object) -> Attacker:
    attack = sp.attacks.inverting_gradients(steps=options.steps, restarts=1, **changed)
    return lambda seen, i: attack(seen, rng=sp.rng(1000 + i))


def _torchs(steps: int, *, scale: float = 1.0, signed: bool = False) -> Attacker:
    """`torch.optim.LBFGS` as it comes, twenty evaluations a step, the box after each step."""

    def attack(seen: sp.Observation, i: int) -> sp.Reconstruction:
        domain = seen.task.domain
        generator = torch.Generator().manual_seed(1000 + i)
        point = torch.randn(1, *domain.shape, generator=generator).requires_grad_()
        optimiser = torch.optim.LBFGS([point])

        def closure() -> float:
            update = seen.simulate(domain.denormalise(point), seen.labels)
            loss = 1 - torch.cosine_similarity(update.flat(), seen.update.flat(), dim=0)
            (gradient,) = torch.autograd.grad(scale * loss, point)
            point.grad = gradient.sign() if signed else gradient
            return scale * loss.item()

        for _ in range(steps // 20):
            optimiser.step(closure)
            with torch.no_grad():
                point.copy_(domain.normalise(domain.project(domain.denormalise(point))))
        inputs = domain.project(domain.denormalise(point.detach()).nan_to_num())
        return sp.Reconstruction(inputs, seen.labels)

    return attack


def sure(options: argparse.Namespace) -> list[Row]:
    """What comes back of people the trained network is surest of, by each way to attack it."""
    weights = sp.data.data_root() / "weights" / "cifar10_resnet20-12fca82f.safetensors"
    domain = Image((3, 32, 32), mean=IMAGENET.mean, std=IMAGENET.std)
    task, data = (
        sp.zoo.load_weights(sp.zoo.resnet20(domain=domain), weights),
        sp.data.load("cifar10"),
    )
    norms = gradient_norms(data, task, AMONG)
    people = sorted(range(AMONG), key=norms.__getitem__)[: options.images]
    search = sp.attacks.inverting_gradients(steps=options.steps, restarts=1, tv=1e-3)
    flip = sp.attacks.label_flip(attack=search)
    arms: dict[str, tuple[SideBySide, sp.Task]] = {
        "honest": (search, task),
        "honest, double precision": (search, task.to(dtype=torch.float64)),
        "labels flipped": (flip, flip.plant(task, rng=sp.rng(0))),
        "logits read": (sp.attacks.ReadLogits(search), task),
    }
    rows: list[Row] = []
    metrics = [METRICS[name] for name in ("psnr", "ssim", "lpips")]
    for arm, (attack, victim) in arms.items():
        dtype = next(iter(victim.parameters.values())).dtype
        batches = [data.batch(1, start=number) for number in people]
        client, threat = sp.Client(sp.Gradient()), sp.Threat(knows_labels=True)
        seen = [threat.observe(client, victim, b.to(dtype=dtype), rng=sp.rng(0)) for b in batches]
        guesses = attack.many(seen, rngs=[sp.rng(1000 + i) for i in range(len(seen))])
        found = [
            sp.score(sp.Reconstruction(guess.inputs.float(), guess.labels), batch, metrics=metrics)
            for guess, batch in zip(guesses, batches, strict=True)
        ]
        scores = {m.name: [round(float(one[m.name]), 3) for one in found] for m in metrics}
        rows.append(
            {
                "arm": arm,
                "people": people,
                "gradient_norms": [float(f"{float(one.update.norm()):.3g}") for one in seen],
                "objective": [round(min(guess.trace.finals), 4) for guess in guesses],
                **scores,
                "mean": {name: round(sum(v) / len(v), 3) for name, v in scores.items()},
            }
        )
        print(rows[-1], flush=True)
    return rows


def measures() -> list[Row]:
    """Mean scores of guesses at a few people: flat, shifted, mirrored, noisy, of somebody else."""
    data, colour = sp.data.load("cifar10"), sp.data.load("cifar10", split="train").inputs
    flat = colour.float().mean((0, 2, 3)).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    guesses: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
        "the mean colour of the data": lambda x, i: flat,
        "shifted by four pixels each way": lambda x, i: x.roll((4, 4), (2, 3)),
        "mirrored": lambda x, i: x.flip(3),
        "noise of 0.1 added": lambda x, i: (x + 0.1 * sp.rng(i).normal(x.shape)).clamp(0, 1),
        "somebody else": lambda x, i: data.batch(1, start=i + 17).inputs,
        "noise": lambda x, i: sp.rng(i).uniform(x.shape),
    }
    metrics = [METRICS[name] for name in ("psnr", "ssim", "lpips")]
    rows: list[Row] = []
    for name, make in guesses.items():
        scores = [
            sp.score(sp.Reconstruction(make(one.inputs, i), one.labels), one, metrics=metrics)
            for i in range(16)
            if (one := data.batch(1, start=i))
        ]
        means = {m.name: sum(float(s[m.name]) for s in scores) / len(scores) for m in metrics}
        rows.append({"guess": name, **{key: round(value, 3) for key, value in means.items()}})
        print(rows[-1], flush=True)
    rows += [_strangers(data, people) for people in (1, 16, 32)]
    return rows


def _strangers(data: Dataset, people: int) -> Row:
    """LPIPS of Huang et al. where somebody else stands for each person: what no attack is worth.

    It takes the nearest of the batch for each guess, so that it falls as the batch grows.
    """
    found = []
    for number in range(BATCHES):
        batch = data.batch(people, start=number * people)
        guess = data.batch(people, start=OTHERS + number * people).inputs
        paired = Paired(batch.inputs, guess, batch.labels, None, tuple(range(people)))
        found.append(round(mean(lpips_gradattack(paired, data.domain).tolist()), 3))
    row: Row = {"guess": f"others for a batch of {people}", "lpips_gradattack": found}
    print(row, flush=True)
    return row


def state(options: argparse.Namespace) -> list[Row]:
    """Lowest objective, PSNR and LPIPS of batches of four, by what the network was taught."""
    data, seen = sp.data.load("cifar10"), sp.data.load("cifar10", split="train")
    fresh = sp.zoo.resnet18(width=options.width)
    plan = Training(epochs=1, batch_size=64, lr=0.05)
    taught = train(fresh, seen.batch(12_800), held_out=data.batch(500), plan=plan, rng=sp.rng(0))
    plain = sp.attacks.gradattack_strongest(steps=options.steps)
    given = replace(plain, search=replace(plain.search, given_statistics=True))
    longer = sp.attacks.gradattack_strongest(steps=4 * options.steps)
    forced = sp.attacks.teacher_forced(steps=options.steps)
    attacks = {"own statistics": plain, "given statistics": given, "teacher forced": forced}
    rows: list[Row] = []
    for called, task in {"untrained": fresh, "after a pass": taught.task}.items():
        tried = attacks | ({"own statistics, four times as long": longer} if task is fresh else {})
        for name, attack in tried.items():
            batches = select_targets(data, people=4 * options.images, batch_size=4, start=0)
            audit = Audit(tasks=[task], attacks={name: attack}, threats=[STRONGEST], metrics=MEANT)
            found = list(serial(audit.cases(batches)))
            row: Row = {"network": called, "attack": name}
            row["objective"] = [round(min(one.objective), 4) for one in found]
            rows.append(row | _means(found))
            print(rows[-1], flush=True)
    return rows


def alone(options: argparse.Namespace) -> list[Row]:
    """PSNR and LPIPS of single images, by what the network was taught and how it normalises."""
    data, seen = sp.data.load("cifar10"), sp.data.load("cifar10", split="train")
    device = torch.device(options.device)
    batches = select_targets(data, people=options.images, batch_size=1, start=0)
    threats = {"own": STRONGEST, "running": sp.Threat(knows_labels=True)}
    attacks = {
        "pixels": sp.attacks.gradattack_strongest(steps=options.steps),
        "prior network": sp.attacks.systematic(
            steps=options.steps, step_size=1e-3, prior=sp.attacks.PriorNetwork(width=32)
        ),
    }
    rows: list[Row] = []
    # Not at all, one pass over all 50 000 images, and as the released code has it.
    for taught in (0, 391, 1531):
        task = sp.zoo.resnet18(width=options.width).to(device=device)
        if taught:
            plan = Training(steps=taught, batch_size=128, lr=0.1)
            known, unseen = seen.batch(20_000), data.batch(500, start=1000)
            task = train(task, known, held_out=unseen, plan=plan, delta=None, rng=sp.rng(0)).task
        for (normalised, threat), (name, attack) in product(threats.items(), attacks.items()):
            audit = Audit(tasks=[task], attacks={name: attack}, threats=[threat], metrics=MEANT)
            found = list(serial(audit.cases(batches)))
            row: Row = {"steps of training": taught, "statistics": normalised, "attack": name}
            row["objective"] = [round(min(one.objective), 4) for one in found]
            rows.append(row | _means(found))
            print(rows[-1], flush=True)
    return rows


def effort(options: argparse.Namespace) -> list[Row]:
    """PSNR and LPIPS of 001's attack on batches of four, by steps of training and of searching."""
    data, seen = sp.data.load("cifar10"), sp.data.load("cifar10", split="train")
    width = options.width
    fresh = sp.zoo.wide_head_resnet18(width=width, neurons=256 * width, trained=32 * width)
    batches = select_targets(data, people=4 * options.images, batch_size=4, start=0)
    rows: list[Row] = []
    # One pass over the 20 000 images there are, and as many steps as one over all 50 000.
    for taught, searched in ((312, 1), (782, 1), (312, 4)):
        plan = Training(steps=taught, batch_size=64, lr=0.1)
        known, unseen = seen.batch(20_000), data.batch(500, start=1000)
        victim = train(fresh, known, held_out=unseen, plan=plan, delta=None, rng=sp.rng(0)).task
        attack = sp.attacks.systematic(
            steps=searched * options.steps,
            features=sp.attacks.tensor_features(),
            prior=sp.attacks.PriorNetwork(width=width),
        )
        audit = Audit(tasks=[victim], attacks={"Ours": attack}, threats=[STRONGEST], metrics=MEANT)
        found = list(serial(audit.cases(batches)))
        row: Row = {"steps of training": taught, "steps of the search": searched * options.steps}
        row["objective"] = [round(min(one.objective), 4) for one in found]
        rows.append(row | _means(found))
        print(rows[-1], flush=True)
    return rows


def conventions(options: argparse.Namespace) -> list[Row]:
    """Mean RMSE, as usual and as GradAttack counts it, of guesses of about the same PSNR."""
    by_psnr: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for folder in options.audits:
        found = load_audit(folder)
        for record in found.records:
            truth, guess = found.truth(record), found.guess(record)
            if truth is None or guess is None:
                continue
            paired = Paired(truth, guess, torch.arange(len(truth)), None, tuple(record.people))
            counted = rmse_gradattack(paired).tolist()
            for psnr, rmse, other in zip(
                record.scores["psnr"], record.scores["rmse"], counted, strict=True
            ):
                by_psnr[min(2 * int(psnr // 2), EXACT)].append((rmse, other))
    rows: list[Row] = []
    for least, pairs in sorted(by_psnr.items()):
        usual, other = (round(mean(column), 3) for column in zip(*pairs, strict=True))
        psnr = f"{least} to {least + 2}" if least < EXACT else f"{least} and more"
        row = {"psnr": psnr, "people": len(pairs), "rmse": usual}
        rows.append(row | {"rmse_gradattack": other})
        print(rows[-1], flush=True)
    return rows


def _means(found: Sequence[Outcome]) -> Row:
    return {
        metric.name: round(mean(v for one in found for v in one.record.scores[metric.name]), 3)
        for metric in MEANT
    }


def _psnr(guess: sp.Reconstruction, batch: sp.Batch) -> float:
    return float(sp.score(guess, batch)["psnr"])


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "lbfgs": lbfgs,
    "sure": sure,
    "measures": lambda _: measures(),
    "state": state,
    "alone": alone,
    "effort": effort,
    "conventions": conventions,
}
SEARCHED = ("lbfgs", "sure", "state", "alone", "effort")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="lbfgs,sure,measures")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--device", default="cpu", help="of `alone`")
    parser.add_argument("--audits", type=Path, nargs="+", default=[], help="whose guesses to count")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = options.only.split(",")
    for part in parts:
        if part not in PARTS:
            raise UnknownName("part", part, PARTS)
    if "conventions" in parts and not options.audits:
        raise InvalidValue("conventions needs --audits, the folders that audits left; name them")
    for part in parts:
        rows = PARTS[part](options)
        setting = {name: getattr(options, name) for name in ("images", "steps", "width")}
        content = {**setting, "rows": rows} if part in SEARCHED else {"rows": rows}
        if part == "conventions":
            content["audits"] = [load_audit(folder).title for folder in options.audits]
        device = options.device if part == "alone" else "cpu"
        print(save(f"causes-{part}", device, content, options.out))


if __name__ == "__main__":
    main()
