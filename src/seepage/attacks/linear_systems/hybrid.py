"""The hybrid of linear systems and gradient matching."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from seepage.attacks.linear_systems.hybrid_correction import Correction
from seepage.attacks.linear_systems.recursion import Step
from seepage.attacks.linear_systems.rgap import best_walks, read_all, reconstruction
from seepage.core import Attack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, UnknownName
from seepage.core.rng import require_key
from seepage.domains import Image, Signal
from seepage.probing.layer_stack import Stack
from seepage.search import Engine, together


def observe_tail(observation: Observation, stack: Stack, index: int) -> Observation:
    """What the adversary sees of the layers from `index` on, whose input is then what is private.

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
    kind = Image if len(first.input_shape) == 3 else Signal
    task = Task(
        _Tail(observation.task.model, Stack(stack.layers[index:])),
        observation.task.loss,
        kind(first.input_shape, bounds=stack.layers[index - 1].activation.range),
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
    """The modules of some layers, in the precision they had, run as the stack runs them."""

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
class Hybrid:
    """R-GAP with every convolutional layer's solution corrected by gradient matching.

        minimise  mu1 sum_l (1 - cos(g_l(x), g*_l)) + mu2 TV(x) + nu <x^2>   subject to  u x = v

    starting from the solution of least norm, over the gradients from this layer on. What the
    linear system leaves open is so decided by how inputs look, not by being small. Where the
    constraint is hard and every solution explains the update, nothing is matched, and the total
    variation and the mean square <x^2> are left.

    Args:
        corrections: One for each convolutional layer, the first first; the last one serves all
            deeper layers.
        constraint: "hard" returns to the solutions of u x = v after every step; "soft" adds
            mu3 ||u x - v||^2 to the objective; "auto" is hard where u and v hold no error, because
            every layer above had but one solution, and soft elsewhere.
        step_size: Of Adam.
        damping: Of the least squares.
        engine: How the searches are computed.

    Deviations:
        The mean square, of small weight nu, beside the total variation, which sees no slow changes:
        where it alone decided, images drifted away from R-GAP's and became worse.

    References:
        Chen and Campbell, 2022, Algorithm 1 and Eq. 11 (chen2022analysing)
    """

    corrections: tuple[Correction, ...]
    constraint: Constraint
    step_size: float
    damping: float
    engine: Engine

    def __post_init__(self) -> None:
        """Check the options."""
        if self.constraint not in _CONSTRAINTS:
            raise UnknownName("constraint", self.constraint, _CONSTRAINTS)
        if not self.corrections:
            raise InvalidValue("expected a correction for at least one layer, got none")
        if not self.damping >= 0:
            raise InvalidValue(f"expected damping >= 0, got {self.damping!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Walk back through the network, correcting on the way."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Walk back from several observations of one network, correcting all side by side.

        Args:
            observations: Of one example each, made with the same task, client and threat.
            rngs: One key for each.
        """
        require_key(*rngs)
        began = time.perf_counter()
        stack = read_all(observations)
        if any(observation.labels is None for observation in observations):
            raise MissingKnowledge(
                "labels", needed_by="gradient matching", hint="use Threat(knows_labels=True)"
            )
        traces: dict[int, Trace] = {}

        def correct(owners: Sequence[int], steps: Sequence[Step]) -> list[Tensor]:
            found = [step.x for step in steps]
            for (hard, _), places in self._groups(steps).items():
                cases = [owners[place] for place in places]
                guesses = self._corrected(
                    [observe_tail(observations[case], stack, steps[0].index) for case in cases],
                    [steps[place] for place in places],
                    hard=hard,
                    rngs=[rngs[case] for case in cases],
                )
                for place, case, guess in zip(places, cases, guesses, strict=True):
                    found[place], traces[case] = guess
            return found

        ends = best_walks(observations, stack, damping=self.damping, correct=correct)
        seconds = (time.perf_counter() - began) / len(observations)
        return [
            reconstruction(
                observation,
                stack,
                end,
                replace(traces.get(case, Trace(device=str(end.x.device))), seconds=seconds),
            )
            for case, (observation, end) in enumerate(zip(observations, ends, strict=True))
        ]

    def _groups(self, steps: Sequence[Step]) -> dict[tuple[bool, bool], list[int]]:
        """The places of those to be corrected, by whether the constraint is hard, and all alike."""
        groups: dict[tuple[bool, bool], list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            # Where nothing is left open and nothing is wrong, a search could only do harm.
            if not (step.exact and step.determined):
                hard = self.constraint == "hard" or (self.constraint == "auto" and step.exact)
                groups[hard, step.settled].append(place)
        return groups

    def _corrected(
        self,
        tails: Sequence[Observation],
        steps: Sequence[Step],
        *,
        hard: bool,
        rngs: Sequence[Rng],
    ) -> list[tuple[Tensor, Trace]]:
        index = steps[0].index
        correction = self.corrections[min(index, len(self.corrections) - 1)]
        attacks = [
            correction.attack(tail, step, hard=hard, step_size=self.step_size, engine=self.engine)
            for tail, step in zip(tails, steps, strict=True)
        ]
        keys = [rng.fork("layer", index) for rng in rngs]
        guesses = together(attacks, tails, rngs=keys)
        domain = tails[0].task.domain
        return [
            (domain.normalise(guess.inputs).to(step.x).flatten(), guess.trace)
            for guess, step in zip(guesses, steps, strict=True)
        ]


# Corrections fall by orders of magnitude, which TF32 cannot follow.
_EXACT = Engine(precision="float32")


_CORRECTIONS = (
    Correction(steps=10_000, matching=1.0, tv=0.1, system=0.05, norm=1e-3),
    Correction(steps=8_000, matching=1.0, tv=0.1, system=0.1, norm=1e-3),
    Correction(steps=1_000, matching=10.0, tv=0.1, system=1.0, norm=1e-3),
)


def hybrid(
    *,
    constraint: Constraint = "auto",
    steps: Sequence[int] = (10_000, 8_000, 1_000),
    step_size: float = 1e-3,
    damping: float = 0.0,
    engine: Engine = _EXACT,
) -> Attack:
    """R-GAP whose solutions are corrected, layer by layer, by gradient matching.

    Args:
        constraint: "soft" as in the paper's experiments, "hard" as in its Algorithm 1; "auto"
            takes "hard" for systems that hold no error from layers above, "soft" for others.
        steps: Of the correction of the first layer, the second, and all deeper ones.
        step_size: Of Adam, in normalised coordinates.
        damping: Tikhonov damping of the least squares, for noisy updates.
        engine: How it is computed.

    Deviations:
        A layer whose solution is certain is not corrected. Features stay within the range of the
        activation that made them. Iterations and weights are those of the paper's code, made for
        images in [-0.5, 0.5], but for a total variation ten times weaker on the first two layers:
        with theirs, results fall behind R-GAP's on networks such as "cnn3-v2". A hundredth of its
        weight goes to the mean square, for total variation hardly sees slow changes; and among
        solutions that all explain the update no gradients are matched. Without these two, results
        fall behind R-GAP's on "cnn3-v4".

    References:
        Chen and Campbell, 2022, Algorithm 1 (chen2022analysing)
    """
    if len(steps) != len(_CORRECTIONS):
        raise InvalidValue(f"expected {len(_CORRECTIONS)} numbers of steps, got {steps!r}")
    corrections = tuple(
        replace(correction, steps=count)
        for correction, count in zip(_CORRECTIONS, steps, strict=True)
    )
    return Hybrid(
        corrections=corrections,
        constraint=constraint,
        step_size=step_size,
        damping=damping,
        engine=engine,
    )
