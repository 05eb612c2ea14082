"""The closed form recovers real images exactly, and says when it cannot."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.linear_systems.closed_form import layer_input
from seepage.attacks.linear_systems.input_layer import input_layer
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import Signal


def observe(task, batch, *, local=None, defense=None, labels=True):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat(knows_labels=labels).observe(client, task, batch, rng=sp.rng(0))


def person(batch, i):
    return sp.Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1])


def relative_error(guess, batch):
    return float((guess.inputs - batch.inputs).norm() / batch.inputs.norm())


@pytest.mark.parametrize("hidden", [(64,), (32, 16), (128, 64, 32)], ids=str)
@pytest.mark.parametrize("i", range(4))
def test_photos_come_back_through_fully_connected_stacks(photos, hidden, i):
    batch = person(photos, i)
    guess = sp.attacks.analytic_fc()(observe(sp.zoo.mlp(hidden=hidden), batch), rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-4
    assert sp.score(guess, batch)["psnr"].item() > 60
    assert guess.certificate.residual < 1e-4
    assert guess.certificate.unique


def test_double_precision_gives_nine_digits(photos):
    task = sp.zoo.mlp(hidden=(64,)).to(dtype=torch.float64)
    batch = person(photos, 0).to(dtype=torch.float64)
    guess = sp.attacks.analytic_fc()(observe(task, batch), rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-9


@pytest.mark.parametrize(
    ("local", "defense"),
    [
        (sp.FedAvg(lr=0.01, steps=5), sp.chain()),
        (sp.FedAvg(lr=0.01, epochs=3, momentum=0.9), sp.chain()),
        (sp.Gradient(reduction="sum"), sp.Clip(1e-3)),
        (sp.Gradient(), sp.chain(sp.ClipEach(0.1), sp.Mean())),
    ],
    ids=str,
)
def test_local_steps_and_clipping_do_not_protect_one_person(photos, local, defense):
    batch = person(photos, 1)
    seen = observe(sp.zoo.mlp(hidden=(64,)), batch, local=local, defense=defense)
    assert relative_error(sp.attacks.analytic_fc()(seen, rng=sp.rng(1)), batch) < 1e-3


def test_all_rows_together_beat_any_one_row_under_noise(photos):
    batch = person(photos, 0)
    task = sp.zoo.mlp(hidden=(64,))
    seen = observe(task, batch, defense=sp.AddGaussian(1e-3))
    layer = input_layer(task)
    weight, bias = (seen.update.tensors[f"{layer}.{part}"] for part in ("weight", "bias"))
    truth = task.domain.normalise(batch.inputs).flatten()
    ours = (layer_input(weight, bias, name=layer) - truth).norm()
    each_row = (weight / bias[:, None] - truth).norm(dim=1)
    assert ours < each_row.min()


def test_noise_makes_the_certificate_fail_honestly(photos):
    seen = observe(sp.zoo.mlp(hidden=(64,)), person(photos, 0), defense=sp.AddGaussian(0.05))
    certificate = sp.attacks.analytic_fc()(seen, rng=sp.rng(1)).certificate
    assert certificate.residual > 0.1
    assert certificate.unique is None


def test_no_label_is_needed_and_then_nothing_is_certified(photos):
    batch = person(photos, 2)
    seen = observe(sp.zoo.mlp(hidden=(64,)), batch, labels=False)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-4
    assert guess.labels is None
    assert guess.certificate is None


def test_a_heart_beat_comes_back(data_root):
    beats = sp.data.load("ecg").batch(1)
    task = sp.zoo.mlp(hidden=(20,), classes=5, domain=sp.data.load("ecg").domain)
    guess = sp.attacks.analytic_fc()(observe(task, beats), rng=sp.rng(1))
    assert relative_error(guess, beats) < 1e-4


def test_a_batch_gives_one_mixture_per_person(photos):
    guess = sp.attacks.analytic_fc()(observe(sp.zoo.mlp(hidden=(64,)), photos), rng=sp.rng(1))
    assert guess.inputs.shape == photos.inputs.shape
    assert guess.certificate is None


class Late(nn.Module):
    """A linear layer that reads the input, declared after one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.reader = nn.Linear(10, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.reader(x.reshape(len(x), -1))))


def test_the_input_layer_is_found_by_what_it_reads_not_by_its_place():
    domain = Signal((1, 10))
    assert input_layer(sp.Task(Late(), sp.cross_entropy, domain)) == "reader"
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(10, 3, bias=False))
    assert input_layer(sp.Task(unbiased, sp.cross_entropy, domain)) is None


def test_a_convolutional_network_is_refused_with_what_to_use(photos):
    seen = observe(sp.zoo.cnn(variant="cnn2-v2"), person(photos, 0))
    with pytest.raises(NotApplicable, match="use gradient matching"):
        sp.attacks.analytic_fc()(seen, rng=sp.rng(1))


def with_update(seen, change):
    from dataclasses import replace

    return replace(seen, update=change(seen.update))


@pytest.mark.parametrize("recipe", sp.attacks.ATTACKS)
@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda u: u.map(torch.zeros_like), NotApplicable, "zero everywhere"),
        (lambda u: u.map(lambda t: t * torch.nan), NotApplicable, "NaN or infinity"),
        (lambda u: u.map(lambda t: t[..., :1]), InvalidValue, "was it made with this model"),
        (lambda u: sp.Update({"other": torch.ones(2)}), InvalidValue, "does not fit"),
    ],
)
def test_an_unusable_update_is_one_clear_sentence(photos, recipe, change, error, said):
    seen = with_update(observe(sp.zoo.mlp(hidden=(8,)), person(photos, 0)), change)
    with pytest.raises(error, match=said):
        sp.attacks.ATTACKS[recipe]()(seen, rng=sp.rng(1))


def test_more_people_than_rows_is_refused(photos):
    seen = observe(sp.zoo.mlp(hidden=(3,)), photos)
    with pytest.raises(NotApplicable, match="3 rows, too few for 4 inputs"):
        sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
