"""A client as a signal in noise, whether that signal jumps, and the Fisher information in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from seepage.attacks._jacobian import Jacobian
from seepage.bounds._bound import SEEN_WITH
from seepage.core import Batch, Defense, Protection, Rng, Task, Update
from seepage.core._chain import Chain, chain
from seepage.core._client import Client
from seepage.core._device import convert, precision
from seepage.core._progress import report
from seepage.core.errors import NotApplicable
from seepage.defenses._clip import AddGaussian, AddLaplace
from seepage.defenses._compress import Dropout, Quantize, Sign
from seepage.numerics._least_squares import Linear
from seepage.probing._operations import OperationTrace, trace_operations

# Largest relative difference between a client and its deterministic part that is rounding.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Channel:
    """A client as a differentiable signal in noise: y = s(x) + std n.

    The noise n has Fisher information one per entry, as a standard normal and Laplace noise of
    scale 1 have. J^T J / std^2 is then the information about x, or an upper bound of it.

    Args:
        client: Computes the signal: the client with the links before the noise.
        std: Scale of the noise on every entry.
        apart: Whether the adversary is assumed to see the update of each client by itself.
        granted: What the adversary is given beyond what it sees, each a phrase.
        assumed: Whether the noise is that of observing the update, not added by the client.
    """

    client: Client
    std: float
    apart: bool = False
    granted: tuple[str, ...] = ()
    assumed: bool = False

    def signal(self, task: Task, inputs: Tensor, labels: Tensor) -> Tensor:
        """Compute the signal `(P,)`, differentiable in the inputs."""
        if not self.apart:
            return self.client.expected(task, inputs, labels).flat()
        parts = self.client.chain.split(Batch(inputs, labels))
        return torch.cat([self._alone.expected(task, p.inputs, p.labels).flat() for p in parts])

    def share(self, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Compute the signal `(P,)` as the client does, with the rounding that it applies."""
        with torch.no_grad(), precision("float32"):
            if not self.apart:
                return self.client(task, batch, rng=rng).flat()
            parts = self.client.chain.split(batch)
            return torch.cat([self._alone(task, part, rng=rng).flat() for part in parts])

    @property
    def _alone(self) -> Client:
        """The client without the others that its update is combined with."""
        links = self.client.chain
        return replace(self.client, defense=chain(*links.input_defenses, *links.update_defenses))

    def describe(self) -> tuple[str, ...]:
        """Say what the adversary is given in the proof and what it sees, as assumptions."""
        told = tuple(f"holds even for an adversary who is told {what}" for what in self.granted)
        return (*told, SEEN_WITH, f"that noise has std {self.std:g}") if self.assumed else told


def channel(
    client: Client, task: Task, batch: Batch, *, std: float, rng: Rng, rounded: bool = False
) -> Channel:
    """Find the first noise among a client's defenses.

    Links after the noise add no information and are left out. Consecutive noises add up:
    1/I(m + n) >= 1/I(m) + 1/I(n) (Stam). A dropout next to the noise keeps a share of the
    information, if the adversary is told the mask.

    Args:
        client: The client that shares.
        task: The broadcast network.
        batch: Used to check that nothing else is random.
        std: Scale of the noise if no link adds any, e.g. of rounding.
        rng: For that check.
        rounded: Whether a link may round before the noise; use `Channel.share` then.

    References:
        Stam, 1959 (stam1959some); Liu et al., 2024, appendix E (liu2024systematic)

    Raises:
        NotApplicable: There is no noise, or a link before it rounds or is random.
    """
    before, noises, after = _split_at_noise(client.chain.update_defenses)
    found = math.hypot(*(_scale(link) for link in noises)) or std
    if found == 0:
        raise NotApplicable(
            "nothing bounds the error: the update is shared without noise (sigma = 0), and what it "
            "determines can be computed; add noise, or give the std it is observed with"
        )
    before, after, gain, granted = _remove_dropout(before, after, noisy=bool(noises))
    aggregation = client.chain.aggregation
    apart = aggregation is not None and (bool(after) or gain != 1)
    if aggregation is not None and apart != bool(noises):
        # Each client's own noise adds up in the combination; assumed noise is on the combination.
        found *= _combined_scale(client.chain, batch) ** (1 if noises else -1)
    if after or (apart and noises):
        granted += (f"the update before {_names(after) or aggregation}",)
    last: tuple[Protection, ...] = () if aggregation is None else (aggregation,)
    signal = replace(client, defense=chain(*client.chain.input_defenses, *before, *last))
    _require_deterministic(signal, task, batch, rng, rounded=rounded)
    return Channel(signal, found / gain, apart, granted, assumed=not noises)


