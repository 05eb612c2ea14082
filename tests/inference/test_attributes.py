"""One column of a row, inferred from the update: more than the rest of the row tells, or not."""

from __future__ import annotations

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.inference import AttributeComparison

VOTERS = sp.data.load("voters")
ORDER = sp.rng(0).permutation(len(VOTERS.inputs))
REST = VOTERS.take(ORDER[544:])
PUBLIC = sp.PublicData(REST.inputs, REST.labels)
PLAIN = sp.Client(sp.Gradient())


def infer(people, client=PLAIN, column="party", given=None):
    task = sp.zoo.mlp(hidden=(64,), classes=2, domain=VOTERS.domain)
    batch = VOTERS.take(people)
    seen = sp.Threat().observe(client, task, batch, rng=sp.rng(0).fork("client"))
    return sp.attributes(seen, given or batch, column, public=PUBLIC)


def test_the_update_tells_far_more_than_the_rest_of_the_row():
    found = infer(ORDER[:24]).compare(VOTERS.inputs[ORDER[:24]], VOTERS.domain)
    assert found.rates["with the update"].value > 0.9
    assert found.rates["public model"].value < 0.7
    assert found.p_value < 1e-3


def test_behind_strong_noise_the_guess_is_about_that_of_the_model():
    client = sp.Client(sp.Gradient(), sp.AddGaussian(10.0))
    agreed = 0
    for start in range(0, 96, 32):
        found = infer(ORDER[start : start + 32], client)
        agreed += int((found.with_update.argmax(1) == found.by_model.argmax(1)).sum())
    assert agreed > 0.6 * 96


def test_what_stands_in_the_column_is_not_used():
    batch = VOTERS.take(ORDER[:8])
    changed = batch.inputs.clone()
    place = VOTERS.domain.places[4]
    changed[:, place] = changed[:, place].roll(3, dims=1)
    first = infer(ORDER[:8])
    second = infer(ORDER[:8], given=sp.Batch(changed, batch.labels))
    assert torch.equal(first.with_update, second.with_update)
    assert torch.equal(first.by_model, second.by_model)


def test_probabilities_sum_to_one_and_the_marginals_are_those_of_the_public_rows():
    found = infer(ORDER[:4], column="school")
    assert torch.allclose(found.with_update.sum(1), torch.ones(4).double())
    assert torch.allclose(found.by_marginals, REST.inputs[:, -7:].double().mean(0))
    assert len(found.guesses) == 4


def test_the_public_model_beats_the_marginals():
    people = VOTERS.take(ORDER[:200])
    task = sp.zoo.mlp(hidden=(16,), classes=2, domain=VOTERS.domain)
    client = sp.Client(sp.Gradient(), sp.AddGaussian(1.0))
    seen = sp.Threat().observe(client, task, VOTERS.take(ORDER[:8]), rng=sp.rng(0))
    found = sp.attributes(seen, people, "leaning", public=PUBLIC)
    rates = found.compare(people.inputs, VOTERS.domain).rates
    assert rates["public model"].value > rates["marginals"].value


def test_the_sign_test_counts_people_whom_only_one_guess_has_right():
    update, model = torch.tensor([1, 1, 1, 0, 1]).bool(), torch.tensor([0, 0, 0, 0, 1]).bool()
    assert AttributeComparison("x", update, model, model).p_value == 1 / 8
    assert AttributeComparison("x", model, model, model).p_value == 1.0


def test_bad_input_gets_one_sentence():
    with pytest.raises(UnknownName, match="unknown column 'partty'"):
        infer(ORDER[:4], column="partty")
    with pytest.raises(NotApplicable, match="holds numbers"):
        infer(ORDER[:4], column="age")
    photos = sp.data.bundled("photos", size=2)
    seen = sp.Threat().observe(PLAIN, sp.zoo.mlp(hidden=(8,)), photos, rng=sp.rng(0))
    with pytest.raises(NotApplicable, match="columns of a table"):
        sp.attributes(seen, photos, "party", public=PUBLIC)
    task = sp.zoo.mlp(hidden=(8,), classes=2, domain=VOTERS.domain)
    seen = sp.Threat().observe(PLAIN, task, VOTERS.take(range(2)), rng=sp.rng(0))
    with pytest.raises(InvalidValue, match="public rows with labels"):
        sp.attributes(seen, VOTERS.take(range(2)), "party", public=sp.PublicData(REST.inputs))
