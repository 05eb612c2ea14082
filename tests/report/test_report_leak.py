"""How attempts are read, ordered and put into a verdict."""

import io
import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from tests.report.records import make_record, told

import seepage as sp
from seepage import report
from seepage.audit import Choice, find_breaches, pareto_front
from seepage.audit._record import Control
from seepage.audit._words import (
    defense_words,
    list_words,
    local_words,
    short_names,
    threat_words,
)
from seepage.audit.results import Results
from seepage.audit.results._effort_curve import effort_curves
from seepage.cli._run_audit import _is_inconclusive
from seepage.core._construct import Component
from seepage.core.errors import InvalidValue
from seepage.report import (
    Direction,
    Level,
    change_table,
    changes,
    comparison_verdict,
    median_interval,
    share_not_ruled_out,
    shifts,
    summarise,
    verdict,
)
from seepage.report._finding import find
from seepage.report.page._chart import Axis, span_axis
from seepage.report.page._curve_sections import effort_section
from seepage.report.page._strip_sections import defense_section
from seepage.report.wording import Cause, Kind, curve_words
from seepage.scoring._identification import Identification


def links(*defenses):
    """Defenses as the values that records hold."""
    return tuple(map(Component.of, defenses))


def place(rank=1, *, recognisable=True, match=9.0, rival=3.0, gallery="same label", low=1e3):
    """The place of a person among 99 strangers."""
    return Identification(rank, 99, gallery, match, rival, recognisable, 5 * low, low, 20 * low)


HIDDEN = place(40, recognisable=False, match=0.5)
ABLE = Control(bare=(3, 3, 0.01), negative=(0, 4, 0.04))
WEAK = Control(bare=(0, 1, 0.01), negative=(0, 4, 0.04))


def record(psnr, *, people=None, places=None, baseline=11.0, exact=0.0, **changed):
    """A record of these scores, one per person; from 20 dB on people are recognisable."""
    count = len(psnr)
    guessed = {"psnr": (baseline,) * count}
    found = [place() if value is None or value >= 20 else HIDDEN for value in psnr]
    plain = {
        "people": tuple(people or range(count)),
        "scores": {"psnr": tuple(psnr), "exact": (exact,) * count},
        "baselines": {"mean": guessed, "draw": {"psnr": (baseline - 1,) * count}},
        "effort": {"steps": 0, "restarts": 0, "seconds": 1.0, "device": "cpu"},
        "identification": tuple(found if places is None else places),
        "control": ABLE,
    }
    return make_record(**plain | changed)


@pytest.mark.parametrize(
    ("found", "changed", "level"),
    [
        (place(), {"exact": 1.0}, Level.reconstructed),
        (place(2), {"exact": 1.0}, Level.not_shown),
        (place(2, gallery="one shade"), {"exact": 1.0}, Level.inconclusive),
        (replace(place(), exact=True), {}, Level.reconstructed),
        (replace(place(), exact=False), {"exact": 1.0}, Level.recognisable),
        (replace(place(2), exact=True, copies=1), {}, Level.not_shown),
        (place(), {}, Level.recognisable),
        (place(recognisable=False), {}, Level.singled_out),
        (place(2), {}, Level.not_shown),
        (place(2), {"control": None}, Level.inconclusive),
        (place(2), {"control": Control(bare=(0, 1, 0.01))}, Level.inconclusive),
        (place(2, gallery="synthetic"), {}, Level.inconclusive),
        (place(2), {"effort": {"cut": 1}}, Level.inconclusive),
    ],
)
def test_a_person_is_graded_by_their_place_among_strangers(found, changed, level):
    [attempt] = Results.of([record([12.0], places=[found], **changed)])
    assert attempt.level is level


def test_an_exact_guess_with_nobody_to_compare_with_identifies_nobody():
    alone = record([math.inf], identification=(), exact=1.0)
    judged = verdict([alone])
    assert judged.level is Level.inconclusive
    assert told(judged)[Kind.inconclusive]["because"] == (Cause.exact_alone, 0)
    assert "although a guess is exact: there is nobody to compare with" in judged.details[0]
    assert not find_breaches(["identified=0"], [alone])


def test_an_exact_guess_tells_who_else_it_fits():
    twins = replace(place(2, gallery="same label"), exact=True, copies=3)
    said = verdict([record([math.inf], places=[twins])]).details[0]
    assert "although a guess is exact: it is the input of 3 others in the data too" in said
    near = replace(place(6, gallery="any label"), exact=True)
    said = verdict([record([math.inf], places=[near])]).details[0]
    assert "although a guess is exact: it is as near to 5 of 99 strangers" in said
    blank = replace(place(2, gallery="one shade"), exact=True)
    judged = verdict([record([math.inf], places=[blank])])
    assert "the input is blank, and anybody can guess that" in judged.details[0]
    assert judged.main.numbers["because"] == (Cause.exact_fits_others, 0)


