"""The peer `breaching` (from PyPI, not part of this project) on the same model and update.

It is given the same network, the same observed update, labels and objective (cosine and total
variation, signed Adam in a box), and its own loop is timed.
"""

from __future__ import annotations

import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import seepage as sp


class _Data:
    """What the peer calls the metadata of a data set."""

    modality = "vision"
    task = "classification"
    size = 50_000

    def __init__(self, task: sp.Task) -> None:
        self.classes = task.classes
        self.shape = task.domain.shape
        self.normalize = True
        self.mean, self.std = task.domain.mean, task.domain.std

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)


def iterations_per_second(
    task: sp.Task, seen: sp.Observation, *, tv: float, steps: int, local: sp.FedAvg | None
) -> float:
    """Steps per second of the peer's loop, from two runs whose difference leaves out set-up."""
    short, long = steps // 4, steps
    _, once = reconstruct(task, seen, tv=2 * tv, steps=short, local=local)
    _, again = reconstruct(task, seen, tv=2 * tv, steps=long, local=local)
    return (long - short) / (again - once)


def reconstruct(
    task: sp.Task,
    seen: sp.Observation,
    *,
    steps: int,
    tv: float | None = None,
    local: sp.FedAvg | None = None,
) -> tuple[torch.Tensor, float]:
    """What the peer's `invertinggradients` makes of an update, and the seconds that it took.

    Without `tv` it keeps its own weight of total variation.
    """
    import breaching

    reference = next(iter(task.parameters.values()))
    setup = {"device": reference.device, "dtype": reference.dtype}
    options = breaching.get_attack_config("invertinggradients")
    options.optim.max_iterations = steps
    options.optim.callback = steps + 1
    options.optim.step_size = 0.1
    if tv is not None:
        options.regularization.total_variation.scale = tv
    options.restarts.num_trials = 1
    model = task.model.eval()
    attacker = breaching.attacks.prepare_attack(model, torch.nn.CrossEntropyLoss(), options, setup)
    payload = {
        "parameters": [p.detach() for p in model.parameters()],
        "buffers": [b.detach() for b in model.buffers()],
        "metadata": _Data(task),
    }
    hyperparameters = None
    if local is not None:
        hyperparameters = {
            "lr": local.lr,
            "steps": local.steps,
            "data_per_step": len(seen.labels),
            "labels": [seen.labels] * (local.steps or 1),
        }
    shared = {
        "gradients": list(seen.update),
        "buffers": None,
        "metadata": {
            "num_data_points": len(seen.labels),
            "labels": seen.labels,
            "local_hyperparams": hyperparameters,
        },
    }
    _synchronise(reference)
    began = time.perf_counter()
    found, _ = attacker.reconstruct([payload], [shared], {}, dryrun=False)
    _synchronise(reference)
    seconds = time.perf_counter() - began
    # The peer works on normalised pixels.
    return task.domain.denormalise(found["data"].detach()), seconds


class _Texts:
    """What the peer calls the metadata of a data set of texts."""

    modality = "text"
    task = "classification"

    def __init__(self, task: sp.Task) -> None:
        self.classes = task.classes
        self.shape = task.domain.shape

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)


def reconstruct_texts(
    task: sp.Task, seen: sp.Observation, people: int, *, steps: int
) -> tuple[torch.Tensor, float]:
    """What the peer's `tag` makes of an update, without labels, and the seconds that it took.

    It searches embeddings, so the network must keep its table as `encoder`, and read nothing else
    off the tokens.
    """
    import breaching

    options = breaching.get_attack_config("tag")
    options.optim.max_iterations = steps
    options.optim.callback = steps + 1
    options.restarts.num_trials = 1
    model = task.model.eval()
    setup = {"device": torch.device("cpu"), "dtype": torch.float32}
    attacker = breaching.attacks.prepare_attack(model, torch.nn.CrossEntropyLoss(), options, setup)
    payload = {
        "parameters": [p.detach() for p in model.parameters()],
        "buffers": [b.detach() for b in model.buffers()],
        "metadata": _Texts(task),
    }
    known = {"num_data_points": people, "labels": None, "local_hyperparams": None}
    shared = {"gradients": list(seen.update), "buffers": None, "metadata": known}
    began = time.perf_counter()
    # Faster attention has no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        found, _ = attacker.reconstruct([payload], [shared], {}, dryrun=False)
    return found["data"].detach(), time.perf_counter() - began


def _synchronise(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()
