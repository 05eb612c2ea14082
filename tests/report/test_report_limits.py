"""The most that any attack can identify behind clipping and noise, against the best attack."""

from dataclasses import dataclass, replace

import pytest
import torch
from scipy import integrate, stats
from tests.report.records import make_record

import seepage as sp
from seepage.audit import Audit, select_targets
from seepage.audit._record import Control
from seepage.audit._run_case import run_case
from seepage.audit.results import Results
from seepage.bounds import BOUNDS, CandidateError, IdentificationLimit
from seepage.bounds._dp_limits import read_guaranteed_noise
from seepage.core._chain import Chain
from seepage.core._construct import Component
from seepage.core._reconstruction import Race, Trial
from seepage.report import Level, explain_silence, headrooms, read_headroom, verdict
from seepage.report._limits import _find_limit, find_beaten, find_limits
from seepage.report.wording import Kind
from seepage.scoring._identification import Identification

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
    limit = IdentificationLimit(strangers=candidates - 1)
    assert limit.luck <= best + 1e-9
    assert best <= limit.chance(noise_multiplier=noise)
    # Of two candidates on opposite sides the best attack reaches the limit.
    opposite = stats.norm.cdf(mu)
    assert opposite <= IdentificationLimit(1).chance(noise_multiplier=noise) + 1e-12


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
        assert named <= IdentificationLimit(count - 1).chance(noise_multiplier=noise) + 0.03


def test_the_limit_falls_to_luck_as_the_noise_grows():
    limit = IdentificationLimit(99)
    chances = [limit.chance(noise_multiplier=noise) for noise in (0.1, 1.0, 10.0, 1e6)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.999
    assert chances[-1] == pytest.approx(0.01, rel=1e-4)


def record(defense, places=(HIDDEN,) * 8, **changed):
    """Eight people of one batch behind a defense."""
    count = len(places)
    plain = {
        "people": tuple(range(count)),
        "defense": tuple(map(Component.of, Chain.of(defense).links)),
        "threat": Component("Threat", {"knows_labels": True, "batchnorm": "running"}),
        "attack": Component("dlg"),
        "scores": {"psnr": (9.0,) * count, "exact": (0.0,) * count},
        "identification": tuple(places),
        "control": Control(bare=(3, 3, 0.01)),
    }
    return make_record(**plain | changed)


STRONG = sp.dp_sgd(max_norm=1.0, noise_multiplier=50.0, batch_size=8)


def test_the_verdict_tells_the_limit_where_there_is_one():
    [limit] = find_limits(Results.of([record(STRONG)]))
    assert (limit.kind, limit.numbers["strangers"]) == (Kind.limit, 99)
    assert limit.numbers["chance"] == pytest.approx(0.0105, abs=1e-4)
    assert limit in verdict([record(STRONG)]).findings
    weak = sp.dp_sgd(max_norm=1.0, noise_multiplier=0.1, batch_size=8)
    assert find_limits(Results.of([record(weak)])) == []
    assert find_limits(Results.of([record(sp.Prune(0.9))])) == []
    [refused] = find_limits(Results.of([record(sp.AddGaussian(1e6))]))
    assert refused.kind is Kind.no_limit
    assert refused.numbers["setups"] == ["Gaussian noise \N{GREEK SMALL LETTER SIGMA}=1e+06"]


def test_a_limit_asks_for_one_gradient_and_nothing_beside_it():
    assert _find_limit(record(STRONG), 99) is not None
    assert _find_limit(record(STRONG, local=Component("FedAvg", {"lr": 0.1})), 99) is None
    told = Component("Threat", {"batchnorm": "exact"})
    assert _find_limit(record(STRONG, threat=told), 99) is None
    silent = sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=8)
    assert _find_limit(record(silent), 99) is None


