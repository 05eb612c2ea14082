"""Nothing found means something only if the attack finds somebody: canaries and noise."""

from dataclasses import dataclass, replace

import pytest
import torch

import seepage as sp
from seepage.audit import Audit, find_breaches, select_targets
from seepage.audit._record import Control
from seepage.audit._run_case import serial, side_by_side
from seepage.audit.results import Results
from seepage.audit.results._controls import join_controls
from seepage.core import Reconstruction
from seepage.core._chain import OnAggregate
from seepage.core._construct import Component
from seepage.core._reconstruction import Race, Trial
from seepage.data._dataset import Dataset
from seepage.domains._box import Signal
from seepage.report import Level, verdict


@dataclass(frozen=True)
class GuessByLabel:
    """Ignores the update and returns the mean of public people with the known label."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def __call__(self, observation, *, rng):
        del rng
        means = [self.inputs[self.labels == label].mean(0) for label in observation.labels]
        return Reconstruction(torch.stack(means), observation.labels)


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits", pixels=8)


def run(digits, attack, *defenses, people=4, network=(16,), executor=serial, **options):
    """Audit the first people, with controls; return the records with what the controls say."""
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=network, domain=digits.domain)],
        attacks={"attack": attack},
        defenses=[sp.chain(), *defenses],
        controls=True,
        **options,
    )
    targets = select_targets(digits, people=people, batch_size=1, start=0)
    found = audit.run(targets, executor=executor)
    return [outcome.record for outcome in found]


def levels(records):
    """The level of each person behind each defense."""
    groups = Results.of(join_controls(records)).setups
    return {
        str(setup.defense): {attempt.level for attempt in group.strongest()}
        for setup, group in groups.items()
    }


@pytest.fixture(scope="module")
def noisy(digits):
    return run(digits, sp.attacks.analytic_fc(), sp.AddGaussian(1e6))


def test_a_defense_that_hides_everybody_from_an_attack_that_works_is_told_so(noisy):
    bare, defended = levels(noisy).values()
    assert bare == {Level.reconstructed}
    # By luck one of ten comes first among nine strangers of the same label.
    assert Level.not_shown in defended
    assert not defended & {Level.recognisable, Level.reconstructed, Level.inconclusive}


def test_every_attack_has_its_controls_once_for_each_defense(noisy):
    controls = [record for record in noisy if record.control_kind]
    assert [(c.control_kind, bool(c.defense)) for c in controls] == [
        *[("canary", False)] * 3,
        ("noise", False),
        ("canary", True),
        ("noise", True),
    ]
    people = {person for record in noisy if not record.control_kind for person in record.people}
    assert not people & {person for control in controls for person in control.people}
    able = join_controls(noisy)[0].control
    assert able.able
    assert able.bare[:2] == (3, 3)
    hits, tested, _ = able.negative
    assert hits <= 3 < tested == 16, "the update of somebody else shows nobody but by luck"
    assert not able.misleading
    assert 1 < able.negative[2] <= 1.6, "one in ten, or fewer where strangers have any label"


@pytest.mark.parametrize(("size", "batches"), [(1, 3), (2, 2), (3, 1), (8, 1)])
def test_canaries_are_at_least_three_people_as_far_as_the_data_goes(digits, size, batches):
    [who] = select_targets(digits, people=size, batch_size=size)
    chosen = who.choose_canaries(who.people)
    numbers = [number for target in chosen for number in target.people]
    assert [len(target.people) for target in chosen] == [size] * batches
    assert len({*numbers, *who.people}) == len(numbers) + size
    everybody = set(range(len(digits)))
    assert [t.people for t in who.choose_canaries(everybody - set(numbers[:size]))] == [
        tuple(sorted(numbers[:size]))
    ]
    assert who.choose_canaries(everybody) == []


def test_an_attack_that_finds_nobody_reassures_nobody(digits):
    blind = sp.attacks.inverting_gradients(steps=1, restarts=1)
    records = run(digits, blind, sp.AddGaussian(1.0), people=2)
    assert all(
        found <= {Level.inconclusive, Level.singled_out} for found in levels(records).values()
    )
    assert Level.inconclusive in {level for found in levels(records).values() for level in found}
    assert "too weak to tell" in verdict(join_controls(records)).headline


def test_a_guess_from_the_label_alone_identifies_nobody_behind_any_noise(digits):
    public = digits.inputs[40:], digits.labels[40:]
    records = run(digits, GuessByLabel(*public), sp.AddGaussian(1e6), people=20)
    for found in levels(records).values():
        assert not found & {Level.recognisable, Level.reconstructed}
    identified = find_breaches(["identified=0"], join_controls(records))
    # One in ten by luck: seven of twenty has a probability of 0.2 %.
    assert len({breach.person for breach in identified}) < 7


def test_the_gate_counts_whom_the_verdict_calls_identified(noisy):
    records = join_controls(noisy)
    bare = [record for record in records if not record.defense]
    assert len(find_breaches(["identified=0"], bare)) == 4
    assert len(find_breaches(["identified=3"], bare)) == 4
    assert find_breaches(["identified=4"], bare) == []


def test_a_metric_gate_passes_where_a_guess_without_update_does_as_well(noisy):
    [first, *_] = [record for record in join_controls(noisy) if not record.defense]
    typical = replace(first, scores={"psnr": (22.0,)}, baselines={"mean": {"psnr": (23.0,)}})
    assert find_breaches(["psnr=20"], [typical]) == []
    better = replace(typical, baselines={"mean": {"psnr": (12.0,)}})
    assert len(find_breaches(["psnr=20"], [better])) == 1


def test_controls_are_kept_apart_from_people_and_survive_storage(tmp_path):
    spec = {
        "scenario": {
            "data": {"name": "digits", "people": 2, "start": 0, "pixels": 8},
            "models": {"name": "mlp", "hidden": [8]},
            "threats": {"knows_labels": True},
            "attacks": {"name": "analytic_fc"},
        }
    }
    found = sp.audit.run(spec, tmp_path / "out", device="cpu")
    assert found.complete
    assert [len(found.records), len(found.controls)] == [2, 4]
    assert {record.control.able for record in found.records} == {True}
    again = sp.audit.load_audit(tmp_path / "out")
    assert again.records == found.records
    assert again.records[0].identification == found.records[0].identification
    without = sp.audit.run({"controls": False, **spec}, device="cpu")
    assert without.controls == ()
    assert without.records[0].control is None


def with_race(records, *, defended, steps):
    """The records of an attack that a closed form decided for canaries, and this race elsewhere."""
    computed = Race("", chosen=("analytic_fc",), note="computed, not searched")
    return [
        replace(
            record,
            race=computed if not record.defense else defended,
            effort={**record.effort, "steps": 0 if not record.defense else steps},
        )
        for record in records
    ]


def test_a_canary_that_a_closed_form_found_says_nothing_about_a_search(noisy):
    race = Race("psnr", tuple(Trial("systematic", n, (9.0,)) for n in (80, 160)), ("systematic",))
    both = replace(race, trials=(*race.trials, Trial("analytic_fc", 0, (5.0,))))
    for told, expected in ((race, Level.inconclusive), (both, Level.not_shown)):
        found = levels(with_race(noisy, defended=told, steps=320))
        [hidden] = [shown for defense, shown in found.items() if "10" in defense]
        assert hidden == {expected}


def test_a_closed_form_that_cannot_read_the_update_says_nothing_about_a_search(noisy):
    race = Race("psnr", (Trial("analytic_fc", 0, (5.0,)),), ("systematic", "analytic_fc"))
    signed = [
        replace(record, defense=(Component("Sign", {}),) if record.defense else (), readable=False)
        for record in with_race(noisy, defended=race, steps=320)
    ]
    behind = [record for record in join_controls(signed) if record.defense]
    assert {attempt.level for attempt in Results.of(behind)} == {Level.inconclusive}
    [told] = [line for line in verdict(behind).details if "Positive control" in line]
    assert "a closed form found 3 of 3 people" in told
    closed = Component("analytic_fc", {})
    named = [replace(record, race=None, attack=closed) for record in signed]
    found = Results.of([record for record in join_controls(named) if record.defense])
    assert {attempt.level for attempt in found} == {Level.inconclusive}


def test_a_search_without_rehearsal_or_that_still_gained_hides_nobody(noisy):
    unrehearsed = Race("", chosen=("analytic_fc",), note="24 steps are too few to rehearse")
    once = Race("psnr", (Trial("systematic", 24, (9.0,)),), ("systematic", "analytic_fc"))
    twice = (*once.trials, Trial("systematic", 48, (12.0,)))
    rising = replace(once, trials=twice, rising=True)
    for race in (unrehearsed, once, rising):
        found = levels(with_race(noisy, defended=race, steps=24))
        [hidden] = [shown for defense, shown in found.items() if "10" in defense]
        assert hidden == {Level.inconclusive}


@dataclass(frozen=True)
class MeanOfTheLeakedLabel:
    """Reads the label off the head's bias and returns the mean of public people who have it."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def __call__(self, observation, *, rng):
        del rng
        label = int(observation.update.tensors["head.bias"].argmin())
        return Reconstruction(self.inputs[self.labels == label].mean(0, keepdim=True))


