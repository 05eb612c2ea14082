"""Robbing the Fed: a planted layer whose bins catch single inputs of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from seepage.attacks.malicious_server._planting import fill_holes, wrap_network
from seepage.core import ActiveAttack, BaseAttack, Observation, Reconstruction, Rng, Task
from seepage.core._rng import require_key
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName, require_positive
from seepage.data._load import load, require_split
from seepage.defenses._clip import Clip
from seepage.defenses._compress import Dropout


class Imprint(nn.Module):
    """A detour of the input through bins, before a network.

        f(x + c sum_k a(<w, x> / s_k + b_k))

    All rows of `bins` measure the same functional of the input, and all columns of `decoder` are
    the same vector c. So the gradient at bin k is s(x) = <dL/dx', c> if the bin is open to x, and
    zero otherwise. The vector c is so short that the network computes what it computed before.
    """

    def __init__(
        self, bins: nn.Linear, activation: nn.Module, decoder: nn.Linear, network: nn.Module
    ) -> None:
        super().__init__()
        self.bins, self.activation = bins, activation
        self.decoder, self.network = decoder, network

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the network on the input and its detour."""
        detour = self.decoder(self.activation(self.bins(inputs.flatten(1))))
        logits: Tensor = self.network(inputs + detour.reshape(inputs.shape))
        return logits


def _find_bins(task: Task) -> tuple[str, str]:
    """Names of the weight and the bias of the bins in a network with an imprint."""
    found = [name for name, module in task.model.named_modules() if isinstance(module, Imprint)]
    if not found:
        raise NotApplicable(
            f"expected an update of a network with an imprint, got one of {task.name}; broadcast "
            "attack.plant(task, rng=...) under Threat(server='malicious')"
        )
    prefix = f"{found[0]}.bins" if found[0] else "bins"
    return f"{prefix}.weight", f"{prefix}.bias"


Shape = Literal["normal", "laplace"]

# Quantiles and probabilities of the laws with mean 0 and standard deviation 1.
_LAWS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "normal": (
        lambda p: 2**0.5 * torch.erfinv(2 * p - 1),
        lambda z: (1 + torch.erf(z / 2**0.5)) / 2,
    ),
    "laplace": (
        lambda p: -(p - 0.5).sign() * (1 - 2 * (p - 0.5).abs()).log() / 2**0.5,
        lambda z: 0.5 + z.sign() * (1 - (-(2**0.5) * z.abs()).exp()) / 2,
    ),
}


class _Edges(Protocol):
    """Estimates quantiles of a linear functional of private inputs before seeing any."""

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """The quantiles of `<functional, x>` at these levels, `(K,)`, with x in natural units."""


def _functional_range(functional: Tensor, task: Task) -> Tensor:
    """The lowest and the highest value of the functional over the domain, `(2,)`."""
    low, high = task.domain.bounds
    ends = torch.stack([low * functional, high * functional])
    return torch.stack([ends.amin(0).sum(), ends.amax(0).sum()])


