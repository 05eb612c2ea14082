"""Exact inversion of a whole batch through a first layer with ReLU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from seepage.attacks._agreement import EXPLAINED
from seepage.attacks._applicability import applies_to, require_several
from seepage.attacks._certificate import certify_solved
from seepage.attacks.exact_batch._assign_labels import find_copies, read_labels
from seepage.attacks.exact_batch._complementarity import Complementarity
from seepage.attacks.exact_batch._separation import (
    ReLULayer,
    Separation,
    bound_error,
    is_determined,
    refine_separation,
    separate_examples,
)
from seepage.attacks.exact_batch._span_factors import (
    Candidates,
    Factors,
    column_space,
    empty_candidates,
    factorise_gradient,
    find_silent,
    success_probability,
)
from seepage.attacks.exact_batch._sparse_directions import SparseDirections
from seepage.attacks.labels._label_evidence import reads_classes
from seepage.attacks.labels._read_targets import fit_targets
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng, Trace
from seepage.core._batch import are_numbers
from seepage.core._progress import report
from seepage.core.errors import InvalidValue, NotApplicable, require_at_least
from seepage.probing._first_layer import Rectified, rectified_layer

# Share of the squared gradients that rounding may leave over, if every example is found.
_SMALLEST_MISFIT = 1e-6
# Searches less likely than this to succeed are not run, or run last.
_HOPELESS, _LIKELY = 0.01, 0.5


class DirectionSearch(Protocol):
    """Searches the span for the directions of examples, one round at a time.

    Args:
        quick_up_to: Largest batch size for which it is run before the others.
        patience: Rounds without a change, in a row, after which it gives up.
    """

    quick_up_to: ClassVar[float]
    patience: ClassVar[float]

    @property
    def rounds(self) -> int:
        """Largest number of rounds."""

    def probability(self, factors: Factors) -> float:
        """Estimate how likely it is to find all examples."""

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """Find more candidates, given the best so far."""


@dataclass(frozen=True, kw_only=True)
class KernelSampling:
    """Draws B - 1 neurons at a time and takes the direction that is zero at all of them.

    ReLU zeroes about half of each column of dL/dZ = span P. If the B - 1 drawn neurons are silent
    for one example, that example's direction p is the kernel of their rows of the span. Then span p
    is also zero at many other neurons, which does not happen by chance. For a given example, one
    draw in 2^(B-1) succeeds.

    Args:
        samples: Draws in each round.
        rounds: Largest number of rounds.

    Deviations: candidates are ranked by the number of silent neurons, and the best linearly
    independent ones are chosen greedily. The paper starts from the same choice and then exchanges
    single directions to improve the agreement with the forward pass. Here that agreement is only
    checked.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """

    samples: int = 8_192
    rounds: int = 32

    quick_up_to: ClassVar[float] = 8
    patience: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        require_at_least(1, samples=self.samples, rounds=self.rounds)

    def probability(self, factors: Factors) -> float:
        """Probability that all rounds together find all examples."""
        return success_probability(
            neurons=int(factors.live.sum()),
            batch_size=factors.batch_size,
            samples=self.samples * self.rounds,
        )

    def __call__(self, factors: Factors, found: Candidates, *, rng: Rng) -> Candidates:
        """Run one round of draws, independent of what was found before."""
        span = factors.span[factors.live]
        neurons = rng.uniform((self.samples, len(span)), like=span)
        directions = _find_kernels(span[neurons.topk(factors.batch_size - 1, dim=1).indices])
        zeros = find_silent(span, directions, factors.tolerance).sum(1)
        return Candidates(directions, 1 - zeros / len(span))


def _find_kernels(rows: Tensor) -> Tensor:
    """The unit vectors `(N, B)` that rows `(N, B - 1, B)` map to zero.

    Example:
        >>> _find_kernels(torch.tensor([[[3.0, 4.0]]])).allclose(torch.tensor([-0.8, 0.6]))
        True
    """
    # With the last entry set to one, the others solve a square system; LU is fast in batches.
    others = torch.linalg.solve_ex(rows[..., :-1], -rows[..., -1:])[0][..., 0]
    vectors = torch.cat([others, rows.new_ones(len(rows), 1)], dim=1)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return torch.nan_to_num(unit, nan=0.0, posinf=0.0, neginf=0.0)


def separate_batch(
    searches: Sequence[DirectionSearch], factors: Factors, layer: ReLULayer, *, rng: Rng
) -> tuple[Separation, tuple[float, ...]]:
    """Run searches in order until one separates the batch consistently.

    Returns:
        The most consistent separation, and its mean leak after each round.
    """
    best: Separation | None = None
    trail: list[float] = []
    for search in searches:
        found, idle = empty_candidates(factors.span), 0
        for number in range(search.rounds):
            before = found.directions
            key = rng.fork(type(search).__name__, number)
            found = found.join(search(factors, found, rng=key)).select_independent()
            report(number + 1, search.rounds, 1.0 if best is None else best.leak)
            idle = idle + 1 if torch.equal(found.directions, before) else 0
            if idle > search.patience:
                break
            if idle or len(found) < factors.batch_size:
                continue
            separation = separate_examples(factors, layer, found)
            if best is None or separation.leak < best.leak:
                best = separation
            trail.append(best.leak)
            settled = refine_separation(factors, layer, separation)
            if settled.is_consistent(factors.noise):
                return settled, (*trail, settled.leak)
    if best is None:
        raise NotApplicable(
            f"no {factors.batch_size} independent directions were found in the span of the "
            "gradient; exact inversion needs a wider layer or a smaller batch"
        )
    return best, tuple(trail)


@dataclass(frozen=True, kw_only=True)
class ExactBatch(BaseAttack):
    """Inverts the gradient of a batch through a fully connected first layer with bias and ReLU.

    The gradient dL/dW = D X has the rank of the batch, so its factors leave only a B x B matrix
    unknown (see `Factors`). Its columns are found one by one: ReLU zeroes the entries of D = dL/dZ
    at silent neurons, which singles out the directions that belong to one example. The bias
    gradient gives their scale, and the inputs follow. A forward pass through the layer checks
    them: nothing may have come through a neuron that the recovered input leaves silent.

    Neither labels nor the batch size are needed. Inputs that are equal are found once and then
    counted by how strong their gradient is. The scale of the update and of each example in it
    cancels, so clipping and one local step change nothing. If the update is noisy, the guess is a
    best effort, and the certificate says so.

    Args:
        searches: For the directions, run in this order until the forward pass agrees. Hopeless ones
            are left out. Those that are slow for this batch size or unlikely to succeed come last.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear); Bakarsky et al., 2025 (bakarsky2025spear);
        Huang et al., 2021, Lemma B.1 (huang2021evaluating)
    """

    searches: tuple[DirectionSearch, ...] = (
        Complementarity(),
        SparseDirections(),
        KernelSampling(),
    )

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Separate the batch."""
        task, parameters = observation.task, observation.task.parameters
        rectified = rectified_layer(task)
        factors = _read_factors(observation, rectified)
        names = [f"{rectified.layer}.{part}" for part in ("weight", "bias")]
        layer = ReLULayer(*(parameters[name].double() for name in names))
        promising = select_searches(self.searches, factors)
        separation, trail = separate_batch(promising, factors, layer, rng=rng)
        inputs = task.to_inputs(separation.inputs).to(task.reference.dtype)
        rows, labels = find_labels(
            observation, rectified.layer, inputs, separation.gradients, noise=factors.noise
        )
        inputs = inputs[rows]
        # All other equations are linear and regular: no input nearby explains the update. Equal
        # inputs could also be two that are nearly equal.
        alone = len(rows) == factors.batch_size
        alone = alone and separation.is_consistent(factors.noise)
        alone = alone and is_determined(factors, separation)
        # The layer alone shows it, also where the rest of the network cannot be simulated.
        sure = alone and factors.noise <= EXPLAINED and separation.is_consistent(0.0)
        confidence = torch.ones_like(inputs).flatten(1) if sure else None
        lengths = [float(observation.update.tensors[name].double().norm()) for name in names]

        def bound(errors: Mapping[str, float]) -> float:
            weight, bias = (errors[n] / length for n, length in zip(names, lengths, strict=True))
            return bound_error(separation, weight_error=weight, bias_error=bias)

        trace = Trace(trail, trail[-1:])
        if labels is None:
            # Nothing can be simulated, but the first layer alone tells whether the guess fails.
            through_silent = Certificate(float(separation.leaks.max()))
            return Reconstruction(inputs, None, trace, through_silent, confidence)
        certificate = certify_solved(
            observation, inputs, labels, read=names, alone=alone, bound=bound
        )
        return Reconstruction(inputs, labels, trace, certificate, confidence)


