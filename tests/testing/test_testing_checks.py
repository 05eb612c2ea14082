"""The public checks can fail: each law is broken once, and named."""

from dataclasses import dataclass, replace

import pytest
import torch

import seepage as sp
from seepage.defenses import Clip
from seepage.scoring import METRICS
from seepage.testing import (
    ContractError,
    check_attack,
    check_defense,
    check_knowledge,
    check_metric,
)


@dataclass(frozen=True)
class Halve:
    """A lawful defense; the others differ from it in one thing."""

    share: float = 0.5
    consumes = produces = "aggregate"

    def __call__(self, update, *, rng):
        return self.expected(update)

    def expected(self, update):
        return update.map(lambda t: t * self.share)


@dataclass(frozen=True)
class MutatesItsArgument(Halve):
    def __call__(self, update, *, rng):
        for tensor in update:
            tensor.mul_(self.share)
        return update


@dataclass(frozen=True)
class ExpectsSomethingElse(Halve):
    def __call__(self, update, *, rng):
        return update


@dataclass(frozen=True)
class DrawsGlobally(Halve):
    def __call__(self, update, *, rng):
        return update.map(lambda t: t + torch.randn(t.shape, dtype=t.dtype))


@dataclass(frozen=True)
class IsNeverNeutral(Halve):
    def expected(self, update):
        return update.map(lambda t: t * self.share + 1e-3)


@dataclass(frozen=True)
class LosesPrecision(Halve):
    def expected(self, update):
        return update.map(torch.Tensor.float)


@dataclass(frozen=True)
class TurnsAround(Halve):
    def expected(self, update):
        return replace(update, kind="difference")


@dataclass(frozen=True)
class SaysItCombines(Halve):
    produces = "per_example"


class CanBeChanged:
    consumes = produces = "aggregate"
    __call__ = Halve.__call__
    share = 0.5
    expected = Halve.expected


@dataclass(frozen=True)
class ForgetsItsFields(Halve):
    def __post_init__(self):
        object.__setattr__(self, "share", self.share / 2)


def test_a_lawful_defense_passes():
    check_defense(Halve(), neutral=Halve(1.0))


