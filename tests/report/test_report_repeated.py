"""Whoever sees an update can prune it too: what is found behind pruning counts without it."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.report.records import make_record

import seepage as sp
from seepage.audit import Audit, select_targets
from seepage.audit._choices import leakages
from seepage.audit._record import Control, Record
from seepage.audit.results import Results
from seepage.audit.results._controls import join_controls
from seepage.core import Reconstruction
from seepage.core._chain import OnAggregate
from seepage.core._construct import Component
from seepage.report import Level, summarise, verdict
from seepage.report._exports import as_junit, result_rows
from seepage.report.page._people_section import record_section
from seepage.report.page._strip_sections import defense_section
from seepage.scoring._identification import Identification
from seepage.testing import ContractError, check_defense

PRUNE, NOISE = Component.of(sp.Prune(0.9)), Component.of(sp.AddGaussian(0.1))
FIRST = Identification(1, 99, "same label", 9.0, 3.0, True, 5e3, 1e3, 2e4)
HIDDEN = Identification(40, 99, "same label", 0.5, 3.0, False, 5e3, 1e3, 2e4)
ABLE = Control(bare=(3, 3, 0.01), negative=(0, 4, 0.04))


def record(psnr, defense=(), *, found=False, repeatable=0, baseline=11.0, **changed):
    """One person behind a defense."""
    plain = {
        "scores": {"psnr": (psnr,), "exact": (0.0,)},
        "baselines": {"mean": {"psnr": (baseline,)}},
        "identification": (FIRST if found else HIDDEN,),
        "control": ABLE,
    }
    return make_record(**plain | changed, defense=defense, repeatable=repeatable)


def bare(records):
    """The strongest attempt without a defense."""
    people = Results.of(records).where(defense=()).strongest()
    [found] = [row for row in people if row.person == ("photos", 0)]
    return found


def test_a_person_found_behind_pruning_is_found_without_it_and_the_page_says_where():
    records = [record(17.6), record(31.8, (PRUNE,), found=True, repeatable=1)]
    best = bare(records)
    assert (best.level, best.psnr, best.behind) == (Level.recognisable, 31.8, (PRUNE,))
    assert best.record.attack.name == "Prune 0.9, then analytic_fc"
    judged = verdict(records)
    assert judged.headline.startswith("The one person attacked was identified without a defense")
    assert any("1 of 1 people count as found behind Prune 0.9" in one for one in judged.details)
    rows = {
        (row.attack.name, row.defense): (row.worst, row.identified) for row in summarise(records)
    }
    assert rows["Prune 0.9, then analytic_fc", ()] == (31.8, 1)
    assert rows["analytic_fc", ()] == (17.6, 0)
    assert "Prune 0.9, then analytic_fc" in record_section(Results.of(records)).content
    assert "Prune 0.9, then analytic_fc" in defense_section(Results.of(records)).content
    assert as_junit("an audit", records).count("is recognisable") == 2
    assert [row["psnr"] for row in result_rows(records)] == [17.6, 31.8, 31.8]
    assert {leak.defense: leak.worst for leak in leakages(records)} == {(): 31.8, (PRUNE,): 31.8}


@pytest.mark.parametrize(
    "behind",
    [
        record(31.8, (NOISE,), found=True),
        record(31.8, (PRUNE, NOISE), found=True),
        record(31.8, (PRUNE,), found=True, repeatable=1, people=(1,)),
        record(31.8, (PRUNE,), found=True, repeatable=1, seed=1),
        record(31.8, (PRUNE,), found=True, repeatable=1, model="another network"),
        record(31.8, (PRUNE,), found=True, repeatable=1, threat=Component("Threat", {})),
        record(17.0, (PRUNE,), repeatable=1),
        # Nearer, but no nearer than a guess that needs no update.
        record(25.0, (PRUNE,), repeatable=1, baseline=26.0),
    ],
    ids=["noise", "noise last", "person", "seed", "network", "adversary", "less", "guess"],
)
def test_nothing_is_carried_over_from_another_update_or_from_behind_what_has_a_secret(behind):
    assert all(not attempt.behind for attempt in Results.of([record(17.6), behind]))
    assert bare([record(17.6), behind]).psnr == 17.6


def outdone(records):
    """What is said of people of whom more came back behind a defense than without it."""
    return [one for one in verdict(records).details if one.startswith("More came back")]


@pytest.mark.parametrize(
    "behind", [record(31.8, (NOISE,), found=True), record(19.7, (NOISE,))], ids=["found", "nearer"]
)
def test_more_behind_what_has_a_secret_says_that_the_search_without_it_was_too_weak(behind):
    [said] = outdone([record(17.6), behind])
    assert said.startswith("More came back of 1 of 1 people with Gaussian noise")
    assert said.endswith(
        f"than with no defense (of photos #0 {behind.scores['psnr'][0]} dB, and 17.6 dB): the "
        "search without it was too weak, unless the defense itself gives more away."
    )


@pytest.mark.parametrize(
    "behind",
    [
        record(31.8, (PRUNE,), found=True, repeatable=1),
        record(17.9, (NOISE,)),
        record(25.0, (NOISE,), baseline=26.0),
        record(31.8, (NOISE,), found=True, people=(1,)),
    ],
    ids=["carried over", "as near", "guess", "person"],
)
def test_nothing_is_said_where_no_more_came_back_behind_a_defense(behind):
    assert not outdone([record(17.6), behind])
    assert not outdone([behind])


def test_a_chain_is_repeated_from_any_link_on():
    noisy, both = record(12.0, (NOISE,)), record(30.0, (NOISE, PRUNE), found=True, repeatable=1)
    found = Results.of([record(17.6), noisy, both])
    carried = [(one.record.defense, one.behind) for one in found if one.behind]
    assert carried == [((NOISE,), (PRUNE,))]


def test_a_nearer_guess_that_identifies_nobody_clears_and_accuses_nobody():
    best = bare([record(17.6), record(22.0, (PRUNE,), repeatable=1)])
    assert (best.psnr, best.level, best.conclusive) == (22.0, Level.not_shown, True)
    weak = record(17.6, control=None)
    best = bare([weak, record(22.0, (PRUNE,), repeatable=1)])
    assert (best.psnr, best.level, best.conclusive) == (22.0, Level.inconclusive, False)


@dataclass(frozen=True, repr=False)
class Secret(OnAggregate):
    """Of one's own, and silent about whether it can be repeated."""

    def expected(self, update):
        return update


