"""Check whether a capture is a gradient, a difference or weights, as it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.capture._capture import Capture, Form, select_trained, strip_prefixes
from seepage.core import Task
from seepage.core.errors import SeepageError

# Cosine with the weights before training: near one for weights after, near zero for the others.
# Between the two nothing is told: many local steps move weights far.
_ALIKE, _UNLIKE = 0.5, 0.1
# Skewness of the gradient at the logits from which on its sign is clear: one example among ten
# classes gives -0.84, four examples of four classes -0.13.
_SKEWED = 0.3
# The entries of a mean gradient at the logits are p - 1[y], whose absolute values sum to 2 at most.
_LARGEST = 2.0
_SLACK = 1.2
# Share of the sum of absolute values: rounding, weight decay and clipping leave less than this.
_BALANCED = 0.05


@dataclass(frozen=True)
class Consistency:
    """The form that a capture declares, the one its numbers show (if they do), and a sentence."""

    declared: Form
    found: Form | None
    words: str

    @property
    def contradicts(self) -> bool:
        """Whether the numbers contradict the stated form."""
        return self.found is not None and self.found != self.declared


def consistency(capture: Capture, task: Task) -> Consistency:
    """Tell gradient, difference and weights apart by the numbers, without the private data.

    Weights after training are nearly those before: their cosine is close to one, that of a
    gradient or a difference close to zero. The gradient of cross-entropy at the logits,

        dL/db_k = mean_i (p_ik - 1[y_i = k]),

    sums to zero, its absolute values to two at most, and it has few large negative entries (the
    classes that are present) beside many small positive ones. A difference, -lr times that, has
    the opposite skewness, and divided by -lr it must be of that size. This is exact for one step,
    and holds nearly for several, in units of lr times their number.

    Args:
        capture: The capture.
        task: Its network, which must end in a linear layer with a bias.

    References:
        Zhao et al., 2020, Sec. 3.1 (zhao2020idlg) on the signs of the last layer's gradient
    """
    declared = capture.form
    alike = _cosine(capture.update, capture.parameters)
    if alike is not None and alike > _ALIKE:
        return _compare(declared, "weights_after", f"its cosine with the parameters is {alike:.2f}")
    bias = _head_bias(capture, task)
    reading = None if bias is None else _read_sign(bias)
    if declared == "weights_after" and alike is not None and alike < _UNLIKE:
        why = f"its cosine with the parameters before is {alike:.2f}, where weights have 1.00"
        return _compare(declared, reading or "difference", why)
    if bias is None or reading is None or declared == "weights_after":
        return Consistency(
            declared, None, f"said to be a {declared}; the numbers neither confirm nor contradict"
        )
    if reading != declared:
        moves = "up" if reading == "difference" else "down"
        return _compare(declared, reading, f"the bias of the classes that are present goes {moves}")
    return _check_size(capture, bias)


def _compare(declared: Form, found: Form, why: str = "") -> Consistency:
    if declared == found:
        return Consistency(declared, found, f"said to be a {declared}, and it looks like one")
    said, seen = (
        "set of weights after training" if form == "weights_after" else form
        for form in (declared, found)
    )
    words = (
        f"said to be a {said}, but it looks like a {seen}: {why}; capture it again with "
        f"form={found!r}"
    )
    return Consistency(declared, found, words)


def _check_size(capture: Capture, bias: Tensor) -> Consistency:
    """Whether the size fits: a gradient that is too large was summed, or lr is wrong."""
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
        return _compare(form, form)
    fix = (
        "check lr and steps, or whether it is a gradient after all"
        if form == "difference"
        else "was it summed over the batch? then say reduction='sum'"
    )
    words = (
        f"said to be a {form}, but {size / _LARGEST:.3g} times larger at the logits than one can "
        f"be; {fix}"
    )
    return Consistency(form, "gradient" if form == "difference" else None, words)


def _cosine(update: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> float | None:
    own, before = strip_prefixes(update), strip_prefixes(parameters)
    names = [n for n in own if n in before and own[n].shape == before[n].shape]
    if not names:
        return None
    here, there = (torch.cat([t[n].double().flatten() for n in names]) for t in (own, before))
    lengths = here.norm() * there.norm()
    return float(here @ there / lengths) if float(lengths) > 0 else None


def _head_bias(capture: Capture, task: Task) -> Tensor | None:
    """The update of the logits' bias: the last vector with one entry per class; None if unclear."""
    try:
        seen, classes = select_trained(capture.update, task), task.classes
    except SeepageError:
        return None
    found = [t.double() for t in seen.values() if t.shape == (classes,)]
    if not found or classes < 3:
        return None
    bias = found[-1]
    total = float(bias.abs().sum())
    return bias if total > 0 and abs(float(bias.sum())) <= _BALANCED * total else None


def _read_sign(bias: Tensor) -> Form | None:
    skewness = float(bias.pow(3).sum() / bias.square().sum().pow(1.5))
    if abs(skewness) < _SKEWED:
        return None
    return "gradient" if skewness < 0 else "difference"
