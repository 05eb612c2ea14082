"""Floors and ceilings: side by side, in one unit, and loud where one contradicts another."""

import math
from dataclasses import replace

import pytest
from rich.console import Console
from tests.report.records import make_record

import seepage as sp
from seepage.audit import AuditResult, Ceiling, Planned
from seepage.audit._words import defense_words
from seepage.audit.results import Results
from seepage.bounds._bound import AMONG, EVERY_ATTACK, SEEN_WITH, UNBIASED
from seepage.core._construct import Component
from seepage.report import (
    audit_markdown,
    audit_page,
    audit_verdict,
    bound_table,
    contradictions,
    explain_silence,
    flat_bounds,
    headrooms,
    missing,
    summarise,
)
from seepage.report._headroom import read_headroom, tabulate_headrooms

THREAT = Component.of(sp.Threat(knows_labels=True, batchnorm="running"))
EXACT = Component.of(sp.Threat(knows_labels=True, batchnorm="exact"))
NOISE = (Component.of(sp.AddGaussian(0.01)),)


def attack(person=0, *, psnr=30.0, steps=4, **changed):
    plain = {
        "people": (person,),
        "defense": NOISE,
        "threat": THREAT,
        "attack": Component("inverting_gradients", {"steps": steps})
        if steps
        else Component("analytic_fc"),
        "scores": {"psnr": (psnr,)},
        "baselines": {"mean": {"psnr": (11.0,)}},
        "effort": {"steps": steps, "restarts": 1, "seconds": 1.0, "device": "cpu"},
    }
    return make_record(**plain | changed)


def bound(person=0, *, rmse=0.01, name="CramerRao", error=None, defense=None, **said):
    ceiling = Ceiling((rmse,), "lower", "rmse", (UNBIASED,), peak=1.0, entries=192)
    return attack(
        person,
        attack=Component(name),
        threat=None,
        scores={},
        baselines={},
        effort={"seconds": 0.5, "device": "cpu"},
        bound=replace(ceiling, **said),
        error=error,
        defense=NOISE if defense is None else defense,
    )


def found(attacks, bounds):
    return headrooms(Results.of(attacks), bounds)


def audit(tmp_path, attacks, bounds):
    count = len(attacks) + len(bounds)
    return AuditResult(
        path=tmp_path,
        title="Tiny",
        spec="",
        environment={},
        planned=tuple(Planned(str(number), "", {}) for number in range(count)),
        records=tuple(attacks),
        bounds=tuple(bounds),
    )


def test_an_error_is_told_as_the_psnr_it_means():
    [room] = found([attack(psnr=30.0)], [bound(rmse=0.01)])
    [person] = room.people
    assert person.ceiling == pytest.approx(40.0)
    assert person.rmse == pytest.approx(0.01)
    assert room.gap == pytest.approx(10.0)
    [squared] = found([], [bound(rmse=1e-4, metric="mse")])
    assert squared.people[0].ceiling == pytest.approx(40.0)
    [wide] = found([], [bound(rmse=0.02, peak=2.0)])
    assert wide.people[0].ceiling == pytest.approx(40.0)
    assert wide.people[0].rmse == pytest.approx(0.02)


def test_a_bound_stands_beside_attacks_on_the_same_person_network_and_defense_alone():
    others = [
        attack(1, psnr=50.0),
        attack(0, psnr=50.0, defense=()),
        attack(0, psnr=50.0, model="cnn"),
        attack(0, psnr=50.0, local=Component("FedAvg")),
        attack(0, psnr=50.0, data="digits"),
        attack(0, psnr=50.0, threat=EXACT),
    ]
    [room] = found([attack(0, psnr=30.0), *others], [bound(0)])
    assert [a.psnr for a in room.people[0].tried] == [30.0]
    assert read_headroom(room) == "holds for 1 person, 10.0 dB above"


def test_a_planted_network_is_another_one():
    [room] = found([attack(vetted="planted: trap weights")], [bound()])
    assert read_headroom(room) == "no attack to compare with"


