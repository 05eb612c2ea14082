"""The closed form recovers real images exactly, and says when it cannot."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.labels import InferLabels
from seepage.attacks.linear_systems import features
from seepage.attacks.linear_systems._analytic_fc import _solve_layer_input
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.domains import Signal
from seepage.probing._first_layer import input_layer


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


def dense(data, hidden, *, biased, activation=nn.ReLU, loss=sp.cross_entropy):
    """Fully connected layers, each with a bias where `biased` says so."""
    sizes = [data.inputs[0].numel(), *hidden, data.classes]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [
            nn.Linear(a, b, bias=c) for a, b, c in zip(sizes, sizes[1:], biased, strict=False)
        ]
        parts = [part for layer in layers for part in (layer, activation())]
    return sp.Task(nn.Sequential(nn.Flatten(), *parts[:-1]), loss, data.domain)


def trained(task, data, *, steps=60):
    """The same network after a few steps on examples nobody attacks."""
    model = task.model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4)
    for step in range(steps):
        batch = data.batch(32, start=100 + 5 * step)
        loss = task.loss(model(task.domain.normalise(batch.inputs)), batch.labels).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return replace(task, model=model)


def squared(outputs, labels):
    return (outputs - nn.functional.one_hot(labels, outputs.shape[1])).square().mean(1)


@pytest.mark.parametrize(
    ("name", "training", "loss"),
    [
        ("cifar10", False, sp.cross_entropy),
        ("cifar10", True, squared),
        ("ecg", False, squared),
        ("ecg", True, sp.cross_entropy),
        ("fmri", False, sp.cross_entropy),
    ],
    ids=["cifar10", "cifar10 trained", "ecg", "ecg trained", "fmri"],
)
@pytest.mark.parametrize(
    ("hidden", "biased"),
    [
        ((), (True,)),
        ((32,), (True, True)),
        ((32,), (False, True)),
        ((32, 16), (False, True, False)),
        ((32, 16), (False, False, True)),
    ],
    ids=str,
)
def test_real_inputs_come_back_to_rounding(data_root, name, hidden, biased, training, loss):
    data = sp.data.load(name)
    task = dense(data, hidden, biased=biased, loss=loss)
    if training:
        task = trained(task, data)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        for i in range(2):
            batch = data.batch(1, start=i).to(dtype=dtype)
            seen = observe(task.to(dtype=dtype), batch)
            guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
            assert guess.inputs.dtype == dtype
            assert relative_error(guess, batch) < tolerance
            assert guess.certificate.unique


@pytest.mark.parametrize(
    "activation",
    [nn.Tanh, nn.Sigmoid, lambda: nn.LeakyReLU(0.1)],
    ids=["tanh", "sigmoid", "leaky"],
)
def test_biases_above_are_enough_behind_any_activation_that_can_be_undone(photos, activation):
    data = sp.data.load("photos")
    task = dense(data, (32, 16), biased=(False, False, True), activation=activation)
    batch = person(photos, 0).to(dtype=torch.float64)
    seen = observe(task.to(dtype=torch.float64), batch, defense=sp.Clip(1e-4))
    assert relative_error(sp.attacks.analytic_fc()(seen, rng=sp.rng(1)), batch) < 1e-12


def test_below_a_bias_one_local_step_is_inverted_and_the_residual_tells_of_several(photos):
    task = dense(sp.data.load("photos"), (32,), biased=(False, True))
    batch = person(photos, 0)
    one, many = (
        sp.attacks.analytic_fc()(
            observe(task, batch, local=sp.FedAvg(lr=0.01, steps=steps)), rng=sp.rng(1)
        )
        for steps in (1, 20)
    )
    assert relative_error(one, batch) < 1e-4
    assert one.certificate.unique
    assert relative_error(many, batch) > 1e-3
    assert many.certificate.unique is None


def test_a_layer_whose_units_are_all_asleep_gives_nothing_away(photos):
    task = dense(sp.data.load("photos"), (8,), biased=(True, True))
    with torch.no_grad():
        task.model[1].bias.fill_(-1e3)
    asleep = sp.Task(task.model, sp.cross_entropy, task.domain)
    with pytest.raises(NotApplicable, match="output of '1' is zero"):
        sp.attacks.analytic_fc()(observe(asleep, person(photos, 0)), rng=sp.rng(1))


def test_without_bias_or_label_what_to_use_is_said(photos):
    task = dense(sp.data.load("photos"), (32,), biased=(False, False), loss=nn.MSELoss())
    batch = sp.Batch(photos.inputs[:1], torch.linspace(0, 1, 10)[None])
    seen = observe(task, batch, labels=False)
    with pytest.raises(NotApplicable, match=r"expected a bias.*use gradient matching"):
        sp.attacks.analytic_fc()(seen, rng=sp.rng(1))


class Skip(nn.Module):
    """Adds what its layers return to what they read."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 32, bias=False)
        self.second = nn.Linear(32, width, bias=False)
        self.head = nn.Linear(width, 10, bias=False)

    def forward(self, inputs):
        read = inputs.flatten(1)
        return self.head(read + self.second(torch.tanh(self.first(read))))


