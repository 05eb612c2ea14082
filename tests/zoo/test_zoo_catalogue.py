"""Models by name, from plain data, and from the user's own modules."""

import importlib
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage import zoo
from seepage.core.errors import DataNotFound, InvalidValue, UnknownName
from seepage.domains import MNIST, Image

TINY = Image((1, 2, 2))


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Writes a module that can be imported for the length of one test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str, name: str = "zoo_user_module") -> str:
        path = Path(tmp_path, *name.split(".")).with_suffix(".py")
        path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield write
    sys.modules.pop("zoo_user_module", None)


NETWORKS = """
    from torch import nn

    scale = 3
    ready = nn.Linear(4, 2)

    def small_network():
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    class Network(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(4, 5))

    def needs_width(width):
        return nn.Linear(4, width)

    class Deep(nn.Sequential):
        def __init__(self, *, width=3, sizes=(4, 4), classes=2):
            assert isinstance(sizes, tuple)
            layers = [nn.Linear(a, b) for a, b in zip((4, *sizes), (*sizes, width))]
            super().__init__(nn.Flatten(), *layers, nn.Linear(width, classes))

    def fails():
        raise RuntimeError("out of paper\\nand ink")

    def number():
        return 4

    class Pair(nn.Bilinear):
        def __init__(self):
            super().__init__(4, 4, 2)
"""


def test_the_catalogue_says_one_line_about_every_model():
    lines = zoo.catalogue()
    assert list(lines) == [*zoo.MODELS, "hf:NAME", "timm:NAME"]
    assert set(zoo.CNN_VARIANTS) <= set(lines)
    for line in lines.values():
        assert line.endswith(".")
        assert 20 < len(line) < 100
    assert len(set(lines.values())) == len(lines)


def test_every_public_name_is_there():
    for name in zoo.__all__:
        assert getattr(zoo, name) is not None
    assert {n for n in zoo.MODELS if "-" not in n} <= set(zoo.__all__)


def test_build_calls_the_factory_with_the_options():
    built = zoo.build("mlp", options={"hidden": [5], "domain": MNIST, "classes": 3})
    assert built.name == zoo.mlp(hidden=(5,), domain=MNIST, classes=3).name
    assert built.domain == MNIST
    assert built.classes == 3


@pytest.mark.parametrize("variant", zoo.CNN_VARIANTS)
def test_a_variant_is_a_model_of_its_own(variant):
    built = zoo.build(variant, options={"classes": 10})
    assert built.name == f"cnn(variant={variant!r})"


def test_a_misspelt_model_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="unknown model 'covnet'; did you mean 'convnet'"):
        zoo.build("covnet", options={})


def test_a_misspelt_option_is_answered_with_the_nearest():
    with pytest.raises(
        UnknownName, match="unknown option 'widht' of convnet; did you mean 'width'"
    ):
        zoo.build("convnet", options={"widht": 8})


def test_a_variant_cannot_be_talked_into_being_another():
    with pytest.raises(UnknownName, match="unknown option 'variant' of cnn2-v1"):
        zoo.build("cnn2-v1", options={"variant": "cnn3-v1"})


def test_build_checks_values_too():
    with pytest.raises(InvalidValue, match="convnet expects width as int, got '64'"):
        zoo.build("convnet", options={"width": "64"})
    with pytest.raises(InvalidValue, match="expected width as a whole number >= 1, got 0"):
        zoo.build("convnet", options={"width": 0})


def test_build_resolves_a_factory_of_the_user(user_module):
    name = f"{user_module(NETWORKS)}:small_network"
    task = zoo.build(name, options={"domain": TINY, "classes": 2})
    assert task.name == name
    assert task.classes == 2


def test_build_makes_up_no_domain(user_module):
    with pytest.raises(InvalidValue, match="small_network needs the option 'domain'"):
        zoo.build(f"{user_module(NETWORKS)}:small_network", options={})
    with pytest.raises(UnknownName, match="unknown option 'width' of zoo_user_module:number"):
        zoo.build("zoo_user_module:number", options={"width": 3, "domain": TINY})


def test_a_class_is_a_factory(user_module):
    assert zoo.from_factory(f"{user_module(NETWORKS)}:Network", domain=TINY).classes == 5


def test_the_weights_a_factory_draws_depend_on_the_seed_alone(user_module):
    path = f"{user_module(NETWORKS)}:small_network"
    before = torch.get_rng_state()
    first, again = (zoo.from_factory(path, domain=TINY) for _ in range(2))
    other = zoo.from_factory(path, domain=TINY, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.parameters["1.weight"], again.parameters["1.weight"])
    assert not torch.equal(first.parameters["1.weight"], other.parameters["1.weight"])
    assert other.name == f"{path}(seed=1)"


def test_the_loss_and_the_weights_of_the_user_are_taken(user_module, tmp_path):
    path = f"{user_module(NETWORKS)}:small_network"
    save_file({"1.weight": torch.ones(2, 4), "1.bias": torch.zeros(2)}, tmp_path / "w.safetensors")

    def squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - labels).square()

    task = zoo.from_factory(path, domain=TINY, loss=squared, weights=tmp_path / "w.safetensors")
    losses = task.losses(task.parameters, torch.full((1, 1, 2, 2), 0.5), torch.tensor([5]))
    assert losses.tolist() == [9.0]
    assert task.name == f"{path}(weights='w.safetensors')"
    with pytest.raises(DataNotFound):
        zoo.from_factory(path, domain=TINY, weights=tmp_path / "nowhere.pt")


