"""Adapt an attack to the client's defense: read off the update what the defense did."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from seepage.attacks._unmixed import Unmixed
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.attacks.labels._read_logits import ReadLogits
from seepage.attacks.linear_systems._analytic_fc import features
from seepage.core import (
    Attack,
    AttackWrapper,
    Observation,
    Prepared,
    PreparedBatch,
    Protection,
    Rng,
    Update,
)
from seepage.core._chain import OnAggregate, OnInputs
from seepage.core._protocols import Stage
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.defenses import (
    AddGaussian,
    AddLaplace,
    Dropout,
    InstaHide,
    Precode,
    Soteria,
    chain,
)
from seepage.defenses._representation import VariationalBottleneck
from seepage.probing._heads import head_of
from seepage.search._defense_inversion import INVERSIONS, AttackPlan, Inverter, read_survivors
from seepage.search._fidelity import Cosine, GaussianLikelihood, LayerwiseCosine
from seepage.search._matching import GradientMatching
from seepage.search._objective import Candidate, Term
from seepage.search._priors import TotalVariation

# The gradient of a fully connected layer for one example has rank one, up to rounding.
RANK_ONE = 1e-2


def _read_code(link: Precode, plan: AttackPlan) -> AttackPlan:
    """Simulate the noise that the client drew, if it was drawn for one example.

        r = what the encoder read,  z = what the decoder read,  noise = (z - mu(r)) / std(r)

    With several examples every row holds a mixture, and the mean code is simulated as before.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian)
    """
    task, update = plan.observation.simulate.task, plan.observation.update
    named = [(n, m) for n, m in task.model.named_modules() if isinstance(m, VariationalBottleneck)]
    name, bottleneck = named[-1]
    if not all(_is_rank_one(update, f"{name}.{part}") for part in ("encoder", "decoder")):
        return plan
    alone = replace(plan.observation, batch_size=1)
    representation = features(alone, layer=f"{name}.encoder")
    code = features(alone, layer=f"{name}.decoder")
    with torch.no_grad():
        mean, log_variance = bottleneck.encoder(representation).chunk(2)
    model = copy.deepcopy(task.model)
    copied = model.get_submodule(name)
    assert isinstance(copied, VariationalBottleneck)
    copied.noise = ((code - mean) * torch.exp(-log_variance / 2)).unsqueeze(0)
    return plan.replace_task(replace(task, model=model))


def _is_rank_one(update: Update, layer: str) -> bool:
    """Whether a layer's gradient is that of one example: dL/dA = (dL/db) v^T for some v."""
    weight, bias = update.tensors[f"{layer}.weight"], update.tensors[f"{layer}.bias"]
    direction = bias / bias.norm().clamp_min(torch.finfo(bias.dtype).tiny)
    unexplained = weight - torch.outer(direction, direction @ weight)
    return bool(unexplained.norm() < RANK_ONE * weight.norm())


@dataclass(frozen=True, eq=False, repr=False)
class _KnownColumns(OnInputs):
    """Multiply the columns of one parameter's gradient with a known mask `(D,)`."""

    stage: ClassVar[Stage] = "network"

    parameter: str
    mask: Tensor

    def prepare_expected(self, prepared: PreparedBatch) -> PreparedBatch:
        return replace(prepared, masks={**prepared.masks, self.parameter: self.mask})


def _read_columns(link: Soteria, plan: AttackPlan) -> AttackPlan:
    """Simulate the pruning that the client did; with noise no column is zero, and none is lost.

    References:
        Balunovic et al., 2022, Sec. 5 (balunovic2022bayesian), who leave the whole layer out
    """
    name, _ = head_of(plan.observation.task, needed_by=link)
    weight = plan.observation.update.tensors.get(f"{name}.weight")
    if weight is None:  # a frozen layer has nothing to prune
        return plan
    mask = (weight != 0).any(0).to(weight.dtype)
    return plan.replace_link(link, _KnownColumns(f"{name}.weight", mask))


def _read_mixtures(link: InstaHide, plan: AttackPlan) -> AttackPlan:
    """Continue from the encodings to the private inputs, if the threat knows the mixing.

    References:
        Huang et al., 2021, Sec. A.3 (huang2021evaluating)
    """
    if plan.observation.mixing is None or isinstance(plan.attack, Unmixed):
        return plan
    return replace(plan, attack=Unmixed(plan.attack))


