"""MixUp and InstaHide: how data is mixed, what is trained on, and how it comes apart."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit

import seepage as sp
from seepage.attacks._local_steps import EpochAgnostic
from seepage.attacks._local_steps import _observe_at as seen_from
from seepage.attacks._lost_signs import (
    PHOTOGRAPH_WEIGHTS,
    choose_patterns,
    is_photograph,
    photograph_evidence,
)
from seepage.core import Mixing, PreparedBatch
from seepage.core._construct import _serialise
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.defenses._mixing import _draw_coefficients

MIXERS = [sp.MixUp, sp.InstaHide]


def lesson_of(defense, batch, seed=0):
    task = sp.zoo.mlp(hidden=(4,))
    return defense.prepare(PreparedBatch.undefended(task, batch), rng=sp.rng(seed))


def psnr(guess: torch.Tensor, truth: torch.Tensor) -> float:
    """Of the worst-off person."""
    return float(-10 * (guess - truth).square().flatten(1).mean(1).max().log10())


@pytest.mark.parametrize("k", [2, 4, 6])
def test_every_row_mixes_k_inputs_led_by_its_own_within_the_bound(k):
    drawn = _draw_coefficients(40, k=k, bound=0.65, rng=sp.rng(0))
    assert torch.allclose(drawn.sum(1), torch.ones(40).double())
    assert ((drawn > 0).sum(1) == k).all()
    assert (drawn.diagonal() > 0).all()
    assert drawn.max() <= 0.65
    # The leading coefficient has three parts of k + 2, the others one each.
    assert drawn.diagonal().mean() > drawn[drawn > 0].mean()


@pytest.mark.parametrize("k", [2, 4])
def test_coefficients_follow_the_dirichlet_law_given_the_bound(k):
    drawn = _draw_coefficients(1500, k=k, bound=0.65, rng=sp.rng(1))
    independent = np.random.default_rng(0).dirichlet([3, *[1] * (k - 1)], size=60_000)
    independent = independent[independent.max(1) <= 0.65]
    leading = drawn.diagonal().numpy()
    assert stats.ks_2samp(leading, independent[:, 0]).pvalue > 0.01
    others = drawn[(drawn > 0) & ~torch.eye(1500, dtype=torch.bool)].numpy()
    assert stats.ks_2samp(others[:: k - 1], independent[:, 1]).pvalue > 0.01


def test_partners_are_drawn_evenly_and_anew_in_every_round():
    rounds = [_draw_coefficients(8, k=4, bound=0.65, rng=sp.rng(i)) > 0 for i in range(300)]
    share = torch.stack(rounds).double().mean(0)
    off = share[~torch.eye(8, dtype=torch.bool)]
    assert (off - 3 / 7).abs().max() < 5 * math.sqrt(3 / 7 * 4 / 7 / 300)
    assert not torch.equal(rounds[0], rounds[1])


def test_mixtures_and_their_labels_are_those_of_a_naive_loop(photos):
    prepared = lesson_of(sp.MixUp(3), photos)
    weights = prepared.mixing.coefficients
    for row in range(4):
        image = sum(float(weights[row, i]) * photos.inputs[i].double() for i in range(4))
        label = np.zeros(10)
        for i in range(4):
            label[int(photos.labels[i])] += float(weights[row, i])
        assert torch.allclose(prepared.batch.inputs[row].double(), image, atol=1e-6)
        assert np.allclose(prepared.batch.labels[row].numpy(), label, atol=1e-6)


def test_instahide_flips_half_of_the_entries_about_the_middle(photos):
    prepared = lesson_of(sp.InstaHide(4), photos)
    plain = torch.einsum("eb,b...->e...", prepared.mixing.coefficients.float(), photos.inputs)
    off, away = prepared.batch.inputs - 0.5, plain - 0.5
    assert torch.allclose(off.abs(), away.abs(), atol=1e-6)
    clear = away.abs() > 1e-3
    flipped = (off.sign() != away.sign())[clear].double()
    assert abs(float(flipped.mean()) - 0.5) < 5 * 0.5 / math.sqrt(len(flipped))
    assert 0 <= prepared.batch.inputs.min() <= prepared.batch.inputs.max() <= 1
    again = lesson_of(sp.InstaHide(4), photos, seed=1)
    assert not torch.equal(again.batch.inputs, prepared.batch.inputs)


def test_the_client_shares_the_gradient_of_its_mixtures(photos):
    task = sp.zoo.mlp(hidden=(4,))
    defense = sp.chain(sp.InstaHide(4), sp.Prune(0.9))
    shared = sp.Client(sp.Gradient(), defense).share(task, photos, rng=sp.rng(3))
    (prepared,) = shared.prepared_batches
    mixed = sp.Gradient()(task, prepared.batch.inputs, prepared.batch.labels)
    assert torch.allclose(shared.update.flat(), sp.Prune(0.9).expected(mixed).flat())
    assert not torch.allclose(
        mixed.flat(), sp.Gradient()(task, photos.inputs, photos.labels).flat()
    )


@pytest.mark.parametrize("k", [4, 6])
def test_unmixing_perfect_mixtures_gives_the_inputs_back(k):
    batch = sp.data.bundled("photos", size=8)
    prepared = lesson_of(sp.MixUp(k), batch)
    solved = sp.attacks.unmix(prepared.batch.inputs, prepared.mixing, rng=sp.rng(0))
    assert psnr(solved, batch.inputs) > 100


def instahide_rounds(batch, rounds):
    prepared_batches = [lesson_of(sp.InstaHide(4), batch, seed=seed) for seed in range(rounds)]
    rows = torch.cat([prepared.mixing.coefficients for prepared in prepared_batches])
    encodings = torch.cat([prepared.batch.inputs for prepared in prepared_batches])
    return encodings, Mixing(rows, flipped_about=0.5)


def test_ten_rounds_of_instahide_give_the_inputs_back(photos):
    encodings, mixing = instahide_rounds(photos, rounds=10)
    solved = sp.attacks.unmix(encodings, mixing, rng=sp.rng(0))
    assert psnr(solved, photos.inputs) > 100


def test_instahide_comes_apart_from_imperfect_encodings_too(photos):
    encodings, mixing = instahide_rounds(photos, rounds=10)
    noisy = encodings + 0.02 * sp.rng(5).normal(encodings.shape)
    solved = sp.attacks.unmix(noisy, mixing, rng=sp.rng(0))
    assert psnr(solved, photos.inputs) > 24
    # Taking encodings for mixtures, as if no sign had been flipped, gives nothing like it.
    ignorant = sp.attacks.unmix(noisy, Mixing(mixing.coefficients), rng=sp.rng(0))
    assert psnr(ignorant, photos.inputs) < 15


@pytest.mark.parametrize("seed", [0, 1])
def test_one_round_of_instahide_gives_smooth_inputs_back(photos, seed):
    prepared = lesson_of(sp.InstaHide(4), photos, seed=seed)
    solved = sp.attacks.unmix(prepared.batch.inputs, prepared.mixing, rng=sp.rng(0))
    assert psnr(prepared.batch.inputs, photos.inputs) < 12
    assert psnr(solved, photos.inputs) > 30
    exact = (solved - photos.inputs).abs().amax(0) < 1e-4
    assert exact.float().mean() > 0.85


def test_one_round_gives_images_or_their_negatives_back(data_root):
    cifar10 = sp.data.load("cifar10", split="test")
    for start in range(0, 16, 4):
        batch = cifar10.batch(4, start=start)
        prepared = lesson_of(sp.InstaHide(4), batch, seed=start)
        solved = sp.attacks.unmix(prepared.batch.inputs, prepared.mixing, rng=sp.rng(0))
        assert psnr(prepared.batch.inputs, batch.inputs) < 13
        assert max(psnr(guess, batch.inputs) for guess in (solved, 1 - solved)) > 24


def test_patterns_on_a_line_are_those_that_trying_all_of_them_finds():
    """On a line without loops belief propagation is exact, and few patterns can be counted out."""
    mixing = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]]).double()
    magnitudes = sp.rng(7).uniform((3, 5), like=mixing) / 4
    signs = [torch.tensor([1.0, a, b]).double() for a in (1, -1) for b in (1, -1)]
    candidates = [torch.linalg.solve(mixing, s[:, None] * magnitudes) for s in signs]

    def cost(line):
        outside = sum((entry.abs() - 0.3).clamp(min=0).sum() for entry in line)
        jumps = itertools.pairwise(line)
        rough = sum(min((a - b).abs().sum(), (a + b).abs().sum()) for a, b in jumps)
        return float(100 * outside + rough)

    lines = [
        [candidates[s][:, p] for p, s in enumerate(pattern)]
        for pattern in itertools.product(range(4), repeat=5)
    ]
    found = choose_patterns(magnitudes, mixing, low=-0.3, high=0.3)
    assert torch.allclose((mixing @ found).abs(), magnitudes)
    assert cost(list(found.unbind(1))) == pytest.approx(min(map(cost, lines)))


def test_unmixing_takes_as_many_encodings_as_inputs_or_says_so(photos):
    encodings, mixing = instahide_rounds(photos, rounds=1)
    with pytest.raises(InvalidValue, match="got 4 rows and 3 encodings"):
        sp.attacks.unmix(encodings[:3], mixing, rng=sp.rng(0))
    fewer = Mixing(mixing.coefficients[:3], flipped_about=0.5)
    with pytest.raises(NotApplicable, match="got 3 for 4; add those of other rounds"):
        sp.attacks.unmix(encodings[:3], fewer, rng=sp.rng(0))
    many = sp.data.bundled("photos", size=8)
    prepared = lesson_of(sp.InstaHide(4), many)
    with pytest.raises(NotApplicable, match="of 7 at most, got 8 for 8"):
        sp.attacks.unmix(prepared.batch.inputs, prepared.mixing, rng=sp.rng(0))


def test_the_gradient_of_one_round_gives_the_private_inputs_and_labels_back(photos):
    seen = observed(sp.Threat.strongest(), sp.InstaHide(4), photos, sp.zoo.mlp(hidden=(64,)))
    encodings = sp.attacks.exact_batch()(seen, rng=sp.rng(1))
    guess = sp.attacks.Unmixed(sp.attacks.exact_batch())(seen, rng=sp.rng(1))
    assert sp.score(encodings, photos)["psnr"].max() < 16
    scores = sp.score(guess, photos)
    assert scores["psnr"].min() > 28
    assert scores["label_accuracy"].tolist() == [1, 1, 1, 1]


def test_encodings_that_explain_nothing_and_mixing_that_is_unknown_are_left_as_they_are(photos):
    task, search = sp.zoo.mlp(hidden=(64,)), sp.attacks.inverting_gradients(steps=2, restarts=1)
    seen = observed(sp.Threat.strongest(), sp.InstaHide(4), photos, task)
    plain, wrapped = (a(seen, rng=sp.rng(1)) for a in (search, sp.attacks.Unmixed(search)))
    assert torch.equal(plain.inputs, wrapped.inputs)
    exact = sp.attacks.exact_batch()
    for threat, defense in (
        (sp.Threat.realistic(), sp.InstaHide(4)),
        (sp.Threat.strongest(), sp.chain()),
    ):
        seen = observed(threat, defense, photos, task)
        plain, wrapped = (a(seen, rng=sp.rng(1)) for a in (exact, sp.attacks.Unmixed(exact)))
        assert torch.equal(plain.inputs, wrapped.inputs)


def test_more_people_than_one_round_can_tell_apart_are_left_encoded():
    many = sp.data.bundled("photos", size=8)
    exact = sp.attacks.exact_batch()
    seen = observed(sp.Threat.strongest(), sp.InstaHide(4), many, sp.zoo.mlp(hidden=(256,)))
    plain, wrapped = (a(seen, rng=sp.rng(1)) for a in (exact, sp.attacks.Unmixed(exact)))
    assert torch.equal(plain.inputs, wrapped.inputs)


def test_several_rounds_are_unmixed_side_by_side_as_they_are_one_by_one(photos):
    """A search of the encodings needs no mixing, though every client mixes in its own way."""
    task, search = sp.zoo.mlp(hidden=(64,)), sp.attacks.inverting_gradients(steps=3, restarts=1)
    client = sp.Client(sp.Gradient(), sp.InstaHide(4))
    keys = [sp.rng(i) for i in range(2)]
    seen = [sp.Threat.strongest().observe(client, task, photos, rng=key) for key in keys]
    for attack in (sp.attacks.Unmixed(search), sp.attacks.Unmixed(sp.attacks.exact_batch())):
        together = attack.many(seen, rngs=keys)
        for one, key, guess in zip(seen, keys, together, strict=True):
            assert torch.allclose(attack(one, rng=key).inputs, guess.inputs, atol=1e-4)


def test_photographs_are_told_from_their_negatives_better_than_by_darkness(data_root):
    images = sp.data.load("cifar10", split="test").inputs[:1200].float() - 0.5
    fours = images.split(4)
    assert sum(map(is_photograph, fours)) > 0.88 * len(fours)
    assert not any(is_photograph(-four) for four in fours if is_photograph(four))
    assert sum(bool(four.sum() <= 0) for four in fours) < 0.7 * len(fours)


@pytest.mark.slow
def test_the_weights_of_negatives_are_those_that_scipy_fits(data_root):
    images = sp.data.load("cifar10", split="train").inputs[:20_000].double() - 0.5
    found = photograph_evidence(images).numpy()

    def loss(weights):
        odds = found @ weights
        return np.logaddexp(0, -odds).sum(), -found.T @ expit(-odds)

    fitted = minimize(loss, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-3}).x
    assert np.round(fitted, 1).tolist() == list(PHOTOGRAPH_WEIGHTS)


def test_digits_are_taken_to_be_dark():
    digits = sp.data.bundled("digits", size=4).inputs - 0.5
    assert is_photograph(digits)
    assert not is_photograph(-digits)


def observed(threat, defense, batch, task):
    return threat.observe(sp.Client(sp.Gradient(), defense), task, batch, rng=sp.rng(0))


def test_who_knows_the_mixing_simulates_it_on_private_inputs(photos):
    order = torch.tensor([2, 0, 3, 1])
    shuffled = sp.Batch(photos.inputs[order], photos.labels[order])
    seen = observed(sp.Threat.strongest(), sp.MixUp(4), shuffled, sp.zoo.mlp(hidden=(4,)))
    assert seen.labels.tolist() == [0, 1, 2, 3]
    at_truth = seen.simulate(photos.inputs, seen.labels)
    assert torch.allclose(at_truth.flat(), seen.update.flat(), atol=1e-6)
    swapped = seen.simulate(photos.inputs.flip(0), seen.labels)
    assert not torch.allclose(swapped.flat(), seen.update.flat(), atol=1e-3)


@pytest.mark.parametrize("mixer", MIXERS)
def test_who_does_not_know_the_mixing_searches_for_the_mixtures(mixer, photos):
    task = sp.zoo.mlp(hidden=(4,))
    seen = observed(sp.Threat.realistic(), mixer(4), photos, task)
    assert seen.mixing is None
    assert seen.labels.shape == (4, 10)
    client = sp.Client(sp.Gradient(), mixer(4))
    (prepared,) = client.share(task.in_mode("train"), photos, rng=sp.rng(0)).prepared_batches
    at_mixtures = seen.simulate(prepared.batch.inputs, prepared.batch.labels)
    assert torch.allclose(at_mixtures.flat(), seen.update.flat(), atol=1e-6)


def test_rows_of_a_known_mixing_go_with_the_labels_behind_flipped_signs(photos):
    seen = observed(sp.Threat.strongest(), sp.InstaHide(4), photos, sp.zoo.mlp(hidden=(4,)))
    hard = torch.nn.functional.one_hot(photos.labels, 10).double()
    assert torch.allclose(seen.mixing.coefficients @ hard, seen.labels.double(), atol=1e-6)


@pytest.mark.slow
def test_knowing_the_mixing_brings_the_inputs_back():
    data = sp.data.load("photos", pixels=8)
    batch = data.batch(4)
    task = sp.zoo.build("cnn2-v1", options={"domain": data.domain})
    attack = sp.attacks.inverting_gradients(steps=300, restarts=1, tv=1e-3)
    client = sp.Client(sp.Gradient(), sp.MixUp(4))
    gains = []
    # How much comes back depends on the weights that were drawn.
    for seed in range(3):
        known, unknown = (
            sp.score(
                attack(threat.observe(client, task, batch, rng=sp.rng(seed)), rng=sp.rng(1)), batch
            )["psnr"].mean()
            for threat in (sp.Threat.strongest(), sp.Threat.realistic())
        )
        gains.append(float(known - unknown))
    assert sum(gains) / 3 > 2


def test_attacks_on_local_steps_keep_the_mixing_or_say_that_they_cannot(photos):
    task, threat = sp.zoo.mlp(hidden=(4,)), sp.Threat(knows_labels=True, knows_mixing=True)
    walker = sp.Client(sp.FedAvg(lr=0.5, steps=1), sp.MixUp(4))
    seen = threat.observe(walker, task, photos, rng=sp.rng(0))
    at_start = seen_from(seen, position=0.0)
    simulated = at_start.simulate(photos.inputs, photos.labels).flat()
    assert torch.allclose(0.5 * simulated, at_start.update.flat(), atol=1e-6)
    runner = sp.Client(sp.FedAvg(lr=0.5, epochs=2), sp.MixUp(4))
    seen = threat.observe(runner, task, photos, rng=sp.rng(0))
    attack = EpochAgnostic(sp.attacks.inverting_gradients(steps=1, restarts=1))
    with pytest.raises(NotApplicable, match="expected data that was not mixed"):
        attack(seen, rng=sp.rng(1))


def test_a_chain_of_every_kind_has_a_serial_form():
    mixed = sp.chain(sp.MixUp(4), sp.Soteria(0.5), sp.Prune(0.9), sp.SecureAggregation(2))
    links = json.loads(json.dumps(_serialise(mixed)))["arguments"]["links"]
    assert [link["name"] for link in links] == [
        "MixUp",
        "Soteria",
        "Prune",
        "SecureAggregation",
    ]
    assert links[0] == {"name": "MixUp", "arguments": {"k": 4, "bound": 0.65}}


def test_clients_who_mix_apart_are_not_attacked_side_by_side(photos):
    seen = observed(sp.Threat.strongest(), sp.MixUp(4), photos, sp.zoo.mlp(hidden=(4,)))
    attack = sp.attacks.inverting_gradients(steps=1, restarts=1)
    with pytest.raises(NotApplicable, match="attack them one by one"):
        attack.many((seen, seen), rngs=(sp.rng(0), sp.rng(1)))


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 1}, "k >= 2 inputs in a mixture, got 1"),
        ({"k": 4, "bound": 0.25}, r"bound in \(1/k, 1\], .* got 0.25"),
        ({"k": 4, "bound": 1.5}, "got 1.5"),
    ],
)
def test_impossible_mixtures_are_refused_at_construction(mixer, options, said):
    with pytest.raises(InvalidValue, match=said):
        mixer(**options)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_batch_smaller_than_k_is_refused_at_first_sight(mixer, photos):
    client = sp.Client(sp.Gradient(), mixer(6))
    with pytest.raises(InvalidValue, match="at least k = 6 inputs to mix, got 4"):
        client(sp.zoo.mlp(hidden=(4,)), photos, rng=sp.rng(0))


def test_a_bound_that_hardly_any_coefficients_meet_is_refused():
    with pytest.raises(InvalidValue, match=r"stay below 0.2501; use a larger bound"):
        _draw_coefficients(4, k=4, bound=0.2501, rng=sp.rng(0))