Links = tuple[Defense, ...]


def require_gaussian(client: Client, task: Task) -> None:
    """Require Gaussian noise and inputs of numbers.

    Raises:
        NotApplicable: The client adds Laplace noise, or inputs are tokens.
    """
    if any(isinstance(link, AddLaplace) for link in client.chain.update_defenses):
        raise NotApplicable("it needs Gaussian noise, but the defense adds Laplace noise")
    if task.domain.discrete:
        raise NotApplicable("it is about inputs made of numbers, and these are tokens")


def _split_at_noise(links: Links) -> tuple[Links, Links, Links]:
    """Split into the links before the first noise, the noises there, and the links after."""
    noisy = [_scale(link) > 0 for link in links]
    start = noisy.index(True) if any(noisy) else len(links)
    end = next((i for i in range(start, len(links)) if not noisy[i]), len(links))
    return links[:start], links[start:end], links[end:]


def _scale(link: Defense) -> float:
    """The noise of a link, as one over the root of its Fisher information."""
    if isinstance(link, AddGaussian):
        return link.std
    return link.scale if isinstance(link, AddLaplace) else 0.0


def _remove_dropout(
    before: Links, after: Links, *, noisy: bool
) -> tuple[Links, Links, float, tuple[str, ...]]:
    """Remove a dropout next to the noise; return the factor by which it scales the signal.

    With a known mask, the information is (1 - p) J^T J on average over masks.
    """
    granted = ("which entries were dropped",)
    if before and isinstance(before[-1], Dropout):
        return before[:-1], after, before[-1].factor * math.sqrt(1 - before[-1].rate), granted
    if noisy and after and isinstance(after[0], Dropout):
        return before, after[1:], math.sqrt(1 - after[0].rate), granted
    return before, after, 1.0, ()


def _combined_scale(links: Chain, batch: Batch) -> float:
    """Scale of the combined noise relative to one client's: the norm of the weights."""
    sizes = [len(part) for part in links.split(batch)]
    units = [Update({"weight": row}) for row in torch.eye(len(sizes), dtype=torch.float64).unbind()]
    return float(links.combine(units, sizes).flat().norm())


def _require_deterministic(
    client: Client, task: Task, batch: Batch, rng: Rng, *, rounded: bool
) -> None:
    """Require that nothing is drawn and, unless rounding is allowed, that `expected` is exact."""
    rounding = [link for link in client.chain.update_defenses if isinstance(link, Sign | Quantize)]
    if rounding and not rounded:
        raise NotApplicable(
            f"the bound needs a differentiable update, but {_names(rounding)} rounds it before the "
            "noise; put it after the noise, or use MutualInformation"
        )
    # In TF32, the two would differ by more than float32 rounding.
    with torch.no_grad(), precision("float32"):
        shared = client(task, batch, rng=rng).flat()
        if rounding:
            said = client(task, batch, rng=rng.fork("again")).flat()
        else:
            said = client.expected(task, batch.inputs, batch.labels).flat()
    if shared.shape != said.shape or (shared - said).norm() > ROUNDING * said.norm():
        raise NotApplicable(
            "the bound needs an update whose only randomness is the noise, but "
            f"{client.defense} draws or hides something before; bound each link by itself"
        )


def _names(links: Sequence[Protection]) -> str:
    return ", ".join(map(repr, links))


def _trace(seen: Channel, task: Task, batch: Batch) -> OperationTrace:
    with precision("float32"):
        return trace_operations(lambda x: seen.signal(task, x, batch.labels), batch.inputs)


def require_continuous(seen: Channel, task: Task, batch: Batch) -> None:
    """Require an update that is continuous in the inputs, as van Trees' inequality does.

    Every operation that computes the update is looked at: those of the network, of the loss, of
    both of their derivatives, and of the defense. Kinks are fine in the update, not in the network,
    since the update is a derivative: ReLU makes it jump.

    Raises:
        NotApplicable: Some operation jumps, or it is not known whether it does.
    """
    jumps = _trace(seen, task, batch).jumps
    if jumps:
        raise NotApplicable(
            f"it holds for updates that are continuous in the inputs, and {', '.join(jumps)} makes "
            "this one jump; use MutualInformation, which needs no smoothness"
        )