def test_a_bound_that_says_nothing_is_named_with_its_reason_and_still_shows_the_attack():
    rooms = found([attack()], [bound(rmse=0.0, remark="no noise is added")])
    assert read_headroom(rooms[0]) == "says nothing"
    assert [a.psnr for a in rooms[0].tried] == [30.0]
    assert explain_silence(rooms) == [
        f"CramerRao says nothing behind {defense_words(NOISE)}: no noise is added."
    ]
    several = found([], [
        *(bound(p, rmse=0.0, remark=f"{p + 2} of 9 directions are open") for p in range(3)),
        bound(3),
    ])  # fmt: skip
    assert explain_silence(several) == [
        f"CramerRao says nothing behind {defense_words(NOISE)}: 2 of 9 directions are open; 3 of 9 "
        "directions are open; 4 of 9 directions are open."
    ]
    assert read_headroom(several[0]) == "no attack to compare with; says nothing of 3"
    many = found([], [bound(p, rmse=0.0, remark=f"{p} of 9 are open") for p in range(9)])
    assert explain_silence(many)[0].endswith("2 of 9 are open; and 6 more reasons.")
    odd = found([], [bound(metric="rank")])
    assert "it bounds rank, which is no error per entry" in explain_silence(odd)[0]


def test_a_guess_that_needs_no_update_explains_a_wide_bound_and_a_prior_a_narrow_one():
    [wide] = found([attack(psnr=15.0)], [bound(rmse=5.0)])
    assert read_headroom(wide) == "a guess without any update is closer, for 1 of 1"
    [narrow] = found([attack(psnr=45.0)], [bound(rmse=0.01)])
    assert read_headroom(narrow).startswith("closer for 1 of 1")
    assert "covers unbiased attacks only" in read_headroom(narrow)
    assert not contradictions([wide, narrow])


def closed_forms(count, *, psnr, rmse=0.01, **said):
    people = range(count)
    return found([attack(p, psnr=psnr, steps=0) for p in people],
                 [bound(p, rmse=rmse, **said) for p in people])  # fmt: skip


def test_a_closed_form_that_is_closer_than_luck_allows_is_a_contradiction():
    [beaten] = contradictions(closed_forms(8, psnr=70.0))
    assert beaten.cases == 8
    assert beaten.ratio == pytest.approx(10 ** (-30 / 20))
    assert beaten.sentence.startswith("CONTRADICTION: analytic_fc came 31.6 times closer")
    assert "the bound or the attack has a bug" in beaten.sentence


def test_what_luck_explains_is_none():
    # Eight errors of which each is a third: chi squared of 8 is above 0.86 in 999 of 1000 cases.
    assert not contradictions(closed_forms(8, psnr=40.0 + 20 * math.log10(3)))
    assert contradictions(closed_forms(8, psnr=40.0 + 20 * math.log10(3.1)))
    # One draw along one direction may be very small by chance.
    assert not contradictions(closed_forms(1, psnr=80.0))


@pytest.mark.parametrize(
    ("said", "rmse"),
    [
        ({"side": "upper"}, 0.01),
        ({"assumptions": (SEEN_WITH, "that noise has std 0.001")}, 0.01),
        ({}, 0.5),
    ],
    ids=["some attack comes this close", "noise that nobody adds", "wider than the range allows"],
)
def test_a_bound_whose_assumptions_do_not_reach_the_attack_is_not_beaten(said, rmse):
    assert not contradictions(closed_forms(8, psnr=90.0, rmse=rmse, **said))


def test_searches_count_only_where_what_they_prefer_is_no_help():
    def searches(rmse, psnr):
        return found(
            [attack(p, psnr=psnr) for p in range(8)], [bound(p, rmse=rmse) for p in range(8)]
        )

    # 0.01 over 192 entries may be 0.14 along one of them, which a prior can know.
    assert not contradictions(searches(0.01, 80.0))
    assert contradictions(searches(1e-5, 140.0))


def searched(count, *, psnr, rmse, said=(EVERY_ATTACK,)):
    """Searches on people of whom a guess without any update has 11 dB."""
    people = range(count)
    return found([attack(p, psnr=psnr) for p in people],
                 [bound(p, rmse=rmse, assumptions=said) for p in people])  # fmt: skip


def test_a_search_that_beats_a_bound_on_every_attack_raises_the_alarm():
    [alarm] = contradictions(searched(1, psnr=40.0, rmse=0.1))
    assert alarm.ratio == pytest.approx(0.1)
    assert "do not rely on this ceiling" in alarm.sentence
    assert "easier to guess than the bound assumes" in alarm.sentence
    [room] = searched(1, psnr=40.0, rmse=0.1)
    assert read_headroom(room).startswith("BEATEN")
    assert not contradictions(searched(1, psnr=40.0, rmse=0.1, said=(UNBIASED,)))


