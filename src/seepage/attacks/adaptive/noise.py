"""Weighing noise of known size against what images look like."""

from __future__ import annotations

import math
from dataclasses import replace

from seepage.attacks.adaptive.plan import Plan
from seepage.attacks.gradient_matching import (
    Cosine,
    GaussianLikelihood,
    GradientMatching,
    LayerwiseCosine,
    Search,
    Term,
    TotalVariation,
)
from seepage.attacks.labels import InferLabels
from seepage.core import Attack, Update
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
    energy = float(plan.observation.update.flat().square().sum())
    noise = std**2 * _entries(plan.observation.update)
    if noise < STRONG * energy:
        return plan
    # In the units of a cosine, half a squared distance over the energy, which other terms keep to.
    unit = std**2 / max(energy - noise, std**2)
    likelihood = GaussianLikelihood(std=std, weight=unit)
    prior = ROUGHNESS * plan.unknowns * unit
    return replace(plan, attack=_weighed(plan.attack, likelihood, prior))


def _weighed(attack: Attack, likelihood: GaussianLikelihood, prior: float) -> Attack:
    """The attack, if it is a search by cosine and total variation, with both weighed anew."""
    if isinstance(attack, InferLabels):
        return replace(attack, attack=_weighed(attack.attack, likelihood, prior))
    if isinstance(attack, GradientMatching) and _by_cosine(attack.search):
        terms = tuple(_term(term, likelihood, prior) for term in attack.search.terms)
        return replace(attack, search=replace(attack.search, terms=terms))
    return attack


def _by_cosine(search: Search) -> bool:
    smooth = any(isinstance(term, TotalVariation) for term in search.terms)
    return smooth and any(isinstance(term, Cosine | LayerwiseCosine) for term in search.terms)


def _term(term: Term, likelihood: GaussianLikelihood, prior: float) -> Term:
    if isinstance(term, Cosine | LayerwiseCosine):
        return likelihood
    return replace(term, weight=prior) if isinstance(term, TotalVariation) else term


def _entries(update: Update) -> int:
    return sum(tensor.numel() for tensor in update)
