"""Why some claims of the papers do not hold here: one experiment for each.

    python -m benchmarks.contradictions --only depth|digits|filters|head|own_image|pruned

Each part changes what is suspected and leaves the rest as in the table of the claim. A run that was
ended goes on with the rows it lacks. Needs CIFAR-10, CIFAR-100 and MNIST in SEEPAGE_DATA.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from statistics import fmean
from typing import Any

import torch

import seepage as sp
from benchmarks.feature_recovery import features, outside
from benchmarks.learn_from_gradients import attacked, labelled, newton
from benchmarks.linear_systems import SHIFTED
from benchmarks.provenance import continue_rows, parse_options, save
from seepage.attacks.feature_recovery import TensorFeatures
from seepage.attacks.labels import CountAware, InferLabels
from seepage.core import SideBySide
from seepage.domains import Image
from seepage_papers.place import Place
from seepage_papers.prepare import prepared
from seepage_papers.reading import load_table
from seepage_papers.run import SPEC_KEYS
from seepage_papers.substitute import laid_over

Row = dict[str, object]
KNOWN = sp.Threat(knows_labels=True)


def digits(done: int, device: str) -> Iterator[Row]:
    """002-fig5: eight digits behind eight units, by their labels and whether these are sought."""
    data = sp.data.load("mnist", pixels=32)
    task = sp.zoo.fc(hidden=8, domain=Image((1, 32, 32)))
    one_each = torch.stack([(data.labels == label).nonzero()[0, 0] for label in range(8)])
    batches = {
        "the first eight, two labels twice": data.batch(8),
        "one of each label": sp.Batch(data.inputs[one_each], data.labels[one_each]),
    }
    search = newton(500)
    attacks = {
        "sought with the digits": search,
        "counted first": InferLabels(labelled(search), rule=CountAware()),
    }
    cells = [(b, a) for b in batches for a in attacks][done:]
    for batch, labels in cells:
        found = attacked(task, batches[batch], attacks[labels], device)
        yield {"digits": batch, "labels": labels, **_per_pixel(found, 1024)}


def filters(done: int, device: str) -> Iterator[Row]:
    """002-fig5 and fig7: four images behind 48 filters, by optimiser and regulariser."""
    images = sp.data.load("cifar100").batch(4)
    task = sp.zoo.single_conv(filters=48, classes=100, domain=Image((3, 32, 32)))
    adam: dict[str, Any] = {"optimiser": "adam", "line_search": False, "steps": 2000, "every": 200}
    lbfgs: dict[str, Any] = {"optimiser": "lbfgs", "line_search": True, "steps": 300, "every": 30}
    cells = [
        (name, {**options, "regulariser": regulariser, **step})
        for name, options, steps in (
            ("L-BFGS", lbfgs, [{}]),
            ("Adam", adam, [{"step_size": size} for size in (0.01, 0.1)]),
        )
        for step in steps
        for regulariser in ("orthogonality", "none")
    ][done:]
    for name, options in cells:
        attack = sp.attacks.learn_from_gradients(factor=0.1, **options)
        told = {key: options[key] for key in ("regulariser", "step_size") if key in options}
        found = attacked(task, images, attack, device)
        yield {"optimiser": name, **told, **_per_pixel(found, 3072)}


def _per_pixel(found: Row, pixels: int) -> Row:
    """The mean error of a pixel, for each image, and how far the search came."""
    errors = found["l1"]
    assert isinstance(errors, list)
    l1 = [round(error / pixels, 6) for error in errors]
    kept = ("objective", "label_accuracy", "steps", "seconds")
    return {"l1_mean": round(fmean(l1), 6), "l1": l1, **{key: found[key] for key in kept}}


def head(done: int, device: str) -> Iterator[Row]:
    """001-table2: the error of features beside the size of the gradient that they are read from.

    The network is untrained. `kept` is the share of that gradient's entries that are not zero.
    """
    data, threat = sp.data.load("cifar10"), sp.Threat(knows_labels=True, batchnorm="exact")
    defenses: list[sp.Prune | sp.AddGaussian | None] = [None]
    defenses += [sp.Prune(ratio) for ratio in (0.5, 0.7, 0.9, 0.99)]
    defenses += [sp.AddGaussian(std) for std in (0.1, 1.0, 10.0, 100.0)]
    cells = [(people, defense) for people in (1, 8) for defense in defenses][done:]
    task = sp.zoo.wide_head_resnet18(deviation=1.0).to(device=device)
    for people, defense in cells:
        batch = data.batch(people).to(device=device)
        client = sp.Client(sp.Gradient(), *([] if defense is None else [defense]))
        seen = threat.observe(client, task, batch, rng=sp.rng(0))
        plain = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        shared, clean = (one.update.tensors["fc.head.weight"][:, 2048:] for one in (seen, plain))
        found = TensorFeatures().recover(seen, rng=sp.rng(1))
        truth = features(seen.task, batch.inputs)
        yield {
            "people": people,
            "defense": "none" if defense is None else repr(defense),
            "error": round(float(outside(truth, found.span.double().cpu()).mean()), 4),
            "size of an entry": float(f"{float(clean.square().mean().sqrt()):.3g}"),
            "kept": round(float((shared != 0).double().mean()), 3),
        }


def own_image(done: int, device: str) -> Iterator[Row]:
    """004-fig3: networks trained on the image that is attacked, as the release does.

    R-GAP by how long, and the other attacks as published after ten steps. `identified` counts
    guesses that correlate more with their image than with 99 others.
    """
    data = sp.data.load("cifar10", split="train")
    attacks: dict[str, SideBySide] = {
        "R-GAP": sp.attacks.rgap(),
        "DLG": sp.attacks.dlg(iterations=100, line_search=False),
        "CosineTV": sp.attacks.inverting_gradients(
            steps=4800,
            restarts=1,
            tv=0.01,
            step_size=1e-3,
            layerwise=0.0,
            signed=False,
            boxed=False,
        ),
        "Hybrid": sp.attacks.hybrid(steps=(2000, 1600, 500), constraint="soft", published=True),
    }
    tried = [("R-GAP", steps) for steps in (0, 10, 30, 100)]
    tried += [(name, 10) for name in attacks if name != "R-GAP"]
    cells = [(v, *one) for v in ("cnn4-v1", "cnn4-v2") for one in tried][done:]
    for variant, attack, steps in cells:
        psnr, losses, identified = [], [], 0
        for start in range(3, 7):
            batch = data.batch(1, start=start).to(device=device)
            task = sp.zoo.cnn(variant=variant, domain=SHIFTED).to(device=device)
            losses.append(round(_teach(task, batch, steps), 4))
            seen = KNOWN.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
            guess = attacks[attack](seen, rng=sp.rng(1))
            psnr.append(round(float(sp.score(guess, batch)["psnr"]), 2))
            every = torch.cat([guess.inputs.cpu(), data.batch(100).inputs]).flatten(1)
            identified += int(torch.corrcoef(every)[0, 1:].argmax()) == start
        row: Row = {"network": variant, "attack": attack, "steps of training": steps}
        row |= {"loss": losses, "identified": identified}
        yield row | {"mean": round(fmean(psnr), 2), "psnr": psnr}


def _teach(task: sp.Task, batch: sp.Batch, steps: int) -> float:
    """Descend on one image at the release's learning rate of 0.01; the loss at the end."""
    model = task.model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss() -> torch.Tensor:
        return sp.cross_entropy(model(task.domain.normalise(batch.inputs)), batch.labels).mean()

    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    return loss().item()


