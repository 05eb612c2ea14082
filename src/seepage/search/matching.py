"""Gradient matching: find inputs whose update looks like the observed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.rng import require_key
from seepage.probing.usable_update import require_continuous, require_usable
from seepage.search.defense_inversion import searchable
from seepage.search.engine import Engine, Job, SearchOutcome
from seepage.search.objective import Layout
from seepage.search.search import Search


@dataclass(frozen=True)
class GradientMatching:
    """An attack that searches; the truth plays no part in what it returns.

    Args:
        search: What is searched for, and by which rules.
        engine: How it is computed, which does not change what is computed.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Run every restart and keep the one with the lowest objective."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Attack several observations of one task and client side by side.

        The result is what attacking them one by one gives; a GPU is better used.

        Args:
            observations: Of equal batch size, made with the same task, client and threat.
            rngs: One key for each.
        """
        return together([self] * len(observations), observations, rngs=rngs)

    def ensemble(self, observation: Observation, *, rng: Rng) -> tuple[Reconstruction, Tensor]:
        """What a call gives, and the best point of every restart, normalised: `(R, B, ...)`."""
        require_usable(observation.update, observation.task)
        layout = self.layout(observation)
        searched = searchable(self, observation)
        (outcome,) = self.engine.run([Job(self.search, searched, rng, layout)])
        best = self.reconstruction(observation, layout, outcome)
        return best, layout.normalised(outcome.points)

    def layout(self, observation: Observation) -> Layout:
        """How points of the search for one observation are read."""
        task = observation.task
        require_continuous(task)
        if not self.search.seek_labels:
            if observation.labels is None:
                raise MissingKnowledge(
                    "labels",
                    needed_by="gradient matching",
                    hint="use Threat(knows_labels=True) or an attack that searches for them",
                )
            return self._bound(observation, len(observation.labels), None)
        if observation.batch_size is None:
            raise MissingKnowledge(
                "batch size",
                needed_by="gradient matching",
                hint="use Threat(knows_batch_size=True)",
            )
        return self._bound(observation, observation.batch_size, task.classes)

    def _bound(self, observation: Observation, size: int, classes: int | None) -> Layout:
        domain, generator = observation.task.domain, self.search.generator
        like = next(iter(observation.update))
        made = None if generator is None else generator.bind(size, domain, like=like)
        return Layout(size, domain, classes, made)

    def reconstruction(
        self, observation: Observation, layout: Layout, outcome: SearchOutcome
    ) -> Reconstruction:
        """What an outcome says of the inputs."""
        if outcome.value == float("inf"):
            raise NotApplicable(
                f"every one of {self.search.restarts} restarts diverged; try a smaller step size"
            )
        domain = layout.domain
        labels = observation.labels
        if self.search.seek_labels:
            labels = layout.label_probabilities(outcome.point).argmax(-1)
        return Reconstruction(
            inputs=domain.project(domain.denormalise(layout.normalised(outcome.point))),
            labels=labels,
            trace=Trace(
                objective=outcome.values,
                finals=outcome.finals,
                diverged=outcome.diverged,
                seconds=outcome.seconds,
                device=str(outcome.point.device),
            ),
        )


def together(
    attacks: Sequence[GradientMatching],
    observations: Sequence[Observation],
    *,
    rngs: Sequence[Rng],
) -> list[Reconstruction]:
    """Attack several observations side by side, each by a search of its own.

    Args:
        attacks: One for each, alike but for their starts and what parts of their search hold of a
            case, such as recovered features; the engine is that of the first.
        observations: Of equal batch size, made with the same task, client and threat.
        rngs: One key for each.
    """
    require_key(*rngs)
    for observation in observations:
        require_usable(observation.update, observation.task)
        if observation.simulate.mixing is not None and len(observations) > 1:
            raise NotApplicable(
                "every client mixes in its own way, so that they cannot be simulated side by "
                "side; attack them one by one"
            )
    pairs = list(zip(attacks, observations, strict=True))
    layouts = [attack.layout(observation) for attack, observation in pairs]
    jobs = [
        Job(attack.search, searchable(attack, observation), rng, layout)
        for (attack, observation), rng, layout in zip(pairs, rngs, layouts, strict=True)
    ]
    outcomes = attacks[0].engine.run(jobs)
    return [
        attack.reconstruction(observation, layout, outcome)
        for (attack, observation), layout, outcome in zip(pairs, layouts, outcomes, strict=True)
    ]