def test_exact_rows_of_a_narrow_table_are_counted_only_beyond_luck():
    rare = replace(place(), exact=True)
    common = replace(place(low=30), exact=True)
    for lone, level in ((rare, Level.reconstructed), (common, Level.not_shown)):
        places = [lone, *[HIDDEN] * 19]
        best = Results.of([record([12.0] * 20, places=places)]).strongest()
        [found] = [row for row in best if row.person == ("photos", 0)]
        assert found.level is level
    many = [common] * 8 + [HIDDEN] * 12
    best = Results.of([record([12.0] * 20, places=many)]).strongest()
    assert sum(attempt.level is Level.reconstructed for attempt in best) == 8
    # Nor does their certainty make others of whom a weak guess reminds.
    weak = [rare] * 8 + [replace(place(low=30), exact=False)] + [HIDDEN] * 11
    best = Results.of([record([12.0] * 20, places=weak)]).strongest()
    assert {row.level for row in best if row.person == ("photos", 8)} == {Level.not_shown}


def test_a_high_psnr_alone_identifies_nobody():
    [attempt] = Results.of([record([25.0], places=[HIDDEN])])
    assert attempt.level is Level.not_shown


def test_labels_count_as_a_leak_where_they_were_secret_and_right_beyond_chance():
    secret = Component("Threat", {"knows_labels": False})
    scores = {"psnr": (9.0,) * 4, "label_accuracy": (1.0, 1.0, 1.0, 0.0)}
    leaked = record([9.0] * 4, scores=scores, threat=secret, label_chance=0.1)
    levels = [attempt.level for attempt in Results.of([leaked])]
    assert levels == [Level.partly] * 3 + [Level.not_shown]
    assert verdict([leaked]).main.numbers["labels"] == 3
    lucky = replace(leaked, label_chance=0.5)
    known = replace(leaked, threat=Component("Threat", {"knows_labels": True}))
    for each in (lucky, known):
        assert {attempt.level for attempt in Results.of([each])} == {Level.not_shown}


def guess_labels(right, *, people=20, chance=0.2, **changed):
    """Records of one person each, of whom the first few had their label guessed."""
    options = {
        "threat": Component("Threat", {"knows_labels": False}),
        "label_chance": chance,
        **changed,
    }
    return [
        record([9.0], people=[n], scores={"psnr": (9.0,), "label_accuracy": (float(n < right),)},
               **options)
        for n in range(people)
    ]  # fmt: skip


def test_labels_of_single_people_are_tested_over_all_people_of_a_setup():
    judged = verdict(guess_labels(20))
    assert (judged.main.kind, judged.main.numbers["labels"]) == (Kind.not_identified, 20)
    assert judged.level is Level.partly
    # Seven or more of twenty at a chance of 0.2 have a probability of 8.7 %, eight of 3.2 %.
    assert stats.binom.sf(7, 20, 0.2) < 0.05 < stats.binom.sf(6, 20, 0.2)
    assert verdict(guess_labels(7)).main.numbers["labels"] == 0
    assert verdict(guess_labels(8)).main.numbers["labels"] == 8


def test_label_leaks_are_corrected_for_the_number_of_attacks_but_not_for_repetitions():
    other = guess_labels(4, attack=Component("other"))
    assert verdict([*guess_labels(8), *other]).main.numbers["labels"] == 0
    again = [replace(one, seed=seed) for seed in range(5) for one in guess_labels(7)]
    assert verdict(again).main.numbers["labels"] == 0, "seeds are no more people"


def test_labels_of_different_chances_are_tested_together():
    rare = guess_labels(2, people=2, chance=0.1)
    common = guess_labels(2, people=3, chance=0.5, data="votes")
    # 0.1^2 * P(2 or more of 3 at 0.5) = 0.005, and a binomial with the larger chance has 0.19.
    assert {a.level for a in Results.of([*rare, *common])} == {Level.partly, Level.not_shown}
    assert stats.binom.sf(3, 5, 0.5) > 0.05


def test_a_label_counts_whichever_attack_guessed_it():
    labels = guess_labels(20, attack=Component("labels"))
    sharper = [record([15.0], people=[n], places=[HIDDEN], attack=Component("search"))
               for n in range(20)]  # fmt: skip
    assert verdict([*labels, *sharper]).main.numbers["labels"] == 20


def test_identification_by_an_attack_that_finds_people_who_are_not_there_is_qualified():
    liar = Control(bare=(3, 3, 0.01), negative=(6, 8, 0.08))
    judged = verdict([record([25.0, 12.0], control=liar)])
    assert judged.main.kind is Kind.identified
    assert (judged.main.numbers["levels"].total(), judged.main.numbers["doubtful"]) == (1, 1)
    assert told(judged)[Kind.negative_control]["misleading"] == ["analytic_fc"]
    defended = verdict([record([12.0]), record([25.0], defense=links(sp.Sign()), control=liar)])
    assert told(defended)[Kind.identified_behind]["shares"] == [("Sign", 1, 1, 1)]
    proved = verdict([record([math.inf, 25.0], exact=1.0, control=liar)])
    assert proved.main.numbers["doubtful"] == 0, "an exact copy is no luck"
    lucky = Control(bare=(3, 3, 0.1), negative=(2, 8, 0.8))
    assert verdict([record([25.0], control=lucky)]).main.numbers["doubtful"] == 0


