"""Nothing is as large as the square of the number of classes."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import seepage as sp
from seepage.attacks.feature_recovery._head_equations import read_equations, restore_lengths
from seepage.exposure._vet import _best_agreement
from seepage.probing._heads import two_layer_head
from seepage.step._step_loss import _reads_classes

CLASSES = 4_096
PICTURES = sp.domains.Image((1, 8, 8))


class Largest(TorchDispatchMode):
    """Notes the largest number of entries of any tensor."""

    def __init__(self):
        super().__init__()
        self.entries, self.made_by = 0, None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.numel() > self.entries:
                self.entries, self.made_by = one.numel(), str(function)
        return made


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def test_a_step_of_many_classes_is_audited_in_memory_linear_in_them():
    batch = PICTURES.sample(1, rng=sp.rng(0)), torch.tensor([CLASSES - 1])
    with Largest() as largest:
        result = sp.audit_step(
            small_network(),
            nn.CrossEntropyLoss(),
            batch,
            domain=(0.0, 1.0),
            attacks=["analytic_fc"],
        )
    assert torch.allclose(result.guess, batch[0], atol=1e-3)
    assert largest.entries < CLASSES**2 / 4, largest.made_by


@pytest.mark.slow
def test_a_network_of_many_classes_is_vetted_in_memory_linear_in_them():
    task = sp.Task(small_network(), sp.cross_entropy, PICTURES)
    batch = sp.Batch(PICTURES.sample(16, rng=sp.rng(0)), torch.arange(16))
    with Largest() as largest:
        assert sp.vet(task, batch).trusted
    assert largest.entries < CLASSES**2 / 4, largest.made_by


def test_features_of_many_classes_get_their_length_in_memory_linear_in_them():
    task = sp.zoo.two_layer(neurons=64, classes=CLASSES, domain=PICTURES)
    batch = sp.Batch(PICTURES.sample(3, rng=sp.rng(0)), torch.tensor([0, 7, CLASSES - 1]))
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    head, truth = two_layer_head(seen), PICTURES.normalise(batch.inputs).flatten(1).double()
    halved = truth * torch.tensor([[0.5], [2.0], [3.0]])
    with Largest() as largest:
        found, told = restore_lengths(head, read_equations(head), halved, seen)
    assert told
    assert torch.allclose(found, truth, rtol=1e-3)
    assert largest.entries < CLASSES**2 / 2, largest.made_by


def test_whether_a_loss_reads_classes_does_not_depend_on_how_many_there_are():
    for classes in (2, 3, 10, 126, 127, 128, 129, 5_000):
        outputs, weight = torch.randn(4, classes), torch.zeros(classes)
        weight[-1] = 1
        assert _reads_classes(nn.CrossEntropyLoss(), outputs)
        assert _reads_classes(nn.CrossEntropyLoss(weight), outputs)
        assert not _reads_classes(lambda o, t: (o - t).square().mean(), outputs)


def test_renamed_classes_agree_however_many_classes_have_no_example():
    labels = torch.tensor([0, 0, 5, 5, 90_000])
    assert _best_agreement(torch.tensor([7, 7, 80_000, 80_000, 0]), labels) == 1
    assert _best_agreement(torch.tensor([7, 7, 7, 3, 3]), labels) == pytest.approx(0.6)
