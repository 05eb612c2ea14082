"""No attack can draw the client's randomness again, nor take it off by comparing updates."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.audit import Audit, select_targets, serial, side_by_side
from seepage.audit._case import client_key
from seepage.clients import Client

PHOTOS = sp.data.load("photos")
NOISES = [sp.AddGaussian(0.5), sp.dp_sgd(max_norm=1.0, noise_multiplier=0.5, batch_size=1)]
# In dB: what a guess from a noisy update stays under, and what one free of noise exceeds by far.
BLIND, SEEING = 20.0, 40.0


def blank_classifier():
    """One layer of zeros: the difference of two rows of its gradient is a multiple of the input."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(PHOTOS.inputs[0].numel(), PHOTOS.classes))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return sp.Task(model, nn.CrossEntropyLoss(reduction="none"), PHOTOS.domain, name="blank")


def guess_from(difference, observation, scale):
    domain = observation.task.domain
    inputs = domain.denormalise((difference / scale).reshape(1, *domain.shape))
    return sp.Reconstruction(domain.project(inputs), trace=sp.Trace(seconds=0.1))


def keys_in_reach(rng):
    """Every key that an attack can name: forks of its own, of small seeds, and of what it holds."""
    held = [value for value in vars(rng).values() if isinstance(value, int)]
    roots = [rng, *(sp.rng(seed) for seed in {*range(50), *held})]
    names = [(), ("client",), ("client", "client"), ("adversary",)]
    return [root.fork(*path) for root in roots for path in names]


@dataclass(frozen=True)
class RedrawsNoise:
    """Subtracts the noise of every key within reach, and keeps what looks like a gradient."""

    def __call__(self, observation, *, rng):
        client, task = observation.simulate.client, observation.task
        batch = PHOTOS.batch(1, start=20)
        expected = client.expected(task, batch.inputs, batch.labels).flat()
        noises = (client(task, batch, rng=key).flat() - expected for key in keys_in_reach(rng))
        cleaned = [observation.update.flat() - noise for noise in noises]
        # The entries of one input's gradient sum up to zero over classes.
        weight, bias = min(
            (self.split(one, task) for one in cleaned),
            key=lambda pair: float(pair[0].sum(0).norm()),
        )
        label = int(observation.labels)
        other = (label + 1) % task.classes
        return guess_from(weight[label] - weight[other], observation, bias[label] - bias[other])

    @staticmethod
    def split(flat, task):
        weight = flat[: -task.classes].reshape(task.classes, -1)
        return weight, flat[-task.classes :]


@dataclass(frozen=True)
class SubtractsUpdates:
    """Compares its update with another one of the group, whose noise may be the same."""

    def __call__(self, observation, *, rng):
        return self.many([observation, observation], rngs=[rng, rng])[0]

    def many(self, observations, *, rngs):
        return [self.without_noise(one, observations) for one in observations]

    def without_noise(self, one, observations):
        label = int(one.labels)
        other = next((o for o in observations if int(o.labels) != label), one)
        classes = one.task.classes
        neither = next(c for c in range(classes) if c not in (label, int(other.labels)))
        difference = (one.update.flat() - other.update.flat())[:-classes].reshape(classes, -1)
        return guess_from(difference[label] - difference[neither], one, -1.0)


@dataclass(frozen=True)
class ScalesNoise:
    """Compares two updates of one client whose noise may be the same but for its strength."""

    def __call__(self, observation, *, rng):
        return self.many([observation, observation], rngs=[rng, rng])[0]

    def many(self, observations, *, rngs):
        strengths = [one.simulate.client.defense.std for one in observations]
        (weak, low), (strong, high) = (
            (observations[strengths.index(s)].update.flat(), s)
            for s in (min(strengths), max(strengths))
        )
        flat = (high * weak - low * strong) / max(high - low, 1e-9)
        return [self.guess(one, flat) for one in observations]

    def guess(self, one, flat):
        label, classes = int(one.labels), one.task.classes
        weight = flat[:-classes].reshape(classes, -1)
        return guess_from(weight[label] - weight[(label + 1) % classes], one, -1.0)


def cases(attack, *, people=1, defenses=NOISES[:1], seeds=(0,)):
    audit = Audit(
        tasks=[blank_classifier()],
        attacks={"it": attack},
        defenses=defenses,
        threats=[sp.Threat(knows_labels=True)],
        seeds=seeds,
    )
    return audit.cases(select_targets(PHOTOS, people=people, batch_size=1, start=0))


def psnr(outcomes):
    records = [outcome.record for outcome in outcomes]
    assert not [record.error for record in records if record.error]
    return [value for record in records for value in record.scores["psnr"]]


