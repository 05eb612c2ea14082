"""What an input is: images and 1-D signals, with bounds, normalisation, sampling, projection."""

from seepage.domains.box import Image, Signal
from seepage.domains.presets import CIFAR10, CIFAR100, IMAGENET, MNIST

__all__ = ["CIFAR10", "CIFAR100", "IMAGENET", "MNIST", "Image", "Signal"]
