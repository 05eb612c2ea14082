"""The record of a case, an attack or a bound: plain data, one number per person."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import torch
from torch import Tensor

from seepage.core._construct import Component
from seepage.core._protocols import Side
from seepage.core._reconstruction import Proof, Race
from seepage.core._schema import (
    Count,
    Matches,
    Place,
    Seconds,
    Share,
    Within,
    from_plain,
    parse_json,
    to_plain,
)
from seepage.core._task import Mode
from seepage.core._whole_file import pack, unpack
from seepage.core.errors import UnreadableFile
from seepage.scoring._identification import Identification, compute_luck

Defense = tuple[Component, ...]
# The name of a case or of private inputs, which is part of the name of a file, and never a path.
Name = Annotated[str, Matches("[A-Za-z0-9_-]{0,100}")]
# The prefix of the name of an attack that is run without its adaptation to the defense.
UNAWARE = "unaware "
# People on whom an attack without the defense is tried: one alone may be unusually hard or easy.
CANARIES = 3


@dataclass(frozen=True)
class Ceiling:
    """A bound on the error of attacks on one batch.

    Args:
        values: One per person; empty if the case failed.
        side: Whether the error is at least or at most this value.
        metric: The metric that is bounded.
        assumptions: Conditions under which the bound holds.
        remark: Why the bound says nothing; empty if it says something.
        peak: Width of the range of an entry, to which a PSNR is relative.
        entries: Number of entries of one input.
        mode: The mode in which the client ran the network, "train" or "eval".
    """

    values: tuple[float, ...]
    side: Side
    metric: str
    assumptions: tuple[str, ...] = ()
    remark: str = ""
    peak: Annotated[float, Within(5e-324, sys.float_info.max)] = 1.0
    entries: Place = 1
    mode: Mode = "eval"


class EffortSpent(TypedDict, total=False):
    """How hard an attack tried, and what limits its result; flags are 1 or missing.

    `cut`: time ran out. `simulates`: guesses were compared by their simulated update. `misled`: a
    user's own defense may only mislead the attack. `unsimulated`: such a defense does not do what
    it tells. `foreign`: the simulated step is not the real one. `sure`: how many inputs equations
    determine.
    """

    steps: Count
    restarts: Count
    seconds: Seconds
    device: str
    cut: Count
    simulates: Count
    misled: Count
    unsimulated: Count
    foreign: Count
    sure: Count
    guaranteed_noise: float


@dataclass(frozen=True)
class Control:
    """How an attack did on people whom the audit chose itself.

    Args:
        bare: Canaries identified without the defense, canaries, and the chance of one by luck.
        defended: The same with the defense; None if there is no defense.
        negative: People found in guesses that have no part of them, how many were looked for, and
            how many luck would find.
        labels: For each canary behind the same defense, the chance to guess its label, and whether
            the attack had it right.
        columns: For each batch of canaries behind the same defense, as in `Record`.
        relevant: Whether what found the canaries can read an update behind the defense.
        searched: Whether `bare` is of the search alone, since no closed form can read it.
    """

    bare: tuple[int, int, float] | None = None
    defended: tuple[int, int, float] | None = None
    negative: tuple[int, int, float] = (0, 0, 0.0)
    labels: tuple[tuple[float, bool], ...] = ()
    columns: tuple[tuple[float, ...], ...] = ()
    relevant: bool = True
    searched: bool = False

    @property
    def able(self) -> bool:
        """Whether the attack is known to find people: most canaries, of whom there are enough."""
        return self.works and self.bare is not None and self.bare[1] >= CANARIES

    @property
    def works(self) -> bool:
        """Whether the attack finds most canaries without the defense, and not by luck."""
        if self.bare is None or not self.relevant:
            return False
        hits, trials, chance = self.bare
        return 2 * hits > trials and compute_luck(hits, trials, chance) <= 0.1

    @property
    def misleading(self) -> bool:
        """Whether the attack finds people who are not there more often than luck explains."""
        hits, trials, expected = self.negative
        return hits > 0 and compute_luck(hits, trials, expected / trials) <= 0.01


@dataclass(frozen=True)
class Sent:
    """Who sent a captured update, and when.

    Args:
        client: The beginning of the client's hash; the name of the file if it records no client.
        round: Of the federation, 0 if it is not recorded.
    """

    client: str
    round: Count


@dataclass(frozen=True)
class Record:
    """The result of a case.

    Args:
        data: Name of the data set.
        people: Numbers of the people in the batch.
        model: Name of the broadcast network.
        local: What the client computed.
        defense: What it did before sharing, one component per link.
        threat: What the adversary knew; None for a bound.
        attack: The attack; for a bound, the bound.
        seed: Of all randomness.
        scores: Metric to one value per person; None where a value is not defined.
        baselines: The same for each guess that needs no update.
        certificate: What the attack proved, if anything.
        effort: How hard it tried.
        error: Why there is no result; None if there is one.
        case: The id of the case, a hash of everything that decides its result.
        truth: The name under which the private inputs are stored.
        vetted: How detectable the network is that the attack planted; empty if it planted none.
        bound: The values of a bound; None for an attack.
        identification: Place of each person among strangers; empty without a truth.
        columns: For rows of a table, the share of right columns: of these people, then of strangers
            in their place. Empty if too few strangers have their label.
        label_chance: How often a guess of the most frequent label is right.
        control_kind: "canary", "noise" or "search" for a control; empty for an attack on people.
        negatives: For a control, the places of other people, whom its guess has no part of.
        race: The rehearsal that chose the attack, if there was one.
        applicable: False if the attack cannot take this case, as `error` says; nothing failed.
        sampling: How people were chosen: "at random", "in order", "by number" or unknown ("").
        readable: Whether closed forms can read the update behind the defense.
        repeatable: How many of the last links of the defense whoever sees the update can apply too.
        known_as: For a captured update, the data and number under which each person counts, which
            are those of the first update of the same client with the same input. Empty where
            `data` and `people` tell people apart.
        sent: Who sent a captured update; None for one that the audit computed.
        kind: What the inputs are called, such as "images", if that is known.
        control: How the controls of this attack went, if any ran; read off their records.
    """

    data: str
    people: tuple[Count, ...]
    model: str
    local: Component
    defense: Defense
    threat: Component | None
    attack: Component
    seed: int
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, tuple[float | None, ...]]] = field(default_factory=dict)
    certificate: Proof | None = None
    effort: EffortSpent = field(default_factory=EffortSpent)
    error: str | None = None
    case: Name = ""
    truth: Name = ""
    vetted: str = ""
    bound: Ceiling | None = None
    identification: tuple[Identification, ...] = ()
    columns: tuple[Share, ...] = ()
    label_chance: Share | None = None
    control_kind: Literal["", "canary", "noise", "search"] = ""
    negatives: tuple[Identification, ...] = ()
    race: Race | None = None
    applicable: bool = True
    sampling: str = ""
    readable: bool = False
    repeatable: Count = 0
    known_as: tuple[tuple[str, Count], ...] = ()
    sent: Sent | None = None
    kind: Annotated[str, Matches("[a-z]{0,20}")] = ""
    control: Control | None = None

    @property
    def failed(self) -> bool:
        """Whether the case was tried and gave no result."""
        return self.error is not None and self.applicable

    @property
    def status(self) -> str:
        """One of: scored, no truth, not applicable, failed."""
        if self.error is None:
            return "scored" if self.scores or self.bound else "no truth"
        return "failed" if self.applicable else "not applicable"

    @property
    def persons(self) -> tuple[tuple[str, int], ...]:
        """Data set and number under which each person counts, in whatever update."""
        return self.known_as or tuple((self.data, number) for number in self.people)

    @property
    def batch_size(self) -> int:
        """Number of people in the batch."""
        return len(self.people)

    @property
    def weaker(self) -> tuple[Defense, ...]:
        """This defense without its repeatable links: a person leaks at least as much there."""
        count = len(self.defense)
        return tuple(self.defense[: count - n] for n in range(1, min(self.repeatable, count) + 1))

    @property
    def residual(self) -> float:
        """How much of the update the guess leaves unexplained; infinite if that is not known."""
        value = self.certificate["residual"] if self.certificate else None
        return math.inf if value is None else float(value)

    def is_exact(self, index: int) -> bool:
        """Whether a guess is a person's input: to 8 bits, in every column, in every word."""
        found = self.identification[index].exact if self.identification else None
        if found is not None:
            return found
        # Without strangers to compare with, scores tell.
        metric = "token_accuracy" if "token_accuracy" in self.scores else "exact"
        values = self.scores.get(metric)
        return values is not None and values[index] == 1

    def plain(self) -> dict[str, Any]:
        """The record as data that JSON can hold; infinity becomes the word "inf"."""
        return {**to_plain(self), "batch_size": self.batch_size}

    @classmethod
    def from_plain(cls, plain: object) -> Record:
        """Read the record back from its plain form; raise `UnreadableFile` if it is none."""
        stored = dict(plain) if isinstance(plain, dict) else plain
        size = stored.pop("batch_size", None) if isinstance(stored, dict) else None
        record = from_plain(cls, stored)
        wrong = ["batch_size"] if size != len(record.people) else record._find_uneven()
        if wrong:
            raise UnreadableFile(f"the field {wrong[0]!r} of a record does not fit the others")
        return record

    def _find_uneven(self) -> list[str]:
        """Name the fields that contradict others, such as lists without one entry per person."""
        count, bound = self.batch_size, self.bound
        tables = [self.scores, *self.baselines.values()]
        bounded = count if bound and not self.error else 0
        is_distance = bound is not None and bound.metric in ("rmse", "mse")
        values = bound.values if bound else ()
        granted = self.threat.arguments if self.threat else {}
        uneven = {
            "people": count == 0,
            "scores": any(len(row) != count for table in tables for row in table.values()),
            "identification": len(self.identification) not in (0, count),
            "known_as": len(self.known_as) not in (0, count),
            "bound": len(values) != bounded or (is_distance and any(one < 0 for one in values)),
            "threat": (self.threat is None and bound is None)
            or any(isinstance(one, tuple | dict) for one in granted.values()),
            "applicable": not self.applicable and self.error is None,
            "error": self.error == "",
            "certificate": self.certificate is not None
            and not {"residual", "unique", "error"} <= self.certificate.keys(),
            "race": self.race is not None and not self.race.chosen,
        }
        return [name for name, is_uneven in uneven.items() if is_uneven]


