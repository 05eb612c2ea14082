"""Gradient matching: find inputs whose update looks like the observed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import Diverged, MissingKnowledge, NotApplicable
from seepage.core.rng import require_key
from seepage.probing.usable_update import require_continuous, require_usable
from seepage.search.defense_inversion import searchable
from seepage.search.engine import Engine, Job, SearchOutcome
from seepage.search.fidelity import Whitened
from seepage.search.objective import Layout
from seepage.search.search import Search


@dataclass(frozen=True)
class GradientMatching:
    """An attack that searches for inputs, without access to the truth.

    Args:
        search: The objective, the optimiser and the starts.
        engine: How the search is computed, which changes results only by rounding.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)

    @property
    def needs_labels(self) -> bool:
        """Unless the labels are searched for."""
        return not self.search.seek_labels

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Run every restart and keep the one with the lowest objective."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Attack several observations of one task and client side by side.

        The result is the same as one by one, but uses a GPU better.
        """
        return together([self] * len(observations), observations, rngs=rngs)

    def ensemble(self, observation: Observation, *, rng: Rng) -> tuple[Reconstruction, Tensor]:
        """Attack, and return the best inputs of every restart too, normalised: `(R, B, ...)`."""
        require_usable(observation.update, observation.task)
        layout = self.layout(observation)
        searched = searchable(self, observation)
        search = _prepare(self.search, searched)
        (outcome,) = self.engine.run([Job(search, searched, rng, layout)])
        best = self.reconstruction(observation, layout, outcome)
        return best, layout.normalised(outcome.points)

    def layout(self, observation: Observation) -> Layout:
        """The layout of the points of the search for one observation."""
        task, labels, classes = observation.task, observation.labels, None
        require_continuous(task)
        numbers = None if labels is not None and not self.search.seek_labels else task.target_shape
        if self.search.seek_labels or numbers is not None:
            if observation.batch_size is None:
                raise MissingKnowledge(
                    "batch size",
                    needed_by="gradient matching",
                    hint="use Threat(knows_batch_size=True)",
                )
            size = observation.batch_size
            classes = task.classes if numbers is None else None
        elif labels is None:
            raise MissingKnowledge(
                "labels",
                needed_by="gradient matching",
                hint="use Threat(knows_labels=True) or an attack that searches for them",
            )
        else:
            size = len(labels)
        generator, like = self.search.generator, next(iter(observation.update))
        generated = None if generator is None else generator.bind(size, task.domain, like=like)
        return Layout(size, task.domain, classes, generated, numbers)

    def reconstruction(
        self, observation: Observation, layout: Layout, outcome: SearchOutcome
    ) -> Reconstruction:
        """Turn the outcome of a search into a reconstruction."""
        if outcome.value == float("inf"):
            raise Diverged(f"all {self.search.restarts} restarts diverged; try a smaller step size")
        domain, labels = layout.domain, observation.labels
        if layout.target_shape is not None:
            labels = layout.labels(outcome.point)
        elif self.search.seek_labels:
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
                simulates=True,
            ),
        )


def together(
    attacks: Sequence[GradientMatching], observations: Sequence[Observation], *, rngs: Sequence[Rng]
) -> list[Reconstruction]:
    """Attack several observations side by side, each by its own search.

    Args:
        attacks: One for each observation. They differ only in their starts and in what parts of
            their search hold of a case, such as recovered features. The first one's engine is used.
        observations: They have the same batch size, task, client and threat.
        rngs: One key for each.
    """
    require_key(*rngs)
    for observation in observations:
        require_usable(observation.update, observation.task)
        if observation.simulate.mixing is not None and len(observations) > 1:
            raise NotApplicable(
                "every client mixes in its own way, so they cannot be simulated side by side; "
                "attack them one by one"
            )
    pairs = list(zip(attacks, observations, strict=True))
    layouts = [attack.layout(observation) for attack, observation in pairs]
    seen = [searchable(attack, observation) for attack, observation in pairs]
    jobs = [
        Job(_prepare(attack.search, case), case, rng, layout)
        for attack, case, rng, layout in zip(attacks, seen, rngs, layouts, strict=True)
    ]
    outcomes = attacks[0].engine.run(jobs)
    return [
        attack.reconstruction(observation, layout, outcome)
        for (attack, observation), layout, outcome in zip(pairs, layouts, outcomes, strict=True)
    ]


def _prepare(search: Search, observation: Observation) -> Search:
    """The search, with terms that know the observed update."""
    terms = (t.prepare(observation) if isinstance(t, Whitened) else t for t in search.terms)
    return replace(search, terms=tuple(terms))
