"""Which defense to choose: the strongest attack on each person, and what protection costs."""

import math
from itertools import product

import pytest

from seepage.audit import Choice, Record, leakages, pareto_front, ranked, strongest
from seepage.core._construct import Component
from seepage.core.errors import InvalidValue


def record(defense, attack, people, **scores):
    return Record(
        data="photos",
        people=tuple(people),
        model="mlp()",
        local=Component("Gradient"),
        defense=() if defense == "none" else (Component(defense),),
        threat=Component("Threat"),
        attack=Component(attack),
        seed=0,
        scores={name: tuple(values) for name, values in scores.items()},
    )


CLIP = (Component("Clip(1.0)"),)
RECORDS = [
    record("none", "a", [0, 1], psnr=[30.0, 12.0], lpips=[0.1, 0.6]),
    record("none", "b", [0, 1], psnr=[20.0, 18.0], lpips=[0.3, 0.2]),
    record("Clip(1.0)", "a", [0, 1], psnr=[11.0, None], lpips=[0.7, 0.8]),
    record("Clip(1.0)", "b", [0, 1], psnr=[10.0, 13.0], lpips=[0.9, 0.5]),
    record("Sign()", "a", [0, 1]),
]


def test_each_person_meets_the_attack_that_is_strongest_on_them():
    found = {(leak.defense, leak.person): (leak.value, leak.attack) for leak in strongest(RECORDS)}
    assert found == {
        ((), 0): (30.0, "a"),
        ((), 1): (18.0, "b"),
        (CLIP, 0): (11.0, "a"),
        (CLIP, 1): (13.0, "b"),
    }


def test_a_distance_is_strongest_where_it_is_smallest():
    found = {(leak.defense, leak.person): leak.value for leak in strongest(RECORDS, "lpips")}
    assert found[((), 0)] == 0.1
    assert found[((), 1)] == 0.2
    first, second = leakages(RECORDS, "lpips")
    assert (first.defense, first.worst) == (CLIP, 0.5)
    assert second.worst == 0.1


def test_the_strongest_is_never_weaker_than_any_one_attack():
    best = {(leak.defense, leak.person): leak.value for leak in strongest(RECORDS)}
    for one in RECORDS:
        for person, value in zip(one.people, one.scores.get("psnr", ()), strict=False):
            assert value is None or best[(one.defense, person)] >= value


def test_defenses_are_listed_from_the_least_leaking():
    first, second = leakages(RECORDS)
    assert (first.defense, first.worst, first.mean) == (CLIP, 13.0, 12.0)
    assert (second.defense, second.worst, second.mean) == ((), 30.0, 24.0)
    assert second.attacks == {"a": 1, "b": 1}


def test_the_front_is_what_nothing_beats_in_both_respects():
    choices = [
        Choice(f"{leak} {worth}", leak, worth)
        for leak, worth in product((5.0, 10.0, math.inf), (0.1, 0.5, 0.9))
        if (leak + worth * 10) % 3 > 1 or math.isinf(leak)
    ]
    front = pareto_front(choices)
    for choice in choices:
        beaten = any(
            (o.leakage <= choice.leakage and o.utility >= choice.utility)
            and (o.leakage, o.utility) != (choice.leakage, choice.utility)
            for o in choices
        )
        assert (choice in front) is not beaten
    assert [c.utility for c in front] == sorted(c.utility for c in front)


def test_defenses_are_compared_at_matched_utility():
    noise, prune, none = Choice("noise", 8, 0.2), Choice("prune", 12, 0.8), Choice("none", 30, 0.9)
    assert ranked([none, noise, prune], utility=0.75) == [prune, none]
    assert ranked([none, noise, prune], utility=0.95) == []


def test_an_unknown_metric_is_refused():
    with pytest.raises(InvalidValue, match="got 'psnrr'"):
        strongest(RECORDS, "psnrr")
