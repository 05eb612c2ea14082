"""The calls around attacks: checks, wrappers, and several observations side by side."""

from dataclasses import dataclass, field, replace

import pytest
import torch

import seepage as sp
from seepage.attacks._adaptive import adaptive
from seepage.attacks.labels import InferLabels
from seepage.core import (
    AttackWrapper,
    BaseAttack,
    Prepared,
    Reconstruction,
    Rng,
    SideBySide,
)
from seepage.core import (
    _usable_update as usable_update,
)
from seepage.core._attack import SideBySideAttack, attack_many
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, SeepageError
from seepage.rehearsal._combine import MeanOfStarts
from seepage.rehearsal._portfolio import IgnoreDefense

PHOTOS = sp.data.load("photos")
TASK = sp.zoo.lenet()


def observe(count=3, *, size=1, **knows):
    client, threat = sp.Client(sp.Gradient(), sp.Clip(1.0)), sp.Threat(**knows)
    batches = [PHOTOS.batch(size, start=2 * i) for i in range(count)]
    return [threat.observe(client, TASK, b, rng=sp.rng(i)) for i, b in enumerate(batches)]


def guess_from(seen, rng):
    size = seen.batch_size or 1
    return Reconstruction(TASK.domain.sample(size, rng=rng), seen.labels)


@dataclass(frozen=True)
class OutOfBounds(BaseAttack):
    def run(self, observation, rng):
        return Reconstruction(torch.full((1, *TASK.domain.shape), 7.0))


@dataclass(frozen=True)
class NeedsLabels(OutOfBounds):
    needs_labels = True


@dataclass(frozen=True)
class OneInput(OutOfBounds):
    one_input = True


@dataclass(frozen=True)
class Spy:
    """A third-party attack that notes how many observations each call had."""

    calls: list[int] = field(default_factory=list, compare=False)
    refuses: Rng | None = None

    def __call__(self, observation, *, rng):
        (found,) = self.many([observation], rngs=[rng])
        return found

    def many(self, observations, *, rngs):
        self.calls.append(len(observations))
        if self.refuses in rngs:
            raise NotApplicable("one of them is refused")
        return [guess_from(*pair) for pair in zip(observations, rngs, strict=True)]


@dataclass(frozen=True)
class Mirrored(AttackWrapper):
    """A third-party wrapper."""

    def prepare(self, seen, rng):
        return Prepared(seen, lambda guess: replace(guess, inputs=guess.inputs.flip(-1)))


WRAPPERS = {
    "InferLabels": InferLabels,
    "ReadLogits": sp.attacks.ReadLogits,
    "Unmixed": sp.attacks.Unmixed,
    "adaptive": adaptive,
    "IgnoreDefense": IgnoreDefense,
    "LabelFlip": lambda attack: sp.attacks.label_flip(attack=attack),
    "third party": Mirrored,
    "wrappers of wrappers": lambda attack: adaptive(Mirrored(InferLabels(IgnoreDefense(attack)))),
    "all the way": lambda attack: Mirrored(
        IgnoreDefense(adaptive(InferLabels(sp.attacks.ReadLogits(attack))))
    ),
}


def test_a_call_checks_the_key_and_the_update_and_the_declared_knowledge():
    (seen,) = observe(1)
    with pytest.raises(InvalidValue, match="expected rng"):
        OutOfBounds()(seen, rng=0)
    with pytest.raises(NotApplicable, match="zero everywhere"):
        OutOfBounds()(replace(seen, update=seen.update.map(torch.zeros_like)), rng=sp.rng(0))
    with pytest.raises(MissingKnowledge, match="NeedsLabels needs the labels"):
        NeedsLabels()(seen, rng=sp.rng(0))
    with pytest.raises(NotApplicable, match="OneInput takes the update of one input, got one of 2"):
        OneInput()(*observe(1, size=2), rng=sp.rng(0))


def test_a_call_projects_the_guess_and_states_time_and_device():
    (seen,) = observe(1)
    guess = OutOfBounds()(seen, rng=sp.rng(0))
    assert float(guess.inputs.max()) == 1.0
    assert guess.trace.seconds > 0
    assert guess.trace.device == "cpu"


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_attack_side_by_side_and_give_what_one_by_one_gives(wrap):
    seen, keys = (
        observe(3, knows_labels=True, knows_defense=True),
        [sp.rng(7 + i) for i in range(3)],
    )
    spy = Spy()
    attack = wrap(spy)
    assert isinstance(attack, SideBySide)
    together = attack.many(seen, rngs=keys)
    assert spy.calls == [3]
    for one, key, guess in zip(seen, keys, together, strict=True):
        assert torch.equal(attack(one, rng=key).inputs, guess.inputs)


def test_several_starts_of_several_observations_run_side_by_side():
    seen, keys, spy = observe(2, knows_labels=True), [sp.rng(1), sp.rng(2)], Spy()
    together = MeanOfStarts(Mirrored(spy), 3).many(seen, rngs=keys)
    assert spy.calls == [6]
    alone = [MeanOfStarts(Mirrored(spy), 3)(s, rng=k) for s, k in zip(seen, keys, strict=True)]
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(alone, together, strict=True))


def test_observations_with_different_numbers_of_labels_are_not_attacked_in_one_call():
    seen = [*observe(2, knows_labels=True), *observe(1, size=2, knows_labels=True)]
    spy = Spy()
    found = Mirrored(spy).many(seen, rngs=[sp.rng(i) for i in range(3)])
    assert spy.calls == [2, 1]
    assert [len(guess.inputs) for guess in found] == [1, 1, 2]


@pytest.mark.parametrize("wrap", [lambda attack: attack, *WRAPPERS.values()])
def test_one_observation_that_cannot_be_attacked_does_not_cost_the_others(wrap):
    seen = observe(3, knows_labels=True, knows_defense=True)
    keys = [sp.rng(i) for i in range(3)]
    found = attack_many(wrap(Spy(refuses=keys[1])), seen, rngs=keys)
    assert [isinstance(result, SeepageError) for result in found] == [False, True, False]


def test_an_unusable_update_in_a_group_is_refused_alone():
    seen = observe(3, knows_labels=True)
    seen[1] = replace(seen[1], update=seen[1].update.map(torch.zeros_like))
    search = sp.attacks.inverting_gradients(steps=1, restarts=1)
    found = search.many(seen, rngs=[sp.rng(i) for i in range(3)])
    assert [isinstance(result, NotApplicable) for result in found] == [False, True, False]


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_no_attack_of_seepage_writes_the_final_calls_itself():
    bases = BaseAttack, SideBySideAttack, AttackWrapper
    found = [c for base in bases for c in subclasses(base) if c.__module__.startswith("seepage")]
    assert len(found) > 20
    assert [c for c in found if {"__call__", "many"} & vars(c).keys()] == []


def test_the_check_of_updates_is_still_found_in_its_old_place():
    with pytest.warns(DeprecationWarning, match=r"now seepage\.core\.require_usable"):
        from seepage.probing.usable_update import require_usable
    assert require_usable is usable_update.require_usable
