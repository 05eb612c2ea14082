"""The objective: candidates, the terms that score them, and their sum for many rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from seepage.core import Domain, Observation, Statistics, Task, Update
from seepage.core._device import is_recurrent
from seepage.core.errors import NotApplicable

if TYPE_CHECKING:
    from seepage.search._generator import Generated


@dataclass(frozen=True, eq=False)
class Candidate:
    """Inputs being searched for, the labels they are assumed to have, and their update.

    The search runs in normalised coordinates, in which the papers state their step sizes, boxes and
    priors; `inputs` gives natural units.

    Args:
        normalised: The inputs as the network sees them, `(B, ...)`.
        labels: `(B,)` classes or `(B, K)` probabilities.
        update: The update simulated at the candidate.
        domain: The space of the inputs.
        step: Steps taken so far, a scalar, for terms that change over time.
        consensus: Mean over the restarts of the same case, `(B, ...)`, detached.
        layers: What layers of the network read during the simulation, by name; not all
            simulations return this.
    """

    normalised: Tensor
    labels: Tensor
    update: Update
    domain: Domain
    step: Tensor
    consensus: Tensor
    layers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> Tensor:
        """The candidate in natural units."""
        return self.domain.denormalise(self.normalised)


class Term(Protocol):
    """One summand of the objective: a pure function of one candidate, safe under `vmap`.

    The engine simulates once per candidate and vectorises terms over restarts and cases, so a
    term reads `candidate.update` and never simulates itself.
    """

    @property
    def weight(self) -> float:
        """The factor in the sum."""

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Return the scalar to minimise."""


@runtime_checkable
class ReadsLayers(Protocol):
    """A term that compares what layers read, which the simulation can return."""

    def reads(self, task: Task) -> Sequence[str]:
        """Return the names of those layers."""


@runtime_checkable
class Changing(Protocol):
    """A term that is a different function at some steps."""

    def changes(self, step: Tensor) -> Tensor:
        """Whether it changes at this step: a scalar that stays on the device."""


_Part = TypeVar("_Part")
Tensors = Mapping[str, Tensor]


@runtime_checkable
class PerCase(Protocol):
    """A part of a search that holds tensors of its own case, such as recovered features.

    Cases that run together share one such part. A term is called row by row, under `vmap`, and gets
    the tensors of that row. An optimiser and a generator are called with all rows, and get the
    tensors of all, with the rows in front.
    """

    @property
    def held(self) -> dict[str, Tensor]:
        """The tensors, by name; empty if there are none."""

    def with_held(self, held: Mapping[str, Tensor]) -> Self:
        """Replace the tensors; no value may be read, since `vmap` may trace the rows."""


def _stack_held(parts: Sequence[object], *, restarts: int) -> dict[str, Tensor]:
    """Stack what the same part of several cases holds, `(R, ...)`, by case and then by restart."""
    return _stack_rows([part.held for part in parts if isinstance(part, PerCase)], restarts)


def _stack_rows(cases: Sequence[Tensors], restarts: int) -> dict[str, Tensor]:
    return {
        name: torch.stack([case[name] for case in cases]).repeat_interleave(restarts, 0)
        for name in (cases[0] if cases else ())
    }


def join_parts(parts: Sequence[_Part], *, restarts: int) -> _Part:
    """Join the parts of all cases to one that is called with all rows."""
    first = parts[0]
    if len(parts) == 1 or not isinstance(first, PerCase):
        return first
    joined: _Part = first.with_held(_stack_held(parts, restarts=restarts))
    return joined