def test_a_positive_control_needs_most_canaries():
    able = [Control(bare=(hits, 3, 0.01)).able for hits in range(4)]
    assert able == [False, False, True, True]
    assert not Control(bare=(2, 4, 0.01)).able
    assert not Control(bare=(2, 2, 0.01)).able, "too few"
    assert not Control(bare=(2, 3, 0.5)).able, "by luck"


def test_gate_verdict_and_table_count_the_same_people():
    """Two networks, defenses, batch sizes, attacks and seeds; lucky, exact and broken guesses."""

    def many(seed):
        rng = np.random.default_rng(seed)
        for model, attack, defense, size, repeat in itertools.product(
            ("mlp", "cnn"), ("one", "two"), ((), links(sp.Sign())), (1, 4), (0, 1)
        ):
            for first in range(0, 8, size):
                places = [
                    place(int(rng.choice([1, 1, 5])), match=float(rng.uniform(2, 6)),
                          rival=float(rng.uniform(1, 6)), low=float(rng.choice([20, 1e4])))
                    for _ in range(size)
                ]  # fmt: skip
                psnr = [float(rng.choice([12.0, 25.0])) if rng.random() > 0.2 else None
                        for _ in range(size)]  # fmt: skip
                made = record(psnr, people=range(first, first + size), places=places, model=model,
                              attack=Component(attack), defense=defense, seed=repeat)  # fmt: skip
                broken = rng.random() < 0.2
                yield replace(made, scores={}, identification=(), error="no") if broken else made

    for seed in range(5):
        records = list(many(seed))
        bare = [one for one in records if not one.defense]
        gate = {breach.person for breach in find_breaches(["identified=0"], bare)}
        people = Results.of(bare).strongest()
        assert {row.person[1] for row in people if row.level.identified} == gate
        said = f"{len(gate)} of {len(people)} people were" if gate else "Nobody was identified"
        assert verdict(bare).headline.startswith((said, "Inconclusive" if not gate else said))
        for row in summarise(records):
            assert row.identified <= row.people
        for defense, size in itertools.product(((), links(sp.Sign())), (1, 4)):
            rows = [r for r in summarise(records) if (r.defense, r.batch_size) == (defense, size)]
            setup = [r for r in records if (r.defense, r.batch_size) == (defense, size)]
            found = len({breach.person for breach in find_breaches(["identified=0"], setup)})
            assert max(row.identified for row in rows) <= found
            assert found <= sum(row.identified for row in rows)


def test_a_guess_that_is_not_finite_is_read_alike_by_gate_and_verdict():
    partial = record([None], places=[place()])
    assert len(find_breaches(["identified=0"], [partial])) == 1
    assert verdict([partial]).headline == "The one person attacked was identified: recognisable"
    [row] = summarise([partial])
    assert (row.identified, row.people) == (1, 1)


def test_where_every_case_failed_there_is_no_verdict_but_the_reason():
    failed = [
        record([12.0], people=[n], scores={}, identification=(), error=reason)
        for n, reason in enumerate(["no gradient.", "out of memory", "no gradient."])
    ]
    judged = verdict(failed)
    assert told(judged) == {Kind.every_case_failed: {"reason": "no gradient"}}
    assert judged.level is None
    some = verdict([record([25.0]), replace(failed[0], defense=links(sp.Sign()))])
    assert told(some)[Kind.no_result] == {"what": "with Sign", "failed": True}


def test_an_attempt_among_many_must_stand_out_from_the_strangers_of_all():
    weak = place(match=3.5, rival=3.0, low=30)
    one = record([12.0], places=[weak], attack=Component("one"))
    [alone] = Results.of([one]).strongest()
    assert alone.level is Level.recognisable
    two = record([12.0], places=[place(7, match=1.0, rival=4.0)], attack=Component("two"))
    [among] = Results.of([one, two]).strongest()
    assert among.level is Level.not_shown
    clear = record([12.0], places=[place(match=3.5, low=1e4)], attack=Component("one"))
    [still] = Results.of([clear, two]).strongest()
    assert still.level is Level.recognisable, "a bad attempt hides no clear match"


def test_people_singled_out_by_luck_among_many_are_not_counted():
    lucky = [place(low=30) if n < 2 else HIDDEN for n in range(100)]
    best = Results.of([record([12.0] * 100, places=lucky)]).strongest()
    assert {attempt.level for attempt in best} == {Level.not_shown}
    many = [place(low=30) if n < 9 else HIDDEN for n in range(100)]
    best = Results.of([record([12.0] * 100, places=many)]).strongest()
    assert sum(attempt.level.identified for attempt in best) == 9


def test_who_is_first_among_too_few_strangers_to_rule_out_luck_is_not_called_safe():
    first = replace(place(low=14), strangers=13)
    alone = record([18.0], places=[first])
    assert Results.of([alone])[0].level is Level.inconclusive
    assert verdict([alone]).main.numbers["because"] == (Cause.close_call, 19)
    second = record([18.0], places=[replace(first, rank=2)])
    assert Results.of([second])[0].level is Level.not_shown
    # Of many people somebody is first by luck, and all of them could not be.
    many = [first if n < 2 else HIDDEN for n in range(100)]
    levels = {attempt.level for attempt in Results.of([record([12.0] * 100, places=many)])}
    assert levels == {Level.not_shown}


