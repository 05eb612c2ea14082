"""Trained weights classify, and files that do not fit are refused in one sentence."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage import zoo
from seepage.core import Task
from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile
from seepage.domains import IMAGENET, Image

DATA = Path(os.environ.get("SEEPAGE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TASK = zoo.mlp(hidden=(3,), domain=Image((1, 2, 2)), classes=2)
OTHER = zoo.mlp(hidden=(3,), domain=Image((1, 2, 2)), classes=2, seed=1)


def real(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} in SEEPAGE_DATA")
    return path


def accuracy(task: Task, images: int) -> float:
    with np.load(real("cifar10_test_1500.npz"), allow_pickle=False) as archive:
        pixels, labels = archive["images"][:images], archive["labels"][:images]
    inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        guessed = task.outputs(task.parameters, inputs).argmax(1)
    return (guessed == torch.from_numpy(labels)).double().mean().item()


@pytest.mark.parametrize(
    ("name", "file", "images"),
    [
        ("resnet20", "cifar10_resnet20-12fca82f.safetensors", 100),
        pytest.param(
            "resnet56", "cifar10_resnet56-4bfd9763.safetensors", 100, marks=pytest.mark.slow
        ),
    ],
)
def test_published_weights_classify_cifar(name, file, images):
    domain = Image((3, 32, 32), mean=IMAGENET.mean, std=IMAGENET.std)
    untrained = zoo.MODELS[name](domain=domain)
    trained = zoo.load_weights(untrained, real(f"weights/{file}"))
    assert trained.name == f"{name}(width=16, weights='{file}')"
    assert accuracy(trained, images) > 0.8
    assert accuracy(untrained, images) < 0.4


def same(first: Task, second: Task) -> bool:
    return all(torch.equal(p, second.parameters[n]) for n, p in first.parameters.items())


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth", "th"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_weights_survive_the_round_trip(tmp_path, suffix, prefix):
    path = tmp_path / f"trained.{suffix}"
    state = {prefix + name: value for name, value in OTHER.model.state_dict().items()}
    if suffix == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    loaded = zoo.load_weights(TASK, str(path))
    assert same(loaded, OTHER)
    assert not same(TASK, OTHER), "the task that was given is as it was"
    assert loaded.domain == TASK.domain


def test_a_checkpoint_with_a_state_dict_inside_is_read(tmp_path):
    torch.save({"epoch": 3, "state_dict": OTHER.model.state_dict()}, tmp_path / "checkpoint.pt")
    assert same(zoo.load_weights(TASK, tmp_path / "checkpoint.pt"), OTHER)


def test_weights_take_the_precision_of_the_task(tmp_path):
    save_file(OTHER.model.state_dict(), tmp_path / "w.safetensors")
    loaded = zoo.load_weights(TASK.to(dtype=torch.float64), tmp_path / "w.safetensors")
    assert loaded.parameters["head.bias"].dtype == torch.float64


def test_running_statistics_are_loaded_and_their_counter_is_optional(tmp_path):
    state = dict(zoo.resnet20(width=1).model.state_dict())
    state = {n: v for n, v in state.items() if not n.endswith("num_batches_tracked")}
    state["bn1.running_mean"] = torch.tensor([0.25])
    save_file(state, tmp_path / "w.safetensors")
    loaded = zoo.load_weights(zoo.resnet20(width=1), tmp_path / "w.safetensors")
    assert loaded.model.bn1.running_mean.item() == 0.25


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(DataNotFound, match=r"no weights at .*nowhere\.safetensors"):
        zoo.load_weights(TASK, tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("content", ["truncated", "empty", "text", "folder"])
def test_a_damaged_file_is_unreadable(tmp_path, suffix, content):
    path = tmp_path / f"damaged.{suffix}"
    if content == "folder":
        path.mkdir()
    elif content == "truncated":
        write = save_file if suffix == "safetensors" else torch.save
        write(OTHER.model.state_dict(), path)
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(b"" if content == "empty" else b"hello, these are not weights")
    said = "got a folder" if content == "folder" else "is truncated or not a"
    with pytest.raises(UnreadableFile, match=said) as caught:
        zoo.load_weights(TASK, path)
    assert "\n" not in str(caught.value)


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("save", [torch.save, lambda o, p: p.write_bytes(pickle.dumps(o))])
def test_pickled_objects_are_refused_and_never_run(tmp_path, save):
    save({"weight": Trap(tmp_path / "mark")}, tmp_path / "trap.pt")
    with pytest.raises(
        UnreadableFile, match=r"run code and are refused; convert .* to safetensors"
    ):
        zoo.load_weights(TASK, tmp_path / "trap.pt")
    assert not (tmp_path / "mark").exists()


def test_a_whole_pickled_network_is_refused(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "network.pt")
    with pytest.raises(UnreadableFile, match="safetensors"):
        zoo.load_weights(TASK, tmp_path / "network.pt")


@pytest.mark.parametrize("content", [[1, 2], {"weight": 3}, torch.zeros(2)], ids=repr)
def test_a_file_without_a_state_dict_is_unreadable(tmp_path, content):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UnreadableFile, match="expected a state dict"):
        zoo.load_weights(TASK, tmp_path / "w.pt")


def test_other_formats_are_unreadable(tmp_path):
    (tmp_path / "w.h5").write_bytes(b"...")
    with pytest.raises(UnreadableFile, match=r"expected weights as \.safetensors, \.pt"):
        zoo.load_weights(TASK, tmp_path / "w.h5")


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    save_file(zoo.lenet().model.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(InvalidValue, match="do not fit mlp") as caught:
        zoo.load_weights(TASK, tmp_path / "w.safetensors")
    message = str(caught.value)
    assert "head.weight is (10, 768), not (2, 3)" in message
    assert message.count(" is ") == 3
    # Two misfits, two missing, six unexpected: three are named.
    assert "and 7 more" in message


def test_a_weight_that_is_missing_or_too_much_is_named(tmp_path):
    state = dict(OTHER.model.state_dict())
    state["extra.bias"] = state.pop("head.bias")
    save_file(state, tmp_path / "w.safetensors")
    wanted = "head.bias is missing; extra.bias is not in the model"
    with pytest.raises(InvalidValue, match=wanted):
        zoo.load_weights(TASK, tmp_path / "w.safetensors")
