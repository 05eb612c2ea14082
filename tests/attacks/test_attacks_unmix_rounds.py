"""Encodings of several rounds, found by an attack and decoded together."""

from dataclasses import dataclass, replace

import pytest
import torch

import seepage as sp
from seepage.attacks import Unmixed, stack_rounds, unmix, unmix_rounds
from seepage.audit._case import _replace_by_noise, require_permission
from seepage.audit._words import threat_words
from seepage.core import Attack, Mixing, PreparedBatch
from seepage.core._construct import Component
from seepage.core.errors import InvalidValue, NotApplicable

STRONG = sp.Threat(knows_labels=True, knows_mixing=True)
HIDING = sp.Client(sp.Gradient(), sp.InstaHide(4))
EXACT = sp.attacks.exact_batch()


def encodings_of(defense, batch, rounds, *, errors, seed=0):
    """Encodings of several rounds with normal errors of this PSNR, and how they were made."""
    task = sp.zoo.mlp(hidden=(4,), domain=sp.domains.Image(tuple(batch.inputs.shape[1:])))
    prepared = [
        defense.prepare(PreparedBatch.undefended(task, batch), rng=sp.rng(100 * seed + number))
        for number in range(rounds)
    ]
    found = torch.cat([one.batch.inputs for one in prepared])
    noise = 10 ** (-errors / 20) * sp.rng(seed).fork("errors").normal(found.shape)
    rows = torch.cat([one.mixing.coefficients for one in prepared])
    return (found + noise).clamp(0, 1), replace(prepared[0].mixing, coefficients=rows)


def psnr(guess, truth):
    """Over all people together."""
    return float(-10 * (guess.clamp(0, 1) - truth).square().mean().log10())