def test_a_label_that_leaks_although_it_is_withheld_identifies_nobody(digits):
    attack = MeanOfTheLeakedLabel(digits.inputs[40:], digits.labels[40:])
    records = run(digits, attack, people=20, threats=[sp.Threat(knows_labels=False)])
    places = [place for record in records for place in record.identification]
    assert {place.gallery for place in places} == {"same label"}
    identified = find_breaches(["identified=0"], join_controls(records))
    # One in ten by luck: seven of twenty has a probability of 0.2 %.
    assert len({breach.person for breach in identified}) < 7


@dataclass(frozen=True)
class ReadLabel:
    """Reads the label off the head's bias, or always says zero, and knows nothing else."""

    reads: bool

    def __call__(self, observation, *, rng):
        label = observation.update.tensors["head.bias"].argmin() if self.reads else torch.tensor(0)
        shape = (1, *observation.task.domain.shape)
        return Reconstruction(rng.uniform(shape), label.reshape(1))


@pytest.mark.parametrize("reads", [True, False])
def test_the_leaked_label_of_a_single_person_is_in_the_headline(digits, reads):
    # One in ten labels is right by chance, so it takes the canaries to tell.
    blind = sp.Threat(knows_labels=False)
    assert digits.labels[0] == 0
    records = join_controls(run(digits, ReadLabel(reads), people=1, threats=[blind]))
    headline = verdict(records).headline
    assert headline.endswith("; the label came back") == reads, headline
    [shown] = {attempt.level for attempt in Results.of(records)}
    assert shown == (Level.partly if reads else Level.inconclusive)