@dataclass(frozen=True, kw_only=True)
class Law:
    """Quantiles of a law that the server assumes, cut off at the range of the functional.

    Args:
        shape: "normal" or "laplace".
        mean: Of the functional, in natural units; the default is the brightness of photographs,
            measured on CIFAR-10's training images.
        std: Its standard deviation.
    """

    shape: Shape = "normal"
    mean: float = 0.474
    std: float = 0.126

    def __post_init__(self) -> None:
        if self.shape not in _LAWS:
            raise UnknownName("law", self.shape, _LAWS)
        require_positive(std=self.std)

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Scale the quantiles of the standard law."""
        quantiles, probabilities = _LAWS[self.shape]
        below, up_to = probabilities((_functional_range(functional, task) - self.mean) / self.std)
        return self.mean + self.std * quantiles(below + levels * (up_to - below))


@dataclass(frozen=True, kw_only=True)
class Public:
    """Quantiles measured on public data.

    Args:
        data: Name of the data set.
        split: Of the data set; private data should be of another.
    """

    data: str
    split: str = "train"

    def __post_init__(self) -> None:
        require_split(self.data, self.split)

    def __call__(self, functional: Tensor, task: Task, levels: Tensor) -> Tensor:
        """Measure the functional on the whole data set."""
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

# In bins. Rounding of local steps moves a candidate by one or two, or anywhere for an empty bin.
_SLACK = 2.0


@dataclass(frozen=True, kw_only=True)
class RobbingTheFed(BaseAttack):
    """Plants a layer whose bins catch one input each, and divides; see `robbing_the_fed`.

    Bin k opens to inputs whose functional <w, x> exceeds its edge; in the sparse variant it closes
    again at the next edge. For each bin that holds a single input,

        cumulative: x = (dL/dW_k - dL/dW_{k+1}) / (dL/db_k - dL/db_{k+1})
        sparse:     x = dL/dW_k / dL/db_k

    With B inputs in K equally likely bins, an input is alone with probability (1 - 1/K)^(B - 1).
    Two inputs in one bin give a mixture. A candidate that would not itself fall into its bin is
    dropped: the bin was empty, and the candidate is rounding error.

    Where the client is known to drop entries, the sparse variant replaces them by the mean of their
    neighbours, and computes a dropped bias from its bin.

    Neither labels nor the batch size are needed. The scale of the update cancels. After several
    local steps the sparse variant stays exact while no input changes bins; the cumulative one is
    approximate, since the columns of the decoder drift apart.

    Args:
        edges: The law of the functional, assumed or measured on public data.

    Deviations:
        The paper uses the cumulative variant. The sparse one subtracts nothing and so keeps more
        digits, above all where a trained network gives examples very unequal gradients. The paper
        replaces the input by the output of the bins, or adds it later in the network; here the
        detour is added to the input, so that the network stays the same up to the gain. The lowest
        edge is the lowest value of any input, so that every input is in a bin.
    """

    bins: int = 128
    variant: Variant = "sparse"
    functional: Functional = "mean"
    edges: _Edges = field(default_factory=Law)
    gain: float = 1e-3
    column: float = 1e-2

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise InvalidValue(f"expected at least 2 bins, got {self.bins!r}")
        for name, known in (("variant", get_args(Variant)), ("functional", get_args(Functional))):
            if getattr(self, name) not in known:
                raise UnknownName(name, getattr(self, name), known)
        if self.functional == "random" and not isinstance(self.edges, Public):
            raise InvalidValue(
                "the law of a random functional has to be measured; name public data such as "
                "public='cifar10'"
            )
        require_positive(gain=self.gain, column=self.column)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Put an imprint before the network; outputs change only by the gain."""
        require_key(rng)
        entries = math.prod(task.domain.shape)
        functional = torch.full((entries,), 1 / entries, dtype=torch.float64)
        if self.functional == "random":
            functional = rng.fork("functional").normal((entries,)).double() / entries
        edges = self._compute_edges(functional, task)
        weight, offset = _normalise_functional(functional, task)
        # Short rows before long columns: local steps then show in float32, and inputs keep bins.
        short = self._width
        sparse = self.variant == "sparse"
        slopes = short / edges.diff() if sparse else torch.full((self.bins,), short)
        bins, decoder = nn.Linear(entries, self.bins), nn.Linear(self.bins, entries, bias=False)
        column = self.column * rng.fork("decoder").normal((entries, 1))
        with torch.no_grad():
            bins.weight.copy_(weight * slopes[:, None])
            bins.bias.copy_((offset - edges[:-1]) * slopes)
            decoder.weight.copy_(column.expand(entries, self.bins))
        opens = nn.Hardtanh(0.0, short) if sparse else nn.ReLU()
        return wrap_network(
            task, lambda network: Imprint(bins, opens, decoder, network), note="with an imprint"
        )

    def _compute_edges(self, functional: Tensor, task: Task) -> Tensor:
        """All K + 1 edges, from the lowest to the highest value of the functional."""
        least, most = _functional_range(functional, task)
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

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Divide; nothing is random."""
        task, update = observation.task, observation.update
        weight, bias = (update.tensors[name] for name in _find_bins(task))
        sparse = self.variant == "sparse"
        if not sparse:
            weight = weight - torch.cat([weight[1:], torch.zeros_like(weight[:1])])
            bias = bias - torch.cat([bias[1:], torch.zeros_like(bias[:1])])
        holes = sparse and _knows_dropout(observation)
        if holes:
            rows, offset = (task.parameters[n].double().to(weight) for n in _find_bins(task))
            weight = _fill_rows(weight, task.domain.shape)
            bias = _restore_biases(bias, weight, rows, self._width / 2 - offset)
        candidates = torch.nan_to_num(weight / bias[:, None], posinf=0.0, neginf=0.0)
        # A filled row may lie outside its bin, and bins without an input are exactly zero.
        inside = bias != 0 if holes else self._fall_in_bins(candidates, task)
        kept = _pick_bins(bias.abs(), inside, observation.batch_size)
        return Reconstruction(task.to_inputs(candidates[kept]))

    @property
    def _width(self) -> float:
        """Width of a bin in the units of its own output."""
        return self.gain / (self.bins * self.column)

    def _fall_in_bins(self, candidates: Tensor, task: Task) -> Tensor:
        """Whether each candidate would itself fall into its bin."""
        weight, bias = (task.parameters[name].double() for name in _find_bins(task))
        place = (candidates.double() * weight).sum(1) + bias
        width = torch.full_like(bias, self._width)
        if self.variant == "cumulative":
            width = torch.cat([-bias.diff(), bias.new_full((1,), math.inf)])
        place = place / width
        inside: Tensor = (place > -_SLACK) & (place < 1 + _SLACK)
        return inside


def _knows_dropout(observation: Observation) -> bool:
    """Whether the adversary knows of dropout, and of no defense that would hide what it dropped."""
    client = observation.simulate.client
    links = () if client is None else client.chain.links
    alone = all(isinstance(link, Dropout | Clip) for link in links)
    return alone and any(isinstance(link, Dropout) for link in links)


def _fill_rows(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Replace zeros in rows `(K, n)`, each a multiple of an input, by the mean of their neighbours.

    Rows of zeros stay zero: they hold no input. Inputs of one axis have no neighbours.
    """
    if len(shape) < 2:
        return weight
    rows = weight.clone()
    for k in weight.any(1).nonzero().flatten().tolist():
        row = weight[k].reshape(shape)
        rows[k] = fill_holes(shape, row.nonzero(), row[row != 0]).flatten()
    return rows


