"""The most that any attack can identify behind clipping and noise, against the best attack."""

from dataclasses import replace

import pytest
from scipy import integrate, stats

import seepage as sp
from seepage.audit import Record
from seepage.audit.record import Control
from seepage.bounds import CandidateError
from seepage.core.construct import Component
from seepage.defenses.chain import Chain
from seepage.report import attempts, verdict
from seepage.report.limits import IdentificationLimit, find_beaten, find_limit, tell_limits
from seepage.report.words import read_dp_sgd
from seepage.scoring.identification import Identification

HIDDEN = Identification(40, 99, "same label", 0.5, 3.0, False, 2.0, 2.0, 2.0)
FOUND = Identification(1, 99, "same label", 9.0, 3.0, True, 1e4, 1e3, 1e5)


@pytest.mark.parametrize("candidates", [2, 10, 101])
@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0, 50.0])
def test_the_best_attack_on_orthogonal_updates_stays_below_the_limit(candidates, noise):
    # Every candidate's update has the length of the clipping norm, at right angles to the others.
    mu = 1 / noise
    best, _ = integrate.quad(
        lambda y: stats.norm.pdf(y - mu) * stats.norm.cdf(y) ** (candidates - 1), -12, 12 + mu
    )
    limit = IdentificationLimit(strangers=candidates - 1, noise_multiplier=noise)
    assert limit.luck <= best + 1e-9
    assert best <= limit.chance
    # Of two candidates on opposite sides the best attack reaches the limit.
    opposite = stats.norm.cdf(mu)
    assert opposite <= IdentificationLimit(1, noise).chance + 1e-12


def test_the_best_attack_on_real_updates_stays_below_the_limit():
    digit = sp.data.bundled("digits", size=1)
    task = sp.zoo.lenet(domain=sp.domains.Image((1, 32, 32)))
    for noise in (0.5, 2.0):
        client = sp.Client(
            sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=noise, batch_size=1)
        )
        found = CandidateError(data="digits", draws=200)(client, task, digit, rng=sp.rng(0))
        words = found.assumptions[-1].split()
        count = int(words[words.index("candidates") - 1])
        named = float(words[words.index("%") - 1]) / 100
        assert named <= IdentificationLimit(count - 1, noise).chance + 0.03


def test_the_limit_falls_to_luck_as_the_noise_grows():
    chances = [IdentificationLimit(99, noise).chance for noise in (0.1, 1.0, 10.0, 1e6)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.999
    assert chances[-1] == pytest.approx(0.01, rel=1e-4)


def record(defense, places=(HIDDEN,) * 8, **changed):
    """Eight people of one batch behind a defense."""
    count = len(places)
    plain = Record(
        data="photos",
        people=tuple(range(count)),
        model="mlp(hidden=(8,))",
        local=Component("Gradient"),
        defense=tuple(map(Component.of, Chain.of(defense).links)),
        threat=Component("Threat", {"knows_labels": True, "batchnorm": "running"}),
        attack=Component("dlg"),
        seed=0,
        scores={"psnr": (9.0,) * count, "exact": (0.0,) * count},
        identification=tuple(places),
        control=Control(bare=(3, 3, 0.01)),
    )
    return replace(plain, **changed)


STRONG = sp.dp_sgd(max_norm=1.0, noise_multiplier=50.0, batch_size=8)


def test_the_verdict_tells_the_limit_where_there_is_one():
    told = " ".join(verdict([record(STRONG)]).details)
    assert "first among 99 strangers in more than 1.05 % of all cases; luck does in 1 %" in told
    weak = sp.dp_sgd(max_norm=1.0, noise_multiplier=0.1, batch_size=8)
    assert tell_limits(attempts([record(weak)])) == []
    assert tell_limits(attempts([record(sp.Prune(0.9))])) == []
    [refused] = tell_limits(attempts([record(sp.AddGaussian(1e6))]))
    assert "Theory sets no limit behind Gaussian noise" in refused
    assert "Clip each example" in refused


def test_a_limit_asks_for_one_gradient_and_nothing_beside_it():
    assert find_limit(record(STRONG), 99) is not None
    assert find_limit(record(STRONG, local=Component("FedAvg", {"lr": 0.1})), 99) is None
    told = Component("Threat", {"batchnorm": "exact"})
    assert find_limit(record(STRONG, threat=told), 99) is None
    silent = sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=8)
    assert find_limit(record(silent), 99) is None


def test_an_attack_that_beats_the_limit_raises_an_alarm():
    beaten = attempts([record(STRONG, [FOUND] * 4 + [HIDDEN] * 4)])
    [alarm] = find_beaten(beaten)
    assert alarm.startswith("CONTRADICTION: dlg identified 4 of 8 people")
    lucky = attempts([record(STRONG, [FOUND] + [HIDDEN] * 7)])
    assert find_beaten(lucky) == []
    assert find_beaten(attempts([record(sp.Prune(0.9), [FOUND] * 8)])) == []


def test_a_mean_over_the_batch_divides_by_its_size():
    chain = (
        Component("ClipEach", {"max_norm": 1.0}),
        Component("Mean", {"over": None}),
        Component("AddGaussian", {"std": 0.25}),
    )
    promise = read_dp_sgd(chain, batch_size=8)
    assert promise is not None
    assert promise.noise_multiplier == 2.0
    assert read_dp_sgd(chain) is None