@pytest.mark.parametrize(
    ("defense", "law"),
    [
        (MutatesItsArgument(), "arguments are not changed"),
        (ExpectsSomethingElse(), "`expected` is the mean of many calls"),
        (DrawsGlobally(), "the same key gives the same result"),
        (LosesPrecision(), "names, shapes and dtype are kept"),
        (TurnsAround(), "a gradient stays a gradient"),
        (SaysItCombines(), "it gives what it says it produces"),
        (CanBeChanged(), "it is a frozen dataclass"),
        (ForgetsItsFields(), "its fields rebuild it"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_defense_that_breaks_a_law_is_told_which(defense, law):
    with pytest.raises(ContractError, match=law):
        check_defense(defense)


def test_a_defense_whose_zero_strength_does_something_is_told():
    with pytest.raises(ContractError, match="zero strength is the identity"):
        check_defense(IsNeverNeutral(), neutral=IsNeverNeutral(1.0))


def test_a_bias_of_the_expected_part_shows_through_the_noise():
    @dataclass(frozen=True)
    class Shifted(sp.AddGaussian):
        def expected(self, update):
            return update.map(lambda t: t + 0.05)

    check_defense(sp.AddGaussian(0.1))
    with pytest.raises(ContractError, match="mean of many calls"):
        check_defense(Shifted(0.1))


def test_rounding_is_forgiven_no_more_than_was_asked_for():
    check_defense(sp.Quantize(4), rounding=0.5 / 7)
    with pytest.raises(ContractError, match="mean of many calls"):
        check_defense(sp.Quantize(4), rounding=0.25 / 7)


class Reduces:
    name, higher_leaks_more = "reduces", False

    def __call__(self, paired):
        return METRICS["mse"](paired).mean()


class PointsTheWrongWay:
    name, higher_leaks_more = "wrong", True

    def __call__(self, paired):
        return METRICS["mse"](paired)


class ComparesPeople:
    """Follows any permutation, and yet one person's number depends on the others."""

    name, higher_leaks_more = "relative", False

    def __call__(self, paired):
        errors = METRICS["mse"](paired)
        return errors / (1 + errors.mean())


class AddsUp:
    name, higher_leaks_more = "sums", False

    def __call__(self, paired):
        return METRICS["mse"](paired).cumsum(0)


class Clamps:
    name, higher_leaks_more = "clamps", False

    def __call__(self, paired):
        paired.guess.round_()
        return METRICS["mse"](paired)


class Wavers:
    name, higher_leaks_more = "wavers", False

    def __call__(self, paired):
        errors = METRICS["mse"](paired)
        return errors * (1 + torch.rand(errors.shape))


@pytest.mark.parametrize(
    ("metric", "law"),
    [
        (Reduces(), "one number per example"),
        (PointsTheWrongWay(), "the truth leaks most"),
        (ComparesPeople(), "no score depends on another example's"),
        (AddsUp(), "scores follow a permutation"),
        (Clamps(), "arguments are not changed"),
        (Wavers(), "it is deterministic"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_metric_that_breaks_a_law_is_told_which(metric, law):
    with pytest.raises(ContractError, match=law):
        check_metric(metric)


class Reads:
    """A lawful attack on a first layer; the others differ from it in one thing."""

    def __call__(self, seen, *, rng):
        return sp.attacks.analytic_fc()(seen, rng=rng)


class RollsDice(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        noise = 1e-4 * torch.rand(guess.inputs.shape)
        return replace(guess, inputs=seen.task.domain.project(guess.inputs + noise))


class ScalesTheUpdate(Reads):
    def __call__(self, seen, *, rng):
        for tensor in seen.update:
            tensor.mul_(2.0)
        return super().__call__(seen, rng=rng)


class TouchesTheModel(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        next(iter(seen.task.parameters.values())).mul_(2.0)
        return guess


class LeavesTheRange(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        return replace(guess, inputs=guess.inputs + 1)


class GivesOneTooMany(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        return replace(guess, inputs=guess.inputs.repeat(2, 1, 1, 1), labels=None)


class GivesNaN(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        return replace(guess, inputs=torch.full_like(guess.inputs, torch.nan))


class HidesItsEffort(Reads):
    def __call__(self, seen, *, rng):
        return replace(super().__call__(seen, rng=rng), trace=sp.Trace())


class FindsNothing(Reads):
    def __call__(self, seen, *, rng):
        guess = super().__call__(seen, rng=rng)
        return replace(guess, inputs=seen.task.domain.sample(len(guess.inputs), rng=rng))


@pytest.fixture
def scenario():
    photos = sp.data.load("photos")
    return {
        "task": sp.zoo.mlp(hidden=(16,), domain=photos.domain),
        "batch": photos.batch(1),
        "client": sp.Client(sp.Gradient()),
    }


def test_a_lawful_attack_passes(scenario):
    check_attack(Reads(), at_least=60, **scenario)


@pytest.mark.parametrize(
    ("attack", "law"),
    [
        (RollsDice(), "the same key gives the same guess"),
        (ScalesTheUpdate(), "the observation is not changed"),
        (TouchesTheModel(), "the observation is not changed"),
        (LeavesTheRange(), "its guess is valid in the domain"),
        (GivesOneTooMany(), r"its guess has shape \(1, 3, 32, 32\)"),
        (GivesNaN(), "its guess is finite"),
        (HidesItsEffort(), "it reports its effort"),
        (FindsNothing(), r"it recovers 60 dB here \(got \d"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attack_that_breaks_a_law_is_told_which(attack, law, scenario):
    with pytest.raises(ContractError, match=law):
        check_attack(attack, at_least=60, **scenario)


def test_an_attack_that_is_worse_for_knowing_the_defense_is_told(scenario):
    class GivesUpWhenDefended(Reads):
        def __call__(self, seen, *, rng):
            if isinstance(seen.simulate.client.defense, Clip):
                return FindsNothing()(seen, rng=rng)
            return super().__call__(seen, rng=rng)

    scenario["client"] = sp.Client(sp.Gradient(), Clip(0.1))
    check_knowledge(Reads(), **scenario)
    with pytest.raises(ContractError, match=r"knowing Clip\(0.1\) never hurts"):
        check_knowledge(GivesUpWhenDefended(), **scenario)


def test_a_broken_law_is_an_assertion_that_names_the_part():
    with pytest.raises(AssertionError, match=r"^MutatesItsArgument\(share=0.5\) breaks a law: "):
        check_defense(MutatesItsArgument())