def test_a_network_has_an_output_for_each_class_and_may_have_more(user_module):
    path = f"{user_module(NETWORKS)}:small_network"
    with pytest.raises(InvalidValue, match="to have 10 outputs, got 2"):
        zoo.from_factory(path, domain=TINY, classes=10)
    # A few people need not have all classes.
    assert zoo.from_factory(path, domain=TINY, classes=1).classes == 2
    with pytest.raises(InvalidValue, match="to have 1 outputs, got 2"):
        zoo.from_factory(path, domain=TINY, classes=1, loss=nn.MSELoss())


@pytest.mark.parametrize("path", ["module", "package.module", ":factory", "module:", ":"])
def test_a_path_has_a_module_and_a_factory(path):
    with pytest.raises(InvalidValue, match=r"expected a network as 'package.module:factory', got"):
        zoo.from_factory(path, domain=TINY)


def test_a_dotted_name_without_a_colon_is_told_what_is_missing():
    with pytest.raises(InvalidValue, match=r"expected a network as 'package.module:factory'"):
        zoo.build("package.module", options={"domain": TINY})


@pytest.mark.parametrize(
    ("path", "absent"), [("nowhere:f", "nowhere"), ("json.nowhere.deep:f", "json.nowhere")]
)
def test_a_missing_module_is_named(path, absent):
    with pytest.raises(InvalidValue, match=f"no module '{absent}' to import '{path}' from"):
        zoo.from_factory(path, domain=TINY)


def test_a_missing_factory_is_answered_with_the_nearest(user_module):
    name = user_module(NETWORKS)
    wanted = "unknown factory 'smal_network' in zoo_user_module; did you mean 'small_network'"
    with pytest.raises(UnknownName, match=wanted):
        zoo.from_factory(f"{name}:smal_network", domain=TINY)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("needs_width", "called without arguments, but it raised TypeError: needs_width"),
        ("needs_width", "give it arguments as zoo_user_module:needs_width:width=..."),
        ("fails", "but it raised RuntimeError: out of paper$"),
        ("number", "to return a torch.nn.Module, got int"),
        ("Pair", r"Pair does not accept inputs of shape .*missing 1 required positional argument"),
        ("scale", "to be a function or class that builds a network, got int"),
        ("ready", "to be a function or class that builds a network, got Linear"),
    ],
)
def test_a_factory_that_builds_no_network_is_refused(user_module, factory, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        zoo.from_factory(f"{user_module(NETWORKS)}:{factory}", domain=TINY, classes=2)


def test_the_arguments_of_a_users_factory_are_given_by_name(user_module):
    path = f"{user_module(NETWORKS)}:Deep"
    build = partial(zoo.build, path, fitted={"domain": TINY, "classes": 2})
    task = build(options={"width": 5, "sizes": [6]})
    assert task.name == f"{path}(width=5, sizes=[6])"
    assert [tuple(p.shape) for p in task.parameters.values()][::2] == [(6, 4), (5, 6), (2, 5)]
    again = build(options={"width": 5, "sizes": [6]})
    assert (
        again.digest == task.digest != build(options={"width": 5, "sizes": [6], "seed": 1}).digest
    )
    # What the data say goes to no argument unasked; what the user says does.
    assert build(options={"classes": 7}).classes == 7
    assert build(options={"classes": 1}).classes == 1
    with pytest.raises(UnknownName, match=r"unknown option 'widht' of .*did you mean 'width'"):
        build(options={"widht": 5})
    with pytest.raises(InvalidValue, match=r"Deep cannot use \{'width': 'wide'\}"):
        build(options={"width": "wide"})


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import package_that_is_not_there", "importing .* raised ModuleNotFoundError: No module"),
        ("1 / 0", "importing .* raised ZeroDivisionError: division by zero"),
        ("def f(:", "importing .* raised SyntaxError"),
    ],
)
def test_a_module_that_does_not_import_is_refused(user_module, source, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        zoo.from_factory(f"{user_module(source)}:f", domain=TINY)


def test_the_network_of_a_user_is_copied(user_module):
    name = user_module("from torch import nn\nnet = nn.Linear(4, 2)\ndef f():\n    return net\n")
    task = zoo.from_factory(f"{name}:f", domain=TINY)
    with torch.no_grad():
        sys.modules[name].net.weight.zero_()
    assert isinstance(task.model, nn.Linear)
    assert task.parameters["weight"].count_nonzero() == 8


def test_a_network_without_parameters_is_refused():
    with pytest.raises(InvalidValue, match=r"torch\.nn:Flatten has no trainable parameter"):
        zoo.from_factory("torch.nn:Flatten", domain=TINY)


LAZY = """
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(10))
"""


def test_lazy_layers_get_their_sizes_from_the_domain(tmp_path, monkeypatch):
    (tmp_path / "lazy_hospital.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    task = zoo.from_factory("lazy_hospital:build", domain=MNIST, classes=10)
    assert next(task.model.parameters()).shape == (8, 784)
    assert float(task.model[2].running_mean.abs().max()) == 0
    again = zoo.from_factory("lazy_hospital:build", domain=MNIST, classes=10)
    pairs = zip(task.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_lazy_layers_that_cannot_run_are_said_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "lazy_wrong.py").write_text(LAZY.replace("nn.Flatten()", "nn.Linear(3, 4)"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidValue, match="sizes of its lazy layers, but it raised"):
        zoo.from_factory("lazy_wrong:build", domain=MNIST)
