"""The user's own networks, named `package.module:factory`, and files of weights."""

from __future__ import annotations

import copy
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile, summarise_error
from seepage.core.loss import Loss
from seepage.core.plugins import import_factory
from seepage.core.task import name_unwrapped
from seepage.core.whole_file import open_plain, require_size
from seepage.zoo.building import add_argument, require_int, seed_torch

PYTORCH_SUFFIXES = (".pt", ".pth", ".th")
PARALLEL_PREFIX = "module."
# Steps counted during training; no network output depends on it and some files leave it out.
COUNTER = "num_batches_tracked"


def load_weights(task: Task, path: str | Path) -> Task:
    """Return the task with weights from a file, whose names and shapes must be the model's.

    Args:
        task: The task whose model the weights are for.
        path: A `.safetensors` file, or a state dict saved by PyTorch as `.pt`, `.pth` or `.th`,
            alone or under "state_dict". The prefixes of data-parallel training ("module.") and
            torch.compile ("_orig_mod.") are dropped.

    Raises:
        DataNotFound: There is no such file.
        UnreadableFile: It is truncated, of another format, or holds more than tensors.
        InvalidValue: Its names or shapes are not those of the model.
    """
    path = Path(path)
    weights = {name_unwrapped(name): value for name, value in _read(path).items()}
    if all(name.startswith(PARALLEL_PREFIX) for name in weights):
        weights = {name.removeprefix(PARALLEL_PREFIX): value for name, value in weights.items()}
    model = copy.deepcopy(task.model)
    own = model.state_dict()
    _require_fit(task.name, path, own, weights)
    model.load_state_dict({**own, **weights})
    return replace(task, model=model, name=add_argument(task.name, "weights", path.name))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise DataNotFound(f"no weights at {str(path)!r}; check the path")
    _require_stored(path)
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise UnreadableFile(
                f"{str(path)!r} is truncated or not a safetensors file ({error}); fetch it again"
            ) from error
    if path.suffix in PYTORCH_SUFFIXES:
        return _read_pytorch(path)
    raise UnreadableFile(
        f"expected weights as .safetensors, .pt, .pth or .th, got {str(path)!r}; "
        "save the state dict with safetensors"
    )


def _require_stored(path: Path) -> None:
    """Refuse pipes and devices, and an archive that unpacks to far more than it holds."""
    with open_plain(path, follow=True) as file, suppress(zipfile.BadZipFile):
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(info.file_size for info in archive.infolist())
        except (ValueError, NotImplementedError, struct.error) as error:
            raise UnreadableFile(
                f"{str(path)!r} is a damaged archive ({summarise_error(error)}); fetch it again"
            ) from error
        # PyTorch itself does not compress.
        if unpacked > path.stat().st_size:
            require_size(path, unpacked)


def _read_pytorch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the errors below say what matters
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnreadableFile(
            f"{str(path)!r} holds pickled Python objects, which could run code and are refused; "
            "convert the state dict to safetensors"
        ) from error
    # The reader can fail with any exception on damaged bytes, KeyError included.
    except Exception as error:
        raise UnreadableFile(
            f"{str(path)!r} is truncated or not a PyTorch file; fetch it again or convert it to "
            "safetensors"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UnreadableFile(
            f"expected a state dict (names to tensors) in {str(path)!r}, got "
            f"{type(content).__name__}; save model.state_dict()"
        )
    return dict(content)


def _require_fit(
    model: str, path: Path, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> None:
    problems = [
        f"{n} is {tuple(weights[n].shape)}, not {tuple(own[n].shape)}"
        for n in weights
        if n in own and weights[n].shape != own[n].shape
    ]
    missing = (n for n in own if n not in weights and not n.endswith(COUNTER))
    problems += [f"{n} is missing" for n in missing]
    problems += [f"{n} is not in the model" for n in weights if n not in own]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        # Names come from the file, and may hold line breaks.
        told = " ".join("; ".join(problems[:3]).splitlines())
        raise InvalidValue(
            f"the weights in {str(path)!r} do not fit {model}: {told}{more}; "
            "build the model they were trained for"
        )


def from_factory(
    path: str,
    *,
    domain: Domain,
    classes: int | None = None,
    loss: Loss = cross_entropy,
    weights: str | Path | None = None,
    seed: int = 0,
) -> Task:
    """Make a task from the user's own function or class that builds a network.

    Args:
        path: `package.module:factory`, importable; the factory is called without arguments.
        domain: The space of the inputs.
        classes: Required number of outputs; None accepts any.
        loss: One value per example, unreduced.
        weights: A file of trained weights, read by `load_weights`.
        seed: Of the weights that the module or the factory draws.

    Example:
        >>> from seepage.domains import MNIST
        >>> from_factory("torch.nn:PReLU", domain=MNIST, seed=3).name
        'torch.nn:PReLU(seed=3)'
    """
    with seed_torch(seed):
        factory = import_factory(path, kind="network")
    if isinstance(factory, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to be a function or class that builds a network, got "
            f"{type(factory).__name__}"
        )
    try:
        with seed_torch(seed):
            model = factory()
    except Exception as error:
        raise InvalidValue(
            f"expected {path!r} to build a network when called without arguments, but it raised "
            f"{summarise_error(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to return a torch.nn.Module, got {type(model).__name__}"
        )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        _run_lazy_layers(path, model, domain, seed)
    task = Task(model, loss, domain, name=add_argument(path, "seed", seed) if seed else path)
    if weights is not None:
        task = load_weights(task, weights)
    if classes is None:
        return task
    needed = require_int("classes", classes)
    # A few people need not have all classes, but as many numbers as the network predicts.
    if task.classes < needed or (task.target_shape is not None and task.classes != needed):
        raise InvalidValue(
            f"expected {path!r} to have {needed} outputs, got {task.classes}; labels that are "
            "whole numbers are classes, and others are numbers to predict"
        )
    return task


def _run_lazy_layers(path: str, model: nn.Module, domain: Domain, seed: int) -> None:
    """Run a network once, which tells its lazy layers their sizes."""
    inputs = domain.normalise(domain.sample(2, rng=Rng(0)))
    try:
        with seed_torch(seed), torch.no_grad():
            # As in evaluation, which leaves running statistics as they are.
            model.eval()(inputs)
        model.train()
    except Exception as error:
        raise InvalidValue(
            f"expected {path!r} to accept inputs of shape {tuple(domain.shape)}, which sets the "
            f"sizes of its lazy layers, but it raised {summarise_error(error)}"
        ) from error