def _restore_biases(bias: Tensor, rows: Tensor, functional: Tensor, middle: Tensor) -> Tensor:
    """The gradient `(K,)` of each bin's bias; computed where it was dropped.

    A row is s x, and the bin tells roughly what <w, x> is: s = <w, s x> / <w, x>.

    Args:
        bias: As observed, `(K,)`.
        rows: s x, filled, `(K, n)`.
        functional: w of each bin, `(K, n)`.
        middle: <w, x> in the middle of each bin, `(K,)`.
    """
    guessed = (rows * functional).sum(1) / middle
    missing = (bias == 0) & rows.any(1)
    return torch.where(missing, torch.nan_to_num(guessed, posinf=0.0, neginf=0.0), bias)


def _normalise_functional(functional: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The functional of the normalised input z: <w, z> + c = <functional, x>."""
    corners = torch.stack([torch.zeros(task.domain.shape), torch.ones(task.domain.shape)])
    zero, one = task.domain.denormalise(corners.double()).flatten(1)
    return functional * (one - zero), functional @ zero


def _pick_bins(strength: Tensor, inside: Tensor, size: int | None) -> Tensor:
    """The bins that hold an input, the strongest first; if none does, the strongest bin."""
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
    """Plant a layer whose bins each catch one input of a large batch exactly.

    Args:
        bins: Number of bins; a bin with a single input gives it away.
        variant: "sparse" (clamped), or "cumulative" (ReLU) as in the paper, which loses digits and
            does not withstand local steps.
        functional: "mean" sorts inputs by brightness, "random" by a random direction.
        law: The law of the functional that the server assumes: "normal" or "laplace".
        mean: Of that law, in natural units; the default is that of photographs.
        std: Its standard deviation.
        public: Name of a data set to measure the law on instead.
        split: Of that data set.
        gain: How far the detour moves the input at most, roughly, in normalised units.
        column: Size of the decoder's entries. Larger ones give the bins a larger gradient, which
            stands out from noise and from the rounding of local steps; with too large ones a local
            step moves inputs to other bins.

    Example:
        >>> robbing_the_fed(bins=64).bins
        64

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    edges: _Edges = Law(shape=law, mean=mean, std=std)
    if public is not None:
        edges = Public(data=public, split=split)
    return RobbingTheFed(
        bins=bins, variant=variant, functional=functional, edges=edges, gain=gain, column=column
    )
