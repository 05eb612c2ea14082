"""The exact test beside known members: no stranger pays for somebody else who was in the batch."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.inference._known_others import Crowd

SMALL = sp.domains.Image((1, 8, 8))
STRANGERS = 10


def people(number, seed=0):
    """Smooth images of a made-up population, all different."""
    key = sp.rng(seed).fork("people")
    coarse = key.uniform((number, 1, 4, 4)) + 0.3 * key.fork("level").uniform((number, 1, 1, 1))
    images = nn.functional.interpolate(coarse, size=8, mode="bilinear") / 1.3
    images = (images + 0.05 * key.fork("noise").normal(images.shape)).clamp(0, 1)
    return sp.Batch(images, (4 * key.fork("labels").uniform((number,))).long())


def part(batch, *which):
    chosen = list(range(*which))
    return sp.Batch(batch.inputs[chosen], batch.labels[chosen]) if chosen else ()


def network(kind, seed):
    if kind == "mlp":
        return sp.zoo.mlp(hidden=(24,), classes=4, domain=SMALL, seed=seed)
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 4, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4)
    return sp.Task(nn.Sequential(*layers), sp.cross_entropy, SMALL)


def observe(batch, *, std, seed, kind="mlp"):
    client = sp.Client(sp.Gradient(), sp.AddGaussian(std))
    key = sp.rng(seed).fork("client")
    return sp.Threat().observe(client, network(kind, seed), batch, rng=key)


def ask(size, known, *, std, seed, kind="mlp", public=0, hidden=0):
    """P-values of the members who are not known, and of strangers; `hidden` are no candidates."""
    everybody = people(size + STRANGERS + public, seed)
    seen = observe(part(everybody, size), std=std, seed=seed, kind=kind)
    given = {}
    if public:
        rest = part(everybody, size + STRANGERS, len(everybody))
        given["public"] = sp.PublicData(rest.inputs, rest.labels)
    candidates = part(everybody, known + hidden, size + STRANGERS)
    found = sp.membership(seen, candidates, others=part(everybody, known), **given)
    members = size - known - hidden
    return found.p_values[:members], found.p_values[members:], found


def at_most(p_values, level):
    """How many of several tensors are at most so large, and of how many."""
    joined = torch.cat(list(p_values))
    return int((joined <= level).sum()), len(joined)


@pytest.mark.parametrize("kind", ["mlp", "convolution"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_strangers_beside_a_member_are_accused_no_more_often_than_promised(kind, size):
    # One person moves a mean of so many by a share of it.
    asked = [ask(size, size - 1, std=0.04 / size, seed=seed, kind=kind) for seed in range(6)]
    for level in (0.01, 0.05):
        accused, strangers = at_most([p for _, p, _ in asked], level)
        assert binom.sf(accused - 1, strangers, level) > 1e-4
    found, members = at_most([p for p, _, _ in asked], 0.01)
    assert found >= members - 1


def test_strangers_resemble_a_member_more_than_they_resemble_nobody():
    """Compared with nobody alone, many would be accused: 0.4 of 40 is what luck allows."""
    accused = 0
    for seed in range(4):
        everybody = people(2 + STRANGERS, seed)
        seen = observe(part(everybody, 2), std=0.01, seed=seed)
        crowd = Crowd.of(seen, part(everybody, 1, len(everybody)), part(everybody, 1))
        rest = crowd.rest(seen.update.flat())
        for one in range(1, 1 + STRANGERS):
            length = float(crowd.shift(frozenset([one])).norm())
            accused += norm.sf(rest.gain(frozenset([one])) / length + length / 2) <= 0.01
    assert accused >= STRANGERS


def test_strangers_stay_uniform_where_nobody_is_added():
    asked = [ask(4, 4, std=0.2, seed=seed)[1] for seed in range(8)]
    for level in (0.05, 0.2):
        accused, strangers = at_most(asked, level)
        assert binom.sf(accused - 1, strangers, level) > 1e-4


@pytest.mark.parametrize(("size", "known"), [(2, 0), (4, 2), (4, 1)])
def test_several_candidates_at_once_are_found_and_strangers_are_not(size, known):
    asked = [ask(size, known, std=0.01, seed=seed) for seed in range(3)]
    found, members = at_most([p for p, _, _ in asked], 0.01)
    assert found >= members - 1
    accused, strangers = at_most([p for _, p, _ in asked], 0.05)
    assert binom.sf(accused - 1, strangers, 0.05) > 1e-4


def test_a_member_who_is_no_candidate_is_noticed_or_covered_by_public_people():
    with pytest.raises(NotApplicable, match="somebody else was in the batch"):
        ask(4, 3, std=1e-4, seed=0, hidden=1)
    everybody = people(6)
    seen = observe(part(everybody, 4), std=0.1, seed=0)
    with pytest.raises(NotApplicable, match="somebody in it is not known"):
        sp.membership(seen, part(everybody, 4, 5), others=part(everybody, 2))
    asked = [ask(3, 2, std=0.02, seed=seed, hidden=1, public=100)[1] for seed in range(6)]
    for level in (0.05, 0.2):
        accused, strangers = at_most(asked, level)
        # Strangers of one update share its noise and the one who is hidden.
        assert accused / strangers <= level + 4 * (level * (1 - level) / 6) ** 0.5 / 2


def test_ranked_among_public_people_members_are_found_as_often_as_rehearsed():
    members, _, found = ask(3, 2, std=0.02, seed=1, public=140)
    assert found.strangers == 105
    assert float(members) <= found.level
    assert found.power.value > 0.8
    weak = ask(3, 2, std=5.0, seed=1, public=140)[2]
    assert weak.power.value < 0.3
    assert any("clears nobody" in line for line in weak.explain())


def test_the_power_of_the_exact_test_is_that_of_members_with_other_noise():
    asked = [ask(4, 3, std=0.2, seed=seed) for seed in range(30)]
    found, members = at_most([p for p, _, _ in asked], 0.01)
    expected = sum(result.power.value for _, _, result in asked) / len(asked)
    assert 0.05 < expected < 0.95
    assert abs(found / members - expected) < 0.35


def test_the_order_of_the_candidates_does_not_matter():
    everybody = people(12)
    seen, others = observe(part(everybody, 4), std=0.1, seed=0), part(everybody, 2)
    forward = part(everybody, 2, 12)
    backward = sp.Batch(forward.inputs.flip(0), forward.labels.flip(0))
    first = sp.membership(seen, forward, others=others)
    second = sp.membership(seen, backward, others=others)
    assert torch.allclose(first.p_values, second.p_values.flip(0), rtol=1e-3)
    assert torch.allclose(first.scores, second.scores.flip(0), atol=1e-3)


def test_a_copy_of_a_member_explains_the_update_as_well():
    everybody = people(5)
    seen = observe(part(everybody, 4), std=0.001, seed=0)
    twice = sp.Batch(everybody.inputs[[3, 3, 4]], everybody.labels[[3, 3, 4]])
    found = sp.membership(seen, twice, others=part(everybody, 3))
    assert bool((found.p_values > 0.4).all())


def test_who_is_known_to_be_a_member_is_no_candidate():
    everybody = people(5)
    with pytest.raises(InvalidValue, match="candidates besides `others`"):
        sp.membership(
            observe(part(everybody, 4), std=0.1, seed=0),
            part(everybody, 2, 5),
            others=part(everybody, 3),
        )


def test_more_than_one_may_be_added_if_the_batch_size_is_not_known():
    everybody, threat = people(8), sp.Threat(knows_batch_size=False)
    client = sp.Client(sp.Gradient(), sp.AddGaussian(0.002))
    seen = threat.observe(client, network("mlp", 0), part(everybody, 4), rng=sp.rng(0))
    found = sp.membership(seen, part(everybody, 2, 8), others=part(everybody, 2))
    assert (found.p_values <= 0.01).tolist() == [True, True, False, False, False, False]
