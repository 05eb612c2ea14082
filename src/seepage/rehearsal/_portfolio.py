"""The attacks that `auto` tries, with their settings, in the order in which to try them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from seepage.attacks import ATTACKS, ReadLogits, adaptive
from seepage.attacks._applicability import Applicability
from seepage.attacks._image_prior import PriorNetwork, through
from seepage.attacks._local_steps import SoftSteps, takes_signs
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.core import Attack, AttackWrapper, Observation, Prepared, Rng
from seepage.core._chain import chain
from seepage.core._construct import write_call
from seepage.rehearsal._combine import MeanOfStarts

# What a search does about a defense that it knows: reads off the update what the defense did,
# simulates its deterministic part, or searches as if there were none.
Knowledge = Literal["adapts", "simulates", "ignores"]
# A search with this option takes so many steps for each unit of it.
_COUNTERS = {"iterations": 20}
# Members of an ensemble, which share the steps.
_MEMBERS = 8
# At most so many starts of one search.
_STARTS = 8
# Channels of a prior network, which is costly.
_PRIOR_WIDTH = 16
# A total variation that falls over the search. What a defense or the others of a batch hide, a
# prior must replace.
_FALLING, _FALLING_HIDDEN = (1e-1, 1e-5), (1e-1, 1e-3)
# A start near the mean input, from which a search gets further in the same steps.
_NEAR = {"spread": 0.1}
# Longer steps than usual that fall slowly get further still.
_LONG_STEPS = {**_NEAR, "step_size": 0.2, "schedule": "cosine"}
# Strong ones that stay, for updates that are nearly signs.
_STRONG = (5e-2, 2e-1)
# A constant total variation that is hardly felt.
_WEAK = 1e-4
# For networks whose layers have gradients of nearly one direction, see `Whitened`.
_TRANSFORMER = {"distance": "whitened", "optimiser": "lbfgs", "step_size": 1.0, **_NEAR}


@dataclass(frozen=True)
class IgnoreDefense(AttackWrapper):
    """Searches as if the client had no defense.

    Where a defense has no useful derivative, or draws something that cannot be known, simulating it
    leads a search astray, and ignoring it recovers more.
    """

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Forget the defense."""
        return Prepared(_forget(seen))


def _forget(seen: Observation) -> Observation:
    client = seen.simulate.client
    if client is None:
        return seen
    return replace(seen, simulate=seen.simulate.with_client(replace(client, defense=chain())))


