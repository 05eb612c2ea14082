"""Is a capture what it is said to be? A gradient, a difference and weights look different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.capture.capture import Capture, Form
from seepage.capture.setting import bare, trained
from seepage.core import Task
from seepage.core.errors import SeepageError

# Weights after training point where those before did; gradients and differences do not.
_ALIKE = 0.5
# Skewness of the gradient at the logits, beyond which its sign is told: one person among ten
# classes gives -0.84, four people of four classes -0.13.
_SKEWED = 0.3
# The entries of a mean gradient at the logits are p - 1[y], whose absolute values sum to 2 at most.
_LARGEST = 2.0
_SLACK = 1.2
# Of the sum over absolute values: rounding, weight decay and clipping leave less than this.
_BALANCED = 0.05


@dataclass(frozen=True)
class Consistency:
    """What a capture's numbers say of what it is.

    Args:
        declared: What it is said to be.
        found: What the numbers look like; None where they do not tell.
        words: One sentence.
    """

    declared: Form
    found: Form | None
    words: str

    @property
    def contradicts(self) -> bool:
        """Whether the numbers speak against what is said."""
        return self.found is not None and self.found != self.declared


def consistency(capture: Capture, task: Task) -> Consistency:
    """Tell gradient, difference and weights apart by the numbers, without the private data.

    Weights after training are nearly those before: their cosine is close to one, that of a
    gradient or a difference close to zero. The gradient of cross-entropy at the logits,

        dL/db_k = mean_i (p_ik - 1[y_i = k]),

    sums to zero, its absolute values to two at most, and it has few large negative entries (the
    classes that are present) beside many small positive ones. A difference, -lr times that, has
    the opposite skewness, and divided by -lr it must be of that size. All this is of one step; of
    several it still holds nearly, in units of lr times their number.

    Args:
        capture: What was captured.
        task: The network it is of; it must end in a linear layer with a bias.

    References:
        Zhao et al., 2020, Sec. 3.1 (zhao2020idlg) on the signs of the last layer's gradient
    """
    declared = capture.form
    alike = _cosine(capture.update, capture.parameters)
    if alike is not None and alike > _ALIKE:
        return _told(declared, "weights_after", f"its cosine with the parameters is {alike:.2f}")
    bias = _head_bias(capture, task)
    reading = None if bias is None else _read(bias)
    if declared == "weights_after" and alike is not None:
        why = f"its cosine with the parameters before is {alike:.2f}, where weights have 1.00"
        return _told(declared, reading or "difference", why)
    if bias is None or reading is None:
        return Consistency(
            declared, None, f"said to be a {declared}; the numbers neither confirm nor contradict"
        )
    if reading != declared:
        moves = "up" if reading == "difference" else "down"
        return _told(declared, reading, f"the bias of the classes that are present goes {moves}")
    return _sized(capture, bias)


def _told(declared: Form, found: Form, why: str) -> Consistency:
    if declared == found:
        return Consistency(declared, found, f"said to be a {declared}, and it looks like one")
    return Consistency(
        declared,
        found,
        f"said to be a {_named(declared)}, but it looks like a {_named(found)}: {why}; capture it "
        f"again with form={found!r}",
    )


def _named(form: Form) -> str:
    return "set of weights after training" if form == "weights_after" else form


def _sized(capture: Capture, bias: Tensor) -> Consistency:
    """Whether the size fits: too large a gradient was summed, or its learning rate is wrong."""
    form, known = capture.form, capture.setting
    per_step = 1.0
    if form == "difference":
        per_step = (known.lr or 1.0) * (1 if known.epochs else known.steps or 1)
    elif known.reduction == "sum":
        per_step = float(known.batch_size or 1)
    size = float(bias.abs().sum()) / per_step
    many_steps = known.epochs is not None or known.momentum > 0
    summed_unknown = form == "gradient" and known.reduction == "sum" and known.batch_size is None
    if size <= _LARGEST * _SLACK or many_steps or summed_unknown:
        return _told(form, form, "")
    other: Form = "gradient" if form == "difference" else "difference"
    fix = (
        "check lr and steps, or whether it is a gradient after all"
        if form == "difference"
        else "was it summed over the batch? then say reduction='sum'"
    )
    return Consistency(
        form,
        other if form == "difference" else None,
        f"said to be a {form}, but {size / _LARGEST:.3g} times larger at the logits than one can "
        f"be; {fix}",
    )


def _cosine(update: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> float | None:
    own, before = bare(update), bare(parameters)
    names = [n for n in own if n in before and own[n].shape == before[n].shape]
    if not names:
        return None
    here, there = (torch.cat([t[n].double().flatten() for n in names]) for t in (own, before))
    lengths = here.norm() * there.norm()
    return float(here @ there / lengths) if float(lengths) > 0 else None


def _head_bias(capture: Capture, task: Task) -> Tensor | None:
    """What the update has at the bias of the logits, if there is one and the loss is of its kind.

    The last vector with one entry per class is taken for it.
    """
    try:
        seen = trained(capture.update, task)
        classes = task.classes
    except SeepageError:
        return None
    found = [t.double() for t in seen.values() if t.shape == (classes,)]
    if not found or classes < 3:
        return None
    bias = found[-1]
    total = float(bias.abs().sum())
    return bias if total > 0 and abs(float(bias.sum())) <= _BALANCED * total else None


def _read(bias: Tensor) -> Form | None:
    skewness = float(bias.pow(3).sum() / bias.square().sum().pow(1.5))
    if abs(skewness) < _SKEWED:
        return None
    return "gradient" if skewness < 0 else "difference"
