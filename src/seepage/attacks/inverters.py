"""Inverters of defenses: what PRECODE, Soteria, InstaHide and noise did, read off the update."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.labels.infer_labels import InferLabels
from seepage.attacks.labels.read_logits import ReadLogits
from seepage.attacks.linear_systems.analytic_fc import features
from seepage.attacks.unmix import Unmixed
from seepage.core import Attack, Observation, PreparedBatch, Task, Update
from seepage.core.protocols import Stage
from seepage.defenses import AddGaussian, AddLaplace, InstaHide, Precode, Soteria
from seepage.defenses.chain import OnInputs
from seepage.defenses.precode import VariationalBottleneck
from seepage.probing.heads import head_of
from seepage.search.defense_inversion import AttackPlan
from seepage.search.fidelity import Cosine, GaussianLikelihood, LayerwiseCosine
from seepage.search.matching import GradientMatching
from seepage.search.priors import TotalVariation
from seepage.search.search import Search
from seepage.search.term import Candidate, Term

# Of one example, the gradient of a fully connected layer has rank one up to rounding.
RANK_ONE = 1e-2


def read_code(link: Precode, plan: AttackPlan) -> AttackPlan:
    """Simulate the noise that the client drew, where it was drawn for one example.

        r = what the encoder read,  z = what the decoder read,  noise = (z - mu(r)) / std(r)

    Of several examples every row holds a mixture, and the mean code is simulated as before.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian)
    """
    task, update = plan.observation.simulate.task, plan.observation.update
    named = [(n, m) for n, m in task.model.named_modules() if isinstance(m, VariationalBottleneck)]
    name, bottleneck = named[-1]
    if not all(_of_one(update, f"{name}.{part}") for part in ("encoder", "decoder")):
        return plan
    alone = replace(plan.observation, batch_size=1)
    representation = features(alone, layer=f"{name}.encoder")
    code = features(alone, layer=f"{name}.decoder")
    with torch.no_grad():
        mean, log_variance = bottleneck.encoder(representation).chunk(2)
    return plan.running(_with_noise(task, name, (code - mean) * torch.exp(-log_variance / 2)))


def _of_one(update: Update, layer: str) -> bool:
    """Whether a layer's gradient is that of one example: dL/dA = (dL/db) v^T for some v."""
    weight, bias = update.tensors[f"{layer}.weight"], update.tensors[f"{layer}.bias"]
    direction = bias / bias.norm().clamp_min(torch.finfo(bias.dtype).tiny)
    unexplained = weight - torch.outer(direction, direction @ weight)
    return bool(unexplained.norm() < RANK_ONE * weight.norm())


def _with_noise(task: Task, name: str, noise: Tensor) -> Task:
    model = copy.deepcopy(task.model)
    bottleneck = model.get_submodule(name)
    assert isinstance(bottleneck, VariationalBottleneck)
    bottleneck.noise = noise.unsqueeze(0)
    return replace(task, model=model)


@dataclass(frozen=True, eq=False, repr=False)
class _KnownColumns(OnInputs):
    """Multiply the gradient of one parameter with a mask that is known.

    Args:
        parameter: Its name.
        mask: One factor for each column, `(D,)`.
    """

    stage: ClassVar[Stage] = "network"

    parameter: str
    mask: Tensor

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        """Mask, which the client does as well."""
        return replace(prepared, masks={**prepared.masks, self.parameter: self.mask})


def read_columns(link: Soteria, plan: AttackPlan) -> AttackPlan:
    """Simulate the pruning that the client did; behind noise no column is zero, and none is lost.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian), who leave the whole layer out
    """
    name, _ = head_of(plan.observation.task, needed_by=link)
    weight = plan.observation.update.tensors.get(f"{name}.weight")
    if weight is None:  # frozen, so that there was nothing to prune
        return plan
    mask = (weight != 0).any(0).to(weight.dtype)
    return plan.replace_link(link, _KnownColumns(f"{name}.weight", mask))


def read_mixtures(link: InstaHide, plan: AttackPlan) -> AttackPlan:
    """Carry on from the encodings to the private inputs, where the threat knows the mixing.

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """
    if plan.observation.mixing is None or isinstance(plan.attack, Unmixed):
        return plan
    return replace(plan, attack=Unmixed(plan.attack))


# Share of the observed energy that is noise, above which the likelihood brought back more than
# the cosine; with weaker noise the cosine, which is searched more easily, did.
STRONG = 0.25
# Nats that one entry loses for differing from its neighbour by one, in normalised coordinates.
ROUGHNESS = 1.0


def read_noise(link: AddGaussian | AddLaplace, plan: AttackPlan) -> AttackPlan:
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
