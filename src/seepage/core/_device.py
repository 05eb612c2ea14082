"""Which kernels torch uses: differentiable twice, as attacks need, at which precision."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class _Setting(Generic[T]):
    """A setting of the whole process, which several threads may want at once.

    The last one that asked decides, and when nobody wants anything it is what it was.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._wanted: dict[object, T] = {}

    @contextmanager
    def hold(self, value: T | None) -> Iterator[None]:
        """Hold this value inside the block; None leaves it."""
        if value is None:
            yield
            return
        key = object()
        with self._lock:
            if not self._wanted:
                self._before = self._read()
            self._wanted[key] = value
            self._write(value)
        try:
            yield
        finally:
            with self._lock:
                del self._wanted[key]
                self._write(next(reversed(self._wanted.values()), self._before))


def _read_attention() -> tuple[bool, bool, bool]:
    cuda = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
    )


def _write_attention(kernels: tuple[bool, bool, bool]) -> None:
    # torch's own context manager takes as long as a small layer.
    flash, efficient, fused = kernels
    torch.backends.cuda.enable_flash_sdp(flash)
    torch.backends.cuda.enable_mem_efficient_sdp(efficient)
    torch.backends.cuda.enable_cudnn_sdp(fused)


def _read_rounding() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def _write_rounding(allowed: tuple[bool, bool]) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed


def _write_tuning(wanted: bool) -> None:
    torch.backends.cudnn.benchmark = wanted


_ATTENTION = _Setting(_read_attention, _write_attention)
_CUDNN = _Setting(torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled)
_ROUNDING = _Setting(_read_rounding, _write_rounding)
# torch's own context manager sets the precision on Intel GPUs too, and warns if there is none.
_ONEDNN = _Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)
_TUNING = _Setting(lambda: torch.backends.cudnn.benchmark, _write_tuning)


@contextmanager
def differentiable_twice(*, recurrent: bool) -> Iterator[None]:
    """Use plain kernels for attention, and for recurrent layers on a GPU.

    The fused kernels for attention have no second derivative, and cuDNN's recurrent layers have no
    first one outside training mode. Results are the same up to rounding.
    """
    with _ATTENTION.hold((False, False, False)), _CUDNN.hold(False if recurrent else None):
        yield


def is_recurrent(network: nn.Module) -> bool:
    """Whether a network has recurrent layers.

    Example:
        >>> is_recurrent(nn.Sequential(nn.GRU(2, 2))), is_recurrent(nn.Linear(2, 2))
        (True, False)
    """
    return any(isinstance(module, nn.RNNBase) for module in network.modules())


Precision = Literal["float32", "tf32"]


@contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """Round to TF32 (11 bits) or not at all inside the block.

    torch rounds convolutions to TF32 by default. Nothing changes on a CPU.
    """
    with _ROUNDING.hold((wanted == "tf32",) * 2):
        yield


def convert(values: Tensor, like: Tensor | torch.dtype) -> Tensor:
    """Return numbers in a precision, or in that of a tensor and on its device.

    Whole numbers, which are classes and tokens, only move.

    Example:
        >>> convert(torch.tensor([3]), torch.float64), convert(torch.tensor([0.5]), torch.float64)
        (tensor([3]), tensor([0.5000], dtype=torch.float64))
    """
    if values.is_floating_point():
        return values.to(like)
    return values.to(like.device) if isinstance(like, Tensor) else values


def upcast(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 if its precision is lower, else the tensor itself.

    No number changes. Attacks need it because torch has no linear algebra below float32.

    Example:
        >>> upcast(torch.ones(2, dtype=torch.bfloat16)).dtype, upcast(torch.ones(2).long()).dtype
        (torch.float32, torch.int64)
    """
    narrow = tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
    return tensor.float() if narrow else tensor


@contextmanager
def plain_convolutions() -> Iterator[None]:
    """Use torch's own convolutions on ARM processors inside the block, not those of oneDNN.

    Results are the same up to rounding. There oneDNN rearranges images and weights at every call,
    which takes longer than a small convolution itself. Other processors keep oneDNN.
    """
    on_arm = platform.machine().lower() in ("aarch64", "arm64")
    with _ONEDNN.hold(False if on_arm else None):
        yield


@contextmanager
def tuning(wanted: bool) -> Iterator[None]:
    """Let cuDNN time its kernels inside the block and choose the fastest.

    This pays if the same shapes occur thousands of times. It does nothing on a CPU, nor if
    algorithms must be deterministic.
    """
    with _TUNING.hold(wanted and not torch.are_deterministic_algorithms_enabled()):
        yield
