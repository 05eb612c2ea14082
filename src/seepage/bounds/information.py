"""A client as a signal in noise, whether that signal jumps, and the Fisher information in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seepage.attacks.jacobian import Jacobian
from seepage.clients.client import Client
from seepage.core import Batch, Defense, Protection, Rng, Task, Update
from seepage.core.device import precision
from seepage.core.errors import NotApplicable
from seepage.core.progress import report
from seepage.defenses.chain import Chain, chain
from seepage.defenses.clip import AddGaussian, AddLaplace
from seepage.defenses.compress import Dropout, Quantize, Sign
from seepage.numerics.least_squares import Linear

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
        links = self.client.chain
        alone = replace(self.client, defense=chain(*links.input_defenses, *links.update_defenses))
        return torch.cat([alone.expected(task, p.inputs, p.labels).flat() for p in parts])

    def share(self, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Compute the signal `(P,)` as the client does, with the rounding that it applies."""
        with torch.no_grad(), precision("float32"):
            if not self.apart:
                return self.client(task, batch, rng=rng).flat()
            links = self.client.chain
            single = chain(*links.input_defenses, *links.update_defenses)
            alone = replace(self.client, defense=single)
            return torch.cat([alone(task, part, rng=rng).flat() for part in links.split(batch)])


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


def require_gaussian(client: Client, batch: Batch) -> None:
    """Require Gaussian noise and inputs of numbers.

    Raises:
        NotApplicable: The client adds Laplace noise, or inputs are tokens.
    """
    if any(isinstance(link, AddLaplace) for link in client.chain.update_defenses):
        raise NotApplicable("it needs Gaussian noise, but the defense adds Laplace noise")
    if not batch.inputs.is_floating_point():
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


# An assumption that begins like this makes the bound one of another client than the one attacked.
SEEN_WITH = "the update is seen with noise that the client does not add, of std"


# Operations that are continuous in every tensor they take, as torch names them. The update is
# computed by these and by nothing else, or it may jump.
_NAMES_OF_CONTINUOUS = """
view _unsafe_view reshape expand t transpose permute slice slice_backward select select_backward
squeeze unsqueeze cat stack split split_with_sizes unbind alias clone copy_ _to_copy detach
constant_pad_nd gather scatter scatter_add scatter_add_ index index_select index_put index_put_
index_add masked_fill where tril triu diagonal flip roll repeat unfold as_strided im2col col2im
unfold_backward embedding new_zeros new_ones new_full new_empty new_empty_strided zeros_like
ones_like full_like empty_like fill_ zero_ zero lift_fresh add add_ sub sub_ rsub mul mul_ div
div_ neg mean sum mm bmm addmm baddbmm mv addmv dot addcmul addcdiv linear einsum pow sqrt rsqrt
exp expm1 log log1p reciprocal sin cos erf cumsum var var_mean std linalg_vector_norm norm
logsumexp prod abs clamp clamp_min clamp_max maximum minimum amax amin relu relu_ leaky_relu elu
hardtanh hardswish hardsigmoid sigmoid sigmoid_backward tanh tanh_backward gelu gelu_backward
silu silu_backward softplus softplus_backward mish mish_backward log_sigmoid_forward
log_sigmoid_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss
mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
native_batch_norm native_batch_norm_backward _native_batch_norm_legit
_native_batch_norm_legit_no_training cudnn_batch_norm cudnn_batch_norm_backward
native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
convolution convolution_backward avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d
avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
_adaptive_avg_pool3d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d
upsample_bilinear2d_backward reflection_pad2d reflection_pad2d_backward replication_pad2d
replication_pad2d_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
_scaled_dot_product_flash_attention_backward
"""
_CONTINUOUS = frozenset(_NAMES_OF_CONTINUOUS.split())
# What a person calls some of the others.
_COMMON_NAMES = {
    "threshold_backward": "ReLU",
    "leaky_relu_backward": "LeakyReLU",
    "elu_backward": "SELU or ELU",
    "hardtanh_backward": "Hardtanh or ReLU6",
    "max_pool2d_with_indices": "MaxPool",
    "max_pool2d_with_indices_backward": "MaxPool",
    "gt": "a comparison",
    "ge": "a comparison",
    "lt": "a comparison",
    "le": "a comparison",
    "kthvalue": "pruning",
    "sort": "pruning",
    "topk": "the choice of the largest entries",
    "sgn": "Sign",
    "sign": "Sign",
}


class _OperationTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names the operations on whatever depends on a tensor, in the order they first run."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Storages are held, so that no address is used twice.
        self._seen = {inputs.untyped_storage()._cdata: inputs.untyped_storage()}
        self.jumps: dict[str, None] = {}
        self.at_kink = False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        given = _list_tensors((args, kwargs))
        if any(t.untyped_storage()._cdata in self._seen for t in given):
            for t in _list_tensors(result):
                self._seen[t.untyped_storage()._cdata] = t.untyped_storage()
            name = str(func.overloadpacket).removeprefix("aten.")
            if name in ("relu", "relu_", "leaky_relu"):
                self.at_kink |= bool((args[0] == 0).any())
            # Both sides of an ELU have the same slope at zero; those of a SELU have not.
            elu = name == "elu_backward" and math.isclose(args[1] * args[3], 1.0)
            if not (name in _CONTINUOUS or elu):
                self.jumps[_COMMON_NAMES.get(name, name)] = None
        return result


def _list_tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _trace(seen: Channel, task: Task, batch: Batch) -> _OperationTrace:
    inputs = batch.inputs.clone()
    trace = _OperationTrace(inputs)
    with torch.no_grad(), precision("float32"), trace:
        seen.signal(task, inputs, batch.labels)
    return trace


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
    soft = batch.labels.double() if batch.labels.is_floating_point() else batch.labels

    def signal(flat: Tensor) -> Tensor:
        return seen.signal(exact, flat.reshape(shape), soft)

    at = (batch.inputs[None] if points is None else points).double().flatten(1)
    return Information(signal, at, seen.std, vectorised=not exact.mixes_examples)


def draw_signs(shape: tuple[int, ...], like: Tensor, rng: Rng) -> Tensor:
    """Draw random signs, the probes of trace estimators."""
    return torch.where(rng.uniform(shape, like=like) < 0.5, -1.0, 1.0).to(like)
