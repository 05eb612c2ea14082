"""How often any attack at all can identify a person, from the clipping and the noise alone.

Attacks show what leaks at least. This limit holds for every attack, and as the noise grows it falls
to luck, below which nobody can be called identified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.audit.record import Record
from seepage.core.construct import Component
from seepage.report.leak import Attempt
from seepage.report.words import Setup, count_noun, label_setups, list_words, read_dp_sgd
from seepage.scoring.identification import compute_luck

# Limits above this hold nobody back and are not told.
_TELLING = 0.5
# Probability with which luck alone may raise an alarm.
_LUCK = 1e-3


@dataclass(frozen=True)
class IdentificationLimit:
    """The most that any attack on one update can do.

    The private example is one of N + 1 candidates, all as likely, and the adversary knows the rest
    of the batch. Each example is clipped to C, so that the update is normal about a point within
    C of the one without the example, in units of which the noise is sigma. Then

        P(first of N + 1) <= Phi(Phi^-1(1 / (N + 1)) + 1 / sigma)

    Args:
        strangers: N.
        noise_multiplier: sigma.

    Example:
        >>> limit = IdentificationLimit(strangers=99, noise_multiplier=50.0)
        >>> limit.luck, round(limit.chance, 4)
        (0.01, 0.0105)

    References:
        Hayes et al., 2023 (hayes2023bounding), the blow-up of two Gaussians
    """

    strangers: int
    noise_multiplier: float

    @property
    def luck(self) -> float:
        """How often a guess that ignores the update comes first."""
        return 1 / (self.strangers + 1)

    @property
    def chance(self) -> float:
        """How often any attack can."""
        from seepage.bounds.dp import gaussian_blow_up

        return gaussian_blow_up(self.luck, noise_multiplier=self.noise_multiplier)


def find_limit(record: Record, strangers: int) -> IdentificationLimit | None:
    """The limit that the client of a case promises; None if it promises none.

    It must share one gradient by DP-SGD, and nothing that was computed from the batch beside it.
    """
    promise = read_dp_sgd(record.defense, batch_size=record.batch_size)
    threat = {} if record.threat is None else record.threat.arguments
    alone = record.local.name == "Gradient" and threat.get("batchnorm") != "exact"
    if promise is None or not alone or promise.noise_multiplier <= 0:
        return None
    return IdentificationLimit(strangers, promise.noise_multiplier)


def tell_limits(tried: Sequence[Attempt]) -> list[str]:
    """How often any attack could identify somebody, where a limit says anything."""
    found: dict[Setup, IdentificationLimit] = {}
    unlimited: dict[Setup, None] = {}
    for attempt in tried:
        place, setup = attempt.identification, Setup.of(attempt.record)
        if place is None or not place.fair:
            continue
        limit = find_limit(attempt.record, place.strangers)
        if limit is not None and limit.chance > found.get(setup, limit).chance - 1e-12:
            found[setup] = limit
        elif limit is None and _is_noisy(attempt.record.defense):
            unlimited[setup] = None
    labels = label_setups(Setup.of(attempt.record) for attempt in tried)
    told = [
        f"Theory: behind {labels[setup]} no attack on one update, known or not, puts a person "
        f"first among {count_noun(limit.strangers, 'stranger')} in more than "
        f"{_percent(limit.chance)} of all cases; luck does in {_percent(limit.luck)}."
        for setup, limit in found.items()
        if limit.chance <= _TELLING
    ]
    if unlimited:
        names = list_words([labels[setup] for setup in unlimited], "or")
        told.append(
            f"Theory sets no limit behind {names}: nothing bounds how far one person can move the "
            "update. Clip each example before the noise, as dp_sgd does."
        )
    return told


def find_beaten(tried: Sequence[Attempt]) -> list[str]:
    """One alarm for each attack that identifies more people than any attack can."""
    groups: dict[tuple[Component, Setup, str, int], list[tuple[bool, float]]] = {}
    for attempt in tried:
        record, place = attempt.record, attempt.identification
        limit = None if place is None or not place.fair else find_limit(record, place.strangers)
        if place is not None and limit is not None:
            key = record.attack, Setup.of(record), record.model, record.seed
            groups.setdefault(key, []).append((place.singled_out, limit.chance))
    labels = label_setups(setup for _, setup, _, _ in groups)
    alarms = []
    for (attack, setup, model, _), cases in groups.items():
        hits, chance = sum(first for first, _ in cases), max(chance for _, chance in cases)
        if hits and chance < 1 and compute_luck(hits, len(cases), chance) <= _LUCK:
            alarms.append(
                f"CONTRADICTION: {attack.name} identified {hits} of {len(cases)} people on {model} "
                f"behind {labels[setup]}, where any attack identifies {_percent(chance)} at most: "
                "the defense does not do what it says, or the attack has a bug."
            )
    return alarms


def _is_noisy(defense: Sequence[Component]) -> bool:
    return any(link.name in ("AddGaussian", "AddLaplace") for link in defense)


def _percent(share: float) -> str:
    """A share with two digits after the first that is not zero.

    Example:
        >>> _percent(0.010512), _percent(0.3891)
        ('1.05 %', '38.9 %')
    """
    return f"{100 * share:.3g} %"
