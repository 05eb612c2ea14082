"""Heart beats and brain activity: the attacks and the theory on signals of one axis."""

import pytest
import torch

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.exposure._rank_metric import rank_metric
from seepage.search import LBFGS

SIGNALS = ["ecg", "ecg:mitbih", "fmri"]


def scene(name, model, *, size=1, dtype=torch.float32, **options):
    data = sp.data.load(name)
    task = sp.zoo.build(model, options={"domain": data.domain, "classes": data.classes, **options})
    task, batch = task.to(dtype=dtype), data.batch(size).to(dtype=dtype)
    threat = sp.Threat(knows_labels=True)
    return threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0)), batch


def relative_error(guess, batch):
    return float((guess.inputs - batch.inputs).norm() / batch.inputs.norm())


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("options", [{"hidden": 1}, {"hidden": 20}], ids=str)
def test_one_hidden_unit_gives_a_signal_away(data_root, name, options):
    seen, batch = scene(name, "fc", **options)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-4
    assert guess.certificate.unique


@pytest.mark.parametrize("name", SIGNALS)
def test_a_convolution_with_filters_enough_determines_a_signal_and_one_with_few_does_not(
    data_root, name
):
    for filters, expected in ((2, True), (1, False)):
        seen, batch = scene(name, "single_conv", filters=filters)
        certificate = sp.certify(seen, sp.Reconstruction(batch.inputs, batch.labels))
        assert certificate.locally_unique is expected
        [layer] = rank_metric(seen.task).layers
        assert (layer.deficiency == 0) is expected


@pytest.mark.parametrize("name", ["ecg", "fmri"])
def test_matching_finds_a_signal_behind_a_convolution(data_root, name):
    seen, batch = scene(name, "single_conv", filters=4)
    attack = sp.attacks.learn_from_gradients(steps=200, optimiser="lbfgs", weight=1e-3, every=5)
    guess = attack(seen, rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-2
    assert sp.certify(seen, guess).error > float((guess.inputs - batch.inputs).abs().max())


@pytest.mark.slow
def test_a_short_search_is_not_ruled_by_its_regulariser(data_root):
    data = sp.data.load("ecg")
    task = sp.zoo.fc(hidden=16, domain=data.domain, classes=data.classes).to(dtype=torch.float64)
    batches = [data.batch(1, start=100 + i).to(dtype=torch.float64) for i in range(4)]
    threat, client = sp.Threat(knows_labels=False), sp.Client(sp.Gradient())
    seen = [threat.observe(client, task, batch, rng=sp.rng(0)) for batch in batches]
    attack = sp.attacks.learn_from_gradients(steps=100, optimiser="lbfgs")
    guesses = attack.many(seen, rngs=[sp.rng(1000 + i) for i in range(4)])
    errors = [relative_error(*pair) for pair in zip(guesses, batches, strict=True)]
    assert max(errors) < 1e-3


@pytest.mark.parametrize(
    ("optimiser", "steps", "every"),
    [("adam", 10_000, 1_000), ("lbfgs", 6_000, 20), ("lbfgs", 9, 2)],
)
def test_the_regulariser_fades_within_a_search_of_any_length(optimiser, steps, every):
    for regulariser in ("norm", "orthogonality"):
        attack = sp.attacks.learn_from_gradients(
            regulariser=regulariser, optimiser=optimiser, steps=steps
        )
        _, prior = attack.search.terms
        assert (prior.factor, prior.every) == (0.1, every)


def test_a_batch_of_beats_needs_as_many_hidden_units_as_people(data_root):
    for hidden, expected in ((3, False), (6, True)):
        # Beats are so much alike that float32 leaves an error of 0.004.
        seen, batch = scene("ecg", "fc", hidden=hidden, size=5, dtype=torch.float64)
        certificate = sp.certify(seen, sp.Reconstruction(batch.inputs, batch.labels))
        assert certificate.residual < 1e-6
        assert certificate.locally_unique is expected


@pytest.mark.parametrize("name", SIGNALS)
def test_every_beat_keeps_its_digits_in_double_precision(data_root, name):
    data = sp.data.load(name)
    task = sp.zoo.mlp(hidden=(16, 8), domain=data.domain, classes=data.classes)
    task = task.to(dtype=torch.float64)
    for person in range(5):
        batch = data.batch(1, start=person).to(dtype=torch.float64)
        seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        assert relative_error(sp.attacks.analytic_fc()(seen, rng=sp.rng(1)), batch) < 1e-12


@pytest.mark.parametrize("line_search", [False, True])
def test_learn_from_gradients_searches_along_lines_where_asked_to(line_search):
    attack = sp.attacks.learn_from_gradients(optimiser="lbfgs", line_search=line_search)
    assert attack.search.optimiser == LBFGS(line_search=line_search)


def test_a_line_search_without_lines_is_refused():
    with pytest.raises(InvalidValue, match=r"expected optimiser='lbfgs' for line_search=True"):
        sp.attacks.learn_from_gradients(line_search=True)
