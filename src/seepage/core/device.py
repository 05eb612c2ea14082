"""Which kernels torch uses: differentiable twice, as attacks need, at which precision."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn


@contextmanager
def differentiable_twice(*, recurrent: bool) -> Iterator[None]:
    """Use plain kernels for attention, and for recurrent layers on a GPU.

    The fused kernels for attention have no second derivative, and cuDNN's recurrent layers have no
    first one outside training mode. Results are the same up to rounding.
    """
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    flash = cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    efficient = cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    fused = cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    # torch's own context manager takes as long as a small layer.
    cuda.enable_flash_sdp(False)
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_cudnn_sdp(False)
    try:
        with cudnn.flags(enabled=False) if recurrent else nullcontext():
            yield
    finally:
        cuda.enable_flash_sdp(flash)
        cuda.enable_mem_efficient_sdp(efficient)
        cuda.enable_cudnn_sdp(fused)


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
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = wanted == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


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
    before = torch._C._get_mkldnn_enabled()
    on_arm = platform.machine().lower() in ("aarch64", "arm64")
    # torch's own context manager sets the precision on Intel GPUs too, and warns if there is none.
    torch._C._set_mkldnn_enabled(before and not on_arm)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def tuning(wanted: bool) -> Iterator[None]:
    """Let cuDNN time its kernels inside the block and choose the fastest.

    This pays if the same shapes occur thousands of times. It does nothing on a CPU, nor if
    algorithms must be deterministic.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = wanted and not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        cudnn.benchmark = before