@dataclass(frozen=True, eq=False)
class Contender:
    """A search with its settings, for any number of steps.

    Args:
        recipe: Name of the attack.
        options: Of the recipe, without steps and restarts.
        knowledge: What it does about a known defense.
        read_logits: Whether it reads the gradient at the logits off the update.
        prior_network: Whether it searches for the weights of a network that makes the images.
        searches: Whether it takes steps; closed forms do not.
        soft_steps: Whether it simulates steps of Adam with a slope to follow.
        start_steps: If not 0, so many steps are one start at least, and the mean of the starts is
            the guess.
    """

    recipe: str
    options: Mapping[str, object] = field(default_factory=dict)
    knowledge: Knowledge = "simulates"
    read_logits: bool = False
    prior_network: bool = False
    searches: bool = True
    soft_steps: bool = False
    start_steps: int = 0

    @property
    def whitens(self) -> bool:
        """Whether weak directions of the gradient count as well, as transformers need it."""
        return self.options.get("distance") == "whitened"

    @property
    def starts_slowly(self) -> bool:
        """Whether a short search says little about a long one.

        So it is with a weak prior, if it is weak from the start, if steps are not signed, or if
        there is a defense.
        """
        weight = self.options.get("tv")
        last = weight[-1] if isinstance(weight, tuple) else weight
        weak = isinstance(last, float) and 0 < last <= _WEAK
        unsigned, defended = self.options.get("signed") is False, self.knowledge == "adapts"
        return weak and (weight == last or unsigned or defended)

    def __str__(self) -> str:
        """The recipe with its settings, in a line of a table."""
        words = {"adapts": ", adapted", "simulates": "", "ignores": ", ignoring the defense"}
        read = ", reading the logits" if self.read_logits else ""
        read += ", through a prior network" if self.prior_network else ""
        read += ", with soft steps" if self.soft_steps else ""
        mean = f", mean of starts of {self.start_steps} steps" if self.start_steps else ""
        called = write_call(self.recipe, self.options) if self.options else self.recipe
        return f"{called}{read}{words[self.knowledge]}{mean}"

    def count_starts(self, steps: int) -> int:
        """How many starts share these steps."""
        return max(1, min(_STARTS, steps // self.start_steps)) if self.start_steps else 1

    def build(self, steps: int, *, restarts: int = 1) -> Attack:
        """The attack with this many steps of each restart."""
        if (starts := self.count_starts(steps)) > 1:
            each = replace(self, start_steps=0).build(steps // starts, restarts=restarts)
            return MeanOfStarts(each, starts)
        if not self.searches:
            return InferLabels(ATTACKS.built_in[self.recipe]())
        made = ATTACKS.built_in[self.recipe](**self._count(steps, restarts))
        if self.prior_network:
            made = through(made, PriorNetwork(width=_PRIOR_WIDTH))
        if self.read_logits:
            made = ReadLogits(made)
        if self.soft_steps:
            made = SoftSteps(made)
        if self.recipe != "dlg":
            made = InferLabels(made)
        if self.knowledge == "adapts":
            made = adaptive(made)
        if self.knowledge == "ignores":
            made = IgnoreDefense(made)
        return made

    def _count(self, steps: int, restarts: int) -> dict[str, object]:
        if self.recipe == "dlg":
            return {**self.options, "iterations": max(1, steps // _COUNTERS["iterations"])}
        if self.recipe == "tableak":
            members = max(1, min(_MEMBERS * restarts, steps // 10))
            return {**self.options, "steps": max(1, steps // members), "members": members}
        return {**self.options, "steps": steps, "restarts": restarts}


def is_defended(seen: Observation) -> bool:
    """Whether the client is known to use a defense."""
    client = seen.simulate.client
    return client is not None and bool(client.chain.links)


def is_hidden(seen: Observation) -> bool:
    """Whether a known defense does more than scale the update."""
    client = seen.simulate.client
    return client is not None and not client.chain.only_scales


def list_contenders(seen: Observation, found: Applicability) -> tuple[Contender, ...]:
    """List the searches that fit an observation, those that usually win first."""
    applies = {option.name for option in found.chosen}
    if "inverting_gradients" not in applies:
        return ()
    plain = [*_list_searches(seen, applies), *([Contender("dlg")] if "dlg" in applies else [])]
    if takes_signs(seen):
        plain = [*_list_soft(plain)]
    if not is_defended(seen):
        return tuple(plain)
    adapted = [replace(one, knowledge="adapts") for one in plain]
    if not is_hidden(seen):
        return tuple(adapted)
    # Behind a defense the first search is tried in all three ways, the others are adapted.
    ways = [replace(plain[0], knowledge=way) for way in ("ignores", "simulates")]
    return (*adapted[:5], *ways, *adapted[5:])


def _list_soft(plain: Sequence[Contender]) -> Iterator[Contender]:
    """The searches behind steps of Adam: soft ones, and a few that simulate the true steps.

    Which of the two goes further differs from person to person. Signs tell little of sizes, which a
    strong prior that stays must replace.
    """
    search, pictorial = "inverting_gradients", any(one.options.get("tv") for one in plain)
    strong = [Contender(search, {"tv": tv, **_LONG_STEPS}, soft_steps=True) for tv in _STRONG]
    yield from strong[:1] if pictorial else ()
    yield plain[0]
    yield from strong[1:] if pictorial else ()
    yield from (replace(one, soft_steps=True) for one in plain)
    yield from plain[1:3]


def _list_searches(seen: Observation, applies: Collection[str]) -> Iterator[Contender]:
    search = "inverting_gradients"
    if not seen.task.domain.pictorial:
        if "tableak" in applies:
            yield Contender("tableak")
        yield Contender(search, {"tv": 0.0})
        yield Contender(search, {"tv": 0.0, "layerwise": 1.0})
        yield Contender(search, {"tv": 0.0, "distance": "l2", "signed": False})
        return
    hidden, one_person = is_hidden(seen), seen.batch_size == 1
    # The gradient itself often gets further than its sign, unless a defense changed it.
    plain = {} if hidden else {"signed": False}
    if plain and any(isinstance(layer, nn.LayerNorm) for layer in seen.task.model.modules()):
        yield Contender(search, {**_TRANSFORMER, "tv": (1e-1, 1e-4 if one_person else 1e-3)})
    falling = {"tv": _FALLING, **_LONG_STEPS}
    hiding = {"tv": _FALLING_HIDDEN, **_LONG_STEPS}
    near = {} if one_person else _NEAR
    forced = {"weighting": "entries", **near, **plain}
    # Of these two the first led on a ResNet-18, the other on LeNet.
    fading = {"tv": _FALLING, "weighting": "entries", "step_size": 0.2}
    wide = Contender("teacher_forced", {**fading, **_NEAR})
    smooth = Contender("teacher_forced", {**fading, **plain})
    weak = Contender(search, {"tv": _WEAK, **_LONG_STEPS})
    strong = Contender(search, {"tv": 1e-2, **_LONG_STEPS})
    if hidden and one_person:
        yield Contender(search, {**hiding, "step_size": 0.4})
        yield Contender("teacher_forced", {**forced, "step_size": 0.2})
        yield strong
        # Pruning hides so little that a prior which stays limits what comes back.
        yield Contender(search, falling)
        yield Contender("teacher_forced", forced)
        yield smooth
        yield Contender("systematic", {"tv": _FALLING_HIDDEN, **_NEAR})
        yield Contender(search, hiding)
        yield weak
    elif one_person:
        yield Contender(search, falling)
        yield Contender("teacher_forced", {**forced, "step_size": 0.2})
        # With batch normalisation this brings back more. It races behind a defense too, so that
        # nobody leaks more there for want of it here.
        yield strong
        yield Contender(search, {**falling, "layerwise": 2.5})
        yield Contender(search, {"tv": _WEAK, "layerwise": 2.5, **_LONG_STEPS})
        # Where the network normalises by the batch, long steps gain nothing.
        systematic = Contender("systematic", {"tv": _FALLING, **_NEAR})
        reading = Contender(search, falling, read_logits=True)
        first, later = (systematic, reading) if seen.task.mode == "train" else (reading, systematic)
        yield first
        yield wide
        yield weak
        yield smooth
        yield later
        yield Contender(search, hiding)
    else:
        yield Contender(search, hiding)
        yield Contender("teacher_forced", {**forced, "step_size": 0.2})
        yield strong if hidden else wide
        yield Contender(search, {**falling, "layerwise": 2.5})
        yield smooth
        yield Contender(search, {"tv": _WEAK, "layerwise": 2.5, **_LONG_STEPS})
        yield Contender("teacher_forced", forced)
        yield weak
        yield Contender("systematic", {"tv": _FALLING_HIDDEN, **_NEAR})
        yield Contender(search, falling)
        yield wide if hidden else strong
    yield Contender("teacher_forced", {**forced, "step_size": 0.4})
    yield Contender("teacher_forced", {"tv": 1e-1})
    yield Contender("systematic")
    if seen.statistics is not None:
        yield Contender("gradattack_strongest")
    yield Contender("systematic", {"tv": 1e-3})
    yield Contender("teacher_forced")
    yield Contender(search, {"tv": _FALLING, **_NEAR})
    yield Contender(search, {"tv": 1e-1})
    if len(seen.task.domain.shape) == 3:
        yield Contender(search, {"tv": 1e-4}, prior_network=True)
    yield Contender("systematic", {"weighting": 1.0})
    yield Contender("teacher_forced", {"tv": 3e-3, "weighting": "entries"})
    yield Contender("systematic", {"tv": 1e-1})
    yield Contender(search, {"tv": 1e-6})
    yield Contender(search, {"tv": 1e-2, "layerwise": 2.5})
    yield Contender(search, {"tv": 1e-2, "distance": "l2", "signed": False})