def unbiased(kind, domain, *, seed):
    """A network whose first layer has no bias, and none above tells what it reads."""
    width = domain.shape[0] * domain.shape[1] * domain.shape[2]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, last = nn.Linear(width, 32, bias=False), nn.Linear(32, 10, bias=False)
        between = {
            "relu": [nn.ReLU()],
            "gelu": [nn.GELU()],
            "biases above": [nn.GELU(), nn.Linear(32, 32), nn.SiLU()],
            "layer norm": [nn.LayerNorm(32, eps=0.0), nn.GELU()],
        }
        layers = [Skip(width)] if kind == "skip" else [first, *between[kind], last]
        return sp.Task(nn.Sequential(nn.Flatten(), *layers), sp.cross_entropy, domain)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("mnist", "gelu", marks=pytest.mark.slow),
        *(("cifar10", kind) for kind in ("relu", "gelu", "biases above", "skip")),
    ],
)
def test_without_a_bias_the_length_of_the_input_is_found(data_root, name, kind):
    data = sp.data.load(name)
    for seed in range(2):
        batch = data.batch(1, start=5 * seed)
        seen = observe(unbiased(kind, data.domain, seed=seed), batch, labels=False)
        guess = InferLabels(sp.attacks.analytic_fc())(seen, rng=sp.rng(1))
        assert relative_error(guess, batch) < 1e-5
        assert torch.equal(guess.labels, batch.labels)
        assert guess.certificate.unique


SHARED = {
    "several steps": {"local": sp.FedAvg(lr=0.05, steps=4)},
    "momentum": {"local": sp.FedAvg(lr=0.05, steps=3, momentum=0.9)},
    "clipping": {"defense": sp.Clip(1e-3)},
}


@pytest.mark.parametrize(
    "shared",
    ["clipping", *(pytest.param(n, marks=pytest.mark.slow) for n in ("several steps", "momentum"))],
)
def test_what_scales_an_update_does_not_hide_the_length(photos, shared):
    domain = sp.data.load("photos").domain
    for kind in ("relu", "skip"):
        seen = observe(unbiased(kind, domain, seed=0), person(photos, 1), **SHARED[shared])
        guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
        assert relative_error(guess, person(photos, 1)) < 1e-3


def test_clipping_that_is_not_known_hides_the_proof_but_not_the_length(photos):
    task = unbiased("gelu", sp.data.load("photos").domain, seed=1)
    client = sp.Client(sp.Gradient(), sp.Clip(1e-3))
    threat = sp.Threat(knows_labels=True, knows_defense=False)
    seen = threat.observe(client, task, person(photos, 2), rng=sp.rng(0))
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert relative_error(guess, person(photos, 2)) < 1e-3
    assert guess.certificate.unique is None


@pytest.mark.parametrize("seed", range(3))
def test_a_length_that_a_norm_takes_away_is_not_claimed(photos, seed):
    domain = sp.data.load("photos").domain
    batch = person(photos, seed)
    seen = observe(unbiased("layer norm", domain, seed=seed), batch)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert guess.certificate.residual < 1e-3
    assert guess.certificate.unique is False
    read, truth = (domain.normalise(x.inputs).flatten() for x in (guess, batch))
    assert float(torch.cosine_similarity(read, truth, dim=0)) > 0.999


HIDING = {
    "noise": {"defense": sp.AddGaussian(1e-3)},
    "pruning": {"defense": sp.Prune(0.9)},
    "signs": {"defense": sp.Sign()},
    "eight bits": {"defense": sp.Quantize(8)},
}


@pytest.mark.parametrize("hidden", HIDING)
@pytest.mark.parametrize(
    "kind", ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("skip", "layer norm"))]
)
def test_behind_a_defense_no_length_is_claimed(photos, kind, hidden):
    for seed in range(2):
        task = unbiased(kind, sp.data.load("photos", pixels=8).domain, seed=seed)
        batch = sp.data.load("photos", pixels=8).batch(1, start=seed)
        guess = sp.attacks.analytic_fc()(observe(task, batch, **HIDING[hidden]), rng=sp.rng(1))
        assert guess.certificate.unique is None


def test_two_inputs_taken_for_one_are_not_claimed(photos):
    for kind in ("relu", "skip"):
        task = unbiased(kind, sp.data.load("photos", pixels=8).domain, seed=0)
        pair = sp.data.load("photos", pixels=8).batch(2)
        threat = sp.Threat(knows_batch_size=False)
        seen = threat.observe(sp.Client(sp.Gradient()), task, pair, rng=sp.rng(0))
        guess = sp.attacks.analytic_fc()(replace(seen, labels=pair.labels[:1]), rng=sp.rng(1))
        assert guess.certificate.unique is None


class Centred(nn.Module):
    """Takes the mean of each input away."""

    def forward(self, inputs):
        return inputs - inputs.mean((1, 2, 3), keepdim=True)


