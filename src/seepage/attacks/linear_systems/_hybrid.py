"""R-GAP whose solutions are corrected by gradient matching, layer by layer."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from torch import Tensor, nn

from seepage.attacks.linear_systems._linear_system import LinearSystem
from seepage.attacks.linear_systems._rgap import Step, recover_inputs
from seepage.core import Attack, Observation, Reconstruction, Rng, SideBySideAttack, Task, Trace
from seepage.core._progress import spanning
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName, require_at_least
from seepage.domains import domain_of_shape
from seepage.numerics._least_squares import nearest_solution
from seepage.numerics._schedules import Constant
from seepage.probing._layer_stack import Stack
from seepage.search._engine import Engine
from seepage.search._fidelity import LayerwiseCosine
from seepage.search._matching import GradientMatching, together
from seepage.search._objective import Candidate, PerCase, Term
from seepage.search._optimisers import Adam, Moment, Optimiser, State
from seepage.search._priors import TotalVariation
from seepage.search._search import Search, WarmStart, pick_setting


@dataclass(frozen=True, eq=False, kw_only=True)
class _WithSystem(PerCase):
    """Part of a search that holds the linear system of one case.

    Args:
        system: u, in the precision of the search; with a leading axis, one system per row.
        target: v.
    """

    system: LinearSystem
    target: Tensor

    @property
    def held(self) -> dict[str, Tensor]:
        known = {} if self.system.known is None else {"known": self.system.known}
        return {"delta": self.system.delta, "target": self.target, **known}

    def with_held(self, held: Mapping[str, Tensor]) -> Self:
        """The same part with the system of other cases."""
        system = replace(self.system, delta=held["delta"], known=held.get("known"))
        return replace(self, system=system, target=held["target"])


@dataclass(frozen=True, eq=False, kw_only=True)
class _SystemResidual(_WithSystem):
    """The squared residual of the system: ||u x - v||^2.

    References:
        Chen and Campbell, 2022, Sec. 4, the unconstrained strategy (chen2022analysing)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        return (self.system.apply(candidate.normalised.flatten()) - self.target).square().sum()


@dataclass(frozen=True, eq=False, kw_only=True)
class _OnSolutions(_WithSystem):
    """An optimiser that projects every point onto the solutions of the system after each step.

    Args:
        optimiser: Makes the step.
        iterations: Of the projection; the next step's projection takes up what is left over.

    References:
        Chen and Campbell, 2022, Eq. 11 (chen2022analysing)
    """

    optimiser: Optimiser
    iterations: int = 10

    def start(self, points: Tensor) -> State:
        return self.optimiser.start(points)

    def step(
        self, points: Tensor, values: Tensor, gradients: Tensor, state: State, moment: Moment
    ) -> tuple[Tensor, State]:
        moved, state = self.optimiser.step(points, values, gradients, state, moment)
        projected = nearest_solution(self.system, self.target, moved, iterations=self.iterations)
        return projected, state


@dataclass(frozen=True, kw_only=True)
class _LeastNorm:
    """The mean square of the candidate in normalised coordinates, where R-GAP's norm is least.

        mean x_j^2

    Total variation hardly sees slow changes over an image, and not the means of its channels. Where
    the linear system leaves them open as well, this term keeps a search from drifting.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive), on the solution of least norm
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        return candidate.normalised.square().mean()


@dataclass(frozen=True, kw_only=True)
class _Correction:
    """The search that corrects the solution of one layer.

    Args:
        steps: Of the search.
        matching: mu1, weight of the cosine of each tensor from this layer on.
        tv: mu2, weight of the total variation.
        system: mu3, weight of the linear system's residual as a soft constraint.
        norm: nu, weight of the mean square, which decides what the others leave open.
    """

    steps: int
    matching: float
    tv: float
    system: float
    norm: float

    def attack(
        self, tail: Observation, step: Step, *, hard: bool, step_size: float, engine: Engine
    ) -> GradientMatching:
        """Gradient matching from this layer on, started at the layer's solution."""
        like, domain = next(iter(tail.update)), tail.task.domain
        system, target = step.system.to(like), step.target.to(like)
        terms: tuple[Term, ...] = (TotalVariation(weight=self.tv), _LeastNorm(weight=self.norm))
        optimiser: Optimiser = Adam(step_size=step_size, sign="none")
        if hard:
            optimiser = _OnSolutions(optimiser=optimiser, system=system, target=target)
        else:
            terms += (_SystemResidual(weight=self.system, system=system, target=target),)
        # The cosine cannot tell solutions apart that all explain the update, but its rounding
        # errors are steeper than the total variation and would set the pace of Adam.
        if not (hard and step.settled):
            # The term is a mean over the tensors; the paper takes the sum.
            matching = self.matching * len(tail.update.tensors)
            terms += (LayerwiseCosine(weight=matching, weighting=0),)
        search = Search(
            terms=terms,
            optimiser=optimiser,
            schedule=Constant(),
            steps=self.steps,
            start=WarmStart(domain.denormalise(step.x.reshape(1, *domain.shape)).to(like)),
        )
        return GradientMatching(search, engine)


