"""Answers of voters to a survey: numbers beside categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.data.bundled import BUNDLE
from seepage.data.dataset import DataRequest, Dataset
from seepage.data.npz import read_arrays
from seepage.domains.tabular import Categorical, Continuous, Tabular

LEANINGS = (
    "extremely liberal",
    "liberal",
    "slightly liberal",
    "moderate",
    "slightly conservative",
    "conservative",
    "extremely conservative",
)
PARTIES = (
    "strong Democrat",
    "weak Democrat",
    "independent Democrat",
    "independent",
    "independent Republican",
    "weak Republican",
    "strong Republican",
)
SCHOOLS = (
    "1-8 grades",
    "some high school",
    "high school",
    "some college",
    "college degree",
    "master's degree",
    "PhD",
)
# Means and deviations were measured once over everybody; scripts/bundle_tables.py prints them.
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
    if request.pixels is not None:
        raise InvalidValue(f"expected pixels=None for the table of voters, got {request.pixels}")
    stored = ("age", "income", "popul", "TVnews", "PID", "selfLR", "ClinLR", "DoleLR", "educ")
    *columns, vote = read_arrays(BUNDLE / "voters.npz", *stored, "vote")
    age, income, popul, news, party, own, clinton, dole, school = columns
    numbers = (age, income, np.log10(1.0 + popul), news)
    categories = (party, own - 1, clinton - 1, dole - 1, school - 1)
    parts = [
        _unit(values, column) if isinstance(column, Continuous) else _one_hot(values, column)
        for values, column in zip((*numbers, *categories), VOTERS.columns, strict=True)
    ]
    return Dataset(
        name="voters",
        inputs=torch.cat(parts, dim=1),
        labels=torch.from_numpy(vote).long(),
        domain=VOTERS,
        class_names=("Clinton", "Dole"),
        source="American National Election Study of 1996, public domain, by way of statsmodels.",
    )


def _unit(values: NDArray[Any], column: Continuous) -> Tensor:
    unit = (values - column.low) / (column.high - column.low)
    return torch.from_numpy(unit).float()[:, None]


def _one_hot(values: NDArray[Any], column: Categorical) -> Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(values).long(), column.width).float()
