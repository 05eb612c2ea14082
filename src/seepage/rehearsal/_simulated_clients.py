"""Clients that the adversary plays itself, on public inputs, and what its attacks bring back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from seepage.core import Attack, Batch, Domain, Metric, Observation, Reconstruction, Rng
from seepage.core._attack import attack_many
from seepage.core._scale import Scale, scale_of
from seepage.core.errors import SeepageError, line_to_store
from seepage.data._public_data import PublicData
from seepage.defenses import AddGaussian
from seepage.scoring import METRICS, score
from seepage.threats._threat import Threat, sort_labels

# Batches that are drawn for each that is rehearsed, until their updates stand out as much.
_DRAWN = 16
# An update that noise alone would have has at most so many deviations more energy than expected.
_DEVIATIONS = 4.0


def is_lost_in_noise(seen: Observation) -> bool:
    """Whether an update is no larger than the client's Gaussian noise alone would be.

    Networks are so sure of most people they were trained on that nothing is left to learn from
    them, and behind noise there is nothing to find then.
    """
    client = seen.simulate.client
    last = client.chain.links[-1] if client is not None and client.chain.links else None
    if not isinstance(last, AddGaussian) or not last.std:
        return False
    entries = sum(tensor.numel() for tensor in seen.update)
    energy = sum(float((tensor.double() / last.std).square().sum()) for tensor in seen.update)
    return energy < entries + _DEVIATIONS * math.sqrt(2 * entries)


def simulate_client(seen: Observation, batch: Batch, *, rng: Rng) -> Observation:
    """What the adversary would see if the client had this batch.

    Args:
        seen: What the adversary sees of the client; neither its update nor its labels are used.
        batch: Public inputs.
        rng: Randomness of the rehearsed client, which the real one does not share.
    """
    client, threat = seen.simulate.client, Threat.of(seen)
    if client is not None:
        return threat.observe_broadcast(client, seen.task, batch, rng=rng)
    update = seen.simulate(batch.inputs, batch.labels).detach()
    labels = batch.labels[sort_labels(batch.labels)] if threat.knows_labels else None
    return replace(seen, update=update, labels=labels)


def _give_known_targets(seen: Observation, batch: Batch) -> Batch:
    """Replace targets by known ones if no network predicts such, as labels with weights."""
    known, task = seen.labels, seen.task
    if (
        known is None
        or known.ndim == 1
        or known.shape[1:] in (task.target_shape, task.output_shape)
    ):
        return batch
    return Batch(batch.inputs, known[torch.arange(len(batch)) % len(known)])


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Updates that the adversary made itself, of people whom it knows.

    Args:
        seen: What it sees of each.
        people: Their inputs.
        domain: What an input is.
    """

    seen: tuple[Observation, ...]
    people: tuple[Batch, ...]
    domain: Domain

    @classmethod
    def of(cls, seen: Observation, public: PublicData, *, batches: int, size: int) -> Rehearsal:
        """Draw batches of public inputs, and be the client of each.

        If the update stands out from the client's noise, so do those that are rehearsed, as far as
        there are such people; and if it does not, neither do they.
        """
        key, domain, lost = Rng(0).fork("rehearsal"), seen.task.domain, is_lost_in_noise(seen)
        similar: list[tuple[Observation, Batch]] = []
        others: list[tuple[Observation, Batch]] = []
        for i in range(_DRAWN * batches):
            drawn = public.draw(size, seen.task, rng=key.fork("people", i))
            batch = _give_known_targets(seen, drawn)
            played = simulate_client(seen, batch, rng=key.fork("client", i))
            if is_lost_in_noise(played) == lost:
                similar.append((played, batch))
            elif len(others) < batches:
                others.append((played, batch))
            if len(similar) == batches:
                break
        updates, people = zip(*[*similar, *others][:batches], strict=True)
        return cls(updates, people, domain)

    @property
    def metric(self) -> Metric:
        """How much of an input came back."""
        return METRICS[self.domain.measure]

    @property
    def scale(self) -> Scale:
        """How to read its numbers."""
        return scale_of(self.metric)

    def attack(
        self, attack: Attack, batches: int, *, start: int = 0
    ) -> list[Reconstruction | SeepageError]:
        """Attack the first batches; whatever fails is an error of this attack alone."""
        keys = [Rng(start).fork("rehearsal", "attack", i) for i in range(batches)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return attack_many(attack, self.seen[:batches], rngs=keys)
            except Exception as error:  # noqa: BLE001 - the others race on
                known = isinstance(error, SeepageError)
                failed = error if known else SeepageError(line_to_store(error))
                return [failed] * batches  # type: ignore[list-item]

    def score(self, guesses: Sequence[Reconstruction]) -> tuple[float, ...]:
        """How much of each person came back, at most 60 dB."""
        pairs = zip(guesses, self.people, strict=False)
        return tuple(value for guess, batch in pairs for value in self._score(guess, batch))

    def _score(self, guess: Reconstruction, batch: Batch) -> list[float]:
        low, high = self.domain.bounds
        own = Reconstruction(guess.inputs.cpu().float())
        truth = Batch(batch.inputs.cpu().float(), batch.labels.cpu())
        metric, domain = self.metric, self.domain
        highest = self.scale.highest
        found = score(own, truth, metrics=(metric,), low=low, peak=high - low, domain=domain)
        return (
            found[metric.name]
            .double()
            .nan_to_num(nan=0.0, posinf=highest)
            .clamp(max=highest)
            .tolist()
        )