def test_an_attack_that_beats_the_limit_raises_an_alarm():
    beaten = Results.of([record(STRONG, [FOUND] * 4 + [HIDDEN] * 4)])
    [alarm] = find_beaten(beaten)
    assert alarm.kind is Kind.limit_beaten
    assert (alarm.numbers["attack"], alarm.numbers["hits"], alarm.numbers["people"]) == (
        "dlg",
        4,
        8,
    )
    lucky = Results.of([record(STRONG, [FOUND] + [HIDDEN] * 7)])
    assert find_beaten(lucky) == []
    assert find_beaten(Results.of([record(sp.Prune(0.9), [FOUND] * 8)])) == []


def test_a_mean_over_the_batch_divides_by_its_size():
    chain = (sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.25))
    assert read_guaranteed_noise(chain, sp.Gradient(), 8) == 2.0
    assert read_guaranteed_noise(chain, sp.FedAvg(lr=0.1, steps=2), 8) == 0.0


def bound(defense, local=None, size=2):
    """What the limit says of a client, asked for directly."""
    digits = sp.data.bundled("digits", size=size)
    task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 28, 28)))
    client = sp.Client(local or sp.Gradient(), defense)
    return BOUNDS["IdentificationLimit"](strangers=99)(client, task, digits, rng=sp.rng(0))


