"""A client as a signal in noise, and how much that says about each direction of the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian, Linear
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Defense, Protection, Rng, Task, Update
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.progress import report
from seepage.defenses.chain import Chain, chain
from seepage.defenses.clip import AddGaussian, AddLaplace
from seepage.defenses.quantize import Quantize, Sign
from seepage.defenses.sparsify import Dropout

# How far a client may stray from its deterministic part, relative to it, by rounding alone.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Channel:
    """A client seen as a differentiable signal in noise: y = s(x) + std n.

    The noise n has Fisher information one per entry, which makes J^T J / std^2 the information
    about x, or more than there is. A standard normal has; so has Laplace noise of scale 1.

    Args:
        client: What computes the signal: the links before the noise.
        std: Scale of the noise on every entry.
        apart: Whether the updates of several clients are taken as seen one by one.
        granted: What the adversary is given beyond what it sees, each a phrase.
        assumed: Whether the noise is not the client's, but how precisely it is observed.
    """

    client: Client
    std: float
    apart: bool = False
    granted: tuple[str, ...] = ()
    assumed: bool = False

    def signal(self, task: Task, inputs: Tensor, labels: Tensor) -> Tensor:
        """The signal `(P,)`, differentiable in the inputs."""
        if not self.apart:
            return self.client.expected(task, inputs, labels).flat()
        parts = self.client.chain.split(Batch(inputs, labels))
        alone = replace(self.client, defense=_without_aggregation(self.client.chain))
        return torch.cat([alone.expected(task, p.inputs, p.labels).flat() for p in parts])


def channel(client: Client, task: Task, batch: Batch, *, std: float, rng: Rng) -> Channel:
    """Read the first noise off a client's defenses.

    What comes after noise adds no information, so links behind the first are left out. Noises in a
    row add up: 1/I(m + n) >= 1/I(m) + 1/I(n) (Stam). A dropout beside the noise keeps a share of
    the information, once the adversary is told the mask.

    Args:
        client: Who shares.
        task: The broadcast network.
        batch: Where it is checked that nothing else is random.
        std: Scale of noise on an update that no link makes noisy, e.g. of its rounding.
        rng: For that check.

    References:
        Stam, 1959 (stam1959some); Liu et al., 2024, appendix E (liu2024systematic)

    Raises:
        NotApplicable: If there is no noise, or something before it is random or rounds.
    """
    before, noises, after = _around_noise(client.chain.update_defenses)
    found = math.hypot(*(_scale(link) for link in noises)) or std
    if found == 0:
        raise NotApplicable(
            "nothing bounds the error: the update is shared without noise (sigma = 0), and what it "
            "determines can be computed; add noise, or give the std it is observed with"
        )
    before, after, gain, granted = _dropout(before, after, noisy=bool(noises))
    company = client.chain.aggregation
    apart = company is not None and (bool(after) or gain != 1)
    if company is not None and apart != bool(noises):
        # Noise of each client's own adds up in the combination; noise on it is shared out.
        found *= _loudness(client.chain, batch) ** (1 if noises else -1)
    if after or (apart and noises):
        granted += (f"the update before {_names(after) or company}",)
    last: tuple[Protection, ...] = () if company is None else (company,)
    signal = replace(client, defense=chain(*client.chain.input_defenses, *before, *last))
    _require_faithful(signal, task, batch, rng)
    return Channel(signal, found / gain, apart, granted, assumed=not noises)


Guards = tuple[Defense, ...]


def _around_noise(guards: Guards) -> tuple[Guards, Guards, Guards]:
    """The links before the first noise, the noises there, and the links after them."""
    noisy = [_scale(link) > 0 for link in guards]
    start = noisy.index(True) if any(noisy) else len(guards)
    end = next((i for i in range(start, len(guards)) if not noisy[i]), len(guards))
    return guards[:start], guards[start:end], guards[end:]


def _scale(link: Defense) -> float:
    """The noise of a link, as one over the root of its Fisher information."""
    if isinstance(link, AddGaussian):
        return link.std
    return link.scale if isinstance(link, AddLaplace) else 0.0


def _dropout(
    before: Guards, after: Guards, *, noisy: bool
) -> tuple[Guards, Guards, float, tuple[str, ...]]:
    """Take a dropout beside the noise out, and say by what factor it scales the signal.

    Seen through a known mask, entries have (1 - p) J^T J in the mean over masks.
    """
    gain, granted = 1.0, ("which entries were dropped",)
    if before and isinstance(before[-1], Dropout):
        dropped = before[-1]
        scale = 1 / (1 - dropped.rate) if dropped.rescale else 1.0
        return before[:-1], after, scale * math.sqrt(1 - dropped.rate), granted
    if noisy and after and isinstance(after[0], Dropout):
        return before, after[1:], math.sqrt(1 - after[0].rate), granted
    return before, after, gain, ()


def _loudness(links: Chain, batch: Batch) -> float:
    """Scale of the combined noise, in units of one client's: the norm of the weights."""
    sizes = [len(part) for part in links.split(batch)]
    units = [Update({"weight": row}) for row in torch.eye(len(sizes), dtype=torch.float64).unbind()]
    return float(links.combine(units, sizes).flat().norm())


