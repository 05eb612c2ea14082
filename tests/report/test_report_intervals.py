"""Intervals over people who share an update, which are not independent draws."""

import numpy as np
import pytest
from scipy import stats
from tests.report.records import make_record

from seepage.audit._record import Control
from seepage.audit.results import Results
from seepage.audit.results._effort_curve import effort_curves
from seepage.audit.results._intervals import join_shared, share_interval
from seepage.core._construct import Component
from seepage.report import Direction, changes, mean_interval, median_interval, shifts, verdict
from seepage.report.page._strip_sections import median_words
from seepage.scoring._identification import Identification

HIDDEN = Identification(40, 99, "same label", 0.5, 3.0, False, 2.0, 2.0, 2.0)
FOUND = Identification(1, 99, "same label", 9.0, 3.0, True, 1e4, 1e3, 1e5)


def draw_batches(rng, *, updates, size):
    """PSNR of people of whom those of one update differ little: their correlation is 0.92."""
    values = rng.normal(size=(updates, 1)) + 0.3 * rng.normal(size=(updates, size))
    return (25 + 5 * values).ravel().tolist(), np.repeat(np.arange(updates), size).tolist()


@pytest.mark.parametrize("statistic", [mean_interval, median_interval])
@pytest.mark.parametrize("updates", [16, 32])
def test_intervals_hold_the_truth_though_people_share_updates(statistic, updates):
    rng = np.random.default_rng(0)
    held = {"shared": 0, "alone": 0}
    for trial in range(150):
        values, origin = draw_batches(rng, updates=updates, size=6)
        for name, given in (("shared", origin), ("alone", None)):
            found = statistic(values, given, seed=trial)
            held[name] += found.low <= 25 <= found.high
    # A bootstrap of 16 draws holds somewhat less than 95 %.
    assert held["shared"] >= 132
    assert held["alone"] <= 105


@pytest.mark.parametrize("updates", [4, 12, 40])
def test_shares_hold_the_truth_though_people_share_updates(updates):
    rng = np.random.default_rng(1)
    truth = stats.norm.sf(0.5, scale=np.hypot(1, 0.3))
    held = {"shared": 0, "alone": 0}
    for _ in range(300):
        values, origin = draw_batches(rng, updates=updates, size=6)
        hits = [value > 27.5 for value in values]
        for name, given in (("shared", origin), ("alone", None)):
            found = share_interval(hits, given)
            held[name] += found.low <= truth <= found.high
    assert held["shared"] >= 275
    assert held["alone"] <= 230


@pytest.mark.parametrize("statistic", [mean_interval, median_interval])
def test_with_an_update_for_everybody_nothing_changes(statistic):
    values = [20.0, 31.0, 25.5, 40.0, 18.0, 22.0, 29.0]
    assert statistic(values, list("abcdefg"), seed=3) == statistic(values, seed=3)
    theirs = stats.bootstrap(
        (np.array(values),), np.mean, method="percentile", n_resamples=9999, rng=1
    ).confidence_interval
    assert mean_interval(values).low == pytest.approx(theirs.low, abs=0.5)
    for hits in range(8):
        found = [True] * hits + [False] * (7 - hits)
        plain = share_interval(found)
        assert share_interval(found, list("abcdefg")) == plain
        if 0 < hits < 7:
            exact = stats.binomtest(hits, 7).proportion_ci(method="exact")
            assert (plain.low, plain.high) == pytest.approx((exact.low, exact.high))


def test_people_who_are_all_alike_within_their_update_count_once():
    values = np.repeat(np.random.default_rng(2).normal(size=12), 5)
    once, updates = values[::5].tolist(), np.repeat(np.arange(12), 5).tolist()
    found, plain = mean_interval(values.tolist(), updates), mean_interval(once)
    assert found.low <= plain.low < plain.high <= found.high
    hits = [True] * 4 + [False] * 8
    often = [hit for hit in hits for _ in range(5)]
    shared, alone = share_interval(often, updates), share_interval(hits)
    assert (shared.low, shared.high) == pytest.approx((alone.low, alone.high))


def test_one_update_and_updates_of_several_sizes_have_an_interval():
    single = mean_interval([1.0, 5.0, 6.0], "aaa")
    assert (single.low, single.middle, single.high) == (1.0, 4.0, 6.0)
    assert mean_interval([3.0]).high == 3.0
    ragged = median_interval([1.0, 5.0, 6.0, 9.0], "aaab")
    assert ragged.low <= ragged.middle <= ragged.high
    assert share_interval([True, True, False], "aaa").high == pytest.approx(1.0, abs=0.03)


def test_changes_that_share_an_update_of_either_audit_are_tied():
    assert join_shared([("a", 1), ("b", 2), ("a", 3), ("d", 4)]) == [0, 1, 0, 3]
    assert join_shared([("a", 1), ("b", 2), ("b", 1)]) == [0, 0, 0]
    assert join_shared([]) == []


def record(people, psnr, *, places=None, **changed):
    """A record of one batch."""
    count = len(people)
    plain = {
        "people": tuple(people),
        "attack": Component("dlg"),
        "scores": {"psnr": tuple(psnr), "exact": (0.0,) * count},
        "effort": {"steps": 9, "restarts": 1, "seconds": 1.0, "device": "cpu"},
        "identification": tuple(places or [HIDDEN] * count),
        "control": Control(bare=(3, 3, 0.01), negative=(0, 4, 0.04)),
    }
    return make_record(**plain | changed)


def batches(gains, size=8, **changed):
    """One batch for each gain, everybody in it at 10 dB and as much more."""
    return [
        record(range(size * n, size * n + size), [10.0 + gain] * size, **changed)
        for n, gain in enumerate(gains)
    ]


def test_three_updates_of_eight_do_not_count_as_24_people():
    before, after = batches([0.0] * 3), batches([4.0, 3.0, -0.5])
    [shared] = shifts(changes(before, after))
    assert shared.direction is Direction.noise
    split = [
        [record([p], [v]) for r in side for p, v in zip(r.people, r.scores["psnr"], strict=True)]
        for side in (before, after)
    ]
    [alone] = shifts(changes(*split))
    assert alone.direction is Direction.worse
    [clear] = shifts(changes(before, batches([4.0, 3.8, 4.2])))
    assert clear.direction is Direction.worse


def test_the_plateau_of_a_search_is_judged_by_updates():
    def tried(steps, gains):
        attack = Component("dlg", {"steps": steps})
        return batches(gains, attack=attack)

    [curve] = effort_curves([*tried(100, [0.0] * 3), *tried(200, [0.6, -0.2, 0.2])])
    assert curve.rising
    [flat] = effort_curves([*tried(100, [0.0] * 3), *tried(200, [0.01, 0.0, 0.02])])
    assert not flat.rising


def test_the_share_that_is_not_ruled_out_goes_by_updates():
    prune = (Component("Prune", {"ratio": 0.9}),)
    seen = batches([9.0, 9.0], places=[FOUND] * 8)
    said = " ".join(verdict([*seen, *batches([0.0, 0.0], defense=prune)]).details)
    assert "with 16 people in 2 updates tested, up to 78 % of a population" in said
    single = [record([n], [10.0], defense=prune) for n in range(16)]
    said = " ".join(verdict([*seen, *single]).details)
    assert "with 16 people tested, up to 17 % of a population" in said


def test_the_median_of_a_page_goes_by_updates():
    best = Results.of(batches([0.0, 8.0])).strongest()
    assert median_words(best) == "14.0 (10.0 to 18.0)"
