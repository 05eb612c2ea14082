"""Which attacks apply to an update, and why the others do not; decided without the truth.

A recipe states its own conditions with `applies_to`. Without them an attack is assumed to fit all
inputs made of numbers, and it runs only if a spec or a caller names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from seepage.core import Attack, Domain, Observation, Rng
from seepage.core._once import once
from seepage.core._usable_update import require_continuous, require_usable
from seepage.core.errors import NotApplicable, SeepageError, explain_errors, line_to_store
from seepage.domains import Image, Signal, Tabular, Tokens, Vector

Recipe = TypeVar("Recipe", bound=Callable[..., Attack])


@dataclass(frozen=True)
class applies_to:  # noqa: N801
    """When an attack applies to an update; used to decorate its recipe.

    Args:
        domain: The only kind of inputs it attacks; None for all inputs made of numbers.
        require: Raises `NotApplicable`, with the reason, if the attack cannot work on an
            observation. With None the attack is never chosen by itself.
        needs_labels: Whether labels that are not known must be recovered first.
        rank: Attacks of a lower rank are tried first: 0 for closed forms, then searches.
        options: The recipe's options for a search of so many steps.

    Example:
        >>> from seepage.attacks import dager
        >>> dager.conditions.domain.__name__
        'Tokens'
    """

    domain: type[Domain] | None = None
    _: KW_ONLY
    require: Callable[[Observation], None] | None = None
    needs_labels: bool = False
    rank: int = 0
    options: Callable[[int], Mapping[str, object]] = lambda steps: {}

    def __call__(self, recipe: Recipe) -> Recipe:
        """Attach the conditions to a recipe."""
        vars(recipe)["conditions"] = self
        return recipe


def _read_conditions(recipe: Callable[..., Attack]) -> applies_to:
    """Return the conditions that a recipe states, or the default ones."""
    conditions = getattr(recipe, "conditions", None)
    return conditions if isinstance(conditions, applies_to) else applies_to()


@dataclass(frozen=True)
class _ApplicableAttack:
    """An attack that applies: the name and options of its recipe.

    With `infer_labels` it needs labels that are not known, and recovers them first.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    infer_labels: bool = False

    @property
    def attack(self) -> Attack:
        from seepage.attacks.labels._infer_labels import InferLabels

        made = _built_in()[self.name](**self.options)
        return InferLabels(made) if self.infer_labels else made


@dataclass(frozen=True)
class Applicability:
    """Which attacks apply to an update, in the order to try them, and why the others do not."""

    chosen: tuple[_ApplicableAttack, ...]
    refused: Mapping[str, str]


@once
def check_applicability(observation: Observation, *, steps: int = 1_000) -> Applicability:
    """Choose attacks for an update by what the network and the update allow.

    Example:
        >>> import seepage as sp
        >>> seen = sp.Threat().observe(
        ...     sp.Client(sp.Gradient()), sp.zoo.mlp(), sp.data.bundled("photos", size=1),
        ...     rng=sp.rng(0),
        ... )
        >>> [option.name for option in check_applicability(seen).chosen]
        ['analytic_fc', 'inverting_gradients']
    """
    require_usable(observation.update, observation.task)
    stated = {name: _read_conditions(recipe) for name, recipe in _built_in().items()}
    chosen, refused = [], {}
    fitting = set(attacks_on(observation.task.domain))
    for name, conditions in sorted(stated.items(), key=lambda item: item[1].rank):
        if conditions.require is None or name not in fitting:
            continue
        try:
            with explain_errors(
                NotApplicable, f"{observation.task.name} cannot be run in this way, it raised"
            ):
                conditions.require(observation)
        except SeepageError as error:
            refused[name] = line_to_store(error)
        else:
            infers = conditions.needs_labels and observation.labels is None
            chosen.append(_ApplicableAttack(name, conditions.options(steps), infers))
    return Applicability(tuple(chosen), MappingProxyType(refused))


def explain_refusals(refused: Mapping[str, str]) -> str:
    """Say why no attack applies: first for the most general one, then for each.

    Example:
        >>> print(explain_refusals({"rgap": "got two inputs", "inverting_gradients": "no labels"}))
        no attack applies to this update; inverting_gradients, the most general: no labels
        rgap: got two inputs
        inverting_gradients: no labels
    """
    general = next(name for name in ("inverting_gradients", *refused) if name in refused)
    first = f"no attack applies to this update; {general}, the most general: {refused[general]}"
    return "\n".join([first, *(f"{name}: {reason}" for name, reason in refused.items())])


def _built_in() -> Mapping[str, Callable[..., Attack]]:
    from seepage.attacks import ATTACKS

    return ATTACKS.built_in


def require_several(observation: Observation) -> None:
    """Raise `NotApplicable` if the batch is known to hold one input."""
    if observation.batch_size == 1:
        raise NotApplicable("there is one input, so there is no batch to take apart")


def require_searchable(observation: Observation) -> None:
    """Raise `NotApplicable` unless the distance between updates has a gradient in the inputs."""
    task = observation.task
    require_continuous(task)
    labels = _labels_to_try(observation)
    start = task.move_inputs(task.domain.sample(len(labels), rng=Rng(0))).requires_grad_()
    simulated = observation.simulate(start, labels).flat()
    distance = (simulated - observation.update.flat()).square().sum()
    slope = None
    if distance.requires_grad:
        (slope,) = torch.autograd.grad(distance, start, allow_unused=True)
    if slope is None or not bool(torch.isfinite(slope).all()) or not bool(slope.any()):
        raise NotApplicable(
            "the update does not change with the inputs, or its derivative is not finite, so a "
            "search has no gradient to follow"
        )


def _labels_to_try(observation: Observation) -> Tensor:
    """Known or recovered labels; ones in place of targets that must be searched for."""
    from seepage.attacks.labels._infer_labels import recover_labels

    try:
        return recover_labels(observation)
    except NotApplicable:
        shape = observation.task.target_shape
        if shape is None or observation.batch_size is None:
            raise
        return next(iter(observation.update)).new_ones(observation.batch_size, *shape)


_NOUNS: Mapping[type, str] = {
    Image: "images",
    Signal: "signals",
    Vector: "rows of numbers",
    Tabular: "rows of tables",
    Tokens: "texts",
}


def attacks_on(domain: Domain) -> list[str]:
    """Return the names of the built-in attacks that may apply to inputs of this kind.

    Example:
        >>> attacks_on(Tokens(8, 50))
        ['bag_of_words', 'dager', 'next_words', 'token_span']
    """
    kinds = {name: _read_conditions(recipe).domain for name, recipe in _built_in().items()}
    numbers = not domain.discrete
    return [n for n, kind in kinds.items() if (isinstance(domain, kind) if kind else numbers)]


def require_kind(name: str, domain: Domain) -> None:
    """Raise `NotApplicable` if the attack of this name can never apply to inputs of this kind.

    Attacks of other packages say it themselves when they run.
    """
    fitting = attacks_on(domain)
    if name in fitting or name not in _built_in():
        return
    kind = _NOUNS.get(type(domain), "other inputs")
    only = _read_conditions(_built_in()[name]).domain
    meant = "computes with numbers" if only is None else f"is for {_NOUNS[only]}"
    raise NotApplicable(f"{name} {meant}, got {kind}; attacks for those: {', '.join(fitting)}")
