"""The names that users, specs and tests rely on."""

import inspect
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

import seepage as sp
from seepage.attacks import ATTACKS
from seepage.core.protocols import Attack, Defense, LocalComputation
from seepage.defenses import DEFENSES
from seepage.zoo import MODELS

PROMISED = {
    "AddGaussian",
    "AddLaplace",
    "AuditSteps",
    "Batch",
    "Certificate",
    "Client",
    "Clip",
    "ClipEach",
    "Dropout",
    "FedAvg",
    "Gradient",
    "InstaHide",
    "Mean",
    "MixUp",
    "Oasis",
    "Observation",
    "Paired",
    "Precode",
    "Prune",
    "Quantize",
    "Reconstruction",
    "RecordSteps",
    "Rng",
    "SecureAggregation",
    "SeepageError",
    "Sign",
    "Soteria",
    "Task",
    "Threat",
    "TopK",
    "Trace",
    "Update",
    "attacks",
    "audit",
    "audit.run",
    "attacks.adaptive",
    "attacks.PriorNetwork",
    "attacks.ReadLogits",
    "attacks.Unmixed",
    "attacks.analytic_fc",
    "attacks.april",
    "attacks.bag_of_words",
    "attacks.token_span",
    "attacks.cocktail_party",
    "attacks.class_fishing",
    "attacks.dager",
    "attacks.dlg",
    "attacks.grad_inversion",
    "attacks.exact_batch",
    "attacks.first_layer_fc",
    "attacks.exact_features",
    "attacks.gradattack_strongest",
    "attacks.identity_convolutions",
    "attacks.idlg",
    "attacks.inverting_gradients",
    "attacks.label_flip",
    "attacks.learn_from_gradients",
    "bounds",
    "bounds.CramerRao",
    "bounds.CramerRaoRelaxed",
    "bounds.Identifiability",
    "bounds.VanTrees",
    "bounds.table_1",
    "bounds.two_layer_orders",
    "attacks.tableak",
    "attacks.teacher_forced",
    "attacks.estimated_features",
    "attacks.softmax_features",
    "attacks.systematic",
    "attacks.through",
    "audit_step",
    "PublicData",
    "auto",
    "bounds.CandidateError",
    "bounds.IdentificationLimit",
    "bounds.MutualInformation",
    "bounds.ReconstructionRobustness",
    "bounds.RenyiError",
    "bounds.dp.expected_error",
    "bounds.dp.gaussian_blow_up",
    "bounds.dp.required_noise",
    "bounds.dp.subsampled_blow_up",
    "bounds.risk.InversionInfluence",
    "bounds.risk.JacobianNorm",
    "capture",
    "capture.Capture",
    "capture.Setting",
    "capture.consistency",
    "capture.hashed",
    "capture.load",
    "capture.save",
    "attacks.robbing_the_fed",
    "attacks.tensor_features",
    "certify",
    "attacks.unmix",
    "chain",
    "cross_entropy",
    "data",
    "data.bundled",
    "data.load",
    "domains",
    "domains.CIFAR10",
    "domains.CIFAR100",
    "domains.Categorical",
    "domains.Continuous",
    "domains.IMAGENET",
    "domains.Image",
    "domains.MNIST",
    "domains.Signal",
    "domains.Tabular",
    "domains.Tokens",
    "dp_sgd",
    "epsilon",
    "attributes",
    "audit_epsilon",
    "membership",
    "rng",
    "score",
    "utility",
    "utility.Dirichlet",
    "utility.Federated",
    "utility.Training",
    "utility.train",
    "vet",
    "zoo",
    "zoo.cnn",
    "zoo.convnet",
    "zoo.fc",
    "zoo.from_factory",
    "zoo.gpt",
    "zoo.lenet",
    "zoo.load_weights",
    "zoo.mlp",
    "zoo.resnet18",
    "zoo.resnet20",
    "zoo.resnet56",
    "zoo.two_layer",
}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_what_was_promised_is_there(name):
    value = sp
    for part in name.split("."):
        value = getattr(value, part)
    assert value is not None


@pytest.mark.parametrize(
    "package",
    [sp, sp.attacks, sp.bounds, sp.capture, sp.data, sp.domains, sp.utility, sp.zoo],
    ids=str,
)
def test_all_lists_exactly_the_public_names(package):
    for name in package.__all__:
        assert getattr(package, name) is not None, "what is imported when asked for is there"
    own = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "").startswith(package.__name__)
    }
    assert own <= set(package.__all__)
    assert len(package.__all__) == len(set(package.__all__))


def test_all_of_the_root_is_sorted_and_lists_the_promised_packages():
    assert sp.__all__ == sorted(sp.__all__)
    assert {n for n in PROMISED if "." not in n} == set(sp.__all__)


def test_the_version_is_the_one_that_is_packaged():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sp.__version__ == project["version"]


def test_every_recipe_model_and_defense_is_reachable_from_the_root():
    assert all(getattr(sp.attacks, name) is recipe for name, recipe in ATTACKS.items())
    assert all(getattr(sp, name) is defense for name, defense in DEFENSES.items())
    assert all(getattr(sp.zoo, n) is make for n, make in MODELS.items() if "-" not in n)


def test_options_are_keyword_only_and_none_passes_through():
    for name, make in {**ATTACKS, **MODELS}.items():
        kinds = {parameter.kind for parameter in inspect.signature(make).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}, name


def test_the_parts_satisfy_their_protocols():
    assert isinstance(sp.Gradient(), LocalComputation)
    assert isinstance(sp.FedAvg(lr=0.1, steps=1), LocalComputation)
    assert isinstance(sp.chain(), Defense)
    assert isinstance(sp.attacks.analytic_fc(), Attack)


def test_an_attack_has_no_slot_for_the_truth():
    for make in ATTACKS.values():
        assert list(inspect.signature(make()).parameters) == ["observation", "rng"]


def test_the_public_face_runs_as_it_is_written():
    batch = sp.data.bundled("photos", size=4)
    task = sp.zoo.convnet(width=2, classes=10)
    client = sp.Client(sp.Gradient(), defense=sp.chain(sp.Prune(0.9)))
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    guess = sp.attacks.inverting_gradients(steps=2, restarts=1)(seen, rng=sp.rng(1))
    scores = sp.score(guess, batch)
    assert {"psnr", "ssim", "rmse"} <= set(scores)
    assert all(scores[name].shape == (4,) for name in scores)
    assert torch.isfinite(scores["psnr"]).all()
