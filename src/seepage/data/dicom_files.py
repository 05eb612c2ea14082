"""DICOM images: one plane of stored levels, scaled by the bits that the file declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.core.errors import (
    SeepageError,
    UnreadableFile,
    import_extra,
)
from seepage.core.whole_file import open_plain, require_size

DICOM = (".dcm", ".dicom")
# Bytes that a pixel takes on its way to floats.
_ROOM = 16


def read_dicom(path: Path) -> Tensor:
    """Read a DICOM file as `(1, H, W)` if grey, else `(3, H, W)`, in [0, 1].

    Stored levels are divided by the highest that `BitsStored` allows, so the range is nobody's own.
    MONOCHROME1, where 0 is white, is inverted. Windows and rescaling are not applied.

    Raises:
        MissingExtra: If pydicom is not installed.
        UnreadableFile: If the file is not an image of one frame.
    """
    reason = f"{path} is a DICOM file, which needs pydicom"
    pydicom = import_extra("pydicom", "dicom", reason=reason)
    try:
        with open_plain(path, follow=True) as file:
            image = pydicom.dcmread(file)
            require_size(path, _ROOM * int(image.Rows) * int(image.Columns) * _count_planes(image))
            return _scale_levels(image)
    except SeepageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableFile(
            f"expected a DICOM image of one frame in {path}, but it cannot be read ({reason}); "
            "replace or remove it"
        ) from error


def _count_planes(image: Any) -> int:  # noqa: ANN401 - pydicom's
    frames = int(image.get("NumberOfFrames", 1) or 1)
    if frames != 1:
        raise ValueError(f"it holds {frames} frames")
    return int(image.SamplesPerPixel)


def _scale_levels(image: Any) -> Tensor:  # noqa: ANN401 - pydicom's
    kind, bits = str(image.PhotometricInterpretation), int(image.BitsStored)
    if kind not in ("MONOCHROME1", "MONOCHROME2", "RGB"):
        raise ValueError(f"its colours are {kind}, not grey or RGB")
    levels = np.asarray(image.pixel_array, dtype=np.float32)
    # Signed levels lie around 0.
    lowest = -(2.0 ** (bits - 1)) if int(image.PixelRepresentation) else 0.0
    scaled = torch.from_numpy((levels - lowest) / (2.0**bits - 1)).clamp(0, 1)
    if kind == "RGB":
        return scaled.permute(2, 0, 1).contiguous()
    return (1 - scaled if kind == "MONOCHROME1" else scaled)[None]