def _observe_tail(observation: Observation, stack: Stack, index: int) -> Observation:
    """The observation of the layers from `index` on, with that layer's input as the private data.

    Args:
        observation: Of the whole network.
        stack: That network.
        index: The first layer to keep, a convolution; 0 keeps them all.
    """
    if index == 0:
        return observation
    simulation = observation.simulate
    if simulation.client is None:
        raise NotApplicable(
            f"expected a simulation of a Seepage client, got {simulation!r}; "
            "use rgap(), which needs none"
        )
    first = stack.layers[index]
    task = Task(
        _Tail(observation.task.model, Stack(stack.layers[index:])),
        observation.task.loss,
        domain_of_shape(first.input_shape, bounds=stack.layers[index - 1].activation.range),
        name=f"{observation.task.name} from {first.name}",
    )
    seen = observation.update.tensors
    tensors = {
        f"parts.{place}.{part}": seen[name]
        for place, layer in enumerate(stack.layers[index:])
        for part, name in zip(("weight", "bias"), layer.parameters, strict=True)
        if name in seen
    }
    return replace(
        observation,
        task=task,
        update=replace(observation.update, tensors=tensors),
        simulate=simulation.with_task(task).with_mixing(None),
    )


class _Tail(nn.Module):
    """The modules of some layers, in their own precision, run as the stack runs them."""

    def __init__(self, model: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.parts = nn.ModuleList(
            copy.deepcopy(model.get_submodule(layer.name)) for layer in stack.layers
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer, module in zip(self.stack.layers, self.parts, strict=True):
            x = layer.activation(module(x.reshape(-1, *layer.input_shape)))
        return x


Constraint = Literal["auto", "hard", "soft"]
_CONSTRAINTS = ("auto", "hard", "soft")


@dataclass(frozen=True, kw_only=True)
class Hybrid(SideBySideAttack):
    """R-GAP with every convolutional layer's solution corrected by gradient matching; see `hybrid`.

        minimise  mu1 sum_l (1 - cos(g_l(x), g*_l)) + mu2 TV(x) + nu <x^2>   subject to  u x = v

    starting from the solution of least norm, over the gradients from this layer on. So the look of
    an input decides what the linear system leaves open, not its norm. Where the constraint is hard
    and every solution explains the update, the cosine is left out.

    Args:
        corrections: One for each convolutional layer, the first first; the last one serves all
            deeper layers.
        constraint: "hard" returns to the solutions of u x = v after every step; "soft" adds
            mu3 ||u x - v||^2 to the objective; "auto" is hard where u and v hold no error, because
            every layer above had one solution only, and soft elsewhere.
    """

    corrections: tuple[_Correction, ...]
    constraint: Constraint
    step_size: float
    damping: float
    engine: Engine

    def __post_init__(self) -> None:
        if self.constraint not in _CONSTRAINTS:
            raise UnknownName("constraint", self.constraint, _CONSTRAINTS)
        if not self.corrections:
            raise InvalidValue("expected a correction for at least one layer, got none")
        require_at_least(0, damping=self.damping)

    # The corrections begin with them.
    needs_labels = True

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Walk back from several observations of one network, correcting all side by side."""
        traces: dict[int, Trace] = {}
        for observation in observations:
            observation.require_labels("hybrid")

        def correct(stack: Stack, owners: Sequence[int], steps: Sequence[Step]) -> list[Tensor]:
            found, index = [step.x for step in steps], steps[0].index
            correction = self.corrections[min(index, len(self.corrections) - 1)]
            step_size, engine = self.step_size, self.engine
            for (hard, _), places in self._group_by_search(steps).items():
                tails = [_observe_tail(observations[owners[p]], stack, index) for p in places]
                attacks = [
                    correction.attack(tail, steps[p], hard=hard, step_size=step_size, engine=engine)
                    for tail, p in zip(tails, places, strict=True)
                ]
                keys = [rngs[owners[p]].fork("layer", index) for p in places]
                domain = tails[0].task.domain
                for p, guess in zip(places, together(attacks, tails, rngs=keys), strict=True):
                    found[p] = domain.normalise(guess.inputs).to(found[p]).flatten()
                    traces[owners[p]] = guess.trace
            return found

        with spanning(sum(correction.steps for correction in self.corrections)):
            return recover_inputs(
                observations, damping=self.damping, correct=correct, traces=traces
            )

    def _group_by_search(self, steps: Sequence[Step]) -> dict[tuple[bool, bool], list[int]]:
        """Places of the steps to correct, by whether the constraint is hard and x is settled."""
        groups: dict[tuple[bool, bool], list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            # A search can only harm a solution that is exact and unique.
            if not (step.exact and step.determined):
                hard = self.constraint == "hard" or (self.constraint == "auto" and step.exact)
                groups[hard, step.settled].append(place)
        return groups


# Corrections fall by orders of magnitude, which TF32 cannot follow.
_EXACT = Engine(precision="float32")
# The paper's steps, for each layer, and a tenth of them, which end in minutes.
_SETTINGS = {"paper": (10_000, 8_000, 1_000)}
_SHORT = (1_000, 800, 100)
_CORRECTIONS = (
    _Correction(steps=10_000, matching=1.0, tv=0.1, system=0.05, norm=1e-3),
    _Correction(steps=8_000, matching=1.0, tv=0.1, system=0.1, norm=1e-3),
    _Correction(steps=1_000, matching=10.0, tv=0.1, system=1.0, norm=1e-3),
)

_PUBLISHED = (
    _Correction(steps=10_000, matching=1.0, tv=1.0, system=0.05, norm=0.0),
    _Correction(steps=8_000, matching=1.0, tv=1.0, system=0.1, norm=0.0),
    _Correction(steps=1_000, matching=10.0, tv=0.1, system=1.0, norm=0.0),
)


def hybrid(
    *,
    constraint: Constraint = "auto",
    setting: Literal["paper"] | None = None,
    steps: Sequence[int] | None = None,
    step_size: float = 1e-3,
    damping: float = 0.0,
    published: bool = False,
    engine: Engine = _EXACT,
) -> Attack:
    """R-GAP whose solutions are corrected, layer by layer, by gradient matching.

    Args:
        constraint: "soft" as in the paper's experiments, "hard" as in its Algorithm 1; "auto"
            takes "hard" for systems that hold no error from layers above, "soft" for others.
        setting: "paper" corrects for 10000, 8000 and 1000 steps; the default for a tenth.
        steps: Of the correction of the first layer, the second, and all deeper ones.
        step_size: Of Adam, in normalised coordinates.
        damping: Tikhonov damping of the least squares, for noisy updates.
        published: Take the weights of the paper's code instead of ours.
        engine: How the searches are computed.

    Deviations:
        A layer whose solution is certain is not corrected. Features stay within the range of the
        activation that made them. Steps and weights are those of the paper's code, made for images
        in [-0.5, 0.5], except that the total variation is ten times weaker on the first two layers;
        theirs, `published=True`, brings about as much back. The mean square gets a hundredth of its
        weight, since total variation hardly sees slow changes, and among solutions that all explain
        the update no gradients are matched. Without these two, results are worse than R-GAP's on
        "cnn3-v4".

    References:
        Chen and Campbell, 2022, Algorithm 1 and Eq. 11 (chen2022analysing)
    """
    corrections = _PUBLISHED if published else _CORRECTIONS
    if steps is None:
        steps = pick_setting(setting, _SETTINGS, default=_SHORT)
    if len(steps) != len(corrections):
        raise InvalidValue(f"expected {len(corrections)} numbers of steps, got {steps!r}")
    pairs = zip(corrections, steps, strict=True)
    return Hybrid(
        corrections=tuple(replace(correction, steps=count) for correction, count in pairs),
        constraint=constraint,
        step_size=step_size,
        damping=damping,
        engine=engine,
    )
