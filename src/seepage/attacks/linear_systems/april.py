"""Compute the image that a vision transformer read, from its patch and position embeddings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.applicability import applies_to
from seepage.attacks.certificate import certify_solved
from seepage.attacks.labels.infer_labels import recover_labels
from seepage.attacks.text.token_table import find_rows
from seepage.clients.gradient import batch_gradient
from seepage.core import Attack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import NotApplicable, SeepageError
from seepage.core.rng import require_key
from seepage.domains import Image
from seepage.probing.usable_update import require_usable

# Singular values of the slopes below this share of the largest are rounding.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class PatchEmbedding:
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


def find_patches(task: Task) -> PatchEmbedding:
    """Find the patch embedding and the positions, by the gradient of one random image.

    Raises:
        NotApplicable: The network cuts no patches, or adds no trained positions to them.
    """
    layers = {
        name: module
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Conv2d) and _cuts_patches(module, task.domain.shape)
    }
    inputs = task.move_inputs(task.domain.sample(1, rng=Rng(0).fork("patches")))
    gradient = batch_gradient(task, task.parameters, inputs, task.blank_labels(1))
    for name in layers:
        if f"{name}.weight" in task.parameters:
            slopes = _differentiate_outputs(task, name, inputs)
            rows = slopes[0].flatten(1).T
            positions, first = find_rows(gradient, rows)
            if positions is not None:
                height, width = slopes.shape[2:]
                return PatchEmbedding(name, positions, first, (height, width))
    raise NotApplicable(
        f"expected {task.name} to cut images into patches by a trained convolution, and to add "
        "trained positions to them, as vision transformers do; use gradient matching"
    )


def _cuts_patches(layer: nn.Conv2d, shape: tuple[int, ...]) -> bool:
    """Whether a convolution reads an image patch by patch, without overlaps or gaps."""
    size = layer.kernel_size
    plain = layer.padding in ((0, 0), "valid") and layer.groups == 1 and layer.dilation == (1, 1)
    fits = len(shape) == 3 and all(side % k == 0 for side, k in zip(shape[1:], size, strict=True))
    return plain and fits and layer.stride == size and layer.in_channels == shape[0]


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
class April:
    """Solve the gradient of the patch embedding for the patches, see `april`."""

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the image; nothing is random."""
        require_key(rng)
        began = time.perf_counter()
        task, tensors = observation.task, observation.update.tensors
        require_usable(observation.update, task)
        patches = _require_one_image(observation)
        weight = tensors[f"{patches.layer}.weight"].double()
        places = tensors[patches.positions].double().reshape(-1, len(weight))
        count = patches.grid[0] * patches.grid[1]
        slopes = places[patches.first : patches.first + count]
        values = torch.linalg.svdvals(slopes)
        if not bool(values[-1] > _ROUNDING * values[0]):
            raise NotApplicable(
                f"the slopes of the {count} patches are not independent, so the patches cannot be "
                "told apart: there are more of them than channels, or the update is zero"
            )
        solved = torch.linalg.pinv(slopes.T) @ weight.flatten(1)
        image = _join_patches(solved, patches.grid, weight.shape[1:])
        reference = next(iter(observation.update))
        inputs = task.domain.project(task.domain.denormalise(image[None].to(reference)))
        labels = None
        with suppress(SeepageError):
            labels = recover_labels(observation)
        trace = Trace(seconds=time.perf_counter() - began, device=str(inputs.device))
        if labels is None:
            return Reconstruction(inputs, None, trace)
        read = (f"{patches.layer}.weight", patches.positions)
        longest = float(solved.norm(dim=1).max())

        def bound(errors: Mapping[str, float]) -> float:
            # dL/dW = D^T X and its error give ||X - X*|| <= (e_W + e_D max ||x_p||) / sigma_min(D).
            return (errors[read[0]] + errors[read[1]] * longest) / float(values[-1])

        certificate = certify_solved(
            observation, inputs, labels, read=read, alone=True, bound=bound
        )
        return Reconstruction(inputs, labels, trace, certificate)


def _join_patches(rows: Tensor, grid: tuple[int, int], shape: torch.Size) -> Tensor:
    """Put patches `(N, C k k)` together to an image `(C, H, W)`.

    Example:
        >>> _join_patches(torch.arange(4.0)[:, None], (2, 2), torch.Size((1, 1, 1))).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    channels, height, width = shape
    parts = rows.reshape(*grid, channels, height, width)
    return parts.permute(2, 0, 3, 1, 4).reshape(channels, grid[0] * height, grid[1] * width)


def _require_one_image(observation: Observation) -> PatchEmbedding:
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"the positions hold the sum of the slopes of {observation.batch_size} images, which "
            "no closed form takes apart; it needs a batch of one"
        )
    return find_patches(observation.task)


def _require_patches(observation: Observation) -> None:
    _require_one_image(observation)


@applies_to(Image, require=_require_patches)
def april() -> Attack:
    """The image of a vision transformer, from the gradients of its patch and position embeddings.

    A patch x_p becomes W x_p + b + e_p. The gradient of the position e_p is the slope d_p at this
    sum, and the gradient of the patch embedding is sum_p d_p x_p^T. So with fewer patches than
    channels the patches solve a linear system,

        dL/dW = D^T X,   X = (D^T)^+ dL/dW

    whatever the rest of the network does. Scale and sign of the update cancel, so clipping does not
    matter. Batches are not taken apart.

    Example:
        >>> april()
        April()

    Deviations:
        The paper solves the first attention for its inputs and inverts the embedding; the gradient
        of the embedding itself gives the patches without either.

    References:
        Lu et al., 2022 (lu2022april)
    """
    return April()
