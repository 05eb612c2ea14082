"""The loss of a training loop, as it is called there, taken apart into one value per example."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType, SimpleNamespace

import torch
from torch import Tensor, nn

from seepage.core._batch import are_numbers
from seepage.core._device import convert
from seepage.core._draws import private_draws
from seepage.core._loss import (
    ELEMENTWISE,
    Loss,
    TrainingLoss,
    Unreduced,
    require_alike,
    require_loss,
    take_any_target,
)
from seepage.core._task import Reduction, require_class_numbers
from seepage.core.errors import InvalidValue, explain_errors, summarise_error
from seepage.step._step_inputs import find_mask
from seepage.zoo._foreign import LossOfInputs

AnyLoss = Callable[..., Tensor]
_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_FUNCTIONS_OF_CLASSES = (nn.functional.cross_entropy, nn.functional.nll_loss)

# Relative error up to which two losses, or their slopes, are the same.
_CLOSE, _PROPORTIONAL = 1e-4, 1e-3
# Most rows of logits that show whether a loss reads class numbers: one each, if there are few.
_MOST_ROWS = 128
_NO_LABELS = (
    "the batch holds no labels, so that the loss is called on outputs and inputs, as for an "
    "autoencoder; otherwise give (inputs, labels), or a mapping with labels; it raised"
)
# What torch and transformers label a place with that no loss reads.
NO_LABEL = -100


@dataclass(frozen=True)
class _PackedTargets:
    """Several tensors per example as one: labels with weights or a mask.

    Args:
        shapes: Of one example's part of each tensor.
        whole: Which of them hold whole numbers.

    Example:
        >>> packed = _PackedTargets.of([torch.tensor([2, 1]), torch.tensor([0.5, 1.0])])
        >>> packed.pack([torch.tensor([2, 1]), torch.tensor([0.5, 1.0])])
        tensor([[2.0000, 0.5000],
                [1.0000, 1.0000]])
    """

    shapes: tuple[tuple[int, ...], ...]
    whole: tuple[bool, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> _PackedTargets:
        """How to pack tensors like these."""
        return cls(
            tuple(tuple(t.shape[1:]) for t in tensors),
            tuple(not t.is_floating_point() for t in tensors),
        )

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join them to floats `(B, D)`."""
        floats = [t if t.is_floating_point() else t.to(torch.get_default_dtype()) for t in tensors]
        return torch.cat([t.reshape(len(t), -1) for t in floats], dim=1)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Undo `pack`."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = zip(torch.split(packed, sizes, dim=1), self.shapes, self.whole, strict=True)
        return [
            (part.round().long() if whole else part).reshape(len(packed), *shape)
            for part, shape, whole in parts
        ]


# Losses as training loops call them, made functions of outputs and targets by `partial`.