def find_labels(
    observation: Observation, layer: str, inputs: Tensor, gradients: Tensor, *, noise: float
) -> tuple[Tensor, Tensor | None]:
    """The number of each example's input, and its label; None if targets cannot be found."""
    task, known = observation.task, observation.labels
    rows = torch.arange(len(inputs), device=inputs.device)
    if known is None and not reads_classes(task):
        return rows, fit_targets(observation, inputs)
    if known is not None and len(known) != len(inputs) and not reads_classes(task):
        return rows, None
    labels = read_labels(task, layer, inputs, gradients, known)
    if are_numbers(labels):
        return rows, labels
    return find_copies(
        task,
        layer,
        inputs,
        gradients,
        labels,
        size=observation.batch_size,
        known=known,
        tolerance=max(_SMALLEST_MISFIT, (10 * noise) ** 2),
    )


def _read_factors(observation: Observation, rectified: Rectified) -> Factors:
    task, gradient = observation.task, observation.update.descent().tensors
    weight, bias = (gradient.get(f"{rectified.layer}.{part}") for part in ("weight", "bias"))
    if weight is None or bias is None:
        raise NotApplicable(
            f"the first layer {rectified.layer!r} is frozen, so the update does not hold it"
        )
    factors = factorise_gradient(weight, bias, batch_size=observation.batch_size)
    name = f"{rectified.above}.weight"
    if rectified.above is None or name not in gradient:
        return factors
    sent = column_space(gradient[name], at_most=factors.batch_size)
    return replace(factors, above=task.parameters[name].double().T @ sent)


