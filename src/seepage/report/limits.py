"""How often any attack at all can identify a person, from the clipping and the noise alone.

Attacks show what leaks at least. This limit holds for every attack, and as the noise grows it falls
to luck, below which nobody can be called identified.
"""

from __future__ import annotations

from dataclasses import dataclass

from seepage.audit.record import Record
from seepage.audit.results import Results
from seepage.audit.words import Setup, count_noun, label_setups, list_words, percent
from seepage.clients.gradient import Gradient
from seepage.core.construct import Component
from seepage.defenses.aggregation import SecureAggregation
from seepage.defenses.recorded import adds_noise, find_built_in
from seepage.scoring.identification import compute_luck

_SETTLES = (
    "That settles the verdict, whatever the controls found and however long an attack searches: it "
    "is the theorem of IdentificationLimit, the blow-up of two Gaussians (Hayes et al., 2023)."
)
# Limits above this hold nobody back and are not told.
_TELLING = 0.5
# Limits below this belong in the headline: hardly anybody can be identified by any attack.
_REASSURING = 0.05
# Probability with which luck alone may raise an alarm.
_LUCK = 1e-3


@dataclass(frozen=True)
class _Limit:
    """The most that any attack on one update of a case can do."""

    strangers: int
    luck: float
    chance: float


def _find_limit(record: Record, strangers: int) -> _Limit | None:
    """The limit that the client of a case promises; None if it promises none.

    Beside the update, the client must share nothing that was computed from the batch.
    """
    from seepage.bounds.dp_limits import IdentificationLimit

    sigma = _read_noise(record)
    threat = {} if record.threat is None else record.threat.arguments
    if sigma <= 0 or threat.get("batchnorm") == "exact":
        return None
    limit = IdentificationLimit(strangers)
    return _Limit(strangers, limit.luck, limit.chance(noise_multiplier=sigma))


def _read_noise(record: Record) -> float:
    """The noise in units of the clipping norm, as `IdentificationLimit` reads it off a client."""
    from seepage.bounds.dp_limits import read_guaranteed_noise

    links = [find_built_in(link) for link in record.defense]
    clients = links[-1].clients if links and isinstance(links[-1], SecureAggregation) else 1
    local = Gradient() if record.local.name == "Gradient" else None
    return read_guaranteed_noise(links, local, record.batch_size // clients)


def find_settled(results: Results) -> set[Setup]:
    """The setups in which a theorem leaves every attack nothing but luck, and nobody had that."""
    open_ = {a.setup for a in results if not a.settled or a.level.identified}
    return {row.setup for row in results} - open_


def tell_limits(results: Results) -> list[str]:
    """How often any attack could identify somebody, where a limit says anything."""
    found: dict[Setup, _Limit] = {}
    unlimited: dict[Setup, None] = {}
    for row in results:
        place, setup = row.identification, row.setup
        if place is None or not place.fair:
            continue
        limit = _find_limit(row.record, place.strangers)
        if limit is not None and limit.chance > found.get(setup, limit).chance - 1e-12:
            found[setup] = limit
        elif limit is None and any(map(adds_noise, row.record.defense)):
            unlimited[setup] = None
    labels = label_setups(row.setup for row in results)
    settled = find_settled(results)
    told = [
        f"Theory: behind {labels[setup]} no attack on one update, known or not, puts a person "
        f"first among {count_noun(limit.strangers, 'stranger')} in more than "
        f"{percent(limit.chance)} of all cases; luck does in {percent(limit.luck)}."
        + f" {_SETTLES}"
        * (setup in settled)
        for setup, limit in found.items()
        if limit.chance <= _TELLING
    ]
    if unlimited:
        names = list_words([labels[setup] for setup in unlimited], "or")
        told.append(
            f"Theory sets no limit behind {names}: nothing bounds how far one person can move the "
            "update. Clip each example before the noise, as dp_sgd does, or the whole update."
        )
    return told


def tell_ceiling(people: Results) -> str:
    """What theory adds to a headline that found nobody; empty if it promises these people little.

    An attack that was too weak to tell says nothing, but a limit holds for stronger ones too.
    """
    places = [(a, a.identification) for a in people]
    if any(a.level.identified or place is None or not place.fair for a, place in places):
        return ""
    limits = [_find_limit(a.record, place.strangers) for a, place in places if place is not None]
    chances = [1.0 if limit is None else limit.chance for limit in limits]
    if not chances or max(chances) > _REASSURING:
        return ""
    return f"; in theory no attack identifies more than {percent(max(chances))} of people"


def find_beaten(results: Results) -> list[str]:
    """One alarm for each attack that identifies more people than any attack can."""
    groups: dict[tuple[Component, Setup, str, int], list[tuple[bool, float]]] = {}
    for row in results:
        record, place = row.record, row.identification
        limit = None if place is None or not place.fair else _find_limit(record, place.strangers)
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
                f"behind {labels[setup]}, where any attack identifies {percent(chance)} at most: "
                "the defense does not do what it says, or the attack has a bug."
            )
    return alarms
