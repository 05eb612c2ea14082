"""Where an audit ran: enough to run it again."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = ("seepage", "torch", "numpy", "scipy", "pillow", "safetensors")


def environment(device: str) -> dict[str, str | dict[str, str]]:
    """Versions, platform and device, as plain data."""
    card = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": card or platform.machine(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # Seepage itself may run from its source tree.
        return "not installed"