def pack_words(said: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """Write inputs in words as metadata of their tensors."""
    return {"said": json.dumps(said)} if said else {}


def unpack_words(words: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Undo `pack_words`; nothing if they are not words."""
    if "said" not in words:
        return ()
    try:
        found = parse_json(words["said"], "an input in words")
        return from_plain(tuple[tuple[str, ...], ...], found)
    except UnreadableFile:
        return ()


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record with its tensors.

    Args:
        record: The result.
        truth: The private inputs; None if nobody has them.
        guess: The guesses in the order of the people; None if the case failed.
        objective: Value at the start and after each step; empty for closed forms.
        said: The guesses in words, for inputs that people read.
        shown: What an error of somebody else's code says, which is shown and never stored.
    """

    record: Record
    truth: Tensor | None
    guess: Tensor | None
    objective: tuple[float, ...] = ()
    said: tuple[tuple[str, ...], ...] = ()
    shown: str = ""

    def parts(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything except the truth as tensors and words, which hold the record."""
        tensors = {} if self.guess is None else {"guess": self.guess}
        if self.objective:
            tensors["objective"] = torch.tensor(self.objective, dtype=torch.float64)
        record = json.dumps(self.record.plain(), allow_nan=False)
        return tensors, {"record": record, **pack_words(self.said)}

    def pack(self) -> bytes:
        """Pack everything except the truth, to send it to another process."""
        tensors, words = self.parts()
        return pack(tensors, words | ({"shown": self.shown} if self.shown else {}))

    @classmethod
    def unpack(cls, data: bytes, truth: Tensor | None) -> Outcome:
        """Undo `pack`, adding the truth that it leaves out."""
        tensors, words = unpack(data)
        record = Record.from_plain(json.loads(words["record"]))
        objective = tensors["objective"].tolist() if "objective" in tensors else ()
        said, shown = unpack_words(words), words.get("shown", "")
        return cls(record, truth, tensors.get("guess"), tuple(objective), said, shown)
