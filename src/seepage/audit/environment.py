"""Where an audit ran: enough to run it again."""

from __future__ import annotations

import platform
from importlib.metadata import version

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
        "packages": {name: version(name) for name in PACKAGES},
    }
