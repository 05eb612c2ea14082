"""Which attacks a step is audited with, in which range of inputs, and for how many steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.attacks._applicability import Applicability
from seepage.attacks._inverting_gradients import inverting_gradients
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.core import Attack, AttackWrapper, Domain, Observation, Prepared, Rng
from seepage.core._construct import Component
from seepage.core._progress import limited, measure_pace, time_left
from seepage.core.errors import InvalidValue, SeepageError, UnknownName
from seepage.domains import domain_of_shape
from seepage.domains._box import Box
from seepage.rehearsal import ALL_ATTACKS, EFFORTS, PublicData, auto
from seepage.rehearsal._attack_protocols import Searches
from seepage.rehearsal._effort_plan import EffortName

# Steps of a search that is asked for by name.
_STEPS = 1_000
# Most steps of the search that tells the range of inputs.
_PROBE = 100

Ranges = tuple[tuple[float, float], ...]


def list_attacks(
    asked: Sequence[str | Attack] | None,
    seen: Observation,
    found: Applicability,
    *,
    effort: EffortName,
    steps: int | None,
    seconds: float,
    controls: int,
    shared: bool,
    public: PublicData | None,
    ranges: Ranges,
    foreign: bool,
) -> list[tuple[Component, Attack]]:
    """List what to run: `auto`, or the attacks that the caller asks for.

    `auto` also runs on as many other batches as there are `controls`; they share its rehearsal if
    they are `shared`, which is to say of the same client. An update is `foreign` if it is known to
    be of another step than the simulated one.
    """
    if asked is not None:
        asked = [asked] if isinstance(asked, str) else asked
        return [_read(one, found, steps or _STEPS, ranges) for one in asked]
    if effort not in EFFORTS:
        raise UnknownName("effort", effort, EFFORTS)
    wanted = steps or EFFORTS[effort].steps
    probe = max(1, min(_PROBE, wanted // 10))
    probing = len(ranges) * probe / wanted if len(ranges) > 1 else 0.0
    # Half of the steps are rehearsed, the first control rehearses for all.
    halves = 2 + controls + (controls > 0 and not shared)
    each = seconds / (halves / 2 + probing)
    made = auto(effort=effort, budget=wanted, public=public, seconds=each)
    if controls and not made.has_time_to_rehearse(seen):
        made = replace(made, seconds=seconds / (1 + controls))
    chosen = FindRange(made, ranges, steps=probe, seconds=each * probing) if probing else made
    named = Component("auto", {"effort": effort, "steps": wanted})
    # What `auto` proves of a text may be less than all of its words. And it trusts no closed form
    # whose guess does not explain the update, though one that reads a layer need not know the rest.
    alone = [
        one.name
        for one in found.chosen
        if one.name == "bag_of_words" or (foreign and not one.options)
    ]
    return [(named, chosen), *(_read(name, found, _STEPS, ranges) for name in alone)]


def _read(
    asked: str | Attack, found: Applicability, steps: int, ranges: Ranges
) -> tuple[Component, Attack]:
    if not isinstance(asked, str):
        recipes: Collection[object] = ALL_ATTACKS.built_in.values()
        if asked in recipes or not isinstance(asked, Attack):
            raise InvalidValue(f"expected attacks such as dlg(), or their names, got {asked!r}")
        return Component.of(asked), asked
    option = next((one for one in found.chosen if one.name == asked), None)
    if option is None:
        if asked not in ALL_ATTACKS:
            raise UnknownName("attack", asked, ALL_ATTACKS)
        return Component(asked, {}), ALL_ATTACKS[asked]()
    counter = next((name for name in ("steps", "iterations") if name in option.options), None)
    if counter is not None:
        counted = steps if counter == "steps" else max(1, steps // 20)
        option = replace(option, options={**option.options, counter: counted})
    several = counter == "steps" and len(ranges) > 1
    attack = FindRange(option.attack, ranges) if several else option.attack
    infers = {"infer_labels": True} if option.infer_labels else {}
    return Component(asked, {**option.options, **infers}), attack


# Images that were normalised by the usual means and deviations lie in the first range. Other
# numbers, such as standardised columns and embeddings, have longer tails.
_IMAGES, _NUMBERS = (-3.0, 3.0), (-8.0, 8.0)
_NARROWER: Ranges = ((0.0, 1.0), (-1.0, 1.0))


def read_range(declared: object) -> Domain | tuple[float, float] | None:
    """Return a declared domain or range, which may come as a list, or raise `InvalidValue`."""
    if declared is None or isinstance(declared, Domain):
        return declared
    ends = tuple(declared) if isinstance(declared, tuple | list) else ()
    if len(ends) != 2 or not all(isinstance(e, int | float) and math.isfinite(e) for e in ends):
        raise InvalidValue(f"expected domain=(low, high) or a domain, got {declared!r}")
    return ends


def choose_domain(
    shape: tuple[int, ...], *, declared: Domain | tuple[float, float] | None, others: Tensor | None
) -> tuple[Domain, Ranges, str | None]:
    """Choose the space of the inputs and the ranges that searches try, and say what was assumed.

    The private batch is not looked at, since its lowest and highest value are private. A domain or
    range that was declared is taken as it is. Otherwise the range is that of public inputs, rounded
    up to [0, 1], [-1, 1] or the next powers of two. Without them it is wide, [-3, 3] for images and
    [-8, 8] for other numbers, and searches try narrower ones as well.

    Args:
        shape: Of one input, as the network reads it.
        declared: The domain, or the lowest and highest value.
        others: Inputs of people who are not in the batch.

    Example:
        >>> choose_domain((3, 8, 8), declared=(0, 1), others=None)[0]
        Image(shape=(3, 8, 8), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), bounds=(0, 1))
        >>> choose_domain((3, 8, 8), declared=None, others=None)[1]
        ((-3.0, 3.0), (0.0, 1.0), (-1.0, 1.0))
    """
    if declared is not None:
        domain = _box(shape, declared) if isinstance(declared, tuple) else declared
        return domain, (domain.bounds,), None
    if others is not None and others.numel():
        bounds, source = _round_range(others), "as others= does"
        ranges: Ranges = (bounds,)
    else:
        bounds = _IMAGES if len(shape) == 3 else _NUMBERS
        ranges = (bounds, *_NARROWER)
        source = "wide enough for normalised inputs, and searches also try [0, 1] and [-1, 1]"
    return (
        _box(shape, bounds),
        ranges,
        f"inputs are assumed to lie in [{bounds[0]:g}, {bounds[1]:g}] as the network reads them, "
        f"{source}; give domain=(low, high) for their true range, or a domain for natural units",
    )


def require_range(inputs: Tensor, domain: Domain) -> None:
    """Raise `InvalidValue` if private inputs leave a range that was assumed."""
    if not bool(inputs.isfinite().all()):
        raise InvalidValue("expected finite inputs, got NaN or infinity; check the batch")
    low, high = domain.bounds
    if bool(((inputs < low) | (inputs > high)).any()):
        raise InvalidValue(
            f"expected inputs in [{low:g}, {high:g}], which is assumed where no range is declared, "
            "got values outside it; give domain=(low, high) with the range that everybody's inputs "
            "have"
        )


def _round_range(public: Tensor) -> tuple[float, float]:
    low, high = float(public.min()), float(public.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValue("expected finite others, got NaN or infinity; check them")
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    reach = 2.0 ** max(0, math.ceil(math.log2(max(abs(low), abs(high), 1.0))))
    return -reach, reach


def _box(shape: tuple[int, ...], bounds: tuple[float, float]) -> Domain:
    """Make images of three axes and rows of one; others are channels of numbers in a row.

    Recurrent networks read a series of one number as `(L, 1)`, which is one channel all the same.
    """
    if len(shape) in (1, 3):
        return domain_of_shape(shape, bounds=bounds)
    channels, length = shape[0], math.prod(shape[1:])
    return domain_of_shape((1, channels) if length == 1 else (channels, length), bounds=bounds)


def _narrow(seen: Observation, bounds: tuple[float, float]) -> Observation:
    """The same observation, with inputs known to lie in a narrower range."""
    domain = seen.task.domain
    assert isinstance(domain, Box)
    task = replace(seen.task, domain=replace(domain, bounds=bounds))
    return replace(seen, task=task, simulate=seen.simulate.with_task(task))


@dataclass(frozen=True)
class FindRange(AttackWrapper):
    """Finds the range of inputs by a short search in each, then attacks in that range.

    A search in too wide a range keeps the noise that it began with, and one in too narrow a range
    cannot explain the update. So the objective tells which range is right, without the truth. What
    a closed form proves needs no range but the widest.

    Args:
        attack: The attack.
        ranges: Lowest and highest values to try, the widest first; it is kept if no search runs.
        steps: Steps of the search in each range.
        seconds: About how long these take together; None for as long as they need.
    """

    ranges: tuple[tuple[float, float], ...]
    steps: int = _PROBE
    seconds: float | None = None

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Search a little in every range; the attack sees the best."""
        widest = _narrow(seen, self.ranges[0])
        if isinstance(self.attack, Searches):
            proved = self.attack.prove(widest, rng=rng)
            if proved is not None:
                return Prepared(widest, attack=lambda *_, **__: proved)
        lowest: dict[tuple[float, float], float] = {}
        with limited(self.seconds):
            steps = self._fit(seen)
        for bounds in self.ranges:
            if time_left() <= 0:
                break
            with suppress(SeepageError), limited(self.seconds):
                found = _probe(steps)(_narrow(seen, bounds), rng=rng.fork("range"))
                lowest[bounds] = min(found.trace.finals, default=math.inf)
        best = min(lowest, key=lambda bounds: lowest[bounds], default=self.ranges[0])
        return Prepared(_narrow(seen, best))

    def search_alone(self, seen: Observation) -> FindRange | None:
        """The same with the search of its attack alone; None if that is not apart."""
        alone = self.attack.search_alone(seen) if isinstance(self.attack, Searches) else None
        return None if alone is None else replace(self, attack=alone)

    def _fit(self, seen: Observation) -> int:
        """As many steps as fit into the time."""
        if self.seconds is None:
            return self.steps
        pace = None
        with suppress(SeepageError):
            pace = measure_pace(lambda: _probe(self.steps)(seen, rng=Rng(0)))
        if pace is None:
            return self.steps
        left = self.seconds / len(self.ranges) - pace.start
        return min(self.steps, max(1, int(left / pace.each)))


def _probe(steps: int) -> Attack:
    return InferLabels(inverting_gradients(steps=steps, restarts=1, tv=1e-3))