def images(name, seed):
    return sp.data.load(name, split="test").batch(4, start=4 * seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
@pytest.mark.parametrize(("errors", "wanted"), [(15, 16), (20, 21), (25, 25)])
def test_inexact_encodings_of_many_rounds_give_the_inputs_back(data_root, name, errors, wanted):
    found = []
    for seed in range(3):
        batch = images(name, seed)
        encodings, mixing = encodings_of(sp.InstaHide(4), batch, 12, errors=errors, seed=seed)
        solved = unmix(encodings, mixing, rng=sp.rng(0))
        # Whether it is the negative is another question.
        found.append(max(psnr(solved, batch.inputs), psnr(1 - solved, batch.inputs)))
    assert sorted(found)[1] > wanted, found


@pytest.mark.parametrize("defense", [sp.InstaHide(4), sp.MixUp(4)], ids=repr)
def test_a_round_that_failed_hardly_counts(data_root, defense):
    batch = images("mnist", 0)
    encodings, mixing = encodings_of(defense, batch, 8, errors=25)
    whole = psnr(unmix(encodings, mixing, rng=sp.rng(0)), batch.inputs)
    encodings[4:8] = sp.rng(9).uniform(encodings[4:8].shape)
    spoilt = psnr(unmix(encodings, mixing, rng=sp.rng(0)), batch.inputs)
    assert spoilt > whole - 5


@dataclass(frozen=True)
class FailingAt:
    """Exact, but in rounds of these updates it finds noise or refuses."""

    noise: tuple[sp.Update, ...] = ()
    refused: tuple[sp.Update, ...] = ()

    def __call__(self, observation, *, rng):
        if any(observation.update is update for update in self.refused):
            raise NotApplicable("no encodings here")
        guess = EXACT(observation, rng=rng)
        if any(observation.update is update for update in self.noise):
            return replace(guess, inputs=rng.uniform(guess.inputs.shape))
        return guess


@pytest.fixture(scope="module")
def eight():
    return sp.data.bundled("photos", size=8)


@pytest.fixture(scope="module")
def rounds(eight):
    task = sp.zoo.mlp(hidden=(256,))
    return [STRONG.observe(HIDING, task, eight, rng=sp.rng(i)) for i in range(5)]


@pytest.mark.slow
def test_rounds_that_explain_their_update_are_used_alone(eight, rounds):
    attack: Attack = FailingAt(noise=(rounds[0].update,), refused=(rounds[2].update,))
    guess = unmix_rounds(rounds, attack, rng=sp.rng(0))
    scores = sp.score(guess, eight)
    assert scores["psnr"].min() > 40
    assert scores["label_accuracy"].tolist() == [1] * 8
    assert guess.certificate is None
    assert guess.trace.seconds > 0


def test_an_attack_that_no_round_suits_says_why(rounds):
    refused = FailingAt(refused=tuple(seen.update for seen in rounds))
    with pytest.raises(NotApplicable, match="no encodings here"):
        unmix_rounds(rounds, refused, rng=sp.rng(0))


def test_a_threat_with_rounds_shows_the_first_as_before_and_the_others_beside_it(eight):
    task = sp.zoo.mlp(hidden=(256,))
    once = STRONG.observe(HIDING, task, eight, rng=sp.rng(3))
    often = replace(STRONG, rounds=3).observe(HIDING, task, eight, rng=sp.rng(3))
    assert torch.equal(once.update.flat(), often.update.flat())
    assert len(often.others) == 2
    mixings = [seen.mixing.coefficients for seen in (often, *often.others)]
    assert not torch.equal(mixings[0], mixings[1])
    assert not torch.equal(mixings[1], mixings[2])
    assert sp.Threat.of(often).rounds == 3


@pytest.mark.slow
def test_an_attack_that_unmixes_uses_all_rounds_of_a_threat(eight):
    task = sp.zoo.mlp(hidden=(256,))
    often = replace(STRONG, rounds=3).observe(HIDING, task, eight, rng=sp.rng(3))
    once = replace(often, others=())
    guess = Unmixed(EXACT)(often, rng=sp.rng(0))
    assert sp.score(guess, eight)["psnr"].min() > 40
    [aside] = Unmixed(EXACT).many([often], rngs=[sp.rng(0)])
    assert torch.equal(aside.inputs, guess.inputs)
    # Eight people are too many for one round.
    assert sp.score(Unmixed(EXACT)(once, rng=sp.rng(0)), eight)["psnr"].max() < 20


def test_mixing_that_is_unknown_leaves_the_first_round_as_it_is(eight):
    threat = sp.Threat(knows_labels=True, rounds=3)
    seen = threat.observe(HIDING, sp.zoo.mlp(hidden=(256,)), eight, rng=sp.rng(0))
    plain, together = (a(seen, rng=sp.rng(1)) for a in (EXACT, Unmixed(EXACT)))
    assert torch.equal(plain.inputs, together.inputs)


@pytest.mark.parametrize("defense", [sp.MixUp(4), sp.AddGaussian(0.01)], ids=repr)
def test_inputs_that_can_be_simulated_are_matched_in_all_rounds(photos, defense):
    client, task = sp.Client(sp.Gradient(), defense), sp.zoo.lenet()
    seen = [STRONG.observe(client, task, photos, rng=sp.rng(i)) for i in range(3)]
    search = sp.attacks.inverting_gradients(steps=3, restarts=1)
    stacked = search(stack_rounds(seen), rng=sp.rng(1))
    assert torch.equal(unmix_rounds(seen, search, rng=sp.rng(1)).inputs, stacked.inputs)


def test_the_truth_explains_all_rounds_of_mixup(photos):
    client, task = sp.Client(sp.Gradient(), sp.MixUp(4)), sp.zoo.lenet()
    seen = stack_rounds([STRONG.observe(client, task, photos, rng=sp.rng(i)) for i in range(3)])
    order = photos.labels.argsort(stable=True)
    simulated = seen.simulate(photos.inputs[order], seen.labels)
    assert (simulated.flat() - seen.update.flat()).norm() <= 1e-5 * seen.update.norm()


def test_what_does_not_belong_together_is_refused(rounds, photos):
    with pytest.raises(InvalidValue, match="at least one observation"):
        unmix_rounds([], EXACT, rng=sp.rng(0))
    with pytest.raises(InvalidValue, match=r"signs were flipped .* unmix_rounds"):
        stack_rounds(rounds)
    blind = replace(rounds[1], mixing=None)
    with pytest.raises(InvalidValue, match="mixing of all rounds or of none"):
        unmix_rounds([rounds[0], blind], EXACT, rng=sp.rng(0))
    fewer = STRONG.observe(HIDING, rounds[0].task, photos, rng=sp.rng(0))
    with pytest.raises(InvalidValue, match="rounds of one batch, but observation 2"):
        unmix_rounds([rounds[0], fewer], EXACT, rng=sp.rng(0))
    with pytest.raises(InvalidValue, match="one round or more, got rounds = 0"):
        sp.Threat(rounds=0)


def test_an_audit_takes_several_rounds_only_for_attacks_that_use_them():
    often = sp.Threat(knows_labels=True, rounds=20)
    with pytest.raises(InvalidValue, match=r"attacks one update, .* 20 rounds; .* unmix = true"):
        require_permission("exact_batch", EXACT, often)
    require_permission("exact_batch", Unmixed(EXACT), often)
    assert threat_words(Component.of(often)).startswith("the update, the labels")
    assert "20 rounds" in threat_words(Component.of(often))
    assert "round" not in threat_words(Component.of(sp.Threat()))


def test_noise_in_place_of_an_update_is_in_every_round(rounds):
    seen = replace(rounds[0], others=tuple(rounds[1:]))
    noise = _replace_by_noise(seen, sp.rng(0))
    for before, after in zip((seen, *seen.others), (noise, *noise.others), strict=True):
        assert torch.allclose(before.update.norm(), after.update.norm(), rtol=1e-3)
        cosine = torch.cosine_similarity(before.update.flat(), after.update.flat(), dim=0)
        assert abs(float(cosine)) < 0.1


def test_errors_that_are_none_leave_exact_encodings_as_they_are(photos):
    encodings, mixing = encodings_of(sp.InstaHide(4), photos, 4, errors=300)
    assert psnr(unmix(encodings, mixing, rng=sp.rng(0)), photos.inputs) > 60
    plain, mixing = encodings_of(sp.MixUp(4), photos, 4, errors=300)
    assert isinstance(mixing, Mixing)
    assert psnr(unmix(plain, mixing, rng=sp.rng(0)), photos.inputs) > 100