@dataclass(frozen=True)
class Unlike:
    """Ignores the update and returns what no public person resembles, or all of them do."""

    kind: str
    public: sp.PublicData | None = None

    def with_public(self, public):
        return replace(self, public=public)

    def __call__(self, observation, *, rng):
        del observation
        people = self.public.inputs.flatten(1)
        shape = (1, *self.public.inputs.shape[1:])
        if self.kind == "constant":
            return Reconstruction(torch.full(shape, 0.5))
        if self.kind == "outlier":
            return Reconstruction((torch.arange(people.shape[1]) % 2).float().reshape(shape))
        if self.kind == "nearest to everybody":
            central = torch.cdist(people, people).sum(1).argmin()
            return Reconstruction(people[central].reshape(shape))
        # Orthogonal to everybody: whoever is not public stands out.
        centred = people - people.mean(1, keepdim=True)
        constraints = torch.cat([centred, torch.ones_like(centred[:1])])
        drawn = rng.normal((people.shape[1],))
        left = drawn - torch.linalg.pinv(constraints) @ (constraints @ drawn)
        return Reconstruction((0.5 + 0.1 * left / left.std()).reshape(shape))


@pytest.fixture(scope="module")
def signals():
    inputs = sp.rng(5).fork("signals").uniform((130, 1, 240))
    return Dataset(
        "beats", inputs, torch.zeros(130, dtype=torch.long), Signal((1, 240)), ("a",), "drawn"
    )


@pytest.mark.parametrize("kind", ["constant", "outlier", "nearest to everybody", "orthogonal"])
def test_a_guess_built_to_stand_out_identifies_nobody(signals, kind):
    records = join_controls(run(signals, Unlike(kind), people=3))
    told = verdict(records)
    hits, tested, luck = records[0].control.negative
    assert tested >= 3
    assert f"{hits} of {tested} people were found" in " ".join(told.details)
    assert luck < 0.2
    # At least half of the strangers are unknown to the attack, so that chance is 1 in 50 at most.
    assert not find_breaches(["identified=0"], records)
    assert "too weak to tell" in told.headline