CLIPPED = {
    "whole update": sp.chain(sp.Clip(2.0), sp.AddGaussian(4.0)),
    "behind pruning": sp.chain(sp.Prune(0.5), sp.Clip(2.0), sp.AddGaussian(4.0), sp.Sign()),
    "each of two": sp.chain(sp.ClipEach(2.0), sp.Mean(), sp.AddGaussian(2.0)),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_the_limit_behind_any_sound_order_is_that_of_its_noise(name):
    found, defense = bound(CLIPPED[name]), CLIPPED[name]
    expected = stats.norm.cdf(stats.norm.ppf(0.01) + 0.5)
    assert found.value.tolist() == pytest.approx([expected] * 2)
    assert (found.side, found.metric, found.remark) == ("upper", "identified", "")
    told = _find_limit(record(defense, places=(HIDDEN,) * 2), 99)
    assert told is not None
    assert told.chance == pytest.approx(expected)


@pytest.mark.parametrize("over", [None, 8])
def test_the_limit_holds_for_clients_that_average_over_their_part_of_a_batch(over):
    # Four clients of two examples: the best attack on one that moves its client's sum by the
    # clipping norm, among the combined noise of all four.
    defense = sp.chain(
        sp.ClipEach(1.0), sp.Mean(over=over), sp.AddGaussian(0.5), sp.SecureAggregation(4)
    )
    moved, spread = 2 / (over or 2) / 4, 0.5 * 4**0.5 / 4
    best = stats.norm.cdf(stats.norm.ppf(0.01) + moved / 2 / spread)
    found = bound(defense, size=8)
    assert best <= float(found.value.min())
    told = _find_limit(record(defense), 99)
    assert told is not None
    assert told.chance == pytest.approx(float(found.value.min()))


UNSOUND = {
    "no clipping": sp.AddGaussian(1e6),
    "noise first": sp.chain(sp.AddGaussian(4.0), sp.Clip(2.0)),
    "pruned between": sp.chain(sp.Clip(2.0), sp.Prune(0.5), sp.AddGaussian(4.0)),
    "no noise": sp.Clip(2.0),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_without_clipping_before_the_noise_there_is_no_limit_and_it_says_so(name):
    found = bound(UNSOUND[name])
    assert found.vacuous
    assert found.value.tolist() == [1.0, 1.0]
    assert "nothing bounds how far one person can move the update" in found.remark
    assert _find_limit(record(UNSOUND[name]), 99) is None


def test_clipping_a_whole_update_limits_several_steps_too_and_dp_sgd_does_not():
    steps = sp.FedAvg(lr=0.1, steps=2)
    assert not bound(CLIPPED["whole update"], steps).vacuous
    assert _find_limit(record(CLIPPED["each of two"], local=Component("FedAvg")), 99) is None


def test_the_best_attack_on_clipped_updates_stays_below_the_limit():
    # Candidates on a circle of the clipping norm about zero, as far apart as they can be.
    norm, std, trials = 1.0, 1.5, 20_000
    draw = sp.rng(3)
    for count in (2, 5, 40):
        points = torch.eye(count, dtype=torch.float64) * norm if count > 2 else opposite(norm)
        noise = draw.fork(count).normal((trials, count), like=points)
        who = torch.arange(trials) % count
        seen = points[who] + std * noise
        named = torch.cdist(seen, points).argmin(1) == who
        limit = IdentificationLimit(count - 1).chance(noise_multiplier=std / norm)
        assert float(named.double().mean()) <= limit + 3 * (limit / trials) ** 0.5


def opposite(norm):
    return torch.tensor([[norm, 0.0], [-norm, 0.0]], dtype=torch.float64)


def test_a_spec_can_name_the_limit_and_the_tables_tell_it():
    clip, noise = {"name": "Clip", "max_norm": 1.0}, {"name": "AddGaussian", "std": 50.0}
    scenario = {
        "data": {"name": "digits", "people": 2},
        "models": [{"name": "mlp", "hidden": [8]}],
        "attacks": [{"name": "analytic_fc"}],
        "defenses": [[clip, noise], noise],
        "bounds": [{"name": "IdentificationLimit", "strangers": 99}],
    }
    spec = {"controls": False, "scenario": [scenario]}
    found = sp.audit.run(spec)
    clipped, bare = headrooms(Results.of(found.records), found.bounds)
    assert read_headroom(clipped) == "no attack identifies more than 1.05 % of people"
    assert read_headroom(bare) == "says nothing"
    [why] = explain_silence([clipped, bare])
    assert why.startswith("IdentificationLimit says nothing behind Gaussian noise")


SETTLED = {"effort": {"guaranteed_noise": 50.0}, "control": None}


def test_a_theorem_that_leaves_any_attack_luck_alone_settles_the_verdict():
    open_ = record(STRONG, control=None)
    assert {a.level for a in Results.of([open_])} == {Level.inconclusive}
    settled = record(STRONG, **SETTLED)
    assert {a.level for a in Results.of([settled])} == {Level.not_shown}
    told = verdict([settled])
    assert told.headline.startswith("Nobody was identified")
    words = " ".join(told.details)
    assert "the theorem of IdentificationLimit" in words
    assert "in theory no attack does better than luck" in words
    assert "That settles the verdict" not in " ".join(verdict([open_]).details)


def test_a_theorem_settles_what_a_search_that_was_cut_or_may_gain_leaves_open():
    trials = (Trial("inverting_gradients()", 100, (9.0,), ""),)
    race = Race("psnr", trials, ("inverting_gradients()",), "residual", rising=True, cut=True)
    effort = {"steps": 100, "cut": 1, "simulates": 1}
    left = record(STRONG, effort=effort, race=race)
    assert {a.level for a in Results.of([left])} == {Level.inconclusive}
    assert "a higher effort may find more" in " ".join(verdict([left]).details)
    settled = record(STRONG, effort=effort | SETTLED["effort"], race=race)
    assert {a.level for a in Results.of([settled])} == {Level.not_shown}
    assert "may find more" not in " ".join(
        [*verdict([settled]).details, verdict([settled]).headline]
    )


KNOWS, DOES_NOT = (Component("Threat", {"knows_labels": known}) for known in (True, False))
ANY = [replace(HIDDEN, gallery="any label")] * 8
UNSETTLED = {
    "noise that leaves more than luck": {"effort": {"guaranteed_noise": 5.0}},
    "strangers who were made up": {"places": [replace(HIDDEN, gallery="synthetic")] * 8},
    "strangers of other labels than the known one": {"places": ANY, "threat": KNOWS},
    "a step that is not the loop's": {"effort": {"guaranteed_noise": 50.0, "foreign": 1}},
    "no noise that is known of": {"effort": {}},
}


@pytest.mark.parametrize("why", UNSETTLED)
def test_a_theorem_settles_nothing_beyond_what_it_says(why):
    found = Results.of([record(STRONG, **SETTLED | UNSETTLED[why])])
    assert {a.level for a in found} == {Level.inconclusive}


def test_a_theorem_settles_it_among_strangers_of_any_label_if_nobody_knows_the_label():
    found = Results.of([record(STRONG, places=ANY, threat=DOES_NOT, **SETTLED)])
    assert {a.level for a in found} == {Level.not_shown}


def test_a_theorem_does_not_hide_whoever_was_identified():
    found = Results.of([record(STRONG, [FOUND] * 4 + [HIDDEN] * 4, **SETTLED)])
    assert [a.level.identified for a in found] == [True] * 4 + [False] * 4
    assert not any(limit.numbers["settled"] for limit in find_limits(found))


def test_each_network_and_adversary_must_be_settled():
    other = record(STRONG, control=None, model="resnet20")
    found = Results.of([record(STRONG, **SETTLED), other]).strongest()
    assert {a.level for a in found} == {Level.inconclusive}


@dataclass(frozen=True)
class Clip:
    """Named as Seepage's clipping, and clips nothing."""

    max_norm: float
    consumes = produces = "aggregate"

    def __call__(self, update, *, rng):
        del rng
        return update

    def expected(self, update):
        return update


def run_behind(defense, *, attack=None, local=None, people=2, start=0, inputs=None, **threat):
    """The effort of one attack on one batch of digits behind a defense."""
    digits = sp.data.load("digits", pixels=8)
    if inputs is not None:
        digits = replace(digits, inputs=inputs)
    grid = Audit(
        tasks=[sp.zoo.mlp(hidden=(16,), domain=digits.domain)],
        attacks={"attack": attack or sp.attacks.inverting_gradients(steps=1, restarts=1)},
        defenses=[defense],
        locals=[local or sp.Gradient()],
        threats=[sp.Threat(**{"knows_labels": True} | threat)],
        controls=False,
    )
    [case, *_] = grid.cases(select_targets(digits, people=people, batch_size=people, start=start))
    return run_case(case).record


SOUND = sp.dp_sgd(max_norm=1.0, noise_multiplier=50.0, batch_size=2)


def test_noise_counts_only_where_every_assumption_of_the_theorem_is_met():
    assert run_behind(SOUND).effort["guaranteed_noise"] == pytest.approx(50.0)
    steps = {"local": sp.FedAvg(lr=0.1, steps=2)}
    whole = sp.chain(sp.Clip(2.0), sp.AddGaussian(100.0))
    assert run_behind(whole, **steps).effort["guaranteed_noise"] == pytest.approx(50.0)
    twice = sp.data.load("digits", pixels=8).inputs.clone()
    twice[1] = twice[0]
    unsure = {
        "a clipping of one's own": run_behind(sp.chain(Clip(1.0), sp.AddGaussian(50.0))),
        "no clipping": run_behind(sp.AddGaussian(1e6)),
        "statistics besides": run_behind(SOUND, batchnorm="exact"),
        "a person with two examples": run_behind(SOUND, inputs=twice),
        "a dishonest server": run_behind(SOUND, server="malicious"),
    }
    assert {why for why, found in unsure.items() if found.error} == set()
    assert {why for why, found in unsure.items() if "guaranteed_noise" in found.effort} == set()


def test_auto_behind_noise_that_hides_everybody_needs_no_more_steps():
    digits = sp.data.load("digits", pixels=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    batch, rest = digits.batch(2), digits.batch(80, start=10)
    others = torch.cat([rest.inputs, rest.inputs.flip(-1), rest.inputs.roll(1, -1)])
    levels = []
    for noise in (50.0, 2.0):
        audited = sp.audit_step(
            model,
            torch.nn.CrossEntropyLoss(),
            (batch.inputs, batch.labels),
            domain=digits.domain,
            defense=sp.dp_sgd(max_norm=1.0, noise_multiplier=noise, batch_size=2),
            others=sp.PublicData(others, rest.labels.repeat(3)),
            seconds=600.0,
            steps=15,
        )
        # Luck alone may single somebody out.
        levels.append({a.level for a in audited.people.values() if not a.level.identified})
    assert Level.inconclusive not in levels[0]
    assert Level.not_shown not in levels[1]
