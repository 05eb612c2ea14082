"""How often any attack can identify a person, from clipping and noise alone.

Attacks show what leaks at least. This limit holds for every attack; with more noise it falls to
luck.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from seepage.audit._record import Record
from seepage.audit._words import Setup, label_setups
from seepage.audit.results import Results
from seepage.clients._gradient import Gradient
from seepage.defenses._aggregation import SecureAggregation
from seepage.defenses._recorded import adds_noise, find_built_in
from seepage.report._finding import Finding, find
from seepage.report.wording import Kind
from seepage.scoring._identification import compute_luck

# Limits above this are not worth a sentence.
_TELLING = 0.5
# Limits below this belong in the headline.
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
    """The limit that the defense of a case promises; None if it promises none.

    The client must share nothing else that was computed from the batch.
    """
    from seepage.bounds._dp_limits import IdentificationLimit

    sigma = _read_noise(record)
    threat = {} if record.threat is None else record.threat.arguments
    if sigma <= 0 or threat.get("batchnorm") == "exact":
        return None
    limit = IdentificationLimit(strangers)
    return _Limit(strangers, limit.luck, limit.chance(noise_multiplier=sigma))


def _read_noise(record: Record) -> float:
    """The noise in units of the clipping norm, as `IdentificationLimit` reads it off a client."""
    from seepage.bounds._dp_limits import read_guaranteed_noise

    links = [find_built_in(link) for link in record.defense]
    clients = links[-1].clients if links and isinstance(links[-1], SecureAggregation) else 1
    local = Gradient() if record.local.name == "Gradient" else None
    return read_guaranteed_noise(links, local, record.batch_size // clients)


def find_settled(results: Results) -> set[Setup]:
    """Setups in which theory leaves only luck to any attack, and no one was identified."""
    open_ = {a.setup for a in results if not a.settled or a.level.identified}
    return {row.setup for row in results} - open_


def find_limits(results: Results) -> list[Finding]:
    """For each setup with noise, how often any attack could identify a person."""
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
        find(Kind.limit, setup=labels[setup], settled=setup in settled, **asdict(limit))
        for setup, limit in found.items()
        if limit.chance <= _TELLING
    ]
    if unlimited:
        told.append(find(Kind.no_limit, setups=[labels[setup] for setup in unlimited]))
    return told


def find_ceiling(people: Results) -> float:
    """The largest share of these people that any attack can identify; 1 if someone was.

    A limit holds for stronger attacks than those that were run, too.
    """
    places = [(row, row.identification) for row in people]
    if any(row.level.identified or place is None or not place.fair for row, place in places):
        return 1.0
    limits = [_find_limit(row.record, place.strangers) for row, place in places if place]
    chance = max((1.0 if limit is None else limit.chance for limit in limits), default=1.0)
    return chance if chance <= _REASSURING else 1.0


def find_beaten(results: Results) -> list[Finding]:
    """An alarm for each attack that identified more people than theory allows."""
    labels = label_setups(results.setups)
    groups = results.by("attack", "setup", "model", "seed")
    alarms = []
    for (attack, setup, model, _), group in groups.items():
        cases = []
        for row in group:
            place = row.identification
            limit = _find_limit(row.record, place.strangers) if place and place.fair else None
            if place is not None and limit is not None:
                cases.append((place.singled_out, limit.chance))
        hits, chance = sum(hit for hit, _ in cases), max((c for _, c in cases), default=1.0)
        if hits and chance < 1 and compute_luck(hits, len(cases), chance) <= _LUCK:
            told = {"attack": attack.name, "model": model, "setup": labels[setup]}
            counts = {"hits": hits, "people": len(cases), "chance": chance}
            alarms.append(find(Kind.limit_beaten, **told, **counts))
    return alarms
