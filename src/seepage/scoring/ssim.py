"""Structural similarity of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from seepage.core import Paired
from seepage.core.errors import NotApplicable

_SIDE = 11
_SIGMA = 1.5
_K1, _K2 = 0.01, 0.03


@dataclass(frozen=True)
class SSIM:
    """Structural similarity: 1 for equal images, about 0 for unrelated ones.

    With means, (biased) variances and covariance under an 11 x 11 Gaussian window of deviation
    1.5, of values counted from the lowest of the range, and c1 = (0.01 peak)^2,
    c2 = (0.03 peak)^2,

        (2 mu_x mu_y + c1) (2 cov_xy + c2) / ((mu_x^2 + mu_y^2 + c1) (var_x + var_y + c2))

    averaged over all windows that lie inside the image, then over channels.

    Raises:
        NotApplicable: For anything but images of at least 11 x 11 pixels.

    Example:
        >>> image = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
        >>> paired = Paired(image, 1 - image, torch.tensor([0]), None, (0,))
        >>> round(SSIM()(paired).item(), 3)
        -0.826

    Deviations: colour images are scored channel by channel; the paper speaks of grey images.
    References: Wang et al., 2004 (wang2004image)
    """

    name: ClassVar[str] = "ssim"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        check_ssim(paired)
        x, y = (images.cpu().double() - paired.low for images in (paired.truth, paired.guess))
        mean_x, mean_y = _windowed(x), _windowed(y)
        variances = _windowed(x * x) - mean_x**2 + _windowed(y * y) - mean_y**2
        covariance = _windowed(x * y) - mean_x * mean_y
        c1, c2 = (_K1 * paired.peak) ** 2, (_K2 * paired.peak) ** 2
        luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
        structure = (2 * covariance + c2) / (variances + c2)
        return (luminance * structure).mean((1, 2, 3))


def check_ssim(paired: Paired) -> None:
    """Raise `NotApplicable` unless these are images that hold one window."""
    shape = tuple(paired.truth.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < _SIDE:
        raise NotApplicable(
            f"ssim needs images (C, H, W) of at least {_SIDE} x {_SIDE} pixels, got {shape}; "
            "use psnr or rmse"
        )


def _windowed(images: Tensor) -> Tensor:
    """Gaussian-weighted local means, one axis after the other, inside the image only."""
    offsets = torch.arange(_SIDE, dtype=images.dtype) - _SIDE // 2
    bell = torch.exp(-0.5 * (offsets / _SIGMA) ** 2)
    bell = bell / bell.sum()
    batch, channels, height, width = images.shape
    planes = images.reshape(batch * channels, 1, height, width)
    planes = conv2d(conv2d(planes, bell.reshape(1, 1, -1, 1)), bell.reshape(1, 1, 1, -1))
    return planes.reshape(batch, channels, *planes.shape[-2:])
