"""Networks of other packages, built by name and from nothing but their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import ModuleType

from torch import Tensor, nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import InvalidValue, MissingExtra
from seepage.domains.box import IMAGENET
from seepage.zoo.building import seeded, whole, with_argument


class Logits(nn.Module):
    """A network whose logits are somewhere in what another one returns.

    Args:
        model: The other one; taken as it is, not copied.
        shape: What it reads of one input, where that is not what it is given.

    Example:
        >>> import torch
        >>> class Pair(nn.Linear):
        ...     def forward(self, inputs):
        ...         return {"logits": super().forward(inputs), "loss": None}
        >>> Logits(Pair(3, 2), shape=(3,))(torch.ones(4, 1, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, model: nn.Module, *, shape: tuple[int, ...] | None = None) -> None:
        """Keep both."""
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits `(B, K)`."""
        given = inputs if self.shape is None else inputs.reshape(len(inputs), *self.shape)
        return logits_of(self.model(given))


def logits_of(returned: object) -> Tensor:
    """The logits in what a network returned: alone, first of many, or named so.

    Raises:
        InvalidValue: There is no such thing.
    """
    found = returned
    if isinstance(returned, Mapping):
        found = returned.get("logits")
    elif isinstance(returned, tuple | list) and returned:
        found = returned[0]
    if not isinstance(found, Tensor):
        found = getattr(returned, "logits", found)
    if not isinstance(found, Tensor):
        raise InvalidValue(
            "expected a network that returns logits (B, K), alone, first of a tuple or under the "
            f"name logits, got {type(returned).__name__}"
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

    Nothing is downloaded; weights are loaded from a file by `load_weights`.

    Args:
        kind: Of model, as its configuration calls it: "vit", "convnext", "swin", ...
        config: What differs from the configuration's defaults; image size, channels and labels
            follow from the domain and the classes.
        classes: Number of outputs.
        domain: The space of the inputs.
        seed: Of the weights.
    """
    transformers = _transformers()
    sizes = {"image_size": domain.shape[-1], "num_channels": domain.shape[0]}
    try:
        settings = transformers.AutoConfig.for_model(
            kind, **{**sizes, "num_labels": whole("classes", classes), **(config or {})}
        )
        # Written out: the fused kernels for attention cannot be differentiated twice.
        settings._attn_implementation = "eager"
        build = partial(transformers.AutoModelForImageClassification.from_config, settings)
        return _task(f"hf:{kind}", build, domain, seed, config)
    except (ValueError, TypeError, KeyError, ImportError) as error:
        raise InvalidValue(
            f"expected an image classifier that transformers knows and a configuration it takes, "
            f"got 'hf:{kind}': {_first_line(error)}"
        ) from error


def pytorch_image_models(
    name: str, *, classes: int = 10, domain: Domain = IMAGENET, seed: int = 0
) -> Task:
    """An image classifier of timm, with weights drawn at random.

    Args:
        name: As `timm.list_models()` has it.
        classes: Number of outputs.
        domain: The space of the inputs.
        seed: Of the weights.
    """
    try:
        timm = import_module("timm")
    except Exception as error:  # torchvision, which it imports, fails in many ways
        raise MissingExtra(
            f"'timm:{name}' needs timm and a torchvision that loads beside this torch: "
            f"pip install 'seepage[timm]' ({_first_line(error)})"
        ) from error
    options = {"num_classes": whole("classes", classes), "in_chans": domain.shape[0]}
    build = partial(timm.create_model, name, pretrained=False, **options)
    try:
        return _task(f"timm:{name}", build, domain, seed, None)
    except (RuntimeError, TypeError) as error:
        raise InvalidValue(
            f"expected a network that timm knows, got 'timm:{name}': {_first_line(error)}"
        ) from error


def _transformers() -> ModuleType:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise MissingExtra(
            "networks named 'hf:...' need transformers: pip install 'seepage[huggingface]'"
        ) from error


def _task(
    name: str,
    build: Callable[[], nn.Module],
    domain: Domain,
    seed: int,
    config: Mapping[str, object] | None,
) -> Task:
    with seeded(seed):
        model = build()
    for argument, value in {"config": dict(config or {}), "seed": seed}.items():
        name = with_argument(name, argument, value) if value else name
    return Task(Logits(model), cross_entropy, domain, name=name)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