@dataclass(frozen=True)
class Layout:
    """The meaning of a point, which is one flat vector for every problem.

    Points of several rows have a leading axis: `(R, D)`. A row is one restart of one case.

    Args:
        batch_size: Number of inputs searched for.
        domain: The space of the inputs.
        classes: Number of classes if labels are searched for too; None if labels are known.
        target_shape: Shape of one target if numbers are searched for too, instead of classes.
        generated: Makes the inputs from the first entries of a point; None if these are the inputs.
    """

    batch_size: int
    domain: Domain
    classes: int | None = None
    generated: Generated | None = None
    target_shape: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inputs of one row."""
        return (self.batch_size, *self.domain.shape)

    @property
    def size(self) -> int:
        """Number of entries of a point."""
        numbers = 0 if self.target_shape is None else math.prod(self.target_shape)
        return self.inputs_size + self.batch_size * ((self.classes or 0) + numbers)

    @property
    def inputs_size(self) -> int:
        """Number of entries that make the inputs."""
        return math.prod(self.shape) if self.generated is None else self.generated.size

    def normalised(self, points: Tensor) -> Tensor:
        """The inputs `(..., B, *shape)`, in normalised coordinates."""
        first = points[..., : self.inputs_size]
        if self.generated is not None:
            return self.generated(first)
        return first.reshape(*points.shape[:-1], *self.shape)

    def label_probabilities(self, points: Tensor) -> Tensor:
        """The labels `(..., B, K)`, as the softmax of the logits that are searched for."""
        logits = points[..., self.inputs_size :]
        return logits.reshape(*points.shape[:-1], self.batch_size, -1).softmax(-1)

    def labels(self, points: Tensor) -> Tensor:
        """What is searched for besides the inputs: probabilities, or targets `(..., B, *shape)`."""
        if self.target_shape is None:
            return self.label_probabilities(points)
        numbers = points[..., self.inputs_size :]
        return numbers.reshape(*points.shape[:-1], self.batch_size, *self.target_shape)

    def with_inputs(self, points: Tensor, normalised: Tensor) -> Tensor:
        """Replace the inputs of the points and keep their labels."""
        flat = normalised.reshape(*points.shape[:-1], -1)
        if flat.shape == points.shape:
            return flat
        return torch.cat([flat, points[..., flat.shape[-1] :]], dim=-1)

    def project(self, points: Tensor) -> Tensor:
        """Make the inputs of the points valid; generated inputs always are."""
        if self.generated is not None:
            return points
        natural = self.domain.project(self.domain.denormalise(self.normalised(points)))
        return self.with_inputs(points, self.domain.normalise(natural))


# Normalised inputs (R, B, ...) and their labels to the simulated update, each tensor (R, ...).
RowSimulation = Callable[[Tensor, Tensor], dict[str, Tensor]]


@runtime_checkable
class _RecordsLayers(Protocol):
    """A simulation that returns what layers read, so that terms need not run the network again."""

    def simulate_and_record(
        self, normalised: Tensor, labels: Tensor, layers: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the simulated update and what these layers read, as far as it is known."""


