"""A task is a snapshot that runs purely."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import Image

TINY = Image((1, 4, 4))


def tiny_bn(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def tiny_task(mode: str = "eval") -> sp.Task:
    return sp.Task(tiny_bn(), sp.cross_entropy, TINY, mode=mode)


def tiny_batch(labels: tuple[int, ...] = (0, 2)) -> sp.Batch:
    return sp.Batch(TINY.sample(len(labels), rng=sp.rng(0)), torch.tensor(labels))


# Compiles when it is first run, and not here.
compiled = partial(torch.compile, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel], ids=["compiled", "data-parallel"])
def test_a_task_is_of_the_network_and_not_of_what_wraps_it(wrap):
    model = tiny_bn()
    # A part may be compiled by itself, and one wrapper may hold another.
    model[0] = compiled(model[0])
    task = sp.Task(wrap(nn.DataParallel(model)), sp.cross_entropy, TINY)
    assert list(task.parameters) == list(tiny_task().parameters)
    assert task.name == tiny_task().name
    assert task.digest == tiny_task().digest


def test_later_changes_to_the_model_do_not_reach_the_task():
    model = tiny_bn()
    task = sp.Task(model, sp.cross_entropy, TINY)
    nn.init.zeros_(model[0].weight)
    assert task.parameters["0.weight"].abs().sum() > 0


def test_running_in_train_mode_changes_no_buffer():
    task = tiny_task("train")
    before = {n: b.clone() for n, b in task.model.named_buffers()}
    task.outputs(task.parameters, tiny_batch().inputs)
    assert all(torch.equal(b, before[n]) for n, b in task.model.named_buffers())


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_outputs_equal_torch_in_the_stated_mode(mode):
    model, batch = tiny_bn(), tiny_batch()
    model.train(mode == "train")
    task = tiny_task(mode)
    expected = model(batch.inputs)
    assert torch.allclose(task.outputs(task.parameters, batch.inputs), expected, atol=1e-6)


def test_frozen_parameters_are_not_part_of_an_update():
    model = tiny_bn()
    model[0].weight.requires_grad_(False)
    task = sp.Task(model, sp.cross_entropy, TINY)
    update = sp.Gradient()(task, tiny_batch().inputs, tiny_batch().labels)
    assert "0.weight" not in update.tensors
    assert "0.bias" in update.tensors


def test_classes_are_counted_by_running_the_model():
    assert tiny_task().classes == 3
    assert tiny_task("train").classes == 3


def test_a_model_that_does_not_accept_the_domain_is_named():
    task = sp.Task(tiny_bn(), sp.cross_entropy, Image((3, 4, 4)), name="mine")
    with pytest.raises(InvalidValue, match=r"mine does not accept inputs of shape \(3, 4, 4\)"):
        _ = task.classes


def test_a_loss_that_reduces_is_refused():
    task = sp.Task(tiny_bn(), nn.functional.cross_entropy, TINY)
    batch = tiny_batch()
    with pytest.raises(InvalidValue, match="reduction='none'"):
        task.losses(task.parameters, batch.inputs, batch.labels)


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(InvalidValue, match=r"expected a torch\.nn\.Module, got function"):
        sp.Task(tiny_bn, sp.cross_entropy, TINY)


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(InvalidValue, match="no trainable parameter"):
        sp.Task(tiny_bn().requires_grad_(False), sp.cross_entropy, TINY)


@pytest.mark.parametrize("labels", [(0, 3), (-1, 0)])
def test_labels_outside_the_classes_are_refused(labels):
    with pytest.raises(InvalidValue, match=r"expected labels in 0\.\.2"):
        tiny_task().check(tiny_batch(labels))


def test_double_precision_travels_through():
    task = tiny_task().to(dtype=torch.float64)
    batch = tiny_batch().to(dtype=torch.float64)
    update = sp.Gradient()(task, batch.inputs, batch.labels)
    assert {t.dtype for t in update} == {torch.float64}


def test_a_model_put_in_its_place_is_copied_too():
    from dataclasses import replace

    other = tiny_bn()
    task = replace(tiny_task(), model=other)
    nn.init.zeros_(other[0].weight)
    assert task.parameters["0.weight"].abs().sum() > 0


@pytest.mark.parametrize("row", [[0.5, 0.6, 0.0], [-0.5, 1.5, 0.0], [torch.nan, 0.0, 1.0]])
def test_labels_that_are_no_probabilities_are_refused(row):
    soft = sp.Batch(tiny_batch((0,)).inputs, torch.tensor([row]))
    with pytest.raises(InvalidValue, match="sum to 1"):
        tiny_task().check(soft)


class Scaled(nn.Module):
    """A layer whose settings stand in an attribute and in a buffer that is not saved."""

    def __init__(self, factor: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor = nn.Linear(16, 3), factor
        self.register_buffer("offset", torch.tensor(offset), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)) * self.factor + self.offset


def weighted(factor: float | torch.Tensor):
    return lambda outputs, labels: factor * sp.cross_entropy(outputs, labels)


def frozen(model: nn.Module) -> nn.Module:
    next(model.parameters()).requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((Scaled(), sp.cross_entropy), (Scaled(2.0), sp.cross_entropy)),
        ((Scaled(), sp.cross_entropy), (Scaled(offset=1.0), sp.cross_entropy)),
        ((Scaled(), sp.cross_entropy), (frozen(Scaled()), sp.cross_entropy)),
        ((Scaled(), weighted(1.0)), (Scaled(), weighted(2.0))),
        ((Scaled(), weighted(torch.ones(1))), (Scaled(), weighted(torch.zeros(1)))),
        (
            (Scaled(), partial(nn.functional.cross_entropy, reduction="none")),
            (
                Scaled(),
                partial(nn.functional.cross_entropy, reduction="none", label_smoothing=0.1),
            ),
        ),
    ],
    ids=["attribute", "buffer", "frozen", "closure", "tensor in a closure", "partial"],
)
def test_whatever_changes_an_update_changes_the_digest(one, other):
    first, second = (sp.Task(model, loss, TINY) for model, loss in (one, other))
    assert first.digest != second.digest
    again = sp.Task(copy.deepcopy(one[0]), one[1], TINY)
    assert first.digest == again.digest


def test_both_modes_are_copied_once():
    task = tiny_task()
    assert task.in_mode("train").network is task.in_mode("train").network
    assert task.in_mode("train").in_mode("eval").network is task.network
    assert task.to(dtype=torch.float64).network is not task.network
