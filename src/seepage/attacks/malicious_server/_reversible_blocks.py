"""Send a network of reversible blocks, through which the last layer's input leads to the image."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._read_targets import fit_targets
from seepage.attacks.linear_systems._analytic_fc import features
from seepage.core import ActiveAttack, BaseAttack, Observation, Reconstruction, Rng, Task
from seepage.core._draws import PrivateDraws
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable, require_at_least
from seepage.numerics._krylov import krylov

_WEIGHT, _BIAS = "head.weight", "head.bias"
# Of the Lanczos process for the largest singular value; more change it by less than 1 %.
_STEPS = 40


class Coupling(nn.Module):
    """A reversible residual block: each half of the channels is shifted by a function of the other.

        a' = a + F(b),   b' = b + G(a')

    References:
        Chang et al., 2018 (chang2018reversible)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first, self.second = (
            nn.Sequential(
                nn.Conv2d(half, half, 3, padding=1), nn.ReLU(), nn.Conv2d(half, half, 3, padding=1)
            )
            for _ in range(2)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Move both halves."""
        a, b = inputs.chunk(2, 1)
        a = a + self.first(b)
        return torch.cat([a, b + self.second(a)], 1)

    def invert(self, outputs: Tensor) -> Tensor:
        """Move both halves back."""
        a, b = outputs.chunk(2, 1)
        b = b - self.second(a)
        return torch.cat([a - self.first(b), b], 1)


class ReversibleNetwork(nn.Module):
    """Reversible blocks on images at half their resolution, and a linear layer that reads all.

    Both sizes of the images must be even.
    """

    def __init__(self, shape: tuple[int, int, int], blocks: int, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.inner = (4 * channels, height // 2, width // 2)
        self.blocks = nn.ModuleList(Coupling(4 * channels) for _ in range(blocks))
        self.head = nn.Linear(math.prod(shape), classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits `(B, K)`."""
        hidden = pixel_unshuffle(inputs, 2)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden.flatten(1))
        return logits

    def invert(self, read: Tensor) -> Tensor:
        """The inputs `(B, C, H, W)` of which the last layer reads these features `(B, n)`."""
        hidden = read.reshape(-1, *self.inner)
        for block in reversed(self.blocks):
            assert isinstance(block, Coupling)
            hidden = block.invert(hidden)
        return pixel_shuffle(hidden, 2)


@dataclass(frozen=True, kw_only=True)
class ReversibleBlocks(BaseAttack):
    """Replaces the network by a reversible one and runs it backwards; see `reversible_blocks`."""

    blocks: int = 4

    def __post_init__(self) -> None:
        require_at_least(1, blocks=self.blocks)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Draw the weights of a reversible network for the same images and classes."""
        require_key(rng)
        shape = tuple(task.domain.shape)
        if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
            raise NotApplicable(
                f"expected images of even height and width, got inputs of shape {shape}; plant "
                "another way"
            )
        seed = rng.fork("weights").generator().initial_seed()
        with PrivateDraws(seed), torch.device("cpu"):
            network = ReversibleNetwork((shape[0], shape[1], shape[2]), self.blocks, task.classes)
        network.to(task.reference)
        return replace(task, model=network, name=f"reversible network instead of {task.name}")

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Compute what the last layer read, and the image that leads there; nothing is random."""
        task = observation.task
        network = task.model
        if not isinstance(network, ReversibleNetwork):
            raise NotApplicable(f"{task.name} has no reversible blocks; plant them first")
        read = features(observation, layer="head")
        with torch.no_grad():
            inputs = task.to_inputs(network.invert(read[None]))
        labels = observation.labels
        if labels is None:
            labels = fit_targets(observation, inputs)
        if labels is None:
            return Reconstruction(inputs)
        length = float(observation.update.tensors[_BIAS].double().norm())
        stretch = _largest_stretch(network, read)

        def bound(errors: Mapping[str, float]) -> float:
            off = errors[_WEIGHT] + errors[_BIAS] * float(read.double().norm())
            return stretch * off / length

        certificate = certify_solved(
            observation, inputs, labels, read=(_WEIGHT, _BIAS), alone=True, bound=bound
        )
        return Reconstruction(inputs, labels, certificate=certificate)


def _largest_stretch(network: ReversibleNetwork, read: Tensor) -> float:
    """How far an error of the features moves the image at most: the norm of the local Jacobian."""
    exact = copy.deepcopy(network).double().requires_grad_(False)
    point = read.double()[None].requires_grad_()
    image = exact.invert(point)
    weights = torch.zeros_like(image, requires_grad=True)
    (pulled,) = torch.autograd.grad(image, point, weights, create_graph=True)

    def square(rows: Tensor) -> Tensor:
        (moved,) = torch.autograd.grad(pulled, weights, rows, retain_graph=True)
        (back,) = torch.autograd.grad(image, point, moved, retain_graph=True)
        return back

    start = Rng(0).normal(point.shape).to(point)
    *_, space = krylov(square, start, steps=min(_STEPS, len(read)))
    return math.sqrt(float(torch.linalg.eigvalsh(space.matrices()).max()))


def reversible_blocks(*, blocks: int = 4) -> ActiveAttack:
    """Send a network of reversible blocks, through which one image comes back in closed form.

    What the last layer reads follows from its gradient; the blocks lead from there to the image.
    Their weights are untrained, and any others would do.

    Args:
        blocks: Number of reversible blocks.

    Example:
        >>> import seepage as sp
        >>> photos, attack = sp.data.load("photos"), reversible_blocks()
        >>> planted = attack.plant(sp.zoo.lenet(domain=photos.domain), rng=sp.rng(0))
        >>> cheating, client = sp.Threat(server="malicious"), sp.Client(sp.Gradient())
        >>> seen = cheating.observe(client, planted, photos.batch(1), rng=sp.rng(0))
        >>> bool(sp.score(attack(seen, rng=sp.rng(1)), photos.batch(1))["psnr"] > 60)
        True

    References:
        Geiping et al., 2020, Sec. 4.3 and Proposition 1 (geiping2020inverting)
    """
    return ReversibleBlocks(blocks=blocks)