@pytest.mark.parametrize(
    ("gallery", "cause"),
    [("synthetic", Cause.synthetic), ("few of the label", Cause.few_of_the_label)],
)
def test_without_fair_strangers_only_a_near_copy_identifies(gallery, cause):
    [far] = Results.of([record([12.0], places=[place(recognisable=False, gallery=gallery)])])
    assert far.level is Level.inconclusive
    [near] = Results.of([record([30.0], places=[place(gallery=gallery)])])
    assert near.level is Level.recognisable
    assert verdict([far.record]).main.numbers["because"] == (cause, 0)
    assert told(verdict([far.record]))[Kind.scarce] == {"scarce": 1, "total": 1}
    assert Kind.scarce not in told(verdict([near.record]))
    # How rare the match is cannot be told from strangers who are not like the person.
    assert "luck matches this well" not in " ".join(verdict([near.record]).details)
    [fair] = Results.of([record([30.0], places=[place()])])
    assert "luck matches this well" in " ".join(verdict([fair.record]).details)


def test_people_with_too_few_strangers_are_counted_beside_others():
    far = place(recognisable=False, gallery="few of the label")
    mixed = record([12.0, 30.0, 12.0], places=[far, place(), HIDDEN])
    assert told(verdict([mixed]))[Kind.scarce] == {"scarce": 1, "total": 3}


@pytest.mark.parametrize("residual", [0.0021, 23.4])
def test_a_guess_without_truth_that_is_not_proved_is_no_reassurance(residual):
    certificate = {"residual": residual, "unique": False, "error": None}
    blind = make_record(people=(0, 1), certificate=certificate)
    judged = verdict([blind], noun="images")
    assert judged.level is None
    assert list(told(judged)) == [Kind.not_proved, Kind.residual, Kind.no_proof_of_nothing]
    assert told(judged)[Kind.not_proved]["people"] == 2
    assert told(judged)[Kind.residual] == {"attack": "analytic_fc", "residual": residual}
    several = verdict([blind, replace(blind, data="other")], noun="images")
    assert told(several)[Kind.updates_not_proved]["updates"] == 2


def test_a_table_of_guesses_without_truth_explains_the_residual_and_counts_nobody():
    certificate = {"residual": 23.4, "unique": False, "error": None}
    console = Console(width=100, file=io.StringIO())
    console.print(report.leak_table(summarise([make_record(certificate=certificate)])))
    shown = console.file.getvalue()
    assert "residual 23 " in shown
    assert "Residual: how far" in shown
    assert "people identified" not in shown


def test_a_leaked_label_does_not_make_a_weak_attack_conclusive():
    secret = Component("Threat", {"knows_labels": False})
    scores = {"psnr": (9.0,) * 4, "label_accuracy": (1.0,) * 4}
    leaked = record([9.0] * 4, scores=scores, threat=secret, label_chance=0.1, control=WEAK)
    judged = told(verdict([leaked]))[Kind.inconclusive]
    assert (judged["because"], judged["labels"], judged["total"]) == ((Cause.too_weak, 0), 4, 4)


def test_one_attack_that_works_is_enough_to_say_that_nothing_was_shown():
    able = record([9.0], places=[HIDDEN], attack=Component("able"))
    weak = record([12.0], places=[HIDDEN], attack=Component("weak"), control=None)
    for order in ([able, weak], [weak, able]):
        [best] = Results.of(order).strongest()
        assert (best.level, best.record.attack.name) == (Level.not_shown, "able")


def test_the_strongest_attempt_is_the_one_that_shows_most_not_the_one_with_least_error():
    grey = record([18.5], places=[HIDDEN], attack=Component("grey"))
    noisy = record([16.9], places=[place()], attack=Component("noisy"))
    for order in ([grey, noisy], [noisy, grey]):
        [best] = Results.of(order).strongest()
        assert best.record.attack.name == "noisy"


def test_the_lowest_error_over_attacks_counts_per_person_and_the_worst_off_is_first():
    tried = Results.of(
        [
            record([30.0, 21.0, 22.0], attack=Component("one")),
            record([25.0, 40.0, None], attack=Component("two")),
        ]
    )
    best = tried.strongest()
    assert [(row.person[1], row.psnr) for row in best] == [(1, 40.0), (0, 30.0), (2, 22.0)]


def test_a_verdict_counts_people_and_says_what_each_defense_changes():
    judged = verdict(
        [
            record([31.2, 25.0, 12.0]),
            record([15.0, 12.0, 12.0], attack=Component("weaker")),
            record([22.0, 12.0, 12.0], defense=links(sp.Sign())),
            record([12.0, 12.0, 12.0], defense=links(sp.Prune(0.99))),
        ],
        noun="images",
    )
    found = told(judged)
    assert list(found) == [
        Kind.identified,
        Kind.worst_off,
        Kind.identified_behind,
        Kind.held_behind,
        Kind.control_found,
        Kind.negative_control,
    ]
    assert found[Kind.identified]["levels"] == {Level.recognisable: 2}
    assert found[Kind.identified_behind]["shares"] == [("Sign", 1, 3, 0)]
    held = {"people": 3, "updates": 1, "share": pytest.approx(0.95)}
    assert found[Kind.held_behind] == {"setups": ["Prune 0.99"], **held}
    assert (found[Kind.control_found]["hits"], found[Kind.control_found]["tested"]) == (3, 3)
    others = {"hits": 0, "tested": 16, "luck": pytest.approx(0.16), "misleading": []}
    assert found[Kind.negative_control] == others
    assert judged.level is Level.recognisable
    assert judged.worst.victim == ("photos", 0)