def psnr_under_shared_keys(attack, group, key):
    """What the same adversary reaches where clients do draw from a key that it can find."""
    seen = [c.threat.observe(c.client, c.task, c.target.batch, rng=key) for c in group]
    rngs = [sp.rng(0).fork("adversary")] * len(seen)
    guesses = attack.many(seen, rngs=rngs) if len(seen) > 1 else [attack(seen[0], rng=rngs[0])]
    errors = [
        (guess.inputs - case.target.batch.inputs).double().square().mean()
        for guess, case in zip(guesses, group, strict=True)
    ]
    return [float(-10 * error.log10()) for error in errors]


@pytest.mark.parametrize("defense", NOISES, ids=repr)
def test_an_attack_that_tries_every_key_it_can_name_does_not_find_the_clients(defense):
    group = cases(RedrawsNoise(), defenses=[defense], seeds=(0, 7))
    assert max(psnr(serial(group))) < BLIND
    control = psnr_under_shared_keys(RedrawsNoise(), group[:1], sp.rng(0).fork("client"))
    assert min(control) > SEEING


def test_the_difference_of_two_updates_of_a_group_is_as_noisy_as_they_are():
    group = cases(SubtractsUpdates(), people=6, defenses=[sp.AddGaussian(1.0)])
    assert len({case.batch_key for case in group}) == 1
    assert len({int(case.target.batch.labels) for case in group}) > 1
    assert max(psnr(side_by_side(group))) < BLIND
    control = psnr_under_shared_keys(SubtractsUpdates(), group, sp.rng(0).fork("client"))
    assert min(control) > SEEING


def test_two_strengths_of_noise_on_one_update_do_not_cancel_each_other():
    group = cases(ScalesNoise(), defenses=[sp.AddGaussian(1.0), sp.AddGaussian(2.0)])
    assert len({case.batch_key for case in group}) == 1
    assert max(psnr(side_by_side(group))) < BLIND
    control = psnr_under_shared_keys(ScalesNoise(), group, sp.rng(0).fork("client"))
    assert min(control) > SEEING


def test_a_forked_key_holds_nothing_of_the_key_it_comes_from():
    root = sp.rng(123456789)
    parent = root.fork("adversary")
    key = parent.fork("start")
    held = pickle.dumps(key) + repr(key).encode() + repr(vars(key)).encode()
    for unseen in (
        b"123456789",
        b"adversary",
        b"start",
        *(k.digest.encode() for k in (root, parent)),
    ):
        assert unseen not in held
    assert vars(key).keys() == {"digest", "device"}
    assert pickle.loads(pickle.dumps(key)) == key == root.fork("adversary", "start")


def test_every_person_seed_and_defense_has_a_key_of_its_own():
    noisy, silent = Client(sp.Gradient(), NOISES[0]), Client(sp.Gradient())
    who = select_targets(PHOTOS, people=4, batch_size=1, start=0)
    keys = {
        client_key(seed, client, one)
        for seed in (0, 1)
        for client in (noisy, silent)
        for one in who
    }
    assert len(keys) == 2 * 2 * 4
    twin = replace(who[0], people=(1,))
    assert client_key(0, noisy, twin) != client_key(0, noisy, who[0])


def test_the_key_follows_the_private_data():
    client, [who] = (
        Client(sp.Gradient(), NOISES[0]),
        select_targets(PHOTOS, people=1, batch_size=1, start=0),
    )
    inputs = who.batch.inputs.clone()
    inputs[0, 0, 0, 0] += 1 / 255
    for other in (
        sp.Batch(inputs, who.batch.labels),
        sp.Batch(who.batch.inputs, who.batch.labels + 1),
    ):
        assert client_key(0, client, replace(who, batch=other)) != client_key(0, client, who)


def test_all_attacks_and_threats_see_the_same_noise():
    attacks = {"one": SubtractsUpdates(), "other": RedrawsNoise()}
    audit = Audit(
        tasks=[blank_classifier()],
        attacks=attacks,
        defenses=NOISES,
        threats=[sp.Threat(knows_labels=True), sp.Threat()],
    )
    found = audit.cases(select_targets(PHOTOS, people=1, batch_size=1, start=0))
    for defense in NOISES:
        same = [c.observe().update.flat() for c in found if c.client.defense == defense]
        assert len(same) == 4
        assert all(torch.equal(one, same[0]) for one in same)


KEY_ELSEWHERE = """
import seepage as sp
from seepage.audit import select_targets
from seepage.audit._case import client_key
client = sp.Client(sp.Gradient(), sp.AddGaussian(0.5))
[who] = select_targets(sp.data.load("photos"), people=1, batch_size=1, start=0)
print(client_key(3, client, who).digest)
"""


def test_another_process_finds_the_same_key():
    [who] = select_targets(PHOTOS, people=1, batch_size=1, start=0)
    here = client_key(3, Client(sp.Gradient(), sp.AddGaussian(0.5)), who)
    there = subprocess.run(
        [sys.executable, "-c", KEY_ELSEWHERE],
        env={**os.environ, "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here.digest
