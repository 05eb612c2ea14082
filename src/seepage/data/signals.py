"""Heart beats and brain activity: 1-D signals `(1, L)` brought to [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.data.dataset import DataRequest, Dataset, dealt, located
from seepage.data.files import read_arrays
from seepage.domains.box import Signal

ECG_FILE, FMRI_FILE = "ecg.npz", "fmri.npz"
# The ranges found in the files, rounded outward: fixed, so that a value always means the same.
ECG5000_RANGE, MITBIH_RANGE = (-5.8, 4.1), (-2.75, 1.45)
ECG5000_CLASSES = ("normal", "R-on-T PVC", "PVC", "supraventricular", "unclassified")
MITBIH_CLASSES = {"N": "normal", "A": "atrial premature", "V": "PVC"}
# White matter, ventricles and whole brain: nuisance signals in other units than the regions.
NUISANCE = ("WM", "Vent", "Brain")


def ecg(request: DataRequest) -> Dataset:
    """Load 500 heart beats of 140 samples, dealt over five classes.

    References: Goldberger et al., 2000 (goldberger2000physiobank)
    """
    _refuse_pixels("ecg", request)
    beats, numbers = read_arrays(located(ECG_FILE), "ecg5000_beats", "ecg5000_labels")
    order = dealt(numbers)
    low, high = ECG5000_RANGE
    return _dataset(
        "ecg",
        _scaled(beats[order], low, high),
        numbers[order].astype(np.int64) - 1,
        ECG5000_CLASSES,
        f"ECG5000 (UCR archive, from PhysioNet BIDMC-CHF), {low} to {high} scaled to 0 to 1.",
    )


def ecg_mitbih(request: DataRequest) -> Dataset:
    """Load the 2271 beats of record 100, 200 samples around each R peak, dealt over classes.

    References: Moody and Mark, 2001 (moody2001impact)
    """
    _refuse_pixels("ecg:mitbih", request)
    beats, symbols = read_arrays(located(ECG_FILE), "mitbih100_beats_mV", "mitbih100_symbols")
    numbers = {symbol: number for number, symbol in enumerate(MITBIH_CLASSES)}
    labels = np.array([numbers.get(symbol, -1) for symbol in symbols.tolist()])
    order = dealt(labels)
    low, high = MITBIH_RANGE
    return _dataset(
        "ecg:mitbih",
        _scaled(beats[order], low, high),
        labels[order],
        tuple(MITBIH_CLASSES.values()),
        f"MIT-BIH Arrhythmia Database (ODC-By 1.0), {low} to {high} mV scaled to 0 to 1.",
    )


def fmri(request: DataRequest) -> Dataset:
    """Load the activity of 28 brain regions over 250 scans; one input is one region's course.

    What a scanner records of a person is how each region behaves over time, so the time course
    is the private thing, and the region its class. The units are arbitrary, so each course is
    stretched to [0, 1] by itself.
    """
    _refuse_pixels("fmri", request)
    series, regions = read_arrays(located(FMRI_FILE), "roi_timeseries", "roi_names")
    kept = ~np.isin(regions, NUISANCE)
    courses = series[:, kept].T.astype(np.float64)
    low, high = courses.min(1, keepdims=True), courses.max(1, keepdims=True)
    return _dataset(
        "fmri",
        _scaled(courses, low, high),
        np.arange(len(courses)),
        tuple(regions[kept].tolist()),
        "Resting-state series distributed with nitime (BSD-3), each course scaled to 0 to 1.",
    )


def _scaled(values: NDArray[Any], low: Any, high: Any) -> Tensor:  # noqa: ANN401
    unit = (values.astype(np.float64) - low) / (high - low)
    return torch.from_numpy(unit).float()[:, None]


def _dataset(
    name: str, inputs: Tensor, labels: NDArray[Any], class_names: tuple[str, ...], source: str
) -> Dataset:
    domain = Signal(tuple(inputs.shape[1:]))
    return Dataset(name, inputs, torch.from_numpy(labels).long(), domain, class_names, source)


def _refuse_pixels(name: str, request: DataRequest) -> None:
    if request.pixels is not None:
        raise InvalidValue(f"expected pixels=None for the signals of {name}, got {request.pixels}")
