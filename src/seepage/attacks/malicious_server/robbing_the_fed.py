"""Robbing the Fed: single inputs in single bins of a planted layer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from seepage.attacks.malicious_server.passed_inputs import completed, drops_entries, strengths
from seepage.attacks.malicious_server.planting import behind
from seepage.core import ActiveAttack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.core.rng import require_key
from seepage.data import load
from seepage.data.load import require_split
from seepage.probing.usable_update import require_usable


class Imprint(nn.Module):
    """A detour of the input through bins, before a network.

        f(x + c sum_k a(<w, x> / s_k + b_k))

    All rows of `bins` measure the same functional of the input, and all columns of `decoder` are
    the same vector c. So the gradient at bin k of an input is s(x) where the bin is open to it and
    zero elsewhere, with s(x) = <dL/dx', c> the same for all bins; and c is so short that the
    network behind computes what it computed before.

    Args:
        bins: n inputs to K bins.
        activation: What opens a bin.
        decoder: K bins to n inputs, without a bias.
        network: What was being trained.
    """

    def __init__(
        self, bins: nn.Linear, activation: nn.Module, decoder: nn.Linear, network: nn.Module
    ) -> None:
        """Put the parts together."""
        super().__init__()
        self.bins = bins
        self.activation = activation
        self.decoder = decoder
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the network makes of the input and its detour."""
        detour = self.decoder(self.activation(self.bins(inputs.flatten(1))))
        logits: Tensor = self.network(inputs + detour.reshape(inputs.shape))
        return logits


def _bins_of(task: Task) -> str:
    """The name of the layer of bins in a network with an imprint."""
    found = [name for name, module in task.model.named_modules() if isinstance(module, Imprint)]
    if not found:
        raise NotApplicable(
            f"expected an update of a network with an imprint, got one of {task.name}; broadcast "
            "attack.plant(task, rng=...) under Threat(server='malicious')"
        )
    return f"{found[0]}.bins" if found[0] else "bins"


def planted(task: Task) -> tuple[Tensor, Tensor]:
    """Weight and bias of the bins, as they were broadcast, in double precision."""
    name = _bins_of(task)
    return task.parameters[f"{name}.weight"].double(), task.parameters[f"{name}.bias"].double()


Shape = Literal["normal", "laplace"]

# Of the laws with mean 0 and deviation 1.
QUANTILES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "normal": lambda p: 2**0.5 * torch.erfinv(2 * p - 1),
        "laplace": lambda p: -(p - 0.5).sign() * (1 - 2 * (p - 0.5).abs()).log() / 2**0.5,
    }
)
PROBABILITIES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "normal": lambda z: (1 + torch.erf(z / 2**0.5)) / 2,
        "laplace": lambda z: 0.5 + z.sign() * (1 - (-(2**0.5) * z.abs()).exp()) / 2,
    }
)


class Edges(Protocol):
    """Quantiles of a linear functional of private inputs, guessed before seeing any."""

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """The quantiles at these levels, `(K,)`, of `<functional, x>` with x in natural units."""


def reach(functional: Tensor, task: Task) -> Tensor:
    """The lowest and the highest value that the functional of an input can have, `(2,)`."""
    low, high = task.domain.bounds
    ends = torch.stack([low * functional, high * functional])
    return torch.stack([ends.amin(0).sum(), ends.amax(0).sum()])


@dataclass(frozen=True, kw_only=True)
class Law:
    """Quantiles of a law that the server assumes, within what inputs can reach.

    Args:
        shape: "normal" or "laplace".
        mean: Of the functional, in natural units; the default is the brightness of photographs,
            measured on CIFAR-10's training images.
        std: Its deviation.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """

    shape: Shape = "normal"
    mean: float = 0.474
    std: float = 0.126

    def __post_init__(self) -> None:
        """Check the law."""
        if self.shape not in QUANTILES:
            raise UnknownName("law", self.shape, QUANTILES)
        if not self.std > 0:
            raise InvalidValue(f"expected std > 0, got {self.std!r}")

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Scale the quantiles of the standard law; the functional is taken to follow it."""
        below, up_to = PROBABILITIES[self.shape]((reach(functional, task) - self.mean) / self.std)
        within = QUANTILES[self.shape](below + levels * (up_to - below))
        return self.mean + self.std * within


@dataclass(frozen=True, kw_only=True)
class Public:
    """Quantiles measured on data that everybody has.

    Args:
        data: Name of the data set.
        split: Of it; private data should be of another.
    """

    data: str
    split: str = "train"

    def __post_init__(self) -> None:
        """Refuse data that is not there before anything is planted."""
        require_split(self.data, self.split)

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Measure the functional on all of it."""
        shape = task.domain.shape
        pixels = shape[-1] if len(shape) == 3 else None
        inputs = load(self.data, split=self.split, pixels=pixels).inputs
        if tuple(inputs.shape[1:]) != tuple(shape):
            raise InvalidValue(
                f"expected public data of shape {tuple(shape)}, got {self.data!r} of shape "
                f"{tuple(inputs.shape[1:])}; choose data like the private ones"
            )
        measured = inputs.flatten(1).double() @ functional.double().cpu()
        return torch.quantile(measured, levels.double().cpu())


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
        weight, bias = (update.tensors[f"{_bins_of(task)}.{p}"] for p in ("weight", "bias"))
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


def robbing_the_fed(
    *,
    bins: int = 128,
    variant: Variant = "sparse",
    functional: Functional = "mean",
    law: Shape = "normal",
    mean: float = 0.474,
    std: float = 0.126,
    public: str | None = None,
    split: str = "train",
    gain: float = 1e-3,
    column: float = 1e-2,
) -> ActiveAttack:
    """A planted layer whose bins catch one input of a large batch each, exactly.

    Args:
        bins: Number of bins; those with one input alone give it away.
        variant: "sparse" (clamped), or "cumulative" (ReLU) as in the paper, which loses digits and
            does not withstand local steps.
        functional: "mean" sorts inputs by brightness, "random" by a random direction.
        law: Of the functional, as the server assumes it: "normal" or "laplace".
        mean: Of that law, in natural units; the default is that of photographs.
        std: Its deviation.
        public: Name of a data set to measure the law on instead.
        split: Of that data set.
        gain: How far the network's input is moved at most, roughly, in normalised units.
        column: Size of what the bins add to; larger stands out of noise more.

    Example:
        >>> robbing_the_fed(bins=64).bins
        64

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    assumed: Edges = Law(shape=law, mean=mean, std=std)
    edges = assumed if public is None else Public(data=public, split=split)
    return RobbingTheFed(
        bins=bins, variant=variant, functional=functional, edges=edges, gain=gain, column=column
    )