@dataclass(frozen=True)
class Insider:
    """Has seen the data set that the audit draws strangers from, and whom it attacks."""

    inputs: torch.Tensor
    attacked: tuple[int, ...]

    def __call__(self, observation, *, rng):
        del observation
        known = [n for n in range(len(self.inputs)) if n not in self.attacked]
        return Unlike("orthogonal", sp.PublicData(self.inputs[known]))(None, rng=rng)


def test_where_an_attack_finds_whoever_is_looked_for_the_headline_says_so(signals):
    records = join_controls(run(signals, Insider(signals.inputs, (0,)), people=1))
    assert find_breaches(["identified=0"], records), "the gate trips all the same"
    hits, tested, luck = records[0].control.negative
    assert hits == tested > 10 * luck
    assert records[0].control.misleading
    told = verdict(records)
    assert "this cannot be trusted: the attacks also find people who are not" in told.headline
    assert f"{hits} of {tested} people were found" in " ".join(told.details)
    assert "luck matches this well" not in " ".join(told.details)


@dataclass(frozen=True, repr=False)
class Shuffled(OnAggregate):
    """Shares the entries of every tensor in an order that nobody else knows."""

    def __call__(self, update, *, rng):
        return update.map(
            lambda tensor: tensor.flatten()[rng.permutation(tensor.numel())].reshape(tensor.shape)
        )

    def expected(self, update):
        return update


@pytest.fixture(scope="module")
def shuffled(digits):
    quick = sp.auto(effort="quick", budget=640)
    return run(digits, quick, Shuffled(), people=1, network=(8,), executor=side_by_side)


def rehearse_again(records):
    """The same with one more round of each race, in which nothing more came back."""
    return [
        replace(
            r, race=replace(r.race, trials=(*r.race.trials, replace(again, steps=2 * again.steps)))
        )
        for r in records
        if (again := next((t for t in reversed(r.race.trials) if t.steps), Trial("", 0)))
    ]


def test_behind_a_defense_that_no_closed_form_reads_the_search_has_a_control(shuffled):
    alone = [record for record in shuffled if record.control_kind == "search"]
    assert [len(record.defense) for record in alone] == [0, 0, 0]
    assert all(record.effort["simulates"] and record.race.trials for record in alone)
    bare, behind = join_controls(shuffled)
    assert not bare.control.searched, "a closed form found the person, and its canaries"
    assert behind.control.searched
    assert behind.control.able
    assert levels(shuffled)[str(behind.defense)] == {Level.inconclusive}, "one round is too few"
    assert levels(rehearse_again(shuffled))[str(behind.defense)] == {Level.not_shown}
    told = " ".join(verdict([behind]).details)
    assert "the search alone found 3 of 3 people" in told


def test_a_search_that_does_not_find_its_canaries_hides_nobody(shuffled):
    missed = [
        replace(record, identification=tuple(replace(i, rank=9) for i in record.identification))
        if record.control_kind == "search"
        else record
        for record in shuffled
    ]
    behind = join_controls(missed)[1]
    assert levels(rehearse_again(missed))[str(behind.defense)] == {Level.inconclusive}
    assert "were not singled out by the search alone" in " ".join(verdict([behind]).details)


def test_the_search_alone_is_only_a_control_where_closed_forms_cannot_speak(digits):
    def kinds(task, *defenses, data=digits):
        audit = Audit(tasks=[task], attacks={"auto": sp.auto()}, defenses=defenses, controls=True)
        cases = audit.cases(select_targets(data, people=1, batch_size=1))
        return {case.control for case in cases}

    assert "search" in kinds(sp.zoo.mlp(domain=digits.domain), sp.Sign())
    assert "search" not in kinds(sp.zoo.mlp(domain=digits.domain), sp.AddGaussian(0.1))
    # No closed form applies to the network, whose last maps have more positions than its layers
    # have outputs, so that every control is one of the search.
    large = sp.data.load("digits", pixels=32)
    assert "search" not in kinds(sp.zoo.resnet20(domain=large.domain), sp.Sign(), data=large)