DIFFERENTIABLE = "the update is differentiable at these inputs; jumps elsewhere do not matter"


def require_differentiable(seen: Channel, task: Task, batch: Batch) -> None:
    """Require that no ReLU is at its kink at these inputs, where the update jumps.

    Raises:
        NotApplicable: Some ReLU gets exactly zero, as from black pixels without a bias.
    """
    if _trace(seen, task, batch).at_kink:
        raise NotApplicable(
            "a ReLU gets exactly zero at these inputs, where the update jumps and has no "
            "derivative; use MutualInformation, which needs no smoothness"
        )


@dataclass(frozen=True, eq=False)
class Information:
    """The Fisher information about n unknowns, held as a whole only by `dense`.

        I = mean_k J(x_k)^T J(x_k) / std^2 + diag(prior)

    with J(x) `(P, n)` the derivative of the signal.

    Args:
        signal: `(n,) -> (P,)`, made of differentiable torch operations.
        points: Inputs at which J is taken, `(K, n)`: the truth, or draws from a prior.
        std: Scale of the noise.
        prior: Information before any update is seen, `(n,)`, or zero.
        vectorised: Whether `torch.func.vmap` may run several directions at once.

    Example:
        >>> doubled = Information(lambda x: 2 * x, torch.zeros(1, 3), std=0.5)
        >>> doubled.products(torch.eye(3)[:1])
        tensor([[16.,  0.,  0.]])
    """

    signal: Linear
    points: Tensor
    std: float
    prior: Tensor | float = 0.0
    vectorised: bool = True

    @property
    def unknowns(self) -> int:
        """Number n of inputs."""
        return self.points.shape[1]

    @property
    def equations(self) -> int:
        """Number P of entries of the signal."""
        return self._jacobians[0].equations

    def products(self, directions: Tensor) -> Tensor:
        """Compute I d for every row d of `(k, n)`."""
        seen = torch.stack([one.squared(directions) for one in self._jacobians]).mean(0)
        return seen / self.std**2 + self.prior * directions

    def dense(self) -> Tensor:
        """Compute the whole matrix `(n, n)`."""
        total = torch.diag(self.prior + torch.zeros_like(self.points[0]))
        for number, one in enumerate(self._jacobians):
            counted = partial(_report_progress, number * self.unknowns, self.points.numel())
            total += one.gram(counted) / (len(self.points) * self.std**2)
        return total

    def squares(self, directions: Tensor) -> Tensor:
        """Compute d^T I d for every row d of `(k, n)`, without the prior."""
        found = [one.squares(directions) for one in self._jacobians]
        return torch.stack(found).mean(0) / self.std**2

    def block_traces(self, examples: int) -> Tensor:
        """Compute the trace of every example's diagonal block `(B,)`, without the prior."""
        found: list[Tensor] = []
        for some in self._jacobians[0].axes():
            found.append(self.squares(some))
            _report_progress(0, self.unknowns, sum(map(len, found)))
        return torch.cat(found).reshape(examples, -1).sum(1)

    @cached_property
    def _jacobians(self) -> list[Jacobian]:
        return [Jacobian(self.signal, point, vectorised=self.vectorised) for point in self.points]


def _report_progress(before: int, total: int, done: int) -> None:
    report(before + done, total, math.nan)


def information(
    seen: Channel, task: Task, batch: Batch, points: Tensor | None = None
) -> Information:
    """Build the information of a channel about a batch, in natural units and double precision.

    Args:
        seen: Signal and noise.
        task: The broadcast network.
        batch: The private inputs, and their labels, which are assumed known.
        points: Batches `(K, B, ...)` to average over instead.
    """
    exact, shape = task.to(dtype=torch.float64), batch.inputs.shape
    soft = convert(batch.labels, exact.reference)

    def signal(flat: Tensor) -> Tensor:
        return seen.signal(exact, flat.reshape(shape), soft)

    at = (batch.inputs[None] if points is None else points).double().flatten(1)
    return Information(signal, at, seen.std, vectorised=not exact.mixes_examples)


def draw_signs(shape: tuple[int, ...], like: Tensor, rng: Rng) -> Tensor:
    """Draw random signs, the probes of trace estimators."""
    return torch.where(rng.uniform(shape, like=like) < 0.5, -1.0, 1.0).to(like)