def _require_faithful(client: Client, task: Task, batch: Batch, rng: Rng) -> None:
    """Refuse what `expected` does not describe, or describes with a derivative it has not."""
    rounding = [link for link in client.chain.update_defenses if isinstance(link, Sign | Quantize)]
    if rounding:
        raise NotApplicable(
            f"the bound needs a differentiable update, but {_names(rounding)} rounds it before the "
            "noise; put it behind the noise"
        )
    # Rounded to TF32 the two would differ by more than rounding in float32.
    with torch.no_grad(), precision("float32"):
        shared = client(task, batch, rng=rng).flat()
        said = client.expected(task, batch.inputs, batch.labels).flat()
    if shared.shape != said.shape or (shared - said).norm() > ROUNDING * said.norm():
        raise NotApplicable(
            "the bound needs an update that is random in its noise alone, but "
            f"{client.defense} draws or hides something before; bound each link by itself"
        )


def _names(links: Sequence[Protection]) -> str:
    return ", ".join(map(repr, links))


def _without_aggregation(links: Chain) -> Protection:
    return chain(*links.input_defenses, *links.update_defenses)


# How an assumption begins that makes a bound one of another client than the one attacked.
SEEN_WITH = "the update is seen with noise that the client does not add, of std"


def nothing_said(batch: Batch, reason: str) -> BoundValue:
    """A lower bound of zero for everybody, and why."""
    nothing = torch.zeros(len(batch), dtype=torch.float64, device="cpu")
    return BoundValue(nothing, "lower", "rmse", (), reason)


def require_radius(radius: float) -> None:
    """Refuse intervals that are empty or wider than the domain."""
    if not 0 < radius <= 1:
        raise InvalidValue(f"expected a radius in (0, 1], got {radius!r}")


def within(radius: float) -> str:
    """Over which inputs a bound is an average, as an assumption."""
    return (
        f"on average over inputs within {radius:g} of the range of these, entry by entry and of "
        "no known structure"
    )


def require_std(std: float) -> None:
    """Refuse noise of no possible scale."""
    if not (std >= 0 and math.isfinite(std)):
        raise InvalidValue(f"expected std >= 0, got {std!r}")


