"""Infer labels and batch size from the update, by several rules, for any attack that needs them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from seepage.attacks.labels._count_labels import count_classes, estimate_batch_size
from seepage.attacks.labels._label_evidence import read_evidence, require_classes
from seepage.attacks.labels._read_targets import read_targets
from seepage.core import AttackWrapper, Observation, Prepared, Rng
from seepage.core._once import once
from seepage.core.errors import MissingKnowledge, NotApplicable, SeepageError


class LabelRule(Protocol):
    """Recovers the labels of a batch from an observation, without the truth."""

    def __call__(self, observation: Observation) -> Tensor:
        """Return the labels `(B,)`, sorted, since an update holds no order."""


@dataclass(frozen=True)
class IDLG:
    """The label of one example: the row of the head that opposes all the others.

        y = argmin_k sum_{j != k} <dL/dW_k, dL/dW_j>

    Exact for one example and cross-entropy, up to rounding, since p_k - 1[k = y] is negative only
    for k = y. The bias counts as one more column. Scale and sign of the update cancel.

    References:
        Zhao et al., 2020, Sec. 3.1 (zhao2020idlg)
    """

    def __call__(self, observation: Observation) -> Tensor:
        """Return the label `(1,)`."""
        if observation.batch_size not in (None, 1):
            raise NotApplicable(
                f"{self} reads the label of one example, got a batch of {observation.batch_size}; "
                "use CountAware()"
            )
        rows = read_evidence(observation).gradient
        # Scaling first keeps the squares of tiny gradients from underflowing.
        rows = rows / rows.abs().max()
        products = rows @ rows.T
        return _sort_labels((products.sum(1) - products.diagonal()).argmin()[None], observation)


@dataclass(frozen=True)
class SignRule:
    """The classes whose bias gradient is negative.

        dL/db_k = mean_i (p_ik - 1[y_i = k]) < 0

    With a bias and a single step, only classes that are present have a negative gradient. Without a
    bias it is estimated from the gradient of the weights, and misleads where features, as behind
    tanh, are not those of noise. Duplicates cannot be seen: a batch larger
    than the classes found is filled by going through them again, the most negative first. Without a
    known batch size each class found is returned once.

    On a trained network, examples mistaken for class k hide the examples of class k.

    References:
        Wainakh et al., 2022 (wainakh2022user), who call it property 1; Zhao et al., 2020
        (zhao2020idlg) for one example
    """

    def __call__(self, observation: Observation) -> Tensor:
        """Return the labels `(B,)`."""
        signal = read_evidence(observation).signal
        order = signal.argsort(stable=True)
        present = order[: max(1, int((signal < 0).sum()))]
        size = observation.batch_size or len(present)
        return _sort_labels(_repeat_in_order(present, size), observation)


@dataclass(frozen=True)
class YinMinimum:
    """The classes whose row of the head has the most negative entry.

        argsort_k min_m dL/dW_km, the first B

    Assumes non-negative features, as after a ReLU, and labels that do not repeat. A batch larger
    than the number of classes is filled by going through the order again.

    References:
        Yin et al., 2021, Eq. 6 (yin2021see)
    """

    def __call__(self, observation: Observation) -> Tensor:
        """Return the labels `(B,)`."""
        size = observation.require_batch_size(self)
        evidence = read_evidence(observation)
        lowest = evidence.gradient[:, : -1 if evidence.biased else None].min(1).values
        return _sort_labels(_repeat_in_order(lowest.argsort(stable=True), size), observation)


@dataclass(frozen=True)
class CountAware:
    """Labels with their duplicates, by `count_classes`.

    Example:
        >>> import seepage as sp
        >>> batch = sp.data.bundled("photos", size=4)
        >>> client = sp.Client(sp.Gradient())
        >>> seen = sp.Threat().observe(client, sp.zoo.lenet(), batch, rng=sp.rng(0))
        >>> CountAware()(seen).tolist() == sorted(batch.labels.tolist())
        True

    References:
        Ma et al., 2023 (ma2023instance), who count instances of each class
    """

    def __call__(self, observation: Observation) -> Tensor:
        """Return the labels `(B,)`, sorted."""
        observation.require_batch_size(self)
        counts = count_classes(observation)
        return _sort_labels(torch.arange(len(counts)).repeat_interleave(counts), observation)


def _sort_labels(labels: Tensor, observation: Observation) -> Tensor:
    """Sort labels and move them to the device of the update."""
    return labels.sort().values.to(next(iter(observation.update)).device)


def _repeat_in_order(order: Tensor, size: int) -> Tensor:
    return order.repeat(-(-size // len(order)))[:size]


def recover_labels(observation: Observation, rule: LabelRule | None = None) -> Tensor:
    """The labels `(B,)`: known, or recovered by the rule, which is `CountAware` by default.

    Targets that are numbers are read off the last layer where it holds them. An unknown batch size
    is estimated where the update shows it.
    """
    return _recover_labels(observation, rule or CountAware())


@once
def _recover_labels(observation: Observation, rule: LabelRule) -> Tensor:
    if observation.labels is not None:
        return observation.labels
    if observation.task.target_shape is not None:
        return read_targets(observation)
    require_classes(observation.task)
    size = observation.batch_size or estimate_batch_size(observation)
    return rule(replace(observation, batch_size=size))


def try_labels(observation: Observation, *, size: int | None = None) -> Tensor | None:
    """Recover labels; None if that fails, or they are not `size` many."""
    with suppress(SeepageError):
        labels = recover_labels(observation)
        return labels if size in (None, len(labels)) else None
    return None


@dataclass(frozen=True)
class InferLabels(AttackWrapper):
    """Recover the labels from the update, then attack as if they had been known.

    Known labels are used as they are. An unknown batch size is estimated where the update shows
    it. Elsewhere a rule that needs it raises an error. Labels that the update does not hold stay
    unknown: closed forms do without them, and searches look for targets that are numbers.

    Args:
        attack: What attacks.
        rule: What recovers the labels.

    Example:
        >>> from seepage.attacks.linear_systems import AnalyticFC
        >>> InferLabels(AnalyticFC())
        InferLabels(attack=AnalyticFC(), rule=CountAware())

    References:
        Zhao et al., 2020 (zhao2020idlg)
    """

    rule: LabelRule = field(default_factory=CountAware)

    needs_labels = False

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Recover the labels; without any, an attack that needs them fails for the same reason."""
        if seen.labels is not None:
            return Prepared(seen)
        try:
            labels = recover_labels(seen, self.rule)
        except NotApplicable as reason:
            missing = reason
            return Prepared(
                seen, explain=lambda e: missing if isinstance(e, MissingKnowledge) else e
            )
        return Prepared(replace(seen, labels=labels, batch_size=len(labels)))
