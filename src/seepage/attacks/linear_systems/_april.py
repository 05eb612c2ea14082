"""Compute the images that a vision transformer read, from its patch embedding and first layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._infer_labels import try_labels
from seepage.attacks.linear_systems._patch_readers import (
    find_patch_readers,
    join_patches,
    list_patch_layers,
)
from seepage.attacks.linear_systems._patch_span import read_images
from seepage.attacks.text._token_table import find_rows
from seepage.clients._gradient import batch_gradient
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Image
from seepage.numerics._krylov import lanczos

# Singular values of the slopes below this share of the largest are rounding.
_ROUNDING = 1e-5
# Steps in which the smoothest image is found.
_SMOOTHING = 200


@dataclass(frozen=True)
class _PatchEmbedding:
    """Where a network cuts images into patches, and where their slopes are.

    Args:
        layer: Name of the convolution without overlaps that reads the image.
        positions: Name of the parameter that is added to its outputs.
        first: Its row of the first patch.
        grid: Patches in a column and in a row.
    """

    layer: str
    positions: str
    first: int
    grid: tuple[int, int]


def _find_patches(task: Task) -> _PatchEmbedding:
    """Find the patch embedding and the positions, by the gradient of one random image.

    Raises:
        NotApplicable: The network cuts no patches, or adds no trained positions to them.
    """
    inputs = task.move_inputs(task.domain.sample(1, rng=Rng(0).fork("patches")))
    gradient = batch_gradient(task, task.parameters, inputs, task.blank_labels(1))
    for name in list_patch_layers(task):
        if f"{name}.weight" in task.parameters:
            slopes = _differentiate_outputs(task, name, inputs)
            rows = slopes[0].flatten(1).T
            positions, first = find_rows(gradient, rows)
            if positions is not None:
                height, width = slopes.shape[2:]
                return _PatchEmbedding(name, positions, first, (height, width))
    raise NotApplicable(
        f"expected {task.name} to cut images into patches by a trained convolution, and to add "
        "trained positions to them, as vision transformers do; use gradient matching"
    )


def _differentiate_outputs(task: Task, layer: str, inputs: Tensor) -> Tensor:
    """The gradient of the loss at the outputs of a layer, `(1, d, h, w)`."""
    returned: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        returned.append(outputs.detach().requires_grad_())
        return returned[-1]

    with task.network.get_submodule(layer).register_forward_hook(keep):
        loss = task.batch_loss(task.parameters, inputs, task.blank_labels(1))
    (slopes,) = torch.autograd.grad(loss, returned[0])
    return slopes


@dataclass(frozen=True)
class April(BaseAttack):
    """Solve for the patches of one image, or search the spans of a batch, see `april`."""

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Read the images; chance only says where searches begin."""
        alone = (observation.batch_size or 1) == 1
        if alone:
            # Positions that are frozen, or too few channels, leave the spans to be tried.
            with suppress(NotApplicable):
                return self._solve(observation)
        try:
            return self._search(observation, rng)
        except NotApplicable:
            if alone:
                with suppress(NotApplicable):
                    return self._solve(observation, complete=False)
            raise

    def _solve(self, observation: Observation, *, complete: bool = True) -> Reconstruction:
        """One image in closed form, all of it or the smoothest that fits."""
        task, tensors = observation.task, observation.update.tensors
        patches = _find_patches(task)
        read = (f"{patches.layer}.weight", patches.positions)
        weight, places = (tensors[name].double() for name in read)
        places = places.reshape(-1, len(weight))
        count = patches.grid[0] * patches.grid[1]
        slopes = places[patches.first : patches.first + count]
        # All left vectors are needed, but never all right ones.
        base, values, _ = torch.linalg.svd(slopes, full_matrices=len(slopes) > slopes.shape[1])
        rank = int((values > _ROUNDING * values[0]).sum())
        if not (rank == count or (rank > 0 and not complete)):
            raise NotApplicable(
                f"the slopes of the {count} patches are not independent, so the patches cannot be "
                "told apart: there are more of them than channels, or the update is zero"
            )
        inverse = torch.linalg.pinv(slopes.T, rtol=_ROUNDING)
        solved = inverse @ weight.flatten(1)
        if rank < count:
            solved = _smooth(solved, base[:, rank:], patches.grid, weight.shape[1:])
        image = join_patches(solved, patches.grid, weight.shape[1:])[None]
        inputs = task.to_inputs(image.to(tensors[read[1]]))
        labels = try_labels(observation)
        if labels is None:
            return Reconstruction(inputs)
        steepest, longest = float(inverse.norm(dim=1).max()), float(solved.norm(dim=0).max())

        def bound(errors: Mapping[str, float]) -> float:
            # X[p, i] is off by at most ||row p of (D^T)^+|| (e_W + e_D ||column i of X||).
            return steepest * (errors[read[0]] + errors[read[1]] * longest)

        certificate = certify_solved(
            observation, inputs, labels, read=read, alone=rank == count, bound=bound
        )
        return Reconstruction(inputs, labels, certificate=certificate)

    def _search(self, observation: Observation, rng: Rng) -> Reconstruction:
        """The images of a batch, or of adapters, by the spans of what layers read."""
        task, domain = observation.task, observation.task.domain
        told = try_labels(observation)
        classes: list[int] = [] if told is None else sorted(set(told.tolist()))
        found = read_images(
            task, observation.update, size=observation.batch_size, classes=classes, rng=rng
        )
        reference = next(iter(observation.update))
        inputs = domain.project(domain.denormalise(found.images).to(reference))
        sure = (torch.arange(len(inputs)) < found.solved).to(reference)
        confidence = sure[:, None].expand(-1, inputs[0].numel())
        labels = None
        certificate = Certificate(math.inf)
        if len(found.labels) == len(inputs):
            labels = torch.tensor(found.labels, device=inputs.device)
            # Nothing says that no other batch lies in the spans, only that this one explains all.
            certificate = certify_solved(observation, inputs, labels, read=(), alone=False)
        return Reconstruction(inputs, labels, certificate=certificate, confidence=confidence)


