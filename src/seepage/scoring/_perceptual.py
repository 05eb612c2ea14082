"""Similarity of images as an eye sees it: of structure, and to a network that sees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from seepage.core import Paired
from seepage.core.errors import MissingExtra, NotApplicable, UnreadableFile

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
        self.require(paired)
        x, y = (images.cpu().double() - paired.low for images in (paired.truth, paired.guess))
        mean_x, mean_y = _windowed(x), _windowed(y)
        variances = _windowed(x * x) - mean_x**2 + _windowed(y * y) - mean_y**2
        covariance = _windowed(x * y) - mean_x * mean_y
        c1, c2 = (_K1 * paired.peak) ** 2, (_K2 * paired.peak) ** 2
        luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
        structure = (2 * covariance + c2) / (variances + c2)
        return (luminance * structure).mean((1, 2, 3))

    def require(self, paired: Paired) -> None:
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
    for axis in (-2, -1):
        inside = images.shape[axis] - _SIDE + 1
        # A convolution in double precision copies all windows of a large image.
        means = bell[0] * images.narrow(axis, 0, inside)
        for offset, weight in enumerate(bell[1:].tolist(), start=1):
            means.add_(images.narrow(axis, offset, inside), alpha=weight)
        images = means
    return images


FILE = "lpips_alex_v0.1.safetensors"
CONVOLUTIONS = ("features.0", "features.3", "features.6", "features.8", "features.10")
_NEEDED = frozenset(
    [f"{layer}.{part}" for layer in CONVOLUTIONS for part in ("weight", "bias")]
    + [f"lin{i}.weight" for i in range(len(CONVOLUTIONS))]
)


def _find_weights() -> Path | None:
    """The weights file, or None.

    Looked for in this order: the file the environment variable SEEPAGE_LPIPS names (and then
    nowhere else), the folder `weights` of SEEPAGE_DATA, `../shared/data/weights`.
    """
    named = os.environ.get("SEEPAGE_LPIPS")
    if named:
        places = [Path(named)]
    else:
        data = os.environ.get("SEEPAGE_DATA")
        folders = [Path(data)] if data else []
        places = [folder / "weights" / FILE for folder in [*folders, Path("../shared/data")]]
    return next((place.resolve() for place in places if place.is_file()), None)


def _require_weights() -> Path:
    """The weights file, or `MissingExtra` with what to do."""
    found = _find_weights()
    if found is None:
        named = os.environ.get("SEEPAGE_LPIPS")
        came = f"SEEPAGE_LPIPS names {named!r}, which is no file" if named else "it was not found"
        raise MissingExtra(
            f"lpips needs the file {FILE}, but {came}; build it with scripts/lpips_weights.py of "
            "the source tree and set SEEPAGE_LPIPS to its path"
        )
    return found


@lru_cache(maxsize=4)
def load_weights(path: Path, device: torch.device, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """The tensors by name: `features.{0,3,6,8,10}.{weight,bias}` and `lin{0..4}.weight`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UnreadableFile(
            f"expected LPIPS weights in {str(path)!r}, got a file that safetensors cannot read "
            f"({error}); build it again with scripts/lpips_weights.py"
        ) from error
    missing = sorted(_NEEDED - tensors.keys())
    if missing:
        raise UnreadableFile(
            f"expected {len(_NEEDED)} tensors of LPIPS in {str(path)!r}, got none named "
            f"{', '.join(missing)}; build it again with scripts/lpips_weights.py"
        )
    return MappingProxyType({name: tensors[name].to(device, dtype) for name in _NEEDED})


# Stride and padding of each convolution; the second and third see pooled features.
_GEOMETRY = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))
_POOLED_BEFORE = (1, 2)
_SMALLEST = 31
_CHUNK = 32

# The constants of the published metric: ImageNet statistics for images in [-1, 1].
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)


@dataclass(frozen=True)
class LPIPS:
    """Perceptual distance by AlexNet features (version 0.1): 0 for images that look the same.

    With features of each layer scaled to unit length over channels at every position, and the
    published non-negative weights w,

        sum_layers mean_positions sum_channels w_c (f_c(truth) - f_c(guess))^2

    Images in [low, low + peak] are mapped to [-1, 1]; grey ones are repeated to three channels.
    Runs in float32 on the device of the inputs. A guess so large that float32 overflows gives NaN.

    Raises:
        NotApplicable: For anything but grey or colour images of at least 31 x 31 pixels.
        MissingExtra: If the weights are not here.

    Example:
        >>> LPIPS().higher_leaks_more
        False

    Deviations: none from version 0.1 of the published code. Tables made with the VGG variant, or
        on normalised images (GradAttack), are not comparable with these values.
    References: Zhang et al., 2018 (zhang2018unreasonable)
    """

    name: ClassVar[str] = "lpips"
    higher_leaks_more: ClassVar[bool] = False

    @torch.no_grad()
    def __call__(self, paired: Paired) -> Tensor:
        """Score each person, `(B,)`."""
        _check_images(paired)
        weights = load_weights(_require_weights(), paired.truth.device, torch.float32)
        images = zip(
            torch.split(paired.truth, _CHUNK), torch.split(paired.guess, _CHUNK), strict=True
        )
        chunks = [
            _distance(weights, *(_standardise(one, paired.low, paired.peak) for one in pair))
            for pair in images
        ]
        return torch.cat(chunks).cpu().double()

    def require(self, paired: Paired) -> None:
        """Raise `NotApplicable` or `MissingExtra` unless LPIPS can score these inputs here."""
        _check_images(paired)
        _require_weights()


def _check_images(paired: Paired) -> None:
    """Raise `NotApplicable` unless these are images that survive the network's pools."""
    shape = tuple(paired.truth.shape[1:])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise NotApplicable(
            f"lpips needs grey or colour images (C, H, W), got inputs of shape {shape}; use rmse"
        )
    if min(shape[1:]) < _SMALLEST:
        raise NotApplicable(
            f"lpips needs images of at least {_SMALLEST} x {_SMALLEST} pixels, because smaller "
            f"ones do not survive AlexNet's pools, got {shape[1]} x {shape[2]}; use ssim"
        )


def _standardise(images: Tensor, low: float, peak: float) -> Tensor:
    """Map images to what the network reads, `(B, 3, H, W)`."""
    centred = (images.float().expand(-1, 3, -1, -1) - low) * (2 / peak) - 1
    shift, scale = (centred.new_tensor(c).reshape(3, 1, 1) for c in (_SHIFT, _SCALE))
    return (centred - shift) / scale


def _distance(weights: Mapping[str, Tensor], first: Tensor, second: Tensor) -> Tensor:
    layers = zip(_features(weights, first), _features(weights, second), strict=True)
    distances = [
        conv2d((a - b).square(), weights[f"lin{i}.weight"]).mean((1, 2, 3))
        for i, (a, b) in enumerate(layers)
    ]
    return torch.stack(distances).sum(0)


def _features(weights: Mapping[str, Tensor], images: Tensor) -> list[Tensor]:
    """Features after each ReLU of AlexNet, of unit length over channels."""
    features, taps = images, []
    for i, (layer, (stride, padding)) in enumerate(zip(CONVOLUTIONS, _GEOMETRY, strict=True)):
        if i in _POOLED_BEFORE:
            features = max_pool2d(features, kernel_size=3, stride=2)
        kernel, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        features = conv2d(features, kernel, bias, stride=stride, padding=padding).relu()
        taps.append(features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10))
    return taps