def test_a_verdict_does_not_speak_of_safety_where_no_defense_holds():
    judged = verdict([record([31.0]), record([30.0], defense=links(sp.Sign()))])
    assert Kind.nothing_holds in told(judged)


def test_a_defense_is_not_called_safe_by_an_attack_that_finds_nobody_without_it():
    weak = Control(bare=(0, 1, 0.01), defended=(0, 1, 0.01), negative=(0, 4, 0.04))
    judged = verdict([record([12.0]), record([12.0], defense=links(sp.Sign()))])
    assert told(judged)[Kind.held_behind]["setups"] == ["Sign"]
    judged = verdict([record([12.0], defense=links(sp.Sign()), control=weak)])
    assert judged.main.numbers["because"] == (Cause.too_weak, 0)
    assert judged.main.numbers["where"] == " behind these defenses"
    assert judged.level is Level.inconclusive
    assert not told(judged)[Kind.control_found_nobody]["finds_people"]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "lenet"},
        {"threat": Component("Threat", {"knows_labels": False})},
        {"defense": links(sp.Sign())},
        {"local": Component("FedAvg", {"lr": 0.1, "steps": 1})},
    ],
    ids=["network", "adversary", "defense", "local computation"],
)
def test_an_attack_that_works_on_one_network_clears_nobody_on_another(other):
    cleared = record([12.0], defense=links(sp.Prune(0.9)))
    unclear = replace(cleared, control=WEAK, **other)
    judged = verdict([cleared, unclear])
    assert judged.main.numbers["because"] == (Cause.too_weak, 0)
    assert _is_inconclusive(Results.of([cleared, unclear]))
    # Another attack on the same network is enough, and so is one that works on both.
    again = replace(cleared, attack=Component("dlg"), control=WEAK)
    for records in ([cleared, again], [cleared, unclear, replace(unclear, control=ABLE)]):
        assert verdict(records).main.kind is Kind.not_identified
        assert not _is_inconclusive(Results.of(records))


@pytest.mark.parametrize("failed", [False, True])
def test_a_network_without_a_result_is_named_and_is_inconclusive(failed):
    cleared = record([12.0])
    lost = replace(cleared, scores={}, identification=(), error="none", applicable=failed)
    records = [cleared, *(replace(lost, model=f"net{number}") for number in range(5))]
    found = verdict(records).findings
    named = {"what": "for net0 on photos, no defense", "failed": failed}
    assert find(Kind.no_result, **named) in found
    assert find(Kind.more_without_result, more=2) in found
    assert _is_inconclusive(Results.of(records))
    # Another attack on the same network has a result.
    judged = [cleared, replace(lost, attack=Component("dlg"))]
    assert Kind.no_result not in told(verdict(judged))
    assert not _is_inconclusive(Results.of(judged))


def test_a_verdict_of_nobody_identified_of_one_person_and_of_nothing():
    none = verdict([record([12.0, 12.0])]).main
    assert (none.kind, none.numbers["total"]) == (Kind.not_identified, 2)
    one = verdict([record([math.inf], exact=1.0)]).main
    assert one.numbers["levels"] == {Level.reconstructed: 1}
    assert verdict([]).main.kind is Kind.no_result_yet
    assert verdict([]).level is None


def test_without_an_undefended_case_the_headline_speaks_of_the_defenses():
    judged = verdict(
        [record([12.0], defense=links(sp.Prune(0.9))), record([25.0], defense=links(sp.Sign()))]
    )
    assert judged.main.kind is Kind.identified
    assert judged.main.numbers["where"] == " behind these defenses"


@pytest.mark.parametrize("values", [[20.0, 31.0, 25.5, 40.0, 18.0, 22.0, 29.0], [3.0] * 5])
def test_the_bootstrap_agrees_with_scipys(values):
    interval = median_interval(values)
    if len(set(values)) > 1:
        theirs = stats.bootstrap(
            (np.array(values),), np.median, method="percentile", n_resamples=9999, rng=1
        ).confidence_interval
        step = max(np.diff(sorted(values)))
        assert abs(interval.low - theirs.low) <= step
        assert abs(interval.high - theirs.high) <= step
    assert interval.low <= interval.middle == np.median(values) <= interval.high


def test_the_bootstrap_holds_the_median_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        interval = median_interval(rng.normal(25.0, 5.0, size=40).tolist(), seed=trial)
        held += interval.low <= 25.0 <= interval.high
    assert 0.90 <= held / 200 <= 0.99