# Share of the observed energy that is noise, above which the likelihood recovered more than the
# cosine; with weaker noise the cosine, which is easier to search, recovered more.
STRONG = 0.25
# Nats that one entry loses for differing from its neighbour by one, in normalised coordinates.
ROUGHNESS = 1.0


def _read_noise(link: AddGaussian | AddLaplace, plan: AttackPlan) -> AttackPlan:
    """With strong noise, maximise the posterior: its likelihood times the total variation's.

    A cosine fits the noise as well as it can. The likelihood accepts a residual of the size of the
    noise, and leaves the rest to the prior. Laplace noise is treated as Gaussian noise of the same
    variance, which recovered more than its own likelihood.
    """
    if plan.after(link):
        return plan
    std = link.noise
    update = plan.observation.update
    if std**2 * _count_entries(update) < STRONG * float(update.flat().square().sum()):
        return plan
    return replace(plan, attack=_reweight(plan.attack, std, ROUGHNESS * plan.unknowns))


@dataclass(frozen=True)
class OverSignal:
    """A term in nats, rescaled to the units of a cosine, so that other terms keep their weights.

    Half a squared distance is divided by the energy of the signal; sigma^2 of it is one nat:

        term * sigma^2 / max(||g*||^2 - n sigma^2, sqrt(2 n) sigma^2)

    A signal below the second, the deviation of the noise's own energy, cannot be told from none.

    Args:
        term: A term in nats.
        std: sigma, of the noise on every entry.
    """

    term: Term
    std: float

    @property
    def weight(self) -> float:
        """Weight of the term."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Divide the term by the energy of the signal in the observed update."""
        entries = _count_entries(observation.update)
        energy = observation.update.flat().square().sum() / self.std**2
        signal = (energy - entries).clamp_min(math.sqrt(2 * entries))
        return self.term(candidate, observation) / signal


def _reweight(attack: Attack, std: float, prior: float) -> Attack:
    """Weigh both terms anew if the attack searches by cosine and total variation."""
    if isinstance(attack, InferLabels | ReadLogits | Unmixed):
        return replace(attack, attack=_reweight(attack.attack, std, prior))
    if not isinstance(attack, GradientMatching):
        return attack
    terms = attack.search.terms
    smooth = any(isinstance(term, TotalVariation) for term in terms)
    if not smooth or not any(isinstance(term, Cosine | LayerwiseCosine) for term in terms):
        return attack
    weighed: list[Term] = []
    for term in terms:
        if isinstance(term, Cosine | LayerwiseCosine):
            term = OverSignal(GaussianLikelihood(std=std), std)
        elif isinstance(term, TotalVariation):
            term = OverSignal(replace(term, weight=prior), std)
        weighed.append(term)
    return replace(attack, search=replace(attack.search, terms=tuple(weighed)))


def _count_entries(update: Update) -> int:
    return sum(tensor.numel() for tensor in update)


INVERTERS: Mapping[type, Inverter] = MappingProxyType(
    {
        **INVERSIONS,
        AddGaussian: _read_noise,
        AddLaplace: _read_noise,
        Dropout: read_survivors,
        InstaHide: _read_mixtures,
        Precode: _read_code,
        Soteria: _read_columns,
    }
)
"""The inverter of each class of defense. The others need none: either the simulation covers them
already (clipping, MixUp with known mixing, sums over clients), or simulating them recovered less
(rounding, OASIS's rotations)."""


@dataclass(frozen=True, eq=False, repr=False)
class _Subtract(OnAggregate):
    """Subtract a known update from the tensors that come in, which may be only some of them."""

    keeps_gradient: ClassVar[bool] = True

    known: Update

    def expected(self, update: Update) -> Update:
        """The difference."""
        pairs = ((name, t - self.known.tensors[name]) for name, t in update.tensors.items())
        return replace(update, tensors=dict(pairs))


def _remove_offset(plan: AttackPlan) -> AttackPlan:
    """Subtract from the update what the defense makes of zeros.

    A cosine hardly sees a gradient beside a large number that is added to every entry.
    """
    defense, update = plan.defense, plan.observation.update
    if not defense.only_changes_update:
        return plan
    offset = defense.expected(update.map(torch.zeros_like))
    flat = offset.flat()
    if not bool(flat.any()) or not bool(flat.isfinite().all()):
        return plan
    link = _Subtract(offset)
    client = replace(plan.client, defense=chain(defense, link))
    simulate = plan.observation.simulate.with_client(client)
    left = link.expected(update)
    return replace(plan, observation=replace(plan.observation, update=left, simulate=simulate))


