"""Which attacks fit an update, and why the others do not; told without the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from seepage.attacks import ATTACKS
from seepage.attacks.feature_recovery.softmax_features import require_input_at_the_end
from seepage.attacks.labels import CountAware, InferLabels, estimate_batch_size
from seepage.attacks.linear_systems.rgap import read_single
from seepage.core import Attack, Domain, Observation, Rng, Task
from seepage.core.errors import MissingKnowledge, NotApplicable, SeepageError, in_a_line
from seepage.domains import Image, Signal, Tabular, Tokens
from seepage.probing.first_layer import input_readers, rectified_layer
from seepage.probing.usable_update import require_continuous, require_usable


def has_curvature(task: Task) -> bool:
    """Whether the logits have a second derivative that is not zero everywhere."""
    task = task.in_mode("eval")
    reference = next(iter(task.parameters.values()))
    probes = task.domain.sample(2, rng=Rng(0)).to(reference).requires_grad_()
    outputs = task.outputs(task.parameters, probes)
    direction = Rng(1).normal(outputs.shape, like=outputs)
    (slope,) = torch.autograd.grad((outputs * direction).sum(), probes, create_graph=True)
    if not slope.requires_grad:
        return False
    (bend,) = torch.autograd.grad(slope.square().sum(), probes, allow_unused=True)
    return bend is not None and bool(bend.any())


# A search with curvature pays for few unknowns.
_FEW = 4_096


@dataclass(frozen=True)
class ApplicableAttack:
    """An attack that fits.

    Args:
        name: Of its recipe.
        options: Of its recipe.
        infer_labels: Whether it needs labels that are not known, and recovers them first.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    infer_labels: bool = False

    @property
    def attack(self) -> Attack:
        """The attack itself."""
        made = ATTACKS[self.name](**self.options)
        return InferLabels(made) if self.infer_labels else made


@dataclass(frozen=True)
class Applicability:
    """What fits an update and what does not.

    Args:
        chosen: In the order in which to try them, closed forms first.
        refused: Each other attack that was considered, with the reason.
    """

    chosen: tuple[ApplicableAttack, ...]
    refused: Mapping[str, str]


def check_applicability(observation: Observation, *, steps: int = 1_000) -> Applicability:
    """Choose attacks for an update by what the network and the update allow.

    Args:
        observation: What is seen.
        steps: Of each search.

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
    infers = observation.labels is None
    considered: dict[str, tuple[Callable[[Observation], None], ApplicableAttack]] = {
        "analytic_fc": (_closed_form, ApplicableAttack("analytic_fc", infer_labels=infers)),
        "exact_batch": (_separable, ApplicableAttack("exact_batch")),
        "softmax_features": (
            _classifying,
            ApplicableAttack("softmax_features", infer_labels=infers),
        ),
        "rgap": (_recursive, ApplicableAttack("rgap", infer_labels=infers)),
        "inverting_gradients": (
            _searchable,
            ApplicableAttack(
                "inverting_gradients",
                {"steps": steps, "restarts": 1, "tv": 1e-4},
                infer_labels=infers,
            ),
        ),
        "dlg": (_smooth, ApplicableAttack("dlg", {"iterations": max(1, steps // 20)})),
    }
    chosen, refused = [], {}
    for name, (require, option) in considered.items():
        try:
            with _in_words(observation):
                require(observation)
            chosen.append(option)
        except SeepageError as error:
            refused[name] = str(error).splitlines()[0]
    return Applicability(tuple(chosen), MappingProxyType(refused))


@contextmanager
def _in_words(observation: Observation) -> Iterator[None]:
    """Make a reason of whatever somebody else's network raises."""
    try:
        yield
    except SeepageError:
        raise
    except Exception as error:
        raise NotApplicable(
            f"{observation.task.name} cannot be run in this way, it raised {in_a_line(error)}"
        ) from error


def _closed_form(observation: Observation) -> None:
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(
            f"a row of the first layer's gradient mixes all {observation.batch_size} inputs"
        )
    if not input_readers(observation.task):
        raise NotApplicable("no fully connected layer reads the whole input")
    _labelled(observation)


