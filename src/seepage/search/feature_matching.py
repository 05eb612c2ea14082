"""How far the candidate's features are from recovered ones."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

from seepage.core import Observation, Task
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue, UnknownName
from seepage.probing.hooks import layer_inputs
from seepage.search.term import Candidate

_COMPARISONS = ("cosine", "distance", "span")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FeatureMatching:
    """The mean over the batch of how far f(x_i), the input of a layer, is from recovered features.

        "cosine":    1 - cos^2(f(x_i), z_i)
        "distance":  || f(x_i) - z_i ||^2 / || z_i ||^2
        "span":      || P f(x_i) ||^2 / || f(x_i) ||^2,  P the projection off the features' span

    The first bears that sign and length of features are unknown, the last that they were not told
    apart. Which feature belongs to which input is decided anew at every step unless `ordered`: of
    all pairs the most similar first, then of those that are left; pairs of one label before others.
    Where fewer features are known than there are inputs, the mean is over the inputs that get one.

    Args:
        weight: Factor in the objective.
        layer: Name of the layer.
        features: `(B, d)` or fewer rows, in any order; for "span" any basis.
        labels: Of the features, where they are known and inputs have labels too.
        comparison: Which of the three.
        ordered: Whether feature i belongs to input i, so that nothing is to be decided.

    Deviations:
        The projection is divided by the length of the feature, so that `weight` means the same for
        all three; the paper leaves it as it is. "distance" is ours, for features of known length.

    References:
        Liu et al., 2024, Sec. 4.2 and appendix F (liu2024systematic)
    """

    weight: float
    layer: str
    features: Tensor
    labels: Tensor | None = None
    comparison: Literal["cosine", "distance", "span"] = "cosine"
    ordered: bool = False
    _basis: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Check the comparison and the features."""
        if self.comparison not in _COMPARISONS:
            raise UnknownName("comparison", self.comparison, _COMPARISONS)
        if self.features.ndim != 2 or not bool(self.features.isfinite().all()):
            raise InvalidValue(
                f"expected finite features (B, d), got shape {tuple(self.features.shape)}"
            )
        # Now: a decomposition could not be part of a CUDA graph.
        object.__setattr__(self, "_basis", torch.linalg.qr(self.features.T).Q)

    def __repr__(self) -> str:
        """Name the content: a record must tell two sets of features apart."""
        content = f"{tuple(self.features.shape)}, {digest(self.features)[:8]}"
        return (
            f"FeatureMatching(weight={self.weight!r}, layer={self.layer!r}, features=({content}), "
            f"comparison={self.comparison!r})"
        )

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare every input with the feature it resembles most, or with the span of all."""
        ours, theirs = self._found(candidate, observation), self.features
        if self.comparison == "span":
            rest = ours - (ours @ self._basis) @ self._basis.T
            return (rest.square().sum(1) / _positive(ours.square().sum(1))).mean()
        if len(ours) < len(theirs):
            raise InvalidValue(
                f"expected no more features than the {len(ours)} inputs, got {len(theirs)}; "
                "compare with their span"
            )
        alike = (_unit(ours) @ _unit(theirs).T).square()
        taken = self._pairs(alike.detach(), candidate.labels)
        if self.comparison == "cosine":
            return 1 - (alike * taken).sum(0).mean()
        matched = taken.T @ ours
        apart = (matched - theirs).square().sum(1)
        return (apart / _positive(theirs.square().sum(1))).mean()

    def reads(self, task: Task) -> list[str]:
        """The layer whose features are known."""
        return [self.layer]

    def _found(self, candidate: Candidate, observation: Observation) -> Tensor:
        if self.layer in candidate.layers:
            return candidate.layers[self.layer].flatten(1)
        return features_at(
            observation.task, self.layer, observation.simulate.trained_on(candidate.inputs)
        )

    @property
    def held(self) -> dict[str, Tensor]:
        """Features and labels, which are of one case."""
        known = {} if self.labels is None else {"labels": self.labels}
        return {"features": self.features, "_basis": self._basis, **known}

    def with_held(self, held: Mapping[str, Tensor]) -> Self:
        """The same term with the features of another case."""
        twin = copy(self)
        for name, tensor in held.items():
            object.__setattr__(twin, name, tensor)
        return twin

    def _pairs(self, alike: Tensor, labels: Tensor) -> Tensor:
        """Which input, by row, belongs to which feature, by column."""
        if self.ordered:
            return torch.eye(*alike.shape, dtype=alike.dtype, device=alike.device)
        return greedy_matching(self._preferred(alike, labels))

    def _preferred(self, alike: Tensor, labels: Tensor) -> Tensor:
        """Similarities in [0, 1], and more where labels agree."""
        if self.labels is None or labels.ndim != 1:
            return alike
        return alike + 2 * (labels[:, None] == self.labels[None, :])


def features_at(task: Task, layer: str, inputs: Tensor) -> Tensor:
    """What a layer reads when the network runs on inputs in natural units, `(B, d)`.

    Example:
        >>> from seepage.zoo import lenet
        >>> features_at(lenet(), "head", torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 768])
    """
    modules = dict(task.network.named_modules())
    if layer not in modules:
        raise UnknownName("layer", layer, modules, where=f"of {task.name}")
    with layer_inputs(task.network, [layer]) as read:
        task.outputs(task.parameters, inputs)
    return read[layer].flatten(1)


def greedy_matching(alike: Tensor) -> Tensor:
    """The pairs of a matrix `(B, k)`, k <= B, each column in one of them: the largest entry first.

    Nothing in it depends on the data but the entries, so that it runs under vmap and in a graph.

    Example:
        >>> greedy_matching(torch.tensor([[0.9, 0.8], [0.7, 0.1]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    taken, free = torch.zeros_like(alike), torch.ones_like(alike)
    places = torch.arange(alike.numel(), device=alike.device).reshape(alike.shape)
    for _ in range(alike.shape[1]):
        chosen = (places == torch.where(free > 0, alike, -torch.inf).argmax()).to(alike)
        taken = taken + chosen
        free = free * (1 - chosen.amax(1, keepdim=True)) * (1 - chosen.amax(0, keepdim=True))
    return taken


def _unit(vectors: Tensor) -> Tensor:
    return vectors / _positive(vectors.square().sum(1, keepdim=True)).sqrt()


def _positive(squares: Tensor) -> Tensor:
    # A dead ReLU gives a feature of zeros, whose direction would not be a number.
    return squares.clamp_min(torch.finfo(squares.dtype).tiny ** 0.5)