def test_a_defense_of_ones_own_tells_whether_closed_forms_can_read_it(digits):
    @dataclass(frozen=True, repr=False)
    class Halved(OnAggregate):
        keeps_gradient = True

        def expected(self, update):
            return update.map(lambda tensor: tensor / 2)

    found = run(digits, sp.attacks.analytic_fc(), Halved(), Shuffled(), people=1)
    assert [record.control.relevant for record in join_controls(found)] == [True, True, False]


@pytest.mark.parametrize(
    "defense", [sp.chain(), pytest.param(sp.Clip(0.1), marks=pytest.mark.slow)], ids=str
)
def test_a_closed_form_that_explains_other_updates_but_not_this_one_hides_nobody(digits, defense):
    inputs = digits.inputs.clone()
    inputs[0] = (inputs[1] + inputs[2]) / 2
    mixed = replace(digits, inputs=inputs)
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(64,), domain=digits.domain)],
        attacks={"attack": sp.attacks.exact_batch()},
        defenses=[defense],
        controls=True,
    )
    targets = select_targets(mixed, people=3, batch_size=3, start=0)
    records = [outcome.record for outcome in audit.run(targets)]
    canaries = [r for r in records if r.control_kind == "canary" and not r.defense]
    [record] = join_controls(records)
    assert record.residual > 0.1 > 1e-3 > max(canary.residual for canary in canaries)
    assert all(place.singled_out for canary in canaries for place in canary.identification)
    assert not record.control.able
    found = Results.of([record]).strongest()
    [first] = [row for row in found if row.person == ("digits", 0)]
    assert first.level is Level.inconclusive


@dataclass(frozen=True, repr=False)
class Mapped(OnAggregate):
    """Applies a function to every tensor, which the adversary knows."""

    by: str

    def expected(self, update):
        # The first keeps nearly everything, and misleads whoever follows its slopes.
        functions = {"wrap": lambda t: torch.remainder(t, 0.01), "blank": lambda t: t * 0 + 1}
        return update.map(functions[self.by])


@pytest.mark.slow
def test_a_defense_of_ones_own_that_may_only_mislead_the_search_hides_nobody(digits):
    search = sp.attacks.inverting_gradients(steps=200, restarts=1, tv=0.0)
    found = join_controls(run(digits, search, Mapped("wrap"), Mapped("blank")))
    groups = Results.of(found).setups.values()
    flags = [{"misled" in attempt.record.effort for attempt in group} for group in groups]
    assert flags == [{False}, {True}, {False}]
    _, wrapped, blank = (
        [replace(a.record, control=replace(a.record.control, bare=(8, 8, 0.01))) for a in group]
        for group in groups
    )
    assert {a.level for a in Results.of(wrapped)} == {Level.inconclusive}
    assert {a.level for a in Results.of(blank)} == {Level.not_shown}
    assert "may only be misled" in verdict(wrapped).headline


def test_a_closed_form_that_a_defense_of_ones_own_misleads_hides_nobody_either(digits):
    found = join_controls(run(digits, sp.attacks.analytic_fc(), Mapped("wrap")))
    assert not any("simulates" in record.effort for record in found)
    assert ["misled" in record.effort for record in found] == [bool(r.defense) for r in found]
    # As where `auto` takes the closed form after a race with searches that find the canaries.
    able = Control((8, 8, 0.01))
    behind = [replace(record, control=able) for record in found if record.defense]
    unflagged = [replace(record, effort={}) for record in behind]
    said = [
        {a.level for a in Results.of(some) if not a.level.identified}
        for some in (behind, unflagged)
    ]
    assert said == [{Level.inconclusive}, {Level.not_shown}]


@dataclass(frozen=True, repr=False)
class Flipped(OnAggregate):
    """Shares the rows of every tensor in another order than it says."""

    honest: bool

    def __call__(self, update, *, rng):
        del rng
        return update.map(lambda tensor: tensor.flip(0))

    def expected(self, update):
        return self(update, rng=None) if self.honest else update


def test_a_defense_that_no_attack_can_simulate_hides_nobody(digits):
    found = run(digits, sp.attacks.analytic_fc(), Flipped(True), Flipped(False), people=1)
    said = [record.error or "" for record in found if record.defense and not record.control_kind]
    assert ["unlike the one that its `expected` gives" in error for error in said] == [False, True]
