"""Scores of tables and texts."""

from collections import Counter

import pytest
import torch

import seepage as sp
from seepage.core import Paired
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Continuous
from seepage.scoring import METRICS, FeatureAccuracy, applicable, baseline_scores, pair

VOTERS, HAMLET = sp.data.load("voters"), sp.data.load("hamlet")


def test_feature_accuracy_counts_columns_one_by_one():
    batch = VOTERS.batch(6)
    guess = VOTERS.inputs[300:306].clone()
    guess[:, 0] = batch.inputs[:, 0] + torch.tensor([0.0, 0.05, -0.06, 0.07, 0.2, 1e-4])
    paired = Paired(batch.inputs, guess, batch.labels, None, tuple(range(6)), domain=VOTERS.domain)
    expected = []
    for truth, ours in zip(batch.inputs.tolist(), guess.tolist(), strict=True):
        right = 0
        for column, place in zip(VOTERS.domain.columns, VOTERS.domain.places, strict=True):
            a, b = truth[place], ours[place]
            if isinstance(column, Continuous):
                away = abs(a[0] - b[0]) * (column.high - column.low)
                right += away <= 0.319 * column.std
            else:
                right += a.index(max(a)) == b.index(max(b))
        expected.append(right / 9)
    assert FeatureAccuracy()(paired).tolist() == pytest.approx(expected)
    assert 0 < sum(expected) < 6


def test_tokens_are_paired_by_how_many_are_right_not_by_their_numbers():
    # By their numbers, each guess is nearest to the other person.
    batch = sp.Batch(torch.tensor([[0, 0, 0], [100, 100, 100]]), torch.tensor([0, 1]))
    guess = sp.Reconstruction(torch.tensor([[100, 1, 1], [0, 99, 99]]))
    paired = pair(guess, batch)
    assert paired.assignment == (1, 0)
    assert METRICS["token_accuracy"](paired).tolist() == pytest.approx([1 / 3, 1 / 3])
    assert METRICS["mse"](paired).tolist() == pytest.approx([2 / 3, 2 / 3])


def test_a_text_without_a_guess_has_no_word_right():
    batch = HAMLET.batch(2)
    scores = sp.score(sp.Reconstruction(batch.inputs[1:]), batch)
    assert scores["token_accuracy"].tolist() == [0.0, 1.0]
    assert scores["exact"].tolist() == [0.0, 1.0]
    assert scores.paired.guess[0].tolist() == [-1] * 12


def test_a_row_without_a_guess_has_no_column_right():
    batch = VOTERS.batch(2)
    scores = sp.score(sp.Reconstruction(batch.inputs[1:]), batch, domain=VOTERS.domain)
    assert scores["feature_accuracy"].tolist() == [0.0, 1.0]


def test_the_guess_without_update_is_what_most_others_have():
    batch, pool = HAMLET.batch(3), HAMLET.inputs[3:200]
    trivial = baseline_scores(batch, pool=pool, rng=sp.rng(0))["mean"]
    for place, token in enumerate(trivial.paired.guess[0].tolist()):
        counts = Counter(pool[:, place].tolist())
        assert counts[token] == max(counts.values())
    rows = VOTERS.batch(3)
    pool = VOTERS.inputs[3:]
    domain = VOTERS.domain
    trivial = baseline_scores(rows, pool=pool, rng=sp.rng(0), domain=domain)["mean"]
    party = domain.places[4]
    commonest = Counter(pool[:, party].argmax(1).tolist()).most_common(1)[0][0]
    assert int(trivial.paired.guess[0, party].argmax()) == commonest
    assert float(trivial.paired.guess[0, 0]) == pytest.approx(float(pool[:, 0].mean()))


def test_each_kind_of_input_has_its_own_metrics():
    kinds = {
        "voters": (VOTERS, "feature_accuracy"),
        "hamlet": (HAMLET, "token_accuracy"),
    }
    for data, metric in kinds.values():
        one = data.batch(1)
        paired = Paired(one.inputs, one.inputs, one.labels, None, (0,), domain=data.domain)
        names = [m.name for m in applicable(paired)]
        assert metric in names
        assert len({"feature_accuracy", "token_accuracy", "ssim"} & set(names)) == 1
    image = torch.zeros(1, 3, 8, 8)
    for name in ("feature_accuracy", "token_accuracy"):
        with pytest.raises(NotApplicable):
            METRICS[name](Paired(image, image, torch.tensor([0]), None, (0,)))


def test_a_guess_of_another_kind_is_refused():
    batch = HAMLET.batch(1)
    with pytest.raises(InvalidValue, match="of the kind of the private inputs"):
        sp.score(sp.Reconstruction(batch.inputs.float()), batch)
