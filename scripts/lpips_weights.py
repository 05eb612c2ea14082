"""Build the file that the LPIPS metric reads, from the two that are published.

    pip download --no-deps lpips==0.1.4
    curl -O https://download.pytorch.org/models/alexnet-owt-7be5be79.pth
    python scripts/lpips_weights.py lpips-0.1.4-py3-none-any.whl alexnet-owt-7be5be79.pth

The first holds the weights of the metric (BSD-2), the second is torchvision's AlexNet (BSD-3).
Both are read as tensors only; no code in them runs.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from seepage.scoring._perceptual import CONVOLUTIONS, FILE


def heads(wheel: Path) -> dict[str, Tensor]:
    """The weights of version 0.1, by the names the metric uses."""
    with zipfile.ZipFile(wheel) as archive:
        stored = archive.read("lpips/weights/v0.1/alex.pth")
    tensors = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    return {f"lin{i}.weight": tensors[f"lin{i}.model.1.weight"] for i in range(len(CONVOLUTIONS))}


def convolutions(checkpoint: Path) -> dict[str, Tensor]:
    """The convolutions of AlexNet, without its classifier."""
    tensors: Mapping[str, Tensor] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    names = [f"{layer}.{part}" for layer in CONVOLUTIONS for part in ("weight", "bias")]
    return {name: tensors[name] for name in names}


def main(arguments: list[str] | None = None) -> None:
    """Read both files and write one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the wheel of lpips 0.1.4")
    parser.add_argument("alexnet", type=Path, help="torchvision's checkpoint of AlexNet")
    parser.add_argument("--out", type=Path, default=Path(FILE), help="the file to write")
    options = parser.parse_args(arguments)
    tensors = {**convolutions(options.alexnet), **heads(options.wheel)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, options.out)


if __name__ == "__main__":
    main()
