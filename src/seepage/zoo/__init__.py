"""The papers' architectures as factories that return a `Task`."""

from seepage.zoo.catalogue import MODELS, build, catalogue
from seepage.zoo.cnn import CNN_VARIANTS, cnn
from seepage.zoo.convnet import convnet
from seepage.zoo.factory import from_factory
from seepage.zoo.foreign import hugging_face, pytorch_image_models
from seepage.zoo.gpt import gpt
from seepage.zoo.lenet import lenet
from seepage.zoo.mlp import ACTIVATIONS, fc, mlp
from seepage.zoo.mnist_convnet import mnist_convnet
from seepage.zoo.resnet_cifar import resnet20, resnet32, resnet56
from seepage.zoo.resnet_imagenet import resnet18, resnet50, resnet152
from seepage.zoo.single_conv import single_conv
from seepage.zoo.two_layer import square_loss, two_layer
from seepage.zoo.weights import load_weights
from seepage.zoo.wide_head import WideHead, wide_head_resnet18

__all__ = [
    "ACTIVATIONS",
    "CNN_VARIANTS",
    "MODELS",
    "WideHead",
    "build",
    "catalogue",
    "cnn",
    "convnet",
    "fc",
    "from_factory",
    "gpt",
    "hugging_face",
    "lenet",
    "load_weights",
    "mlp",
    "mnist_convnet",
    "pytorch_image_models",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet50",
    "resnet56",
    "resnet152",
    "single_conv",
    "square_loss",
    "two_layer",
    "wide_head_resnet18",
]
