"""Files of weights, of which nothing but tensors is read."""

from __future__ import annotations

import copy
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from seepage.core import Task
from seepage.core._task import name_unwrapped
from seepage.core._whole_file import open_plain, require_size, spell_path
from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile, summarise_error
from seepage.zoo._build_task import add_argument

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
    path = spell_path(path)
    weights = {name_unwrapped(name): value for name, value in _read(path).items()}
    if all(name.startswith(PARALLEL_PREFIX) for name in weights):
        weights = {name.removeprefix(PARALLEL_PREFIX): value for name, value in weights.items()}
    model = copy.deepcopy(task.model)
    own = model.state_dict()
    required = (name for name in own if not name.endswith(COUNTER))
    if misfits := list_misfits(weights, own, required=required):
        raise InvalidValue(
            f"the weights in {str(path)!r} do not fit {task.name}: {misfits}; build the model they "
            "were trained for"
        )
    model.load_state_dict({name: weights.get(name, value) for name, value in own.items()})
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


def list_misfits(
    came: Mapping[str, Tensor], known: Mapping[str, Tensor], *, required: Iterable[str]
) -> str:
    """Say which tensors do not fit a network, three of them by name; empty if all do."""
    problems = [
        f"{n} is {tuple(t.shape)}, not {tuple(known[n].shape)}"
        for n, t in came.items()
        if n in known and known[n].shape != t.shape
    ]
    problems += [f"{n} is missing" for n in required if n not in came]
    problems += [f"{n} is not in the model" for n in came if n not in known and COUNTER not in n]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    # Names come from a file, and may hold line breaks.
    return " ".join("; ".join(problems[:3]).splitlines()) + more
