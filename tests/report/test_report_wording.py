"""Every kind of finding as the sentence that people read; other tests assert on its numbers."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.report.records import make_record

from seepage.audit.results import Level, Result
from seepage.audit.results._amount import Amount
from seepage.audit.results._intervals import Interval
from seepage.core._construct import Component
from seepage.report._finding import Finding
from seepage.report.wording import _TEMPLATES, Cause, Kind
from seepage.report.wording._people_words import CAUSES
from seepage.scoring._identification import Identification

FIRST = Identification(1, 99, "same label", 9.0, 3.0, True, 5e3, 1e3, 2e4)
ROW = Result(
    0,
    make_record(
        scores={"psnr": (31.25,)},
        baselines={"mean": {"psnr": (11.0,)}},
        identification=(FIRST,),
    ),
    0,
    Level.recognisable,
)
PRUNE = (Component("Prune", {"ratio": 0.9}),)
COLUMNS, LOOSE = Amount("feature_accuracy", 0.9), Amount("token_recall", 0.25)
HEAD = {"noun": "images", "where": "", "total": 3, "labels": 0, "parts": (), "ceiling": 1.0,
        "levels": Counter(), "doubtful": 0, "unsimulated": False, "because": None}  # fmt: skip
REST = {"people": 8, "updates": 2, "share": 0.776}
SHIFT = {"where": "Prune 0.9", "before": 1, "now": 2, "people": 3,
         "gained": Interval(0.5, 1.0, 1.5)}  # fmt: skip
CURVE = SimpleNamespace(
    attack=Component("dlg"),
    rising=True,
    medians=[(500, 10.0), (1000, 12.0)],
    gain=Interval(0.4, 2.0, 3.0),
)
HEADROOM = SimpleNamespace(
    scene=SimpleNamespace(model="mlp", setup=SimpleNamespace(defense=PRUNE)),
    bound=Component("CramerRao"),
    middle=SimpleNamespace(covers_every_attack=False, ceiling=20.0),
)
STANDING = {"tried": 4, "passed": 3, "gap": 2.5, "silent": 0}
PEOPLE, UPDATES = {"people": 3, "unsimulated": False}, {"updates": 4}
CHANGE = SimpleNamespace(name="photos #0", before=ROW, after=ROW)

SENTENCES = [
    (Kind.no_result_yet, {}, "There is no result yet"),
    (Kind.every_case_failed, {"reason": "out of {memory}"}, "Every case failed: out of {memory}"),
    (Kind.nothing_measured, {"reason": "no labels"}, "Nothing was measured: no labels"),
    (
        Kind.nothing_applies,
        {"reason": "no biases"},
        "Nothing was measured, since no attack applies: no biases",
    ),
    (
        Kind.identified,
        {**HEAD, "levels": Counter({Level.reconstructed: 1, Level.singled_out: 1}), "labels": 2},
        "2 of 3 people were identified: 1 image reconstructed and 1 singled out among strangers; 2 "
        "of 3 labels came back too",
    ),
    (
        Kind.identified,
        {**HEAD, "levels": Counter({Level.recognisable: 1}), "total": 1, "doubtful": 1},
        "The one person attacked was identified: recognisable; this cannot be trusted: the attacks "
        "also find people who are not there",
    ),
    (
        Kind.not_identified,
        {**HEAD, "where": " without a defense", "ceiling": 0.0105},
        "Nobody was identified without a defense (3 people attacked); in theory no attack "
        "identifies more than 1.05 % of people",
    ),
    (
        Kind.not_identified,
        {**HEAD, "labels": 2, "parts": (COLUMNS,)},
        "Nobody was identified, but the labels of 2 of 3 people and 90 % of the columns came back",
    ),
    (
        Kind.inconclusive,
        {**HEAD, "because": (Cause.no_control, 0)},
        "Inconclusive: no control was run, so the attacks may be too weak (3 people attacked)",
    ),
    (
        Kind.words_leaked,
        {**HEAD, "because": (Cause.cut, 0), "parts": (LOOSE,)},
        "Words leaked: 25 % of the different words (in no order) came back; whether anybody is "
        "identified is inconclusive: time cut the attacks short (3 people attacked)",
    ),
    (
        Kind.worst_off,
        {"row": ROW},
        "The worst-off person, photos #0, came back at 31.2 dB, first among 99 strangers of the "
        "same label (luck matches this well at most once in 1,000); a guess that needs no update "
        "reaches 11.0 dB.",
    ),
    (
        Kind.counting,
        {"updates": 4},
        "In 4 captured updates the same input of one client counts as one person; whether "
        "different inputs are of one person cannot be known, so each of them counts.",
    ),
    (
        Kind.repeated,
        {"setup": "no defense", "found": 1, "total": 2, "worst": replace(ROW, behind=PRUNE)},
        "With no defense, 1 of 2 people count as found behind Prune 0.9, which whoever sees the "
        "update can apply to it: the search without it was too weak (there photos #0 came back at "
        "31.2 dB).",
    ),
    (
        Kind.outdone,
        {"setup": "DP-SGD", "bare": "no defense", "found": 1, "total": 2, "worst": ROW,
         "without": ROW},
        "More came back of 1 of 2 people with DP-SGD than with no defense (of photos #0 31.2 dB, "
        "and 31.2 dB): the search without it was too weak, unless the defense itself gives more "
        "away.",
    ),
    (
        Kind.scarce,
        {"scarce": 1, "total": 2},
        "For 1 of 2 people only a near copy of the input counts; singling out takes 9 strangers "
        "of the same label.",
    ),
    (
        Kind.unsimulated,
        {"setups": ["Blur"]},
        "What Blur prepares is not what its prepare_expected tells those who simulate it, so a "
        "guess that explains the update may still be wrong, and none is proved.",
    ),
    (
        Kind.population,
        REST,
        "That nobody was identified is no proof for others: with 8 people in 2 updates tested, up "
        "to 78 % of a population may still be (95 % confidence).",
    ),
    (
        Kind.identified_by_setup,
        {"shares": [("batch size 1", 1, 1), ("batch size 8", 2, 8)]},
        "Identified were 1 of 1 with batch size 1 and 2 of 8 with batch size 8.",
    ),
    (
        Kind.identified_behind,
        {"shares": [("Sign", 3, 4, 0), ("Prune 0.9", 2, 4, 1)]},
        "People were still identified behind Sign (3 of 4) and Prune 0.9 (2 of 4, 1 not to be "
        "trusted).",
    ),
    (
        Kind.settled_behind,
        {"setups": ["DP-SGD"]},
        "Nobody was identified behind DP-SGD; in theory no attack does better than luck.",
    ),
    (
        Kind.held_behind,
        {"setups": ["Sign", "Clip"], **REST, "updates": 8},
        "Nobody was identified behind Sign or Clip; with 8 people tested, up to 78 % of a "
        "population may still be (95 % confidence).",
    ),
    (
        Kind.inconclusive_behind,
        {"setups": ["Sign"], "because": (Cause.close_call, 30)},
        "Inconclusive behind Sign: the person came first among strangers, but among too few to "
        "rule out luck, which takes 30.",
    ),
    (
        Kind.parts_behind,
        {"setup": "Sign", "labels": 1, "parts": (), "total": 1},
        "Behind Sign, the label came back all the same.",
    ),
    (Kind.nothing_holds, {}, "No defense tried here hides everybody."),
    (
        Kind.no_result,
        {"what": "with Sign", "failed": False},
        "No result with Sign: no attack applies.",
    ),
    (Kind.more_without_result, {"more": 2}, "No result for 2 more networks or data sets."),
    (
        Kind.certain_words,
        {"words": 1},
        "1 different word of one batch is proved to be in it.",
    ),
    (
        Kind.limit,
        {"setup": "DP-SGD", "strangers": 99, "chance": 0.0105, "luck": 0.01, "settled": True},
        "Theory: behind DP-SGD no attack on one update, known or not, puts a person first among 99 "
        "strangers in more than 1.05 % of all cases; luck does in 1 %. That settles the verdict, "
        "whatever the controls found and however long an attack searches: it is the theorem of "
        "IdentificationLimit, the blow-up of two Gaussians (Hayes et al., 2023).",
    ),
    (
        Kind.no_limit,
        {"setups": ["noise"]},
        "Theory sets no limit behind noise: nothing bounds how far one person can move the update. "
        "Clip each example before the noise, as dp_sgd does, or the whole update.",
    ),
    (
        Kind.limit_beaten,
        {"attack": "dlg", "hits": 4, "people": 8, "model": "mlp", "setup": "S", "chance": 0.02},
        "CONTRADICTION: dlg identified 4 of 8 people on mlp behind S, where any attack identifies "
        "2 % at most: the defense does not do what it says, or the attack has a bug.",
    ),
    (
        Kind.bound_beaten,
        {"headroom": HEADROOM, "attack": "dlg", "ratio": 0.5, "cases": 1},
        "CONTRADICTION: dlg came 2 times closer than CramerRao allows on mlp behind Prune 0.9 (at "
        "most 20.0 dB), over 1 case: the bound or the attack has a bug.",
    ),
    (
        Kind.bound_on_people,
        {"share": 0.0105},
        "no attack identifies more than 1.05 % of people",
    ),
    (Kind.bound_silent, {}, "says nothing"),
    (Kind.bound_contradicted, STANDING, "BEATEN: one of the two has a bug"),
    (
        Kind.bound_without_attack,
        {**STANDING, "silent": 3},
        "no attack to compare with; says nothing of 3",
    ),
    (Kind.bound_holds, STANDING, "holds for 4 people, 2.5 dB above"),
    (
        Kind.bound_looser_than_guess,
        STANDING,
        "a guess without any update is closer, for 3 of 4",
    ),
    (Kind.bound_passed_by_luck, STANDING, "closer for 3 of 4, no more than luck explains"),
    (
        Kind.bound_passed_by_bias,
        STANDING,
        "closer for 3 of 4, by bias or luck: the bound covers unbiased attacks only",
    ),
    (
        Kind.bound_passed_by_prior,
        STANDING,
        "closer for 3 of 4, by what the bound leaves out: a prior, or luck",
    ),
    (
        Kind.effort,
        {"rising": 1, "total": 2, "most": ("Sign", CURVE)},
        "Effort: 1 of 2 curves may still rise. With Sign, dlg may still rise: from 500 to 1,000 "
        "steps, doubling them gains +2.0 dB (+0.4 to +3.0).",
    ),
    (
        Kind.effort,
        {"rising": 0, "total": 1, "most": None},
        "Effort: 0 of 1 curve may still rise: doubling the steps gains little.",
    ),
    (Kind.control_without_result, {}, "Positive control: it gave no result."),
    (
        Kind.control_found,
        {"hits": 3, "tested": 4, "by_search": True, "by_form": False, "useless": False,
         "readable": True},
        "Positive control: without a defense the search alone found 3 of 4 people whom the audit "
        "had chosen itself.",
    ),
    (
        Kind.control_found,
        {"hits": 3, "tested": 4, "by_search": False, "by_form": True, "useless": True,
         "readable": False},
        "Positive control: without a defense a closed form found 3 of 4 people whom the audit had "
        "chosen itself, but behind the defense it has no gradient to read.",
    ),
    (
        Kind.control_found_few,
        {"hits": 1, "tested": 4, "alone": False, "finds_people": False},
        "Positive control: only 1 of 4 people whom the audit had chosen itself were found, even "
        "without a defense.",
    ),
    (
        Kind.control_found_nobody,
        {"hits": 0, "tested": 4, "alone": True, "finds_people": False},
        "Positive control: people whom the audit had chosen itself were not singled out by the "
        "search alone, not even without a defense.",
    ),
    (
        Kind.negative_control,
        {"hits": 3, "tested": 40, "luck": 0.4, "misleading": ["dlg"]},
        "Negative control: in guesses made from other updates, 3 of 40 people were found, where "
        "luck finds 0.4. With dlg that is more than luck explains.",
    ),
    (
        Kind.masked,
        {"setups": ["Sign"]},
        "Masked: behind Sign, searches that ignore the defense recovered more in rehearsal than "
        "those that simulate it. It misleads the search more than it hides the data.",
    ),
    (
        Kind.rehearsal_rising,
        {"setups": ["Sign"]},
        "With Sign, more steps still recovered more in rehearsal; a higher effort may find more.",
    ),
    (
        Kind.made_up,
        {},
        "Rehearsals used made-up inputs, since no public ones were given.",
    ),
    (
        Kind.nothing_assumed,
        {"update": "captured updates"},
        "No defense was assumed behind the captured updates; if the client used one, name it with "
        "--defense, so that the attacks allow for it.",
    ),
    (
        Kind.assumed,
        {"update": "captured update", "defenses": ["Clip", "Sign"]},
        "Assumed behind the captured update, as given: Clip or Sign.",
    ),
    (
        Kind.words_proved,
        {**PEOPLE, "noun": "texts", "words": 9},
        "9 different words of 3 people came back in no order, each proved to be in the batch",
    ),
    (
        Kind.layer_read,
        {**PEOPLE, "noun": "images", "sure": 2},
        "What the first layer read of 2 of 3 people came back",
    ),
    (
        Kind.proved,
        {**PEOPLE, "noun": "images", "proof": "right to 8 bits"},
        "The images of 3 people came back, proved right to 8 bits",
    ),
    (
        Kind.explained,
        {**PEOPLE, "noun": "images", "unsimulated": True},
        "What came back explains the update of 3 people; others might as well; the defense could "
        "not be simulated",
    ),
    (
        Kind.not_proved,
        {**PEOPLE, "noun": "images"},
        "Cannot tell what leaked of 3 people: the guesses are not proved right, and there is no "
        "truth to compare with",
    ),
    (
        Kind.layers_read,
        {**UPDATES, "noun": "images", "read": 3, "unsimulated": False},
        "What the first layer read came back from 3 of 4 updates",
    ),
    (
        Kind.updates_proved,
        {**UPDATES, "noun": "images", "proved": 2, "proofs": ["right to 8 bits"], "explained": 3,
         "unsimulated": False},
        "The images of 2 of 4 updates came back, proved right to 8 bits; a guess explains 3",
    ),
    (
        Kind.updates_explained,
        {**UPDATES, "noun": "images", "explained": 3, "unsimulated": False},
        "What came back explains 3 of 4 updates; others might as well",
    ),
    (
        Kind.updates_not_proved,
        {**UPDATES, "noun": "images", "read": 0, "unsimulated": False},
        "Cannot tell what leaked from 4 updates: no guess is proved right, and there is no truth "
        "to compare with",
    ),
    (
        Kind.read_off_embeddings,
        {"attack": "dager"},
        "dager read them off the gradient of the embeddings.",
    ),
    (
        Kind.not_checked,
        {"attack": "dlg"},
        "The guess of dlg could not be checked: it comes without labels.",
    ),
    (
        Kind.layer_solved,
        {"attack": "rgap", "residual": 0.3},
        "rgap solved the equations of that layer, which have no other solution. The whole update, "
        "recomputed at the guess, differs by 0.3 of its length in some layer, as it does behind "
        "dropout, which cannot be simulated. So labels could not be checked, and if the client "
        "mixed its inputs, these are mixtures.",
    ),
    (
        Kind.residual,
        {"attack": "dlg", "residual": 23.4},
        "The update recomputed at the guess of dlg differs from the captured one by 23 times its "
        "length, in the layer where it differs most.",
    ),
    (
        Kind.no_proof_of_nothing,
        {},
        "That is no proof that nothing leaked: a guess may show a person without explaining the "
        "update to the last digit. Look at the pictures, or give the truth.",
    ),
    (Kind.nothing_changed, {}, "Nothing changed"),
    (Kind.noise_only, {}, "Nothing changed beyond noise"),
    (
        Kind.less_leaks,
        {**SHIFT, "more": 0},
        "Less leaks than before: with Prune 0.9, 1 of 3 identified before and 2 now (+1.0 dB, "
        "interval +0.5 to +1.5)",
    ),
    (
        Kind.more_leaks,
        {**SHIFT, "more": 2},
        "More leaks than before: with Prune 0.9, 1 of 3 identified before and 2 now (+1.0 dB, "
        "interval +0.5 to +1.5), and 2 setups more",
    ),
    (
        Kind.within_noise,
        SHIFT,
        "Within noise: with Prune 0.9, 1 of 3 identified before and 2 now (+1.0 dB, interval +0.5 "
        "to +1.5).",
    ),
    (
        Kind.most_changed,
        {"change": CHANGE, "where": "Prune 0.9"},
        "Most: photos #0 with Prune 0.9, recognisable before (31.2 dB) and recognisable now (31.2 "
        "dB).",
    ),
    (
        Kind.compared,
        {"people": 5, "setups": 2, "worse": 1, "better": 1, "noticed": 1.0, "alone": 2},
        "Compared: 5 people of 2 setups (1 worse, 1 better, 3 within 1 dB); 2 are in one audit "
        "only.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "numbers", "sentence"), SENTENCES)
def test_a_finding_reads_as_a_sentence(kind, numbers, sentence):
    assert str(Finding(kind, numbers=numbers)) == sentence


def test_every_kind_and_every_cause_has_words_and_every_kind_is_shown_above():
    assert set(_TEMPLATES) == set(Kind) == {kind for kind, _, _ in SENTENCES}
    assert set(CAUSES) == set(Cause)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replace(ROW, level=Level.reconstructed), "photos #0, came back exactly, first among 99"),
        (replace(ROW, level=Level.not_shown), "was not identified: the best guess has 31.2 dB"),
        (
            replace(
                ROW,
                level=Level.not_shown,
                record=replace(ROW.record, identification=(replace(FIRST, rank=7),)),
            ),
            "the best guess has 31.2 dB, place 7 among 99 strangers of the same label",
        ),
        (
            replace(
                ROW,
                level=Level.not_shown,
                record=replace(
                    ROW.record, identification=(replace(FIRST, rank=2, exact=True, copies=3),)
                ),
            ),
            "although a guess is exact: it is the input of 3 others in the data too",
        ),
    ],
)
def test_the_worst_off_person_is_told_with_the_place_among_strangers(row, said):
    assert said in str(Finding(Kind.worst_off, numbers={"row": row}))
