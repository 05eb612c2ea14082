"""Gradient matching: find inputs whose update looks like the observed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from seepage.core import Observation, Reconstruction, Rng, SideBySideAttack, Trace
from seepage.core._usable_update import require_continuous
from seepage.core.errors import Diverged, NotApplicable
from seepage.search._defense_inversion import searchable
from seepage.search._engine import Engine, Job, SearchOutcome
from seepage.search._fidelity import Whitened
from seepage.search._objective import Layout
from seepage.search._search import Search


@dataclass(frozen=True)
class GradientMatching(SideBySideAttack):
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

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Run every restart of all, and keep the one with the lowest objective of each."""
        return together([self] * len(observations), observations, rngs=rngs)

    def ensemble(self, observation: Observation, *, rng: Rng) -> tuple[Reconstruction, Tensor]:
        """Attack, and return the best inputs of every restart too, normalised: `(R, B, ...)`."""
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
            size = observation.require_batch_size("gradient matching")
            classes = task.classes if numbers is None else None
        else:
            size = len(observation.require_labels("gradient matching"))
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
    if len(observations) > 1 and any(seen.simulate.mixing is not None for seen in observations):
        raise NotApplicable(
            "every client mixes in its own way, so they cannot be simulated side by side; attack "
            "them one by one"
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
