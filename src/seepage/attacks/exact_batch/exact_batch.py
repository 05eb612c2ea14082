"""Exact inversion of a whole batch through a first layer with ReLU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from seepage.attacks.applicability import applies_to, require_several
from seepage.attacks.certificate import certify_solved
from seepage.attacks.exact_batch.assign_labels import read_labels
from seepage.attacks.exact_batch.complementarity import Complementarity
from seepage.attacks.exact_batch.direction_search import (
    DirectionSearch,
    ReLULayer,
    Separation,
    determined,
    separate_batch,
)
from seepage.attacks.exact_batch.kernel_sampling import KernelSampling
from seepage.attacks.exact_batch.span_factors import Factors, column_space, factorise
from seepage.attacks.exact_batch.sparse_directions import SparseDirections
from seepage.core import Attack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key
from seepage.probing.first_layer import Rectified, rectified_layer
from seepage.probing.usable_update import require_usable

_HOPELESS = 0.01
_LIKELY = 0.5


@dataclass(frozen=True, kw_only=True)
class ExactBatch:
    """Inverts the gradient of a batch through a fully connected first layer with bias and ReLU.

    The gradient dL/dW = D X has the rank of the batch, so its factors leave only a B x B matrix
    unknown (see `Factors`). Its columns are found one by one: ReLU zeroes the entries of
    D = dL/dZ at silent neurons, which singles out the directions that belong to a person. The bias
    gradient gives their scale, the inputs follow, and a forward pass through the layer checks
    them: nothing may have come through a neuron that the recovered input leaves silent.

    Neither labels nor the batch size are needed. The scale of the update cancels, and so do
    differing scales of the people in it, so that clipping and one local step change nothing.
    Where the update is noisy the guess is the best effort, and the certificate says so.

    Args:
        searches: For the directions, tried until the forward pass agrees: in this order, but those
            without a chance are left out, and those that are slow for so many people, or unlikely
            to succeed, come last.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear); Bakarsky et al., 2025 (bakarsky2025spear);
        Huang et al., 2021, Lemma B.1 (huang2021evaluating)
    """

    searches: tuple[DirectionSearch, ...] = (
        Complementarity(),
        SparseDirections(),
        KernelSampling(),
    )

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Separate the batch."""
        require_key(rng)
        # Layers are recognised by what they compute; TF32 rounding on a GPU would hide that.
        with precision("float32"):
            return self._separated(observation, rng)

    def _separated(self, observation: Observation, rng: Rng) -> Reconstruction:
        began = time.perf_counter()
        task = observation.task
        require_usable(observation.update, task)
        rectified = rectified_layer(task)
        factors = _factors(observation, rectified)
        promising = _select_searches(self.searches, factors)
        separation, trail = separate_batch(
            promising, factors, _layer(task, rectified.layer), rng=rng
        )
        inputs = _natural(task, separation.inputs)
        labels = read_labels(
            task, rectified.layer, inputs, separation.gradients, observation.labels
        )
        seconds = time.perf_counter() - began
        return Reconstruction(
            inputs,
            labels,
            Trace(trail, trail[-1:], seconds=seconds, device=str(inputs.device)),
            # All other equations are linear and regular: no input nearby explains the update.
            certify_solved(
                observation,
                inputs,
                labels,
                read=[f"{rectified.layer}.{part}" for part in ("weight", "bias")],
                alone=_directions_are_fixed(factors, separation),
            ),
        )


def _factors(observation: Observation, rectified: Rectified) -> Factors:
    task, gradient = observation.task, observation.update.descent().tensors
    weight, bias = (gradient.get(f"{rectified.layer}.{part}") for part in ("weight", "bias"))
    if weight is None or bias is None:
        raise NotApplicable(
            f"the first layer {rectified.layer!r} is frozen, so the update does not hold it"
        )
    factors = factorise(weight, bias, people=observation.batch_size)
    name = f"{rectified.above}.weight"
    if rectified.above is None or name not in gradient:
        return factors
    sent = column_space(gradient[name], at_most=factors.people)
    return factors.below(task.parameters[name].double().T @ sent)


def _select_searches(
    searches: Sequence[DirectionSearch], factors: Factors
) -> list[DirectionSearch]:
    """The searches worth trying, or a refusal that says how unlikely success is."""
    odds = [search.probability(factors) for search in searches]
    if max(odds) < _HOPELESS:
        raise NotApplicable(
            f"{factors.people} people through {int(factors.live.sum())} neurons that say anything "
            f"come back with probability {max(odds):.1g} at most; exact inversion needs a wider "
            "layer or a smaller batch"
        )
    promising = [pair for pair in zip(searches, odds, strict=True) if pair[1] >= _HOPELESS]
    promising.sort(key=lambda pair: factors.people > pair[0].quick_up_to or pair[1] < _LIKELY)
    return [search for search, _ in promising]


def _layer(task: Task, name: str) -> ReLULayer:
    parameters = task.parameters
    return ReLULayer(parameters[f"{name}.weight"].double(), parameters[f"{name}.bias"].double())


def _natural(task: Task, flat: Tensor) -> Tensor:
    """Inputs as the layer reads them, in the precision of the task and in natural units."""
    reference = next(iter(task.parameters.values()))
    normalised = flat.reshape(-1, *task.domain.shape)
    return task.domain.project(task.domain.denormalise(normalised)).to(reference.dtype)


def _directions_are_fixed(factors: Factors, separation: Separation) -> bool:
    """Whether the silent neurons agree with the inputs and leave one direction to everybody."""
    return separation.consistent(factors.noise) and determined(factors, separation)


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
    """The whole batch behind a fully connected first layer with bias and ReLU, exactly.

    Args:
        engine: How people are told apart. "least_squares" is the quickest up to 32 people, or
            behind one hidden layer, and needs a fully connected second layer; "sparse" needs about
            16 neurons per person, more where many share a label and the second layer is the last,
            and nothing else; "sampling" is the first paper's and serves about 16 people. "auto"
            tries those that have a chance in this order, beyond 32 people with "sparse" first
            where it is likely to succeed.
        starts: Of each round of least squares.
        samples: Of each round of kernel sampling.
        sparse_starts: Of each round of sparse directions.

    Deviations:
        SPEAR samples only, and so is limited to about 25 people. Least squares on the equations
        "silent or passing" (`Complementarity`) is ours. SPEAR++ learns a sparsely-used dictionary;
        which algorithm it takes was not at hand, and `SparseDirections` is ours.

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
