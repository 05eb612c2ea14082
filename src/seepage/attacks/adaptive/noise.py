"""Weighing noise of known size against what images look like."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.attacks.gradient_matching import (
    Candidate,
    Cosine,
    GaussianLikelihood,
    GradientMatching,
    LayerwiseCosine,
    Search,
    Term,
    TotalVariation,
)
from seepage.attacks.labels import InferLabels, ReadLogits
from seepage.attacks.reading.plan import Plan
from seepage.attacks.unmixing import Unmixed
from seepage.core import Attack, Observation, Update
from seepage.defenses import AddGaussian, AddLaplace

# Share of the observed energy that is noise, above which the likelihood brought back more than
# the cosine; with weaker noise the cosine, which is searched more easily, did.
STRONG = 0.25
# Nats that one entry loses for differing from its neighbour by one, in normalised coordinates.
ROUGHNESS = 1.0


def read_noise(link: AddGaussian | AddLaplace, plan: Plan) -> Plan:
    """Where noise is strong, maximise the posterior: its likelihood times the total variation's.

    A cosine fits the noise as well as it can. The likelihood is content with a residual of the
    size that the noise has, and leaves the rest to the prior. Laplace noise is taken for Gaussian
    noise of its variance, which was searched better than its own likelihood.
    """
    if plan.after(link):
        return plan
    std = link.std if isinstance(link, AddGaussian) else math.sqrt(2) * link.scale
    update = plan.observation.update
    if std**2 * _entries(update) < STRONG * float(update.flat().square().sum()):
        return plan
    return replace(plan, attack=_weighed(plan.attack, std, ROUGHNESS * plan.unknowns))


@dataclass(frozen=True)
class OverSignal:
    """Another term, from nats to the units of a cosine, which further terms keep to.

    Half a squared distance over the energy of the signal, of which sigma^2 is one nat:

        term * sigma^2 / max(||g*||^2 - n sigma^2, sqrt(2 n) sigma^2)

    A signal below the second, the deviation of the noise's own energy, cannot be told from none.

    Args:
        term: What is in nats.
        std: sigma, of the noise on every entry.
    """

    term: Term
    std: float

    @property
    def weight(self) -> float:
        """That of the term."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Divide by what the observed update has beyond the noise."""
        entries = _entries(observation.update)
        energy = observation.update.flat().square().sum() / self.std**2
        return self.term(candidate, observation) / (energy - entries).clamp_min(
            math.sqrt(2 * entries)
        )


def _weighed(attack: Attack, std: float, prior: float) -> Attack:
    """The attack, if it is a search by cosine and total variation, with both weighed anew."""
    if isinstance(attack, InferLabels | ReadLogits | Unmixed):
        return replace(attack, attack=_weighed(attack.attack, std, prior))
    if isinstance(attack, GradientMatching) and _by_cosine(attack.search):
        terms = tuple(_term(term, std, prior) for term in attack.search.terms)
        return replace(attack, search=replace(attack.search, terms=terms))
    return attack


def _by_cosine(search: Search) -> bool:
    smooth = any(isinstance(term, TotalVariation) for term in search.terms)
    return smooth and any(isinstance(term, Cosine | LayerwiseCosine) for term in search.terms)


def _term(term: Term, std: float, prior: float) -> Term:
    if isinstance(term, Cosine | LayerwiseCosine):
        return OverSignal(GaussianLikelihood(std=std), std)
    if isinstance(term, TotalVariation):
        return OverSignal(replace(term, weight=prior), std)
    return term


def _entries(update: Update) -> int:
    return sum(tensor.numel() for tensor in update)