def adapt_to_defense(attack: Attack, observation: Observation) -> AttackPlan:
    """Plan an attack with everything about the defense that can be read off the update."""
    plan = AttackPlan(attack, observation)
    if observation.simulate.client is None:
        return plan
    return _remove_offset(plan.invert(INVERTERS))


@dataclass(frozen=True)
class Adaptive(AttackWrapper):
    """Read off the update what the client did with its defense, then attack with that simulated.

    Attacks that never simulate the client, such as the closed form, stay as they are. So does
    every attack if the threat withholds the defense. The arguments are those of `adaptive`.
    """

    defense: Protection | None = None

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Adapt the simulation and the search to the observation."""
        plan = self._plan(seen)
        return Prepared(plan.observation, attack=plan.attack)

    def _plan(self, observation: Observation) -> AttackPlan:
        client, defense = observation.simulate.client, self.defense
        known = chain() if client is None else client.chain
        if defense is None or chain(known) == chain(defense):
            return adapt_to_defense(self.attack, observation)
        if known == chain():
            raise MissingKnowledge(
                "defense",
                needed_by=f"an attack adapted to {defense}",
                hint="use Threat(knows_defense=True), or the attack as it is",
            )
        raise NotApplicable(
            f"expected a client behind {defense}, which the attack is adapted to, got one behind "
            f"{chain(known)}; adapt it to that, or to whatever the threat reveals"
        )


def adaptive(attack: Attack, defense: Protection | None = None) -> Attack:
    """Adapt an attack to the defense, as an adversary does who knows it.

    A threat with `knows_defense` has every attack simulate the deterministic part of the defense.
    Random or data-dependent choices of the defense can often be read off the update itself:
    `INVERTERS` has a function for each such defense. An inverter can be wrong about some inputs,
    and without the truth it is unknown which guess is nearer. So an audit also runs the attack
    without knowledge of the defense: knowing it never lowers the leakage that is reported.

    Args:
        attack: One that never simulates the client is left as it is. In an attack that unmixes,
            the search for the encodings is adapted.
        defense: The only defense it adapts to; None adapts it to whatever the threat reveals.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.cnn(variant="cnn2-v2")
        >>> client = sp.Client(sp.Gradient(), sp.Dropout(0.7))
        >>> seen = sp.Threat(knows_labels=True).observe(client, task, photo, rng=sp.rng(0))
        >>> search = sp.attacks.inverting_gradients(steps=2, restarts=1)
        >>> tuple(adaptive(search, sp.Dropout(0.7))(seen, rng=sp.rng(1)).inputs.shape)
        (1, 3, 32, 32)
        >>> adaptive(search, sp.Prune(0.9))(seen, rng=sp.rng(1))
        Traceback (most recent call last):
        ...
        seepage.core.errors.NotApplicable: expected a client behind Prune(0.9), which the attack \
is adapted to, got one behind Dropout(0.7); adapt it to that, or to whatever the threat reveals

    References:
        Balunovic et al., 2022 (balunovic2022bayesian) on attacks as inference under the defense;
        Huang et al., 2021 (huang2021evaluating)
    """
    if isinstance(attack, Unmixed):
        return replace(attack, attack=adaptive(attack.attack, defense))
    return Adaptive(attack, defense)


Value = TypeVar("Value")


def without_adaptation(attack: Value) -> Value:
    """Remove every `Adaptive` from an attack, however deep inside; itself if there is none.

    Example:
        >>> import seepage as sp
        >>> search = sp.attacks.dlg(iterations=1)
        >>> knowing = sp.attacks.Unmixed(sp.attacks.adaptive(search, sp.Prune(0.9)))
        >>> without_adaptation(knowing) == sp.attacks.Unmixed(search)
        True
        >>> without_adaptation(search) is search
        True
    """
    if isinstance(attack, Adaptive):
        return without_adaptation(attack.attack)  # type: ignore[return-value]
    if not is_dataclass(attack) or isinstance(attack, type):
        return attack
    held = {field.name: getattr(attack, field.name) for field in fields(attack) if field.init}
    bare = {name: without_adaptation(value) for name, value in held.items()}
    changed = {name: value for name, value in bare.items() if value is not held[name]}
    return replace(attack, **changed) if changed else attack