def test_an_exact_guess_does_not_break_the_interval():
    interval = median_interval([math.inf, math.inf, 20.0])
    assert interval.high == math.inf
    assert not math.isnan(interval.low)


@pytest.mark.parametrize("people", [1, 8, 300])
def test_the_share_not_ruled_out_is_the_exact_binomial_bound(people):
    theirs = stats.binomtest(0, people, alternative="less").proportion_ci(0.95, method="exact")
    assert share_not_ruled_out(people) == pytest.approx(theirs.high)


POINTS = st.lists(
    st.builds(
        Choice,
        label=st.just("d"),
        leakage=st.integers(0, 5).map(float),
        utility=st.integers(0, 5).map(float),
    ),
    max_size=12,
)


@given(POINTS)
def test_the_front_is_what_no_choice_beats(choices):
    def beats(a, b):
        no_worse = a.leakage <= b.leakage and a.utility >= b.utility
        return no_worse and (a.leakage < b.leakage or a.utility > b.utility)

    unbeaten = [c for c in choices if not any(beats(other, c) for other in choices)]
    assert set(pareto_front(choices)) == set(unbeaten)
    utilities = [choice.utility for choice in pareto_front(choices)]
    assert utilities == sorted(utilities)


def search(steps, psnr, **changed):
    attack = Component("inverting_gradients", {"steps": steps, "tv": 0.1})
    return record(psnr, attack=attack, **changed)


def test_an_attack_whose_effort_curve_still_rises_reassures_nobody():
    flat = [search(500, [10.0, 12.0, 11.0]), search(1000, [10.3, 12.2, 11.1])]
    judged = verdict(flat)
    assert judged.level is Level.not_shown
    assert told(judged)[Kind.effort] == {"rising": 0, "total": 1, "most": None}
    [curve] = effort_curves(flat)
    assert curve_words(curve).startswith(
        "inverting_gradients has reached a plateau: from 500 to 1,000 steps, doubling them gains "
        "+0.2 dB (+0.1 to +0.3"
    )
    drawn = effort_section(effort_curves(flat)).content
    assert "Leakage against steps" in drawn
    assert curve_words(curve) in drawn
    assert effort_section(effort_curves(flat[:1])) is None
    steep = [search(250, [8.0, 9.0, 9.5]), search(1000, [13.0, 14.0, 14.9])]
    judged = verdict(steep)
    assert judged.main.numbers["because"] == (Cause.more_steps, 0)
    _, most = told(judged)[Kind.effort]["most"]
    assert most.gain.middle == pytest.approx(2.6, abs=0.05)
    settled = record([9.0, 9.0, 9.0], attack=Component("other"))
    assert verdict([*steep, settled]).level is Level.not_shown, "another attack is enough"


def test_effort_is_compared_only_where_nothing_but_the_steps_differs():
    one = search(500, [10.0])
    for other in (
        search(1000, [15.0], model="cnn"),
        search(1000, [15.0], defense=links(sp.Sign())),
        search(1000, [15.0], people=[7]),
        record([15.0], attack=Component("inverting_gradients", {"steps": 1000, "tv": 0.2})),
    ):
        assert effort_curves([one, other]) == []
    [curve] = effort_curves([one, search(1000, [11.0], seed=0), search(1000, [15.0], seed=1)])
    assert curve.medians == [(500, 10.0), (1000, 15.0)], "the best of several seeds"
    assert curve.rising


def test_two_audits_are_compared_person_by_person_behind_each_defense():
    before = [
        record([30.0, 25.0, 12.0]),
        record([22.0], defense=links(sp.Sign())),
        record([40.0], defense=links(sp.Clip(1.0))),
        record([40.0], defense=links(sp.Prune(0.5))),
    ]
    after = [
        record([21.0, 25.5, 29.0]),
        record([12.0], defense=links(sp.Prune(0.9))),
        record([40.0], defense=links(sp.Clip(1.0))),
    ]
    found = {
        (c.victim[1], *map(defense_words, c.defenses)): c.direction for c in changes(before, after)
    }
    assert found == {
        (0, "no defense", "no defense"): Direction.better,
        (1, "no defense", "no defense"): Direction.same,
        (2, "no defense", "no defense"): Direction.worse,
        (0, "Sign", "Sign"): Direction.vanished,
        (0, "Prune 0.5", "Prune 0.9"): Direction.better,
        (0, "Clip C=1", "Clip C=1"): Direction.same,
    }
    judged = comparison_verdict(changes(before, after))
    less = told(judged)[Kind.less_leaks]
    assert less["where"] == "Prune 0.5, batch size 1, now Prune 0.9, batch size 1"
    assert (less["before"], less["now"], less["people"]) == (1, 0, 1)
    assert less["gained"].low == less["gained"].high == -28.0
    noisy = told(judged)[Kind.within_noise]
    assert (noisy["before"], noisy["now"], noisy["people"]) == (2, 3, 3)
    assert told(judged)[Kind.most_changed]["change"].victim == ("photos", 2)
    counts = {"people": 5, "setups": 3, "worse": 1, "better": 2, "noticed": 1.0, "alone": 1}
    assert told(judged)[Kind.compared] == counts


