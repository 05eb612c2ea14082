"""How `auto` chose its attacks, one race for each setup, and whether the forecasts were kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from seepage.audit._record import Record
from seepage.audit._words import Setup, label_setups
from seepage.audit.results import Results
from seepage.audit.results._amount import Amount
from seepage.core._reconstruction import Race, Trial
from seepage.report._finding import Finding, find
from seepage.report.wording import Kind


@dataclass(frozen=True)
class RaceSummary:
    """One race and what became of its forecast."""

    data: str
    model: str
    setup: Setup
    race: Race
    kept: int
    people: int

    @property
    def curves(self) -> dict[str, list[Trial]]:
        """The trials of each attack, by steps; attacks that got more come last."""
        found: dict[str, list[Trial]] = {}
        for trial in self.race.trials:
            if trial.scores:
                found.setdefault(trial.attack, []).append(trial)
        return dict(sorted(found.items(), key=lambda item: max(t.mean for t in item[1])))

    def forecast_words(self) -> str:
        """The forecast, and for how many it was right."""
        forecast = self.race.forecast
        if forecast is None:
            return self.race.note or "-"
        amounts = [
            Amount(self.race.metric, value)
            for value in (forecast.low, forecast.middle, forecast.high)
        ]
        low, middle, high = (amount.words(unit=False) for amount in amounts)
        unit = "" if amounts[0].is_share else " dB"
        interval = f"{low} or more" if forecast.is_open else f"{low} to {high}"
        return f"{middle}{unit} ({interval}), right for {self.kept} of {self.people}"


def summarise_races(records: Sequence[Record]) -> list[RaceSummary]:
    """Every race of an audit once, in the order of its cases."""
    groups: dict[tuple[str, str, Setup, Race], list[Record]] = {}
    for record in records:
        if record.race is not None and record.race.trials:
            key = record.data, record.model, Setup.of(record), record.race
            groups.setdefault(key, []).append(record)
    return [_summarise(*key, group) for key, group in groups.items()]


def _summarise(
    data: str, model: str, setup: Setup, race: Race, records: Sequence[Record]
) -> RaceSummary:
    scores = [v for r in records for v in r.scores.get(race.metric, ()) if v is not None]
    kept = sum(race.forecast.covers(score) for score in scores) if race.forecast else 0
    return RaceSummary(data, model, setup, race, kept, len(scores))


def find_races(results: Results, *, settled: Collection[Setup] = ()) -> list[Finding]:
    """What the rehearsals say about the verdict, in at most three sentences.

    Where a theorem has settled it, more effort finds no more whatever a rehearsal found.
    """
    found = summarise_races(results.records)
    labels = label_setups(one.setup for one in found)
    masked = dict.fromkeys(labels[one.setup] for one in found if one.race.masked)
    open_ = [one for one in found if one.setup not in settled]
    rising = dict.fromkeys(labels[one.setup] for one in open_ if one.race.rising)
    return [
        *[find(Kind.masked, setups=[*masked])] * bool(masked),
        *[find(Kind.rehearsal_rising, setups=[*rising])] * bool(rising),
        *[find(Kind.made_up)] * any(one.race.made_up for one in found),
    ]
