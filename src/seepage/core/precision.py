"""How a card rounds the factors of matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

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