@dataclass(frozen=True, repr=False)
class Open(OnAggregate):
    """Of one's own, and a function of the update alone."""

    repeatable = True

    def expected(self, update):
        return update


@pytest.mark.parametrize(
    ("defense", "count"),
    [
        (sp.Prune(0.9), 1),
        (sp.chain(sp.Clip(1.0), sp.TopK(5)), 2),
        (sp.chain(sp.Quantize(4), sp.AddGaussian(0.1), sp.Sign()), 1),
        (sp.chain(sp.Sign(), sp.Dropout(0.5)), 0),
        (sp.chain(sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=1), sp.Clip(1.0)), 1),
        (sp.chain(sp.ClipEach(1.0), sp.Mean()), 0),
        (sp.chain(sp.Prune(0.5), sp.SecureAggregation(2)), 0),
        (sp.MixUp(2), 0),
        (sp.chain(), 0),
        (Secret(), 0),
        (Open(), 1),
    ],
    ids=str,
)
def test_only_links_on_a_finished_update_without_chance_or_secret_can_be_repeated(defense, count):
    assert sp.Client(sp.Gradient(), defense).chain.repeatable_links == count


def test_a_defense_that_draws_cannot_call_itself_repeatable():
    @dataclass(frozen=True, repr=False)
    class Lying(OnAggregate):
        repeatable = True

        def __call__(self, update, *, rng):
            flat = update.flat()
            return update.unflatten(flat + 1e-3 * rng.normal(flat.shape, like=flat))

        def expected(self, update):
            return update

    with pytest.raises(ContractError, match="repeatable"):
        check_defense(Lying())
    check_defense(Open())


@dataclass(frozen=True)
class ReadsSmall:
    """An attack that is at a loss before a large update."""

    def __call__(self, observation, *, rng):
        found = sp.attacks.analytic_fc()(observation, rng=rng)
        if sum(float(tensor.square().sum()) for tensor in observation.update) < 1e-5:
            return found
        return Reconstruction(torch.zeros_like(found.inputs), found.labels)


def test_a_real_audit_with_a_weak_attack_shows_what_clipping_the_update_gives():
    digits = sp.data.load("digits", pixels=8)
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(16,), domain=digits.domain)],
        attacks={"attack": ReadsSmall()},
        defenses=[sp.chain(), sp.Clip(1e-3)],
        controls=True,
    )
    targets = select_targets(digits, people=2, batch_size=1, start=0)
    records = join_controls(outcome.record for outcome in audit.run(targets))
    stored = [Record.from_plain(replace(one, control=None).plain()) for one in records]
    assert [one.repeatable for one in stored] == [0, 0, 1, 1]
    groups = {setup.defense: group for setup, group in Results.of(records).setups.items()}
    found = {row.person: row for row in groups[()].strongest()}
    behind = groups[Component.of(sp.Clip(1e-3)),].strongest()
    assert found.keys() == {row.person for row in behind}
    for attempt in behind:
        assert attempt.level.identified
        assert (found[attempt.person].level, found[attempt.person].psnr) == (
            attempt.level,
            attempt.psnr,
        )
