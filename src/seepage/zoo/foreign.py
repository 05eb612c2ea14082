"""Networks of transformers and timm, built by name with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from torch import Tensor, nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import (
    InvalidValue,
    MissingExtra,
    first_error_line,
    import_extra,
    install_hint,
)
from seepage.domains.box import IMAGENET
from seepage.zoo.building import add_argument, require_int, seed_torch


class Logits(nn.Module):
    """Wraps a network that returns its logits among other things, and returns the logits.

    Args:
        model: The network; not copied.
        shape: Inputs are reshaped to this, per example; None leaves them as they are.

    Example:
        >>> import torch
        >>> class Pair(nn.Linear):
        ...     def forward(self, inputs):
        ...         return {"logits": super().forward(inputs), "loss": None}
        >>> Logits(Pair(3, 2), shape=(3,))(torch.ones(4, 1, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, model: nn.Module, *, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, K)`."""
        if self.shape is not None:
            inputs = inputs.reshape(len(inputs), *self.shape)
        return find_logits(self.model(inputs))


def find_logits(returned: object) -> Tensor:
    """Find the logits in what a network returned: alone, first in a tuple, or named `logits`."""
    found = returned
    if isinstance(returned, Mapping):
        found = returned.get("logits")
    elif isinstance(returned, tuple | list) and returned:
        found = returned[0]
    if not isinstance(found, Tensor):
        found = getattr(returned, "logits", found)
    if not isinstance(found, Tensor):
        raise InvalidValue(
            "expected a network that returns logits (B, K), alone, first in a tuple or named "
            f"logits, got {type(returned).__name__}; wrap it in one that returns a tensor"
        )
    return found


def hugging_face(
    kind: str,
    *,
    config: Mapping[str, object] | None = None,
    classes: int = 10,
    domain: Domain = IMAGENET,
    seed: int = 0,
) -> Task:
    """An image classifier of transformers, with weights drawn from its configuration.

    Nothing is downloaded; `load_weights` loads weights from a file.

    Args:
        kind: The model type of its configuration: "vit", "convnext", "swin", ...
        config: Changes to the default configuration. Image size, channels and number of labels
            follow from the domain and the classes.
        classes: Number of outputs.
        domain: The space of the inputs.
        seed: Of the weights.
    """
    reason = "networks named 'hf:...' need transformers"
    transformers = import_extra("transformers", "huggingface", reason=reason)
    sizes = {"image_size": domain.shape[-1], "num_channels": domain.shape[0]}
    try:
        settings = transformers.AutoConfig.for_model(
            kind, **{**sizes, "num_labels": require_int("classes", classes), **(config or {})}
        )
        # The fused kernels for attention cannot be differentiated twice.
        settings._attn_implementation = "eager"
        build = partial(transformers.AutoModelForImageClassification.from_config, settings)
        return _draw_task(f"hf:{kind}", build, domain, seed, config)
    except (ValueError, TypeError, KeyError, ImportError) as error:
        raise InvalidValue(
            f"expected an image classifier that transformers knows and a configuration it takes, "
            f"got 'hf:{kind}': {first_error_line(error)}"
        ) from error


def pytorch_image_models(
    name: str, *, classes: int = 10, domain: Domain = IMAGENET, seed: int = 0
) -> Task:
    """An image classifier of timm, with weights drawn at random.

    Args:
        name: One of `timm.list_models()`.
        classes: Number of outputs.
        domain: The space of the inputs.
        seed: Of the weights.
    """
    try:
        timm = import_module("timm")
    except Exception as error:  # torchvision, which it imports, fails in many ways
        raise MissingExtra(
            f"'timm:{name}' needs timm and a torchvision that loads beside this torch: "
            f"{install_hint('timm')} ({first_error_line(error)})"
        ) from error
    options = {"num_classes": require_int("classes", classes), "in_chans": domain.shape[0]}
    build = partial(timm.create_model, name, pretrained=False, **options)
    try:
        return _draw_task(f"timm:{name}", build, domain, seed)
    except (RuntimeError, TypeError) as error:
        raise InvalidValue(
            f"expected a network that timm knows, got 'timm:{name}': {first_error_line(error)}"
        ) from error


def _draw_task(
    name: str,
    build: Callable[[], nn.Module],
    domain: Domain,
    seed: int,
    config: Mapping[str, object] | None = None,
) -> Task:
    with seed_torch(seed):
        model = build()
    if config:
        name = add_argument(name, "config", dict(config))
    if seed:
        name = add_argument(name, "seed", seed)
    return Task(Logits(model), cross_entropy, domain, name=name)