def _smooth(solved: Tensor, free: Tensor, grid: tuple[int, int], patch: Sequence[int]) -> Tensor:
    """Add to patches `(N, P)` the combination of directions `(N, k)` that makes them smoothest."""

    def measure(shares: Tensor) -> Tensor:
        image = join_patches(solved + free @ shares.reshape(free.shape[1], -1), grid, patch)
        return image.diff(dim=1).square().sum() + image.diff(dim=2).square().sum()

    slope = torch.func.grad(measure)
    first = slope(solved.new_zeros(free.shape[1] * solved.shape[1]))
    products = torch.func.vmap(lambda shares: slope(shares) - first)
    steps = min(_SMOOTHING, len(first))
    found = lanczos(products, -first[None], steps=steps, tolerance=1e-6).solutions
    return solved + free @ found.reshape(free.shape[1], -1)


def _require_patches(observation: Observation) -> None:
    if (observation.batch_size or 1) == 1:
        with suppress(NotApplicable):
            _find_patches(observation.task)
            return
    readers = find_patch_readers(observation.task)
    readers.require_room(observation.task, observation.batch_size or 1)


@applies_to(Image, require=_require_patches)
def april() -> Attack:
    """Images of a vision transformer, from the gradients of its patches and first layers.

    A patch x_p becomes W x_p + b + e_p. The gradient of the position e_p is the slope d_p at this
    sum, and the gradient of the patch embedding is sum_p d_p x_p^T. So with fewer patches than
    channels the patches of one image solve a linear system,

        dL/dW = D^T X,   X = (D^T)^+ dL/dW

    whatever the rest of the network does. Scale and sign of the update cancel, so clipping does not
    matter. With more patches than channels, the smoothest image among the solutions is taken.

    A batch of B images with N patches is read by spans, and so is one image where embeddings are
    frozen and adapters are trained. The row space of a weight's gradient holds all that the layer
    read, if that has fewer vectors than the weight has rows and columns. What the first attention
    reads of a patch is an affine function of it, up to the scale of a norm: that leaves N (B - 1)
    directions of a patch open. What later layers read of an image finds it among those, by least
    squares. The fewer directions are open beside the entries of a patch, the better.

    Example:
        >>> april()
        April()

    Deviations:
        The paper solves the first attention for its inputs and inverts the embedding; the gradient
        of the embedding itself gives the patches without either. It takes one image; spans of
        later layers, as of DAGER, take more.

    References:
        Lu et al., 2022 (lu2022april); Petrov et al., 2024 (petrov2024dager)
    """
    return April()