def pruned(done: int, device: str) -> Iterator[Row]:
    """000-fig8: digits behind pruning, by how many numbers are left for how many pixels."""
    cells = [
        ("MixUp 4 + GradPrune 0.99", 32, 4),
        ("GradPrune 0.999", 32, 1),
        ("GradPrune 0.999", 64, 1),
        ("GradPrune 0.99", 32, 1),
    ][done:]
    table = load_table("000-fig8")
    for label, width, batch in cells:
        [cell] = [c for c in table.cells("small") if c.labels[0] == label]
        scenario = prepared(cell.scenario, Place(device=device))
        scenario["data"] |= {"people": max(2, batch), "batch_size": batch}
        scenario["models"]["width"] = width
        scores = _scores(scenario, device, mean="ssim")
        task = sp.zoo.mnist_convnet(width=width)
        sizes = [parameter.numel() for parameter in task.parameters.values()]
        ratio = float(label.split()[-1])
        kept = sum(size - int(ratio * size) for size in sizes)
        row: Row = {"defense": label, "width": width, "numbers left": kept, "pixels": 784 * batch}
        yield row | scores


def depth(done: int, device: str) -> Iterator[Row]:
    """003-fig4d: images behind ResNet-18, by training, by gradient and by tensors compared."""
    table = load_table("003-fig4d")
    cell = table.cells("small")[0]
    count = cell.scenario["data"]["people"]
    whole: Row = {"attacks": {"setting": "A", "tv": 1e-4}}
    largest: Row = {
        "data": {"people": {"choose": "largest_gradient", "count": count, "among": 1000}}
    }
    # As many updates as make running statistics, and hardly any learning.
    begun: Row = {"models": {"schooling": {"steps": 10, "drops": False}}}
    cells: list[tuple[str, list[Row]]] = [
        ("as in the table", []),
        ("all tensors", [whole]),
        ("largest gradients", [largest]),
        ("largest gradients, all tensors", [largest, whole]),
        ("ten steps of training", [begun]),
        ("ten steps of training, all tensors", [begun, whole]),
    ]
    for label, changes in cells[done:]:
        scenario = reduce(laid_over, changes, cell.scenario)
        if begun in changes:
            del scenario["models"]["schooling"]["epochs"]
        if largest in changes:
            del scenario["data"]["start"]
        scenario = prepared(scenario, Place(device=device))
        yield {"changed": label, **_scores(scenario, device, mean="psnr")}


def _scores(scenario: dict[str, Any], device: str, *, mean: str) -> Row:
    """What comes back of everybody in a scenario, with the mean of one metric, and what failed."""
    metrics = ["ssim", "psnr"]
    spec = {key: value for key, value in scenario.items() if key in SPEC_KEYS}
    wanted = {"metrics": metrics, "controls": False, "scenario": spec}
    found = sp.audit.run(wanted, device=device)
    scores = {
        name: [round(v, 3) for record in found.records for v in record.scores.get(name, ()) if v]
        for name in metrics
    }
    failed = [record.error for record in found.records if record.error]
    told: Row = {f"{mean}_mean": round(fmean(scores[mean]), 3) if scores[mean] else None}
    return told | scores | ({"failed": failed} if failed else {})


PARTS = {part.__name__: part for part in (depth, digits, filters, head, own_image, pruned)}


def main() -> None:
    options = parse_options(__doc__, only=tuple(PARTS), device=("cpu", "cuda"))
    torch.set_num_threads(1)
    name = f"contradictions-{options.only}"
    rows = continue_rows(name, options.device, options.out)
    for row in PARTS[options.only](len(rows), options.device):
        rows.append(row)
        print(row, flush=True)
        save(name, options.device, {"rows": rows}, options.out)


if __name__ == "__main__":
    main()