@dataclass(frozen=True, eq=False)
class Objective:
    """What is minimised. A row is one restart of one case; cases share the task and the client.

    Args:
        terms: Fidelity and priors of the first case.
        cases: What was observed; rows are ordered by case, then by restart.
        layout: The meaning of points.
        labels: Known labels by row `(R, B, ...)`; None if they are searched for.
        simulate: The client's computation for all rows.
        others: The terms of the other cases, which differ only in what they hold; empty if all are
            the same.
    """

    terms: tuple[Term, ...]
    cases: tuple[Observation, ...]
    layout: Layout
    labels: Tensor | None
    simulate: RowSimulation
    others: tuple[tuple[Term, ...], ...] = ()

    def evaluate(self, points: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Values `(R,)` and gradients `(R, D)`."""
        leaves = points.detach().requires_grad_()
        values = self.values(leaves, step)
        if not values.requires_grad:
            raise NotApplicable(
                "the update does not change with the inputs, so a search has no gradient to follow"
            )
        (gradients,) = torch.autograd.grad(values.sum(), leaves)
        return values.detach(), gradients

    def values(self, points: Tensor, step: Tensor) -> Tensor:
        """The objective of every row, `(R,)`."""
        normalised = self.layout.normalised(points)
        labels = self.layout.labels(points) if self.labels is None else self.labels
        updates, layers = self._simulate(normalised, labels)
        consensus = self._consensus(normalised)
        terms, case = self.terms, self.cases[0]
        if len(points) == 1:
            # Not t[0], whose derivative fills and copies a tensor of zeros.
            first, read = (
                {name: t.squeeze(0) for name, t in tensors.items()} for tensors in (updates, layers)
            )
            x, y, c = normalised.squeeze(0), labels.squeeze(0), consensus.squeeze(0)
            return self._row(terms, case, x, y, first, read, step, c)[None]
        # A single case has no tensors of its own to slice.
        seen = self._stack_cases(len(points)) if len(self.cases) > 1 else {}

        def row(x: Tensor, y: Tensor, u: Tensors, r: Tensors, c: Tensor, seen: Tensors) -> Tensor:
            if not seen:
                return self._row(terms, case, x, y, u, r, step, c)
            own = tuple(_term_of_row(i, term, seen) for i, term in enumerate(terms))
            return self._row(own, _case_of_row(case, seen), x, y, u, r, step, c)

        # Recurrent layers have no rule for vmap.
        over_rows = _loop(row) if is_recurrent(case.task.model) else vmap(row)
        values: Tensor = over_rows(normalised, labels, updates, layers, consensus, seen)
        return values

    def same(self, step: Tensor) -> Tensor | bool:
        """Whether it is the same function as at the step before."""
        changed: Tensor | bool = False
        for term in self.terms:
            if isinstance(term, Changing):
                changed = changed | term.changes(step)
        return ~changed if isinstance(changed, Tensor) else True

    def _simulate(
        self, normalised: Tensor, labels: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Simulate the updates of all rows; return with them the layer inputs that terms need."""
        if not isinstance(self.simulate, _RecordsLayers):
            return self.simulate(normalised, labels), {}
        task = self.cases[0].task
        asked = [term.reads(task) for term in self.terms if isinstance(term, ReadsLayers)]
        wanted = list(dict.fromkeys(chain.from_iterable(asked)))
        return self.simulate.simulate_and_record(normalised, labels, wanted)

    def _row(
        self,
        terms: tuple[Term, ...],
        observation: Observation,
        normalised: Tensor,
        labels: Tensor,
        update: Tensors,
        layers: Tensors,
        step: Tensor,
        consensus: Tensor,
    ) -> Tensor:
        simulated, domain = replace(observation.update, tensors=update), self.layout.domain
        candidate = Candidate(normalised, labels, simulated, domain, step, consensus, layers)
        return torch.stack([t.weight * t(candidate, observation) for t in terms]).sum()

    def _consensus(self, normalised: Tensor) -> Tensor:
        """The mean over the restarts of each row's case."""
        by_case = normalised.detach().reshape(len(self.cases), -1, *normalised.shape[1:])
        return by_case.mean(1, keepdim=True).expand_as(by_case).flatten(0, 1)

    def _stack_cases(self, rows: int) -> dict[str, Tensor]:
        """Stack what was observed, and what terms hold of it, by row."""
        restarts = rows // len(self.cases)
        seen = _stack_rows([_flatten_case(case) for case in self.cases], restarts)
        others = self.others or (self.terms,) * (len(self.cases) - 1)
        for place, terms in enumerate(zip(self.terms, *others, strict=True)):
            held = _stack_held(terms, restarts=restarts)
            seen |= {f"term {place}/{name}": tensor for name, tensor in held.items()}
        return seen


def _loop(row: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same as `vmap`, one row after the other."""

    def over_rows(*stacked: Tensor | Tensors) -> Tensor:
        flat, structure = tree_flatten(stacked)
        rows = zip(*(tensor.unbind() for tensor in flat), strict=True)
        return torch.stack([row(*tree_unflatten(list(each), structure)) for each in rows])

    return over_rows


def _flatten_case(observation: Observation) -> dict[str, Tensor]:
    """The tensors of an observation that differ between cases, by a flat name."""
    parts = {f"update/{name}": t for name, t in observation.update.tensors.items()}
    for layer, known in (observation.statistics or {}).items():
        parts[f"mean/{layer}"], parts[f"variance/{layer}"] = known.mean, known.variance
    return parts


def _term_of_row(place: int, term: Term, parts: Tensors) -> Term:
    """The term of one row, from tensors that vmap has sliced."""
    if not isinstance(term, PerCase):
        return term
    first = f"term {place}/"
    return term.with_held(
        {n.removeprefix(first): t for n, t in parts.items() if n.startswith(first)}
    )


def _case_of_row(template: Observation, parts: Tensors) -> Observation:
    """The observation of one row, from tensors that vmap has sliced."""
    chosen = {n.partition("/")[2]: t for n, t in parts.items() if n.startswith("update/")}
    update = replace(template.update, tensors=chosen)
    if template.statistics is None:
        return replace(template, update=update)
    statistics = {
        layer: Statistics(parts[f"mean/{layer}"], parts[f"variance/{layer}"])
        for layer in template.statistics
    }
    return replace(template, update=update, statistics=statistics)