@dataclass(frozen=True, eq=False)
class Information:
    """The Fisher information about n unknowns, never held as a whole unless asked for.

        I = mean_k J(x_k)^T J(x_k) / std^2 + diag(prior)

    with J(x) `(P, n)` the derivative of the signal.

    Args:
        signal: `(n,) -> (P,)`, made of differentiable torch operations.
        points: Where J is taken, `(K, n)`; the truth alone unless a prior is averaged over.
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
        """I d for every row d of `(k, n)`."""
        seen = torch.stack([one.squared(directions) for one in self._jacobians]).mean(0)
        return seen / self.std**2 + self.prior * directions

    def dense(self) -> Tensor:
        """The whole matrix `(n, n)`."""
        total = torch.diag(self.prior + torch.zeros_like(self.points[0]))
        for number, one in enumerate(self._jacobians):
            counted = partial(_told, number * self.unknowns, self.points.numel())
            total += one.gram(counted) / (len(self.points) * self.std**2)
        return total

    def squares(self, directions: Tensor) -> Tensor:
        """d^T I d for every row d of `(k, n)`, without the prior."""
        found = [one.squares(directions) for one in self._jacobians]
        return torch.stack(found).mean(0) / self.std**2

    def block_traces(self, people: int) -> Tensor:
        """The trace of every person's diagonal block `(B,)`, without the prior."""
        found: list[Tensor] = []
        for some in self._jacobians[0].axes():
            found.append(self.squares(some))
            _told(0, self.unknowns, sum(map(len, found)))
        return torch.cat(found).reshape(people, -1).sum(1)

    @cached_property
    def _jacobians(self) -> list[Jacobian]:
        return [Jacobian(self.signal, point, vectorised=self.vectorised) for point in self.points]


def _told(before: int, total: int, done: int) -> None:
    report(before + done, total, math.nan)


def information(
    seen: Channel, task: Task, batch: Batch, points: Tensor | None = None
) -> Information:
    """The information of a channel about a batch, in natural units and double precision.

    Args:
        seen: Signal and noise.
        task: The broadcast network.
        batch: The private inputs and the labels, which are taken for known.
        points: Other batches `(K, B, ...)` to average over in its place.
    """
    exact, shape = task.to(dtype=torch.float64), batch.inputs.shape
    soft = batch.labels.double() if batch.labels.is_floating_point() else batch.labels

    def signal(flat: Tensor) -> Tensor:
        return seen.signal(exact, flat.reshape(shape), soft)

    at = (batch.inputs[None] if points is None else points).double().flatten(1)
    return Information(signal, at, seen.std, vectorised=not exact.mixes_examples)


def signs(shape: tuple[int, ...], like: Tensor, rng: Rng) -> Tensor:
    """Random signs, the probes of trace estimators."""
    return torch.where(rng.uniform(shape, like=like) < 0.5, -1.0, 1.0).to(like)


def person_jacobians(client: Client, task: Task, batch: Batch) -> list[Jacobian]:
    """For each person the derivative `(P, d)` of the expected update in that person's input.

    In double precision; everybody else's input stays as it is.
    """
    exact = task.to(dtype=torch.float64)
    inputs = batch.inputs.double()

    def of(person: int) -> Jacobian:
        def update(flat: Tensor) -> Tensor:
            rows = [*inputs[:person], flat.reshape(inputs.shape[1:]), *inputs[person + 1 :]]
            return client.expected(exact, torch.stack(rows), batch.labels).flat()

        return Jacobian(update, inputs[person].flatten(), vectorised=not exact.mixes_examples)

    return [of(person) for person in range(len(batch))]


def squared_norm(jacobian: Jacobian, *, probes: int, rng: Rng) -> tuple[float, float]:
    """||J||_F^2 = E ||J z||^2 over random signs z, and the standard error of the estimate.

    References:
        Hutchinson, 1990 (hutchinson1990stochastic)
    """
    drawn = signs((probes, jacobian.unknowns), jacobian.at, rng)
    found = jacobian.squares(drawn)
    return float(found.mean()), float(found.std()) / math.sqrt(probes)


def largest_eigenvalue(jacobian: Jacobian, *, iterations: int, rng: Rng) -> float:
    """lambda_max(J^T J) by power iteration, from below."""
    direction = rng.normal((jacobian.unknowns,), like=jacobian.at)
    value = 0.0
    for _ in range(iterations):
        (image,) = jacobian.squared((direction / direction.norm())[None])
        value, direction = float(image.norm()), image
        if value == 0:
            break
    return value
