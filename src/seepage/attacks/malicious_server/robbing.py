"""Robbing the Fed: single inputs in single bins of a planted layer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.malicious_server.dropped import completed, drops_entries, strengths
from seepage.attacks.malicious_server.edges import Edges, Law, Public, reach
from seepage.attacks.malicious_server.imprint import Imprint, bins_of, planted
from seepage.attacks.malicious_server.planting import behind
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import InvalidValue, UnknownName
from seepage.core.rng import require_key

Variant = Literal["cumulative", "sparse"]
Functional = Literal["mean", "random"]

# In bins. Rounding of local steps moves a candidate by one or two; of an empty bin, anywhere.
SLACK = 2.0


@dataclass(frozen=True, kw_only=True)
class RobbingTheFed:
    """Plants a layer whose bins catch one input each, and divides.

    Bin k opens to inputs whose functional <w, x> exceeds its edge; in the sparse variant it closes
    again at the next. With s(x) the gradient that reaches the bins from x,

        cumulative: x = (dL/dW_k - dL/dW_{k+1}) / (dL/db_k - dL/db_{k+1})
        sparse:     x = dL/dW_k / dL/db_k

    for each bin that holds one input alone. Of B inputs in K bins that are equally likely, a share
    of (1 - 1/K)^(B - 1) does. What two inputs of one bin leave behind is a mixture of them. A
    candidate that would not itself fall into its bin is dropped: the bin was empty, and rounding
    is all there is.

    Where entries are known to have been dropped, those of the sparse variant take the mean of
    their neighbours', and a bias that was dropped is computed from the bin it belongs to.

    Neither labels nor the batch size are needed. The scale of the update cancels. After several
    local steps the sparse variant holds exactly as long as nobody changes bins; the cumulative
    one approximately, since the columns of the decoder drift apart.

    Args:
        bins: Number K of bins.
        variant: "cumulative" with ReLU, or "sparse" with a clamp to [0, 1].
        functional: "mean" measures brightness, "random" a Gaussian direction.
        edges: The law of the functional, assumed or measured on public data.
        gain: How far the detour moves the input at most, roughly, in normalised units.
        column: Size of the entries of c. Larger ones make the gradient of the bins larger, which
            stands out of noise and of the rounding of local steps; too large ones make a local
            step throw inputs into other bins.

    Deviations:
        The paper's own is the cumulative variant. The sparse one subtracts nothing and so keeps
        more digits, most of all where a trained network gives people very unequal gradients.
        The paper replaces the input by what the bins say, or adds to it later in the network; here
        the detour is added before it, so that the network stays what it was up to the gain. The
        lowest edge is the lowest value that any input can have, so that every input is in a bin.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """

    bins: int = 128
    variant: Variant = "sparse"
    functional: Functional = "mean"
    edges: Edges = field(default_factory=Law)
    gain: float = 1e-3
    column: float = 1e-2

    def __post_init__(self) -> None:
        """Check the options."""
        if self.bins < 2:
            raise InvalidValue(f"expected at least 2 bins, got {self.bins!r}")
        if self.variant not in ("cumulative", "sparse"):
            raise UnknownName("variant", self.variant, ("cumulative", "sparse"))
        if self.functional not in ("mean", "random"):
            raise UnknownName("functional", self.functional, ("mean", "random"))
        if self.functional == "random" and not isinstance(self.edges, Public):
            raise InvalidValue(
                "the law of a random functional has to be measured; name public data such as "
                "public='cifar10'"
            )
        for name in ("gain", "column"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InvalidValue(f"expected {name} > 0, got {getattr(self, name)!r}")

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network behind an imprint: the same inputs, classes and, up to the gain, outputs."""
        require_key(rng)
        entries = math.prod(task.domain.shape)
        functional = torch.full((entries,), 1 / entries, dtype=torch.float64)
        if self.functional == "random":
            functional = rng.fork("functional").normal((entries,)).double() / entries
        edges = self._edges(functional, task)
        weight, offset = _normalised(functional, task)
        # Short rows before long columns: local steps then show in float32, and leave bins in place.
        short = self._wide
        sparse = self.variant == "sparse"
        slopes = short / edges.diff() if sparse else torch.full((self.bins,), short)
        bins, decoder = nn.Linear(entries, self.bins), nn.Linear(self.bins, entries, bias=False)
        column = self.column * rng.fork("decoder").normal((entries, 1))
        with torch.no_grad():
            bins.weight.copy_(weight * slopes[:, None])
            bins.bias.copy_((offset - edges[:-1]) * slopes)
            decoder.weight.copy_(column.expand(entries, self.bins))
        opens = nn.Hardtanh(0.0, short) if sparse else nn.ReLU()
        return behind(
            task, lambda network: Imprint(bins, opens, decoder, network), note="with an imprint"
        )

    def _edges(self, functional: Tensor, task: Task) -> Tensor:
        """All K + 1 edges, from the lowest to the highest value that an input can have."""
        least, most = reach(functional, task)
        levels = torch.arange(1, self.bins, dtype=torch.float64) / self.bins
        inner = self.edges(functional, task, levels)
        edges = torch.cat([least[None], inner, most[None]])
        if not bool((edges.diff() > 0).all()):
            raise InvalidValue(
                f"expected edges of bins that rise from {float(least):.3g} to {float(most):.3g}, "
                f"got quantiles from {float(inner[0]):.3g} to {float(inner[-1]):.3g}; give the "
                "mean and std of this data, or fewer bins"
            )
        return edges

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Divide; nothing is random."""
        require_key(rng)
        began = time.perf_counter()
        task, update = observation.task, observation.update
        require_usable(update, task)
        weight, bias = (update.tensors[f"{bins_of(task)}.{p}"] for p in ("weight", "bias"))
        if self.variant == "cumulative":
            weight = weight - torch.cat([weight[1:], torch.zeros_like(weight[:1])])
            bias = bias - torch.cat([bias[1:], torch.zeros_like(bias[:1])])
        holes = self.variant == "sparse" and drops_entries(observation)
        if holes:
            weight, bias = self._completed(weight, bias, task)
        candidates = torch.nan_to_num(weight / bias[:, None], posinf=0.0, neginf=0.0)
        # What was filled in may lie outside the bin, and bins without an input are plainly zero.
        inside = bias != 0 if holes else self._inside(candidates, task)
        kept = _strongest(bias.abs(), inside, observation.batch_size)
        normalised = candidates[kept].reshape(-1, *task.domain.shape)
        inputs = task.domain.project(task.domain.denormalise(normalised))
        seconds = time.perf_counter() - began
        return Reconstruction(inputs, None, Trace(seconds=seconds, device=str(inputs.device)))

    def _completed(self, weight: Tensor, bias: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """Rows and biases without what dropout took."""
        functional, offset = (tensor.to(weight) for tensor in planted(task))
        rows = completed(weight, task.domain.shape)
        return rows, strengths(bias, rows, functional, self._wide / 2 - offset)

    @property
    def _wide(self) -> float:
        """From the edge of a bin where it opens to where it is open, as the bin sees it."""
        return self.gain / (self.bins * self.column)

    def _inside(self, candidates: Tensor, task: Task) -> Tensor:
        """Whether each candidate would itself have fallen into its bin."""
        weight, bias = planted(task)
        place = (candidates.double() * weight).sum(1) + bias
        wide = torch.full_like(bias, self._wide)
        if self.variant == "cumulative":
            wide = torch.cat([-bias.diff(), bias.new_full((1,), math.inf)])
        place = place / wide
        inside: Tensor = (place > -SLACK) & (place < 1 + SLACK)
        return inside


def _normalised(functional: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The functional of what the network sees: <w, z> + c = <functional, x>."""
    corners = torch.stack([torch.zeros(task.domain.shape), torch.ones(task.domain.shape)])
    zero, one = task.domain.denormalise(corners.double()).flatten(1)
    return functional * (one - zero), functional @ zero


def _strongest(strength: Tensor, inside: Tensor, size: int | None) -> Tensor:
    """The bins that hold something, the strongest first; if none is sure, the strongest of all."""
    usable = inside & (strength > 0)
    order = (strength * usable if bool(usable.any()) else strength).argsort(descending=True)
    number = int(usable.sum()) or 1
    return order[: number if size is None else min(size, number)]