def _require_several(observation: Observation) -> None:
    if observation.batch_size == 1:
        raise NotApplicable("there is one input, so there is no batch to take apart")


def _separable(observation: Observation) -> None:
    _require_several(observation)
    layer = rectified_layer(observation.task)
    width = len(observation.task.parameters[f"{layer.layer}.bias"])
    if (observation.batch_size or 1) >= width:
        raise NotApplicable(f"the first layer is {width} wide, too narrow for the batch")


def _classifying(observation: Observation) -> None:
    _require_several(observation)
    require_input_at_the_end(observation.task)
    if len(_labelled(observation)) >= observation.task.classes:
        raise NotApplicable("there are as many people as classes, or more")


def _recursive(observation: Observation) -> None:
    stack = read_single(observation)
    if all(not layer.convolutional for layer in stack.layers):
        raise NotApplicable("without convolutions it is what analytic_fc computes at once")
    _labelled(observation)


def _searchable(observation: Observation) -> None:
    """Whether a step of a search can be taken."""
    task = observation.task
    require_continuous(task)
    labels = _labelled(observation)
    reference = next(iter(task.parameters.values()))
    start = task.domain.sample(len(labels), rng=Rng(0)).to(reference).requires_grad_()
    simulated = observation.simulate(start, labels).flat()
    distance = (simulated - observation.update.flat()).square().sum()
    slope = None
    if distance.requires_grad:
        (slope,) = torch.autograd.grad(distance, start, allow_unused=True)
    if slope is None or not bool(torch.isfinite(slope).all()) or not bool(slope.any()):
        raise NotApplicable(
            "the update does not change with the inputs, or not by finite amounts, so that "
            "nothing leads a search"
        )


def _smooth(observation: Observation) -> None:
    size = observation.batch_size
    if size != 1 or observation.task.domain.sample(1, rng=Rng(0)).numel() > _FEW:
        raise NotApplicable(f"it is for one input of at most {_FEW} entries")
    if not has_curvature(observation.task):
        raise NotApplicable(
            "the network is linear in pieces, as ReLU makes it: its second derivative is zero, "
            "where this search needs one"
        )
    _searchable(observation)


def _labelled(observation: Observation) -> Tensor:
    """The labels, known or recovered as `InferLabels` does."""
    if observation.labels is not None:
        return observation.labels
    size = observation.batch_size or estimate_batch_size(observation)
    if size is None:
        raise MissingKnowledge(
            "batch size", needed_by="a search", hint="the update does not tell it; say it"
        )
    return CountAware()(replace(observation, batch_size=size))


_NOUNS: Mapping[type, str] = {
    Image: "images",
    Signal: "signals",
    Tabular: "rows of tables",
    Tokens: "texts",
}
# All others compute with inputs as numbers, which those of words are not.
_ONLY: Mapping[str, type] = {"dager": Tokens, "tableak": Tabular}


def attacks_on(domain: Domain) -> list[str]:
    """The names of the built-in attacks that may fit inputs of this kind.

    Example:
        >>> attacks_on(Tokens(8, 50))
        ['dager']
    """
    numbers = not isinstance(domain, Tokens)
    return [
        name
        for name in ATTACKS.built_in
        if (isinstance(domain, _ONLY[name]) if name in _ONLY else numbers)
    ]


def require_kind(name: str, domain: Domain) -> None:
    """Raise `NotApplicable` if the attack of this name can never fit inputs of this kind.

    Attacks of other packages say it themselves when they run.
    """
    fitting = attacks_on(domain)
    if name in fitting or name not in ATTACKS.built_in:
        return
    kind = _NOUNS.get(type(domain), "other inputs")
    meant = f"is for {_NOUNS[_ONLY[name]]}" if name in _ONLY else "computes with numbers"
    raise NotApplicable(f"{name} {meant}, got {kind}; what fits those: {', '.join(fitting)}")
