"""What is read of a network is read once, and let go with it."""

import gc
import weakref

import pytest
from torch import nn

import seepage as sp
from seepage.core.errors import NotApplicable
from seepage.domains import Vector
from seepage.probing.heads import classifier_head
from seepage.probing.layer_stack import read_stack


class Counting(nn.Module):
    """A network that counts how often it runs."""

    def __init__(self, *layers):
        super().__init__()
        self.inner, self.runs = nn.Sequential(*layers), []

    def forward(self, x):
        self.runs.append(1)
        return self.inner(x)

    def __deepcopy__(self, memo):
        copied = Counting(*self.inner)
        copied.runs = self.runs
        return copied


def make(*layers):
    network = Counting(*layers)
    return sp.Task(network, sp.cross_entropy, Vector((6,)), name="counting"), network.runs


@pytest.mark.parametrize("read", [classifier_head, read_stack])
def test_a_network_is_probed_once_for_all_who_ask(read):
    task, runs = make(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    first, before = read(task), len(runs)
    assert before > 0
    assert read(task) is first
    assert len(runs) == before


def test_why_a_network_cannot_be_read_is_told_again():
    task, runs = make(nn.Linear(6, 3), nn.Softmax(-1))
    said = []
    for _ in range(2):
        with pytest.raises(NotApplicable) as caught:
            classifier_head(task)
        said.append(str(caught.value))
        before = len(runs)
    assert said[0] == said[1]
    assert len(runs) == before


def test_another_task_is_read_anew_and_a_task_is_let_go():
    (one, _), (other, _) = make(nn.Linear(6, 3)), make(nn.Linear(6, 4))
    assert len(classifier_head(one).offset) != len(classifier_head(other).offset)
    held = weakref.ref(one)
    del one
    gc.collect()
    assert held() is None