class Turned(nn.Module):
    """Another unit, and the channels last."""

    def forward(self, inputs):
        return (255 * inputs - 128).permute(0, 2, 3, 1)


class Float32Alone(nn.Module):
    """Multiplies by numbers of float32, so that no input of double precision passes."""

    def forward(self, inputs):
        return inputs @ (2 * torch.eye(inputs.shape[-1]))


def behind(front, domain, *, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm = nn.BatchNorm2d(domain.shape[0])
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
        others = {"units": Turned(), "mean": Centred(), "relu": nn.ReLU(), "float": Float32Alone()}
        first = norm if front == "batch norm" else others[front]
        width = torch.Size(domain.shape).numel()
        layers = first, nn.Flatten(), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 10)
        return sp.Task(nn.Sequential(*layers), sp.cross_entropy, domain)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("front", ["batch norm", "units"])
def test_an_affine_map_before_the_first_layer_is_undone(data_root, name, front):
    data = sp.data.load(name)
    for seed in range(2):
        batch = data.batch(1, start=seed)
        seen = observe(behind(front, data.domain, seed=seed), batch)
        guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
        assert relative_error(guess, batch) < 1e-4
        assert guess.certificate.unique


def test_a_mean_that_is_taken_away_is_not_claimed(photos):
    domain = sp.data.load("photos").domain
    for seed in range(3):
        seen = observe(behind("mean", domain, seed=seed), person(photos, seed))
        guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
        assert guess.certificate.unique is not True
        assert guess.confidence is None


@pytest.mark.parametrize("front", ["relu", "float"])
def test_other_maps_before_the_first_layer_are_refused(photos, front):
    task = behind(front, sp.data.load("photos").domain, seed=0)
    with pytest.raises(NotApplicable, match="affine map"):
        sp.attacks.analytic_fc()(observe(task, person(photos, 0)), rng=sp.rng(1))


@pytest.mark.parametrize(
    ("model", "layer", "options"),
    [
        ("lenet", "head", {}),
        ("convnet", "fc", {"width": 4}),
        ("resnet20", "fc", {}),
        ("mlp", "hidden2", {"hidden": [24, 12], "activation": "tanh"}),
    ],
)
def test_what_any_fully_connected_layer_reads_comes_back(photos, model, layer, options):
    task = sp.zoo.build(model, options=options)
    layer = next(
        n for n, m in task.model.named_modules() if isinstance(m, nn.Linear) and n >= layer
    )
    read = []
    network = task.in_mode("eval").network
    handle = network.get_submodule(layer).register_forward_pre_hook(lambda _, x: read.append(x[0]))
    task.outputs(task.parameters, photos.inputs[:1])
    handle.remove()
    found = features(observe(task, person(photos, 0), labels=False), layer=layer)
    assert float((found - read[0][0]).norm() / read[0].norm()) < 1e-5


class Positions(nn.Module):
    """A linear layer that is applied at every position of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(4, 3)
        self.head = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.each(x.reshape(len(x), 3, 4))).flatten(1))


def test_features_are_refused_where_rows_mix_them(photos):
    batch = sp.Batch(torch.rand(1, 1, 12, generator=torch.manual_seed(0)), torch.tensor([1]))
    seen = observe(sp.Task(Positions(), sp.cross_entropy, Signal((1, 12))), batch)
    with pytest.raises(NotApplicable, match="reads one vector per example"):
        features(seen, layer="each")
    with pytest.raises(UnknownName, match="did you mean 'head'"):
        features(seen, layer="heads")
    with pytest.raises(NotApplicable, match="mixture of 4 inputs"):
        features(observe(sp.zoo.mlp(hidden=(8,)), photos), layer="hidden1")


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
    ours = (_solve_layer_input(weight, bias, name=layer) - truth).norm()
    each_row = (weight / bias[:, None] - truth).norm(dim=1)
    assert ours < each_row.min()


def test_noise_makes_the_certificate_fail_honestly(photos):
    seen = observe(sp.zoo.mlp(hidden=(64,)), person(photos, 0), defense=sp.AddGaussian(0.05))
    certificate = sp.attacks.analytic_fc()(seen, rng=sp.rng(1)).certificate
    assert certificate.residual > 0.1
    assert certificate.unique is None


@pytest.mark.parametrize("number", range(4))
def test_a_label_that_is_not_known_is_fitted_to_the_input(photos, number):
    batch = person(photos, number)
    seen = observe(sp.zoo.mlp(hidden=(64,)), batch, labels=False)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert relative_error(guess, batch) < 1e-4
    assert torch.equal(guess.labels, batch.labels)
    assert guess.certificate.residual < 1e-3


def test_without_a_label_nothing_is_certified(photos):
    defense = sp.AddGaussian(1e-3)
    seen = observe(sp.zoo.mlp(hidden=(64,)), person(photos, 2), labels=False, defense=defense)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert guess.labels is None
    assert guess.certificate is None


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
