"""What an input is: images, signals, tables, tokens; bounds, normalisation, projection."""

from seepage.core import Domain
from seepage.domains._box import (
    CIFAR10,
    CIFAR100,
    IMAGENET,
    MNIST,
    Image,
    Signal,
    Vector,
    domain_of,
    domain_of_shape,
)
from seepage.domains._tabular import Categorical, Continuous, Tabular
from seepage.domains._tokens import Tokens

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IMAGENET",
    "MNIST",
    "Categorical",
    "Continuous",
    "Domain",
    "Image",
    "Signal",
    "Tabular",
    "Tokens",
    "Vector",
    "domain_of",
    "domain_of_shape",
]
