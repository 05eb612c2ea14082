"""How far the candidate's features are from recovered ones."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

from seepage.core import Observation, Task
from seepage.core._digest import digest
from seepage.core.errors import InvalidValue, UnknownName
from seepage.probing._hooks import layer_inputs
from seepage.search._objective import Candidate

_COMPARISONS = ("cosine", "distance", "span")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FeatureMatching:
    """The mean over the batch of how far f(x_i), the input of a layer, is from recovered features.

        "cosine":    1 - cos^2(f(x_i), z_i)
        "distance":  || f(x_i) - z_i ||^2 / || z_i ||^2
        "span":      || P f(x_i) ||^2 / || f(x_i) ||^2,  P the projection off the features' span

    "cosine" is for features of unknown sign and length, "span" for features that are only known up
    to a mixture. Unless `ordered`, features are matched to inputs anew at every step: the most
    similar pair first, then the most similar of the rest; pairs with the same label come first. If
    there are fewer features than inputs, the mean is over the inputs that get one.

    Args:
        weight: Factor in the objective.
        layer: Name of the layer.
        features: `(B, d)` or fewer rows, in any order; for "span" any basis.
        labels: Labels of the features, if known; used if inputs have labels too.
        comparison: Which of the three.
        ordered: Whether feature i belongs to input i, so that nothing is matched.

    Deviations:
        The projection is divided by the length of the feature, so that `weight` means the same for
        all three; the paper does not divide. "distance" is ours, for features of known length.

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
        if self.comparison not in _COMPARISONS:
            raise UnknownName("comparison", self.comparison, _COMPARISONS)
        if self.features.ndim != 2 or not bool(self.features.isfinite().all()):
            raise InvalidValue(
                f"expected finite features (B, d), got shape {tuple(self.features.shape)}"
            )
        # Here, since a CUDA graph cannot hold a decomposition.
        object.__setattr__(self, "_basis", torch.linalg.qr(self.features.T).Q)

    def __repr__(self) -> str:
        """Name the content, so that records tell two sets of features apart."""
        content = f"{tuple(self.features.shape)}, {digest(self.features)[:8]}"
        return (
            f"FeatureMatching(weight={self.weight!r}, layer={self.layer!r}, features=({content}), "
            f"comparison={self.comparison!r})"
        )

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare every input with its feature, or with the span of all."""
        ours, theirs = self._read_features(candidate, observation), self.features
        if self.comparison == "span":
            rest = ours - (ours @ self._basis) @ self._basis.T
            return (rest.square().sum(1) / _positive(ours.square().sum(1))).mean()
        if len(ours) < len(theirs):
            raise InvalidValue(
                f"expected no more features than the {len(ours)} inputs, got {len(theirs)}; "
                "compare with their span"
            )
        alike = (_normalise(ours) @ _normalise(theirs).T).square()
        pairs = self._match(alike.detach(), candidate.labels)
        if self.comparison == "cosine":
            return 1 - (alike * pairs).sum(0).mean()
        apart = (pairs.T @ ours - theirs).square().sum(1)
        return (apart / _positive(theirs.square().sum(1))).mean()

    def reads(self, task: Task) -> list[str]:
        """Return the layer whose features are known."""
        return [self.layer]

    def _read_features(self, candidate: Candidate, observation: Observation) -> Tensor:
        if self.layer in candidate.layers:
            return candidate.layers[self.layer].flatten(1)
        return features_at(
            observation.task, self.layer, observation.simulate.trained_on(candidate.inputs)
        )

    @property
    def held(self) -> dict[str, Tensor]:
        """Features and labels of the case."""
        known = {} if self.labels is None else {"labels": self.labels}
        return {"features": self.features, "_basis": self._basis, **known}

    def with_held(self, held: Mapping[str, Tensor]) -> Self:
        """Replace the features by those of another case."""
        twin = copy(self)
        for name, tensor in held.items():
            object.__setattr__(twin, name, tensor)
        return twin

    def _match(self, alike: Tensor, labels: Tensor) -> Tensor:
        """Match inputs, by row, to features, by column."""
        if self.ordered:
            return torch.eye(*alike.shape, dtype=alike.dtype, device=alike.device)
        if self.labels is not None and labels.ndim == 1:
            # Similarities lie in [0, 1], so pairs with the same label come first.
            alike = alike + 2 * (labels[:, None] == self.labels[None, :])
        return _greedy_matching(alike)


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


def _greedy_matching(alike: Tensor) -> Tensor:
    """Match every column of a matrix `(B, k)`, k <= B, to a row: the largest entry first.

    The control flow does not depend on values, so it runs under vmap and in a CUDA graph.

    Example:
        >>> _greedy_matching(torch.tensor([[0.9, 0.8], [0.7, 0.1]]))
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


def _normalise(vectors: Tensor) -> Tensor:
    return vectors / _positive(vectors.square().sum(1, keepdim=True)).sqrt()


def _positive(squares: Tensor) -> Tensor:
    # A dead ReLU gives a feature of zeros, whose direction would be NaN.
    return squares.clamp_min(torch.finfo(squares.dtype).tiny ** 0.5)
