"""The precision numbers are held in, and the one in which a GPU multiplies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "tf32"]


@contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """Round to TF32 (11 bits) or not at all inside the block, and put it back afterwards.

    torch rounds convolutions to TF32 unless told otherwise. Nothing changes on a CPU.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = wanted == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in float32 if it is bfloat16, float16 or narrower, else the tensor itself.

    No number changes. Attacks need it because torch has no linear algebra below float32.

    Example:
        >>> upcast(torch.ones(2, dtype=torch.bfloat16)).dtype, upcast(torch.ones(2).long()).dtype
        (torch.float32, torch.int64)
    """
    narrow = tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
    return tensor.float() if narrow else tensor
