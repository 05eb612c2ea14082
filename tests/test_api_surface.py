"""The names that users, specs and tests rely on."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

import seepage as sp
from seepage.attacks import ATTACKS
from seepage.core._protocols import Attack, Defense, LocalComputation
from seepage.defenses import DEFENSES
from seepage.zoo import MODELS

# By package; the root comes first.
PROMISED_NAMES = {
    "": (
        "AddGaussian AddLaplace AuditSteps Batch Certificate Client Clip ClipEach Decoder "
        "Dropout FedAvg Gradient InstaHide Local Mean MixUp Oasis Observation Paired Precode Prune "
        "PublicData Quantize Reconstruction RecordSteps Rng SecureAggregation SeepageError Sign "
        "Soteria Task Threat TopK Trace Update attacks attributes audit audit_epsilon "
        "audit_step auto bounds capture certify chain cross_entropy data domains dp_sgd epsilon "
        "membership rng score utility vet zoo"
    ),
    "attacks": (
        "PriorNetwork ReadLogits Unmixed adaptive analytic_adam analytic_fc april bag_of_words "
        "class_fishing cocktail_party dager dlg estimated_features exact_batch exact_features "
        "feature_inversion feature_maps first_layer_fc grad_inversion gradattack_strongest "
        "identity_convolutions idlg input_to_logits inverting_gradients label_flip "
        "learn_from_gradients next_words reversible_blocks robbing_the_fed softmax_features "
        "systematic tableak teacher_forced tensor_features through token_span unmix unmix_rounds"
    ),
    "audit": "run",
    "bounds": (
        "CandidateError CramerRao CramerRaoRelaxed Identifiability IdentificationLimit "
        "MutualInformation ReconstructionRobustness RenyiError VanTrees table_1 two_layer_orders"
    ),
    "bounds.dp": "expected_error gaussian_blow_up required_noise subsampled_blow_up",
    "bounds.risk": "InversionInfluence JacobianNorm",
    "capture": "Capture Setting consistency hashed load save",
    "data": "bundled load",
    "domains": "CIFAR10 CIFAR100 Categorical Continuous IMAGENET Image MNIST Signal Tabular Tokens",
    "utility": "Dirichlet Federated Training train",
    "zoo": (
        "cnn convnet fc from_factory gpt lenet load_weights mlp resnet18 resnet20 resnet56 "
        "two_layer"
    ),
}
PROMISED = {
    f"{place}.{name}".lstrip(".")
    for place, names in PROMISED_NAMES.items()
    for name in names.split()
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
    assert isinstance(sp.Local(optimizer="Adam", lr=0.1, steps=1), LocalComputation)
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


def test_using_a_name_for_the_first_time_draws_nothing_at_random():
    told = (
        "import random, torch, seepage as sp\n"
        "before = random.getstate()\n"
        "sp.audit_step, sp.score, sp.audit\n"
        "assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", told], check=True)