def test_cases_are_matched_by_what_was_attacked_and_not_by_the_attack():
    before, after = record([12.0]), record([25.0], attack=Component("stronger"))
    [change] = changes([before], [after])
    assert change.direction is Direction.worse
    for changed in (
        {"model": "cnn"},
        {"data": "cells"},
        {"people": [7]},
        {"local": Component.of(sp.FedAvg(lr=0.1, steps=4))},
        {"threat": Component("Threat", {"knows_labels": False})},
    ):
        other = [record([25.0], **changed)]
        with pytest.raises(InvalidValue, match="the two audits have nothing in common"):
            changes([before], other)


def test_a_change_is_within_noise_unless_its_interval_over_people_excludes_zero():
    def shift(newly, *, people=20):
        old = [record([12.0], people=[n]) for n in range(people)]
        new = [record([12.5], people=[n], places=[place() if n < newly else HIDDEN])
               for n in range(people)]  # fmt: skip
        [found] = shifts(changes(old, new))
        return found.direction

    assert [shift(newly) for newly in (0, 1, 2)] == ["same", "within noise", "within noise"]
    assert [shift(newly) for newly in (5, 20)] == ["worse", "worse"]
    assert shift(4, people=4) is Direction.worse, "all of a few people are no noise"


def test_repetitions_and_attacks_are_no_more_people_in_an_interval():
    def median_row(seeds):
        records = [record([p], people=[n], seed=s) for s in range(seeds)
                   for n, p in enumerate([10.0, 12.0, 30.0])]  # fmt: skip
        [row] = summarise(records)
        return row.median, row.people, defense_section(Results.of(records)).content

    assert median_row(1) == median_row(10)
    before = [record([12.0], people=[n]) for n in range(3)]
    after = [record([12.0 + 3 * (n == 0)], people=[n], seed=s) for s in range(50) for n in range(3)]
    [found] = shifts(changes(before, after))
    assert (len(found.changes), found.direction) == (3, Direction.noise)


def test_becoming_recognisable_is_worse_even_at_a_lower_psnr():
    before, after = record([18.5]), record([17.0], places=[place()])
    [change] = changes([before], [after])
    assert change.direction is Direction.worse
    assert changes([after], [before])[0].direction is Direction.better


def test_the_same_audit_twice_changes_nothing():
    same = [record([math.inf, 20.0]), record([12.0], defense=links(sp.Sign()))]
    assert {change.direction for change in changes(same, same)} == {Direction.same}
    assert comparison_verdict(changes(same, same)).main.kind is Kind.nothing_changed
    with pytest.raises(InvalidValue, match="nothing in common"):
        changes(same, [])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6))
def test_an_axis_holds_every_value_and_its_ticks_are_inside(values):
    axis = span_axis(values)
    assert all(0 <= axis.place(value) <= 100 for value in [*values, math.inf, -math.inf])
    edge = 1e-6 * (axis.high - axis.low)
    assert all(axis.low - edge <= tick <= axis.high + edge for tick in axis.ticks())
    assert 2 <= len(axis.ticks()) <= 7


def test_an_axis_is_linear():
    axis = Axis(-10.0, 30.0)
    assert [axis.place(value) for value in (-10, 0, 10, 30)] == [0.0, 25.0, 50.0, 100.0]


def test_words_are_those_of_a_sentence():
    assert list_words(["a"]) == "a"
    assert list_words([]) == ""
    assert short_names(["a(1)", "a(2)", "b(1)"]) == {"a(1)": "a(1)", "a(2)": "a(2)", "b(1)": "b"}
    knowledge = {"knows_labels": False, "knows_batch_size": True, "server": "malicious"}
    plain = Component("Threat", {**knowledge, "new": "field"})
    assert threat_words(plain) == (
        "the update, the batch size, the freedom to send any network and new='field', but not "
        "the labels"
    )
    honest = Component("Threat", {"knows_labels": True, "server": "honest"})
    assert threat_words(honest) == "the update and the labels"


@pytest.mark.parametrize("odd", ["four", [4], {"a": 1}, 4.5])
def test_arguments_of_an_altered_record_have_words_too(odd):
    assert local_words(Component("FedAvg", {"steps": odd})).startswith("FedAvg(steps=")
    assert "the update" in threat_words(Component("Threat", {"batchnorm": odd}))


@pytest.mark.parametrize("batchnorm", ["exact", "running", "unknown"])
@pytest.mark.parametrize("known", [True, False])
def test_whatever_a_threat_grants_or_withholds_has_words(known, batchnorm):
    flags = {f.name: known for f in fields(sp.Threat) if f.name.startswith("knows_")}
    words = threat_words(Component.of(sp.Threat(**flags, batchnorm=batchnorm)))
    assert "=" not in words
    assert ("but not the labels" in words) is not known


def test_what_becomes_recognisable_is_told_before_what_only_grows():
    before = [record([40.0, 15.0, 70.0])]
    after = [record([55.0, 21.0, 90.0])]
    ordered = changes(before, after)
    assert [change.victim[1] for change in ordered] == [1, 0, 2]
    assert ordered[2].direction is Direction.same, "beyond 60 dB it is all rounding"