def _of_parts(loss: AnyLoss, packed: _PackedTargets, outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that takes more than outputs and labels."""
    return loss(outputs, *packed.unpack(targets))


def _of_text(loss: AnyLoss, padding: int | None, outputs: Tensor, tokens: Tensor) -> Tensor:
    """A loss whose labels are the tokens themselves, such as that of the next token."""
    tokens = tokens.round().long() if tokens.is_floating_point() else tokens
    return loss(outputs, _label_text(tokens, padding))


def _label_text(tokens: Tensor, padding: int | None) -> Tensor:
    """Label every place with its token, but for the padding, if there is any."""
    if padding is None:
        return tokens
    return torch.where(find_mask(tokens, padding).bool(), tokens, NO_LABEL)


def _one_by_one(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> Tensor:
    """A reduced loss, computed for each example alone."""
    pairs = ((outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels)))
    return torch.stack([loss(one, label).mean() for one, label in pairs])


def _of_named_logits(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss that reads `.logits` of what a network returns."""
    return loss(SimpleNamespace(logits=outputs), labels)


def _of_places(loss: AnyLoss, outputs: Tensor, shares: Tensor) -> Tensor:
    """A loss of a class for each place, such as a pixel, given a share of each class instead."""
    return loss(outputs, shares.argmax(1))


def _of_log_probabilities(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss of logarithms of probabilities, as a function of any logits.

    A network that ends in a log-softmax loses nothing by a second one.
    """
    return loss(outputs.log_softmax(1), labels)


def _take_logits(loss: AnyLoss, outputs: Tensor) -> AnyLoss:
    """The loss as a function of logits if the network returns logarithms of probabilities."""
    several = outputs.ndim == 2 and outputs.shape[1] > 1
    if not several or float(outputs.logsumexp(1).abs().max()) > _PROPORTIONAL:
        return take_any_target(loss)
    if isinstance(loss, nn.NLLLoss):
        ignored = loss.ignore_index
        return nn.CrossEntropyLoss(loss.weight, ignore_index=ignored, reduction=loss.reduction)
    return partial(_of_log_probabilities, loss)


@dataclass(frozen=True, eq=False)
class _StepLoss:
    """What a step minimises, as a task needs it.

    Args:
        loss: One value per example.
        reduction: How the training loop reduces it.
        labels: Targets as that loss reads them, `(B, ...)`.
        target_shape: Shape of one target, if targets are numbers.
        joined: Whether the loss reads the inputs, which `WithInputs` gives it.
        own: The training loop's loss, of outputs and labels.
    """

    loss: Loss
    reduction: Reduction
    labels: Tensor
    target_shape: tuple[int, ...] | None = None
    joined: bool = False
    own: AnyLoss | None = None


@dataclass(frozen=True, eq=False)
class _Restarted:
    """A loss that keeps state, as it is now at every call."""

    loss: AnyLoss

    def __call__(self, outputs: object, *targets: Tensor) -> Tensor:
        """Call a copy."""
        own = copy.deepcopy(self.loss)
        for module in own.modules() if isinstance(own, nn.Module) else ():
            for name, kept in module.named_buffers(recurse=False):
                if isinstance(outputs, Tensor) and kept.is_floating_point():
                    # Inside torch.func a buffer cannot take what depends on inputs, unless it does.
                    module._buffers[name] = kept + outputs.detach().flatten()[0].mul(0).to(kept)
        return own(outputs, *targets)


def hold_state(
    loss: AnyLoss, outputs: Tensor, targets: Sequence[Tensor]
) -> tuple[AnyLoss, str | None]:
    """Return a loss that changes neither itself nor the user's, and say if it keeps state.

    Raises:
        InvalidValue: Two calls give different values, and it cannot be copied or draws at random.
    """
    own = _copy_loss(loss)
    try:
        first, second = (_call_alone(own, outputs, targets) for _ in range(2))
        drawn = _call_alone(_copy_loss(loss), outputs, targets, again=True)
    except Exception:  # noqa: BLE001 - whoever reads the loss says what is wrong with it
        return own, None
    if not torch.allclose(first, second, rtol=_CLOSE, equal_nan=True):
        told = f"its value changes by {_tell_change(first, second)} when it is called again"
        held = _Restarted(loss)
        if not torch.allclose(first, _call_alone(held, outputs, targets), rtol=_CLOSE):
            raise InvalidValue(
                f"expected a loss that can be called again, but {told} on the same outputs and "
                "labels, and its state cannot be copied; hold the state in a torch.nn.Module, or "
                "give the loss without it"
            )
        return held, f"the loss keeps state, and is audited as it is now; {told}"
    if not torch.allclose(first, drawn, rtol=_CLOSE, equal_nan=True):
        raise InvalidValue(
            f"expected a loss that draws nothing at random, got one whose value changes by "
            f"{_tell_change(first, drawn)} with another draw, which no attack can simulate; give "
            "it without"
        )
    return own, None


def _copy_loss(loss: AnyLoss) -> AnyLoss:
    """Copy a loss, but not what it is a method of; the loss itself if it cannot be copied."""
    try:
        return loss if isinstance(loss, MethodType) else copy.deepcopy(loss)
    except Exception:  # noqa: BLE001 - of somebody else's class
        return loss


def _call_alone(
    loss: AnyLoss, outputs: Tensor, targets: Sequence[Tensor], *, again: bool = False
) -> Tensor:
    given = [convert(t, outputs) for t in targets]
    with private_draws(again=again):
        try:
            value = loss(outputs, *given)
        except AttributeError:
            value = loss(SimpleNamespace(logits=outputs), *given)
    return value.detach().double().mean()


def _tell_change(before: Tensor, after: Tensor) -> str:
    return tell_share(float((after - before).abs() / before.abs().clamp(min=1e-12)))


def tell_share(share: float) -> str:
    r"""Write a share of a norm, or of a value.

    Example:
        >>> tell_share(0.0024), tell_share(0.5), tell_share(11)
        ('0.24 %', '50 %', '1100 %')
    """
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def read_loss(
    loss: AnyLoss, outputs: Tensor, inputs: Tensor, targets: Sequence[Tensor]
) -> _StepLoss:
    """Find out how a training loop calls its loss, on the outputs of the step itself.

    Targets are whatever stands behind the inputs in a batch: labels, weights, masks. Without any,
    the loss is called on outputs and inputs.
    """
    if not callable(loss) or isinstance(loss, type):
        raise InvalidValue(f"expected a loss to call on outputs and labels, got {loss!r}")
    if not targets:
        require_alike(loss, outputs, inputs)
        return _read_loss_of_inputs(loss, outputs, inputs)
    whole = not inputs.is_floating_point() and not are_numbers(targets[0])
    if whole and outputs.ndim == 3 and targets[0].ndim == 1 and inputs.shape[1] == 1:
        # A text of one token has a label for its one place.
        targets = (targets[0][:, None], *targets[1:])
    if len(targets) == 1 and targets[0].ndim > 1 and whole:
        return _read_text_loss(loss, outputs, inputs, targets[0])
    if len(targets) == 1:
        (labels,) = targets
        labels = convert(labels, outputs)
        require_alike(loss, outputs, labels)
        if outputs[0].numel() == 1 and _takes_numbers(loss, outputs, labels):
            labels = labels.to(outputs)
        if not are_numbers(labels) and labels.ndim > 1:
            return _read_place_loss(loss, outputs, labels)
        unreduced, reduction = _unreduce_loss(_take_logits(loss, outputs), outputs, labels)
        shape = tuple(labels.shape[1:]) if are_numbers(labels) else None
        shape = None if _reads_classes(loss, outputs) else shape
        return _StepLoss(unreduced, reduction, labels, shape, own=loss)
    return _read_packed_loss(loss, outputs, targets)


def _takes_numbers(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> bool:
    """Whether the loss is the same if whole labels are numbers, as where it makes them so itself.

    A single logit has no classes, so that its labels, 0 and 1, are numbers.
    """
    try:
        return bool(loss(outputs, labels.to(outputs)).equal(loss(outputs, labels)))
    except Exception:  # noqa: BLE001 - the labels then stay what they are
        return False


def _read_packed_loss(loss: AnyLoss, outputs: Tensor, targets: Sequence[Tensor]) -> _StepLoss:
    """Read a loss whose targets can be simulated for an adversary who knows them."""
    packing = _PackedTargets.of(targets)
    packed, own = packing.pack(targets).to(outputs), partial(_of_parts, loss, packing)
    return _StepLoss(*_unreduce_loss(own, outputs, packed), packed, own=own)


def _read_loss_of_inputs(loss: AnyLoss, outputs: Tensor, inputs: Tensor) -> _StepLoss:
    with explain_errors(InvalidValue, _NO_LABELS):
        loss(outputs, inputs)
    both = LossOfInputs(loss, tuple(outputs.shape[1:]), tuple(inputs.shape[1:]))
    joined = torch.cat([outputs.flatten(1), inputs.to(outputs).flatten(1)], dim=1)
    nothing = outputs.new_zeros(len(outputs), 0)
    unreduced, reduction = _unreduce_loss(both, joined, nothing)
    return _StepLoss(unreduced, reduction, nothing, (0,), joined=True, own=loss)


def _read_text_loss(loss: AnyLoss, outputs: Tensor, inputs: Tensor, labels: Tensor) -> _StepLoss:
    """Read a loss with a class for each place of a text.

    Labels that are the tokens themselves, or none at padding, tell nothing that the text does not.
    Others, such as the words behind masks, are numbers that the adversary does not know.
    """
    if labels.shape == inputs.shape:
        unlabelled = sorted(set(inputs[labels == NO_LABEL].tolist()))
        padding = unlabelled[0] if len(unlabelled) == 1 else None
        if torch.equal(labels, _label_text(inputs, padding)):
            return _read_loss_of_inputs(partial(_of_text, loss, padding), outputs, inputs)
    read = _read_packed_loss(loss, outputs, [labels])
    return replace(read, target_shape=tuple(read.labels.shape[1:]))


def _read_place_loss(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> _StepLoss:
    """Read a loss with a class for each place of an image or signal, as segmentation has.

    A cross-entropy takes shares of the classes too, `(B, K, ...)`, which can be searched for. Other
    losses of classes can be simulated for an adversary who knows them.
    """
    fits = outputs.ndim == labels.ndim + 1 and outputs.shape[2:] == labels.shape[1:]
    if fits and int(labels.min()) >= 0 and int(labels.max()) < outputs.shape[1]:
        shares = nn.functional.one_hot(labels, outputs.shape[1]).movedim(-1, 1).to(outputs)
        with suppress(InvalidValue, RuntimeError):
            value, same = (_call_loss(loss, outputs, t)[1] for t in (labels, shares))
            if torch.allclose(value, same, rtol=_CLOSE):
                unreduced = _unreduce_loss(loss, outputs, shares)
                return _StepLoss(
                    *unreduced, shares, tuple(shares.shape[1:]), own=partial(_of_places, loss)
                )
    return _read_packed_loss(loss, outputs, [labels])


def _reads_classes(loss: AnyLoss, outputs: Tensor) -> bool:
    """Whether a loss takes one class number for each row of logits."""
    if isinstance(loss, ELEMENTWISE) or outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    # As many rows as no other size, so that labels cannot be spread over the outputs by mistake.
    classes = outputs.shape[1]
    count = classes + 1 if classes < _MOST_ROWS else _MOST_ROWS - 1
    labels = torch.linspace(0, classes - 1, count, dtype=torch.float64).long()
    try:
        value = _call_loss(loss, outputs[:1].repeat(count, 1), labels.to(outputs.device))
    except InvalidValue:
        return False
    return bool(value[1].isfinite().all())


def _unreduce_loss(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> tuple[Loss, Reduction]:
    """Return the loss with its value for each example, and how it was reduced.

    Example:
        >>> outputs, labels = torch.eye(3), torch.tensor([0, 1, 1])
        >>> _unreduce_loss(nn.CrossEntropyLoss(reduction="sum"), outputs, labels)
        (Unreduced(loss=CrossEntropyLoss(), summed=True), 'sum')
    """
    with torch.enable_grad():
        loss, value = _call_loss(loss, outputs.detach().requires_grad_(), labels)
    if not value.requires_grad:
        raise InvalidValue(
            "expected a loss that can be differentiated by what the network returns, got one that "
            "is detached from it"
        )
    value = value.detach()
    if not bool(value.isfinite().all()):
        raise InvalidValue(
            "expected a finite loss of the batch, got NaN or infinity, as where the loss ignores "
            "every label, such as -100"
        )
    if value.shape == labels.shape[:1] and (len(labels) > 1 or value.ndim == 1):
        return loss, "mean"
    if value.ndim > 1 and value.shape[0] == len(labels):
        return TrainingLoss(partial(_one_by_one, loss)), "mean"
    if value.numel() != 1:
        raise InvalidValue(
            f"expected a loss of one number, or one per example ({len(labels)},), got "
            f"{tuple(value.shape)}"
        )
    options = [one for one in _list_unreduced(loss) if _is_per_example(one, outputs, labels)]
    for alone in options:
        losses = alone(outputs, labels)
        if torch.allclose(losses.mean(), value.reshape(()), rtol=_CLOSE, atol=1e-7):
            return TrainingLoss(alone, loss), "mean"
        if torch.allclose(losses.sum(), value.reshape(()), rtol=_CLOSE, atol=1e-7):
            return alone, "sum"
    for alone in options:
        weighted = TrainingLoss(alone, loss, weighted=True)
        _, left_over = weighted.weigh(outputs, labels)
        if bool(left_over <= _PROPORTIONAL):
            return weighted, "mean"
    raise InvalidValue(
        "expected a loss that is a sum over examples, each with a weight, got one that ties "
        "examples together in another way, such as a contrastive loss; leave that part out of the "
        "audit"
    )


def _call_loss(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> tuple[AnyLoss, Tensor]:
    are_classes = labels.shape == (*outputs.shape[:1], *outputs.shape[2:])
    are_classes = are_classes and outputs.ndim > 1 and not are_numbers(labels)
    if are_classes and (isinstance(loss, _OF_CLASSES) or loss in _FUNCTIONS_OF_CLASSES):
        # On a GPU torch stops at a device-side assertion instead of an error that can be caught.
        _require_classes(loss, outputs, labels)
    try:
        try:
            value = loss(outputs, labels)
        except AttributeError:
            loss = partial(_of_named_logits, loss)
            value = loss(outputs, labels)
    except InvalidValue:
        raise
    except Exception as error:
        if are_classes and isinstance(error, IndexError):
            _require_classes(loss, outputs, labels)
        raise InvalidValue(
            f"expected a loss of outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}, "
            f"but it raised {summarise_error(error)}; if the network returns several tensors, the "
            "loss gets the first: to train on all, join them to one and split it in the loss"
        ) from error
    return loss, require_loss(value)


def _require_classes(loss: AnyLoss, outputs: Tensor, labels: Tensor) -> None:
    """Raise `InvalidValue` if a label that the loss does not ignore is no class."""
    ignored = labels == getattr(loss, "ignore_index", -100)
    kept = labels.masked_fill(ignored, 0)
    require_class_numbers(kept, classes=outputs.shape[1], name="the network")


def _is_per_example(loss: Loss, outputs: Tensor, labels: Tensor) -> bool:
    """Whether a loss gives one value per example; one that compares examples may raise instead."""
    try:
        return loss(outputs, labels).shape == labels.shape[:1]
    except Exception:  # noqa: BLE001 - the loss of a user may raise anything
        return False


def _list_unreduced(loss: AnyLoss) -> list[Loss]:
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") in ("mean", "sum"):
        own = copy.deepcopy(loss)
        summed, own.reduction = own.reduction == "sum", "none"  # type: ignore[assignment]
        return [Unreduced(own, summed=summed), partial(_one_by_one, loss)]
    return [partial(_one_by_one, loss)]
