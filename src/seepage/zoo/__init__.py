"""The papers' architectures as factories that return a `Task`."""

from seepage.zoo._convnets import (
    CNN_VARIANTS,
    cnn,
    convnet,
    lenet,
    mnist_convnet,
    single_conv,
    wang_cnn,
)
from seepage.zoo._foreign import from_factory, hugging_face, pytorch_image_models
from seepage.zoo._gpt import gpt
from seepage.zoo._lora import LowRank, add_lora
from seepage.zoo._mlp import ACTIVATIONS, fc, mlp, square_loss, two_layer
from seepage.zoo._models import MODELS, build, catalogue
from seepage.zoo._resnet import resnet18, resnet20, resnet32, resnet50, resnet56, resnet152
from seepage.zoo._weights import load_weights
from seepage.zoo._wide_head import WideHead, wide_head_resnet18

__all__ = [
    "ACTIVATIONS",
    "CNN_VARIANTS",
    "MODELS",
    "LowRank",
    "WideHead",
    "add_lora",
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
    "wang_cnn",
    "wide_head_resnet18",
]