def test_the_table_of_changes_shows_what_changed_and_counts_the_rest():
    before = [record([20.0 + n for n in range(30)])]
    after = [record([25.0 + n if n < 25 else 20.0 + n for n in range(30)])]
    text = io.StringIO()
    Console(file=text, width=100).print(change_table(changes(before, after)))
    lines = text.getvalue().splitlines()
    assert sum("worse" in line for line in lines) == 20
    assert any("and 5 more" in line for line in lines)
    assert change_table(changes(before, before)).row_count == 0


def test_labels_are_short_and_tell_defenses_apart():
    sgd = sp.defenses.dp_sgd(max_norm=2.0, noise_multiplier=0.5, batch_size=8)
    labels = {
        "no defense": (),
        "DP-SGD C=2 \N{GREEK SMALL LETTER SIGMA}=0.5": sgd.links,
        "DP-SGD C=1 noise 0.01": (sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.01)),
        "DP-SGD C=1 noise 0.01 + Sign": (
            *(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.01), sp.Sign()),
        ),
        "Clip each C=1 + Mean": (sp.ClipEach(1.0), sp.Mean()),
        "Gaussian noise \N{GREEK SMALL LETTER SIGMA}=0.01": (sp.AddGaussian(0.01),),
        "Prune 0.9 scope=update": (sp.Prune(0.9, scope="update"),),
        "MixUp k=4 + Sign": (sp.MixUp(4), sp.Sign()),
    }
    assert {label: defense_words(links(*parts)) for label, parts in labels.items()} == {
        label: label for label in labels
    }
    assert defense_words((Component("Blur", {"width": 3}),)) == "Blur(width=3)"


def test_nothing_is_merged_across_batch_sizes_or_local_computations():
    local = Component.of(sp.FedAvg(lr=0.1, steps=4))
    records = [record([30.0]), record([12.0], local=local), record([12.0, 25.0])]
    judged = verdict(records)
    assert told(judged)[Kind.identified_by_setup]["shares"] == [
        ("no defense, gradient, batch size 1", 1, 1),
        ("no defense, FedAvg 4 steps, batch size 1", 0, 1),
        ("no defense, gradient, batch size 2", 1, 2),
    ]
    assert len(changes(records, records)) == 4


def test_a_defense_that_hides_people_and_not_their_labels_is_told_apart():
    hidden = [record([12.0], people=[n], places=[HIDDEN]) for n in range(4)]
    leaking = [
        replace(
            one,
            defense=links(sp.Prune(0.99)),
            threat=Component("Threat", {"knows_labels": False}),
            scores={**one.scores, "label_accuracy": (1.0,)},
            label_chance=0.1,
        )
        for one in hidden
    ]
    found = told(verdict([*hidden, *leaking]))
    assert found[Kind.held_behind]["setups"] == ["Prune 0.99"]
    assert (found[Kind.parts_behind]["labels"], found[Kind.parts_behind]["total"]) == (4, 4)
    # And without a defense, that nobody was found says little of others.
    assert found[Kind.population]["people"] == 4
    assert found[Kind.population]["share"] == pytest.approx(0.53, abs=0.005)


def test_nobody_is_said_to_have_come_back_who_was_not_found():
    judged = told(verdict([record([12.0], places=[HIDDEN])]))
    assert not judged[Kind.worst_off]["row"].level.identified
    one = verdict([record([30.0, 12.0], exact=0.0), record([30.0], exact=1.0)], noun="images")
    assert one.main.numbers["levels"][Level.reconstructed] == 1


@pytest.mark.parametrize(
    ("bare", "kind"),
    [
        ((0, 1, 0.01), Kind.control_found_nobody),
        ((1, 4, 0.01), Kind.control_found_few),
    ],
)
def test_a_control_that_failed_is_not_said_of_people_who_were_found(bare, kind):
    judged = verdict([record([30.0], defense=links(sp.Sign()), control=Control(bare=bare))])
    assert told(judged)[kind]["finds_people"]
    assert (told(judged)[kind]["hits"], told(judged)[kind]["tested"]) == bare[:2]


@pytest.mark.parametrize(("defense", "readable"), [((), True), (links(sp.Sign()), False)])
def test_a_closed_form_that_does_not_apply_is_not_blamed_on_a_defense_that_is_not_there(
    defense, readable
):
    silent = Control(bare=(1, 1, 0.01), relevant=False)
    judged = verdict([record([12.0], places=[HIDDEN], defense=defense, control=silent)])
    control = told(judged)[Kind.control_found]
    assert (control["useless"], control["readable"]) == (True, readable)


def test_one_person_of_two_updates_is_safe_only_where_both_say_so():
    """The first update shows nothing, and of the second no attack could tell."""
    same = (("round 0", 0),)
    first = record([9.0], data="round 0", known_as=same)
    second = record([9.0], data="round 1", known_as=same, control=WEAK)
    assert Results.of([first]).strongest()[0].level is Level.not_shown
    [found] = Results.of([first, second]).strongest()
    assert found.person == same[0]
    assert found.level is Level.inconclusive
    assert not found.conclusive
    [change] = changes([second], [first, second])[:1]
    assert change.victim == ("round 1", 0)
