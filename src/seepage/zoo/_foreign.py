"""Networks from elsewhere: the user's own as `package.module:factory`, transformers and timm."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seepage.core import Domain, Rng, Task, cross_entropy
from seepage.core._construct import construct
from seepage.core._device import upcast
from seepage.core._loss import Loss, adapt_loss
from seepage.core._plugins import import_factory
from seepage.core.errors import (
    InvalidValue,
    MissingExtra,
    SeepageError,
    UnknownName,
    error_path,
    first_error_line,
    import_extra,
    install_hint,
    summarise_error,
)
from seepage.domains._box import IMAGENET
from seepage.probing._hooks import evaluating
from seepage.zoo._build_task import add_argument, require_int, seed_torch
from seepage.zoo._weights import load_weights

# What `from_factory` reads itself.
OPTIONS = ("domain", "classes", "loss", "weights", "seed")


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


def from_factory(
    path: str,
    *,
    domain: Domain,
    classes: int | None = None,
    loss: Loss = cross_entropy,
    weights: str | Path | None = None,
    seed: int = 0,
    arguments: Mapping[str, object] | None = None,
) -> Task:
    """Make a task from the user's own function or class that builds a network.

    Args:
        path: `package.module:factory`, importable.
        domain: The space of the inputs.
        classes: Required number of outputs; None accepts any.
        loss: One value per example, unreduced.
        weights: A file of trained weights, read by `load_weights`.
        seed: Of the weights that the module or the factory draws.
        arguments: What the factory is called with, by name. Of the options above, it gets those
            that it has an argument for.

    Example:
        >>> from seepage.domains import MNIST
        >>> from_factory("torch.nn:PReLU", domain=MNIST, seed=3).name
        'torch.nn:PReLU(seed=3)'
        >>> from_factory("torch.nn:PReLU", domain=MNIST, arguments={"init": 0.5}).name
        'torch.nn:PReLU(init=0.5)'
    """
    with seed_torch(seed):
        factory = import_factory(path, kind="network")
    if isinstance(factory, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to be a function or class that builds a network, got "
            f"{type(factory).__name__}"
        )
    with seed_torch(seed):
        model, given = _call_factory(path, factory, arguments or {})
    if not isinstance(model, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to return a torch.nn.Module, got {type(model).__name__}"
        )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        _run_lazy_layers(path, model, domain, seed)
    name = path
    for argument, value in {**given, **({"seed": seed} if seed else {})}.items():
        name = add_argument(name, argument, value)
    task = Task(model, loss, domain, name=name)
    if weights is not None:
        task = load_weights(task, weights)
    if classes is None:
        return task
    needed = require_int("classes", classes)
    # A few people need not have all classes, but as many numbers as the network predicts.
    if task.classes < needed or (task.target_shape is not None and task.classes != needed):
        raise InvalidValue(
            f"expected {path!r} to have {needed} outputs, got {task.classes}; labels that are "
            "whole numbers are classes, and others are numbers to predict"
        )
    return task


def _call_factory(
    path: str, factory: Callable[..., object], arguments: Mapping[str, object]
) -> tuple[object, dict[str, object]]:
    """Call the user's factory; return also which arguments it took."""
    declared: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # some builtins have none
        declared = inspect.signature(factory).parameters
    named = [n for n, p in declared.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in declared.values())
    given = {k: v for k, v in arguments.items() if k not in OPTIONS or k in named}
    for name in given:
        if name not in named and not takes_any:
            with error_path(name):
                raise UnknownName("option", name, {*named, *OPTIONS}, where=f"of {path}")
    try:
        return (construct(path, factory, given) if given else factory()), given
    except SeepageError:
        raise
    except Exception as error:
        called = f"with {given!r}" if given else "without arguments"
        needed = [name for name in named if declared[name].default is inspect.Parameter.empty]
        hint = f"; give it arguments as {path}:{needed[0]}=..." if needed and not given else ""
        raise InvalidValue(
            f"expected {path!r} to build a network when called {called}, but it raised "
            f"{summarise_error(error)}{hint}"
        ) from error


def _run_lazy_layers(path: str, model: nn.Module, domain: Domain, seed: int) -> None:
    """Run a network once, which tells its lazy layers their sizes."""
    inputs = domain.normalise(domain.sample(2, rng=Rng(0)))
    try:
        # As in evaluation, which leaves running statistics as they are.
        with seed_torch(seed), evaluating(model):
            model(inputs)
    except Exception as error:
        raise InvalidValue(
            f"expected {path!r} to accept inputs of shape {tuple(domain.shape)}, which sets the "
            f"sizes of its lazy layers, but it raised {summarise_error(error)}"
        ) from error


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


class WithInputs(Logits):
    """Wraps a network so that it returns its inputs beside its outputs, for losses of both.

    Example:
        >>> WithInputs(torch.nn.Linear(2, 3))(torch.ones(1, 2)).shape
        torch.Size([1, 5])
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `(B, K + D)`."""
        outputs = super().forward(inputs).flatten(1)
        # Token numbers need more digits than bfloat16 has.
        wide = outputs if inputs.is_floating_point() else upcast(outputs)
        return torch.cat([wide, inputs.to(wide).flatten(1)], dim=1)


@dataclass(frozen=True)
class LossOfInputs:
    """A loss of outputs and inputs, given both in one tensor."""

    loss: Callable[..., Tensor]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]

    def __call__(self, joined: Tensor, nothing: Tensor) -> Tensor:
        """Take the tensor apart and call the loss."""
        del nothing
        sizes = [math.prod(self.outputs), math.prod(self.inputs)]
        outputs, inputs = torch.split(joined, sizes, dim=1)
        return self.loss(
            outputs.reshape(len(joined), *self.outputs), inputs.reshape(len(joined), *self.inputs)
        )


def compare_with_inputs(task: Task) -> Task:
    """Return the task with its loss on outputs and inputs, as networks read them: no labels.

    Example:
        >>> from torch import nn
        >>> from seepage.domains import Signal
        >>> coder = nn.Sequential(nn.Flatten(), nn.Linear(6, 6))
        >>> task = compare_with_inputs(Task(coder, nn.MSELoss(), Signal((1, 6))))
        >>> task.losses(task.parameters, torch.ones(2, 1, 6), torch.zeros(2, 0)).shape
        torch.Size([2])
    """
    outputs = task.output_shape
    if math.prod(outputs) != math.prod(task.domain.shape):
        raise InvalidValue(
            f"the data have no labels, so that {task.name} must return what it reads, shape "
            f"{tuple(task.domain.shape)}, but it returns {outputs}; give it as many outputs"
        )
    loss = LossOfInputs(adapt_loss(task.loss), outputs, outputs)
    return replace(task, model=WithInputs(task.model), loss=loss, target_shape=(0,))
