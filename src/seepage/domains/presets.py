"""Domains of well-known data sets, with the channel statistics the papers normalise by."""

from seepage.domains.box import Image

CIFAR10 = Image((3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
CIFAR100 = Image((3, 32, 32), mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762))
MNIST = Image((1, 28, 28), mean=(0.1307,), std=(0.3081,))
IMAGENET = Image((3, 224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