def select_searches(searches: Sequence[DirectionSearch], factors: Factors) -> list[DirectionSearch]:
    """Choose and order the searches worth running, or raise `NotApplicable` if there are none."""
    odds = [search.probability(factors) for search in searches]
    if max(odds) < _HOPELESS:
        raise NotApplicable(
            f"{factors.batch_size} examples through {int(factors.live.sum())} neurons that have a "
            f"gradient come back with probability {max(odds):.1g} at most; exact inversion needs a "
            "wider layer or a smaller batch"
        )
    promising = [pair for pair in zip(searches, odds, strict=True) if pair[1] >= _HOPELESS]
    promising.sort(key=lambda pair: factors.batch_size > pair[0].quick_up_to or pair[1] < _LIKELY)
    return [search for search, _ in promising]


def _require_wide_first_layer(observation: Observation) -> None:
    require_several(observation)
    layer = rectified_layer(observation.task)
    width = len(observation.task.parameters[f"{layer.layer}.bias"])
    if (observation.batch_size or 1) >= width:
        raise NotApplicable(f"the first layer is {width} wide, too narrow for the batch")


@applies_to(require=_require_wide_first_layer)
def exact_batch(
    *, engine: str = "auto", starts: int = 64, samples: int = 8_192, sparse_starts: int = 128
) -> Attack:
    """Recover a whole batch exactly through a fully connected first layer with bias and ReLU.

    Args:
        engine: How examples are told apart. "least_squares" is the quickest up to 32 examples, or
            behind one hidden layer, and needs a fully connected second layer. "sparse" needs only
            width: about 16 neurons per example, and more if many examples share a label and the
            second layer is the last. "sampling" is that of the first paper and works up to about
            16 examples. "auto" runs those that have a chance in this order; beyond 32 examples
            "sparse" comes first if it is likely to succeed.
        starts: Starts in each round of least squares.
        samples: Draws in each round of kernel sampling.
        sparse_starts: Starts in each round of sparse directions.

    Deviations:
        SPEAR only samples, and so is limited to about 25 examples. Least squares on the equations
        "silent or passing" (`Complementarity`) is ours. SPEAR++ learns a sparsely-used dictionary;
        its algorithm was not available to us, and `SparseDirections` is ours.

    Example:
        >>> exact_batch(starts=128).searches[0]
        Complementarity(starts=128, steps=40, rounds=24)
        >>> [type(search).__name__ for search in exact_batch(engine="sparse").searches]
        ['SparseDirections']

    References:
        Dimitrov et al., 2024 (dimitrov2024spear); Bakarsky et al., 2025 (bakarsky2025spear)
    """
    searches: dict[str, DirectionSearch] = {
        "least_squares": Complementarity(starts=starts),
        "sparse": SparseDirections(starts=sparse_starts),
        "sampling": KernelSampling(samples=samples),
    }
    if engine == "auto":
        return ExactBatch(searches=tuple(searches.values()))
    if engine not in searches:
        raise InvalidValue(f"expected engine in {['auto', *searches]}, got {engine!r}")
    return ExactBatch(searches=(searches[engine],))