def test_an_error_along_one_direction_may_be_small_by_chance_in_a_search_too():
    # 0.001 over 192 entries may be the error of a single one.
    assert not contradictions(searched(1, psnr=80.0, rmse=0.001))
    assert contradictions(searched(8, psnr=80.0, rmse=0.001))


def test_an_attack_no_better_than_a_guess_without_the_update_beats_no_ceiling():
    blind = searched(30, psnr=11.0, rmse=0.5)
    assert not contradictions(blind)
    assert read_headroom(blind[0]) == "a guess without any update is closer, for 30 of 30"
    assert contradictions(searched(30, psnr=40.0, rmse=0.5))


def test_among_candidates_a_few_right_choices_are_luck_and_many_are_not():
    said = (EVERY_ATTACK, AMONG, "the candidates are from photos")
    assert not contradictions(searched(4, psnr=80.0, rmse=0.2, said=said))
    assert contradictions(searched(40, psnr=80.0, rmse=0.2, said=said))
    assert not contradictions(searched(40, psnr=13.9, rmse=0.2, said=said))


def test_who_sees_more_than_the_update_does_not_count():
    attacks = [attack(p, psnr=90.0, steps=0, threat=EXACT) for p in range(8)]
    assert not contradictions(found(attacks, [bound(p, mode="train") for p in range(8)]))


def test_a_contradiction_is_shouted_everywhere(tmp_path):
    attacks = [attack(p, psnr=70.0, steps=0) for p in range(8)]
    told = audit(tmp_path, attacks, [bound(p) for p in range(8)])
    [alarm] = audit_verdict(told).alarms
    page = audit_page(told)
    assert f'<p class="alarm" role="alert">{alarm}</p>'.replace("'", "&#x27;") in page
    assert "BEATEN" in page
    assert f"**{alarm.partition('(')[0].replace('_', chr(92) + '_')}" in audit_markdown(told)
    console = Console(width=200, record=True, quiet=False)
    console.print(bound_table(found(attacks, told.bounds)))
    assert "BEATEN" in console.export_text()


def test_what_holds_is_told_in_every_format_and_nothing_is_shouted(tmp_path):
    attacks = [attack(p) for p in range(2)]
    bounds = [
        *(bound(p) for p in range(2)),
        *(bound(p, name="VanTrees", rmse=0.0, remark="why <not>") for p in range(2)),
    ]
    told = audit(tmp_path, attacks, bounds)
    assert not audit_verdict(told).alarms
    page = audit_page(told)
    assert 'role="alert"' not in page
    assert "VanTrees says nothing here, and why" in page
    assert '<th scope="col" class="number">CramerRao' in page
    assert '<th scope="col" class="number">VanTrees' not in page
    assert "why &lt;not&gt;" in page
    assert "the attack is unbiased" in page
    assert page.count('class="ceiling hue-0"') == 2
    written = audit_markdown(told)
    assert "## What theory allows" in written
    noise = defense_words(NOISE)
    assert f"| mlp(hidden=(8,)) | {noise} | CramerRao | 0.01 | 40.0 dB |" in written
    assert "holds for 2 people, 10.0 dB above" in written
    rows = flat_bounds(bounds)
    assert [row["value"] for row in rows] == [0.01, 0.01, None, None]
    assert rows[0]["bound"] == "CramerRao"
    assert rows[0]["attack"] is None


def test_bounds_are_no_attacks(tmp_path):
    attacks, bounds = [attack()], [bound()]
    assert len(summarise([*attacks, *bounds])) == 1
    assert missing(audit(tmp_path, attacks, bounds)) is None
    broken = audit(tmp_path, attacks, [bound(error="it broke", values=())])
    assert missing(broken) == "Not complete: 1 case failed."
    assert tabulate_headrooms(found(attacks, broken.bounds))[0][-1] == "says nothing"


def test_an_audit_without_bounds_has_no_such_section(tmp_path):
    assert 'id="bounds"' not in audit_page(audit(tmp_path, [attack()], []))
    assert "theory" not in audit_markdown(audit(tmp_path, [attack()], []))
