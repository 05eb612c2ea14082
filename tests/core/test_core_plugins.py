"""Parts of other packages: found where they are installed, and harmless where they are broken."""

import importlib.util
import sys
import time
import warnings
from textwrap import dedent

import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit
from seepage.cli import app, main
from seepage.core import _plugins as plugins
from seepage.core._plugins import Catalogue, PluginWarning
from seepage.core.errors import BrokenPlugin, InvalidValue, UnknownName

PARTS = '''
"""Everything that a package can add."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import seepage as sp
from seepage.core import BoundValue
from seepage.data import Dataset, load
from seepage.core._chain import OnAggregate


@dataclass(frozen=True)
class Grey:
    """Guess the same shade everywhere."""

    shade: float = 0.5

    def __call__(self, observation, *, rng):
        shape = (observation.batch_size, *observation.task.domain.shape)
        return sp.Reconstruction(torch.full(shape, self.shade), observation.labels)


@dataclass(frozen=True, repr=False)
class Halve(OnAggregate):
    """Halve every entry."""

    def __call__(self, update, *, rng):
        return self.expected(update)

    def expected(self, update):
        return update.map(lambda t: t / 2)


@dataclass(frozen=True)
class LargestError:
    """Largest error of any entry."""

    name: ClassVar[str] = "largest_error"
    higher_leaks_more: ClassVar[bool] = False

    def __call__(self, paired):
        return (paired.guess - paired.truth).flatten(1).abs().amax(1)


def net(*, classes=10, domain, seed=0):
    """A network of their own."""
    return sp.zoo.mlp(hidden=(8,), classes=classes, domain=domain, seed=seed)


def few(*, split="test"):
    """A few of the photographs."""
    whole = load("photos")
    return Dataset("few", whole.inputs[:6], whole.labels[:6], whole.domain, whole.class_names, "")


@dataclass(frozen=True)
class Trivial(sp.bounds.EquationCount):
    """Count equations, under another name."""


def greet(name: str = "you"):
    """Greet."""
    print(f"hello {name}")
'''

ENTRIES = """
[seepage.attacks]
grey = acme_parts:Grey
[seepage.defenses]
Halve = acme_parts:Halve
[seepage.metrics]
largest_error = acme_parts:LargestError
[seepage.models]
acme_net = acme_parts:net
[seepage.data]
few = acme_parts:few
[seepage.bounds]
Trivial = acme_parts:Trivial
[seepage.commands]
greet = acme_parts:greet
"""

SPEC = """
metrics = ["psnr", "{prefix}{metric}"]
[[scenario]]
data = {{ name = "{prefix}few", people = 1, start = 0 }}
models = [{{ name = "{model}" }}]
defenses = [[{{ name = "{prefix}Halve" }}]]
threats = {{ knows_labels = true }}
attacks = [{{ name = "{prefix}{attack}", shade = 0.25 }}, {{ name = "analytic_fc" }}]
bounds = [{{ name = "{prefix}Trivial" }}]
"""
INSTALLED = SPEC.format(prefix="", metric="largest_error", model="acme_net", attack="grey")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to work in, and a process that has said nothing and imported nothing of theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_warned", set())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("acme", "other")):
            del sys.modules[name]


@pytest.fixture
def install(place):
    """Put a distribution on the path, as an installer would have left it."""

    def install(package, entries=ENTRIES, *, module="acme_parts", code=PARTS):
        folder = place / "site" / package
        about = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entries)
        (folder / f"{module}.py").write_text(dedent(code))
        sys.path.append(str(folder))

    return install


def audit(place, text):
    (place / "spec.toml").write_text(text)
    return CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out", "--quiet"])


def listed(kind):
    result = CliRunner().invoke(app, ["list", kind])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_kind_of_part_of_an_installed_package_is_audited_from_a_spec(install, place):
    install("acme-parts")
    result = audit(place, INSTALLED)
    assert result.exit_code == 0, result.output
    records = load_audit(place / "out").records
    grey = next(record for record in records if str(record.attack) == "grey(shade=0.25)")
    assert grey.data == "few"
    assert "Halve" in [link.name for link in grey.defense]
    truth = sp.data.load("photos").inputs[:1]
    worst = float((truth - 0.25).abs().max())
    assert grey.scores["largest_error"] == pytest.approx([worst], abs=1e-6)


def test_a_spec_may_name_every_kind_of_part_by_its_path(place):
    (place / "acme_local.py").write_text(
        PARTS + "\n\ndef plain():\n    return net(domain=sp.domains.CIFAR10).model\n"
    )
    text = SPEC.format(
        prefix="acme_local:", metric="LargestError", model="acme_local:plain", attack="Grey"
    )
    result = audit(place, text)
    assert result.exit_code == 0, result.output
    grey, *_ = load_audit(place / "out").records
    assert str(grey.attack) == "acme_local:Grey(shade=0.25)"
    assert grey.data == "acme_local:few"
    assert set(grey.scores) == {"psnr", "largest_error", "label_accuracy", "exact"}


@pytest.mark.parametrize(
    ("kind", "name", "about"),
    [
        ("attacks", "grey", "Guess the same shade everywhere."),
        ("defenses", "Halve", "Halve every entry."),
        ("metrics", "largest_error", "Largest error of any entry."),
        ("models", "acme_net", "A network of their own."),
        ("data", "few", "A few of the photographs."),
        ("bounds", "Trivial", "Count equations, under another name."),
    ],
)
def test_a_part_of_a_package_is_listed_with_its_package(install, kind, name, about):
    install("acme-parts")
    line = next(line for line in listed(kind).splitlines() if line.startswith(name))
    assert line.split(maxsplit=1)[1].strip() == f"{about} [acme-parts]"


def test_a_package_adds_a_command(install):
    install("acme-parts")
    assert CliRunner().invoke(app, ["greet", "--name", "Ann"]).output == "hello Ann\n"
    assert "greet" in CliRunner().invoke(app, ["--help"]).output


def test_commands_of_a_package_show_their_help_where_none_is_named(install):
    code = (
        "import typer\ncommands = typer.Typer(no_args_is_help=True)\n"
        "@commands.command()\ndef first(): ...\n@commands.command()\ndef second(): ...\n"
    )
    install("acme-parts", "[seepage.commands]\nacme = acme_parts:commands\n", code=code)
    shown = CliRunner().invoke(app, ["acme"])
    assert (shown.exit_code, "second" in shown.output, shown.stderr) == (2, True, "")
    refused = CliRunner().invoke(app, ["acme", "third"])
    assert refused.exit_code == 2
    assert refused.stderr.split("(")[0] == "seepage: no such command 'third' "


def test_what_is_not_named_is_not_imported(install):
    install("acme-parts")
    assert "grey" in sp.attacks.ATTACKS
    assert sp.attacks.ATTACKS["dlg"] is sp.attacks.dlg
    assert "acme_parts" not in sys.modules


def test_a_metric_of_a_package_is_measured_only_where_it_is_asked_for(install, place):
    install("acme-parts")
    result = audit(place, INSTALLED.replace('metrics = ["psnr", "largest_error"]', ""))
    assert result.exit_code == 0, result.output
    assert "largest_error" not in load_audit(place / "out").records[0].scores


BROKEN = """
[seepage.attacks]
gone = acme_parts:gone
unwritten = acme_unwritten:attack
[seepage.metrics]
misnamed = acme_parts:LargestError
[seepage.data]
number = acme_parts:NUMBER
[seepage.commands]
gone = acme_parts:gone
"""


@pytest.fixture
def broken(install):
    install("acme-broken", BROKEN, code=PARTS + "\nNUMBER = 3\n")


@pytest.mark.parametrize(
    ("kind", "sentences"),
    [
        ("attacks", ["attack 'gone'", "attack 'unwritten'"]),
        ("metrics", ["metric 'misnamed'"]),
        ("data", ["data set 'number'"]),
    ],
)
def test_a_broken_part_is_left_out_of_lists_with_one_sentence(broken, kind, sentences):
    with pytest.warns(PluginWarning) as caught:
        first = listed(kind)
    assert len(caught) == len(sentences)
    for warned, sentence in zip(caught, sentences, strict=True):
        assert f"the {sentence} of the package 'acme-broken' cannot be" in str(warned.message)
    assert "acme" not in first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert listed(kind) == first, "it is said once"


def test_everything_else_works_beside_a_broken_part(broken, place):
    result = audit(place, TINY)
    assert result.exit_code == 0, result.output


TINY = """
metrics = ["psnr"]
[[scenario]]
data = { name = "photos", people = 1, start = 0 }
models = [{ name = "mlp", hidden = [8] }]
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "analytic_fc",
            "unwritten",
            "the attack 'unwritten' of the package 'acme-broken' cannot "
            "be imported: ModuleNotFoundError: No module named 'acme_unwritten'",
        ),
        ("photos", "number", "the data set 'number' of the package 'acme-broken' cannot be used"),
        ('"psnr"', '"misnamed"', "cannot be used: it calls itself 'largest_error'"),
    ],
)
def test_a_spec_that_names_a_broken_part_gets_one_sentence(
    broken, place, capsys, monkeypatch, old, new, sentence
):
    (place / "spec.toml").write_text(TINY.replace(old, new))
    monkeypatch.setattr(sys, "argv", ["seepage", "audit", "spec.toml", "--out", "out"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in said
    assert said.count("\n") == 1


def test_a_broken_command_is_one_sentence(broken):
    with pytest.raises(BrokenPlugin, match="the command 'gone' of the package 'acme-broken'"):
        CliRunner().invoke(app, ["gone"], catch_exceptions=False)
    with pytest.warns(PluginWarning, match="the command 'gone'"):
        assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_a_command_of_a_package_that_is_not_there_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["seepage.cli._app"], "entry_points", lambda **_: ())
    monkeypatch.setattr(sys, "argv", ["seepage", "reproduce", "003-table1", "--scale", "smoke"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "pip install seepage-papers, or in a checkout: pip install -e papers" in said
    assert said.count("\n") == 1


def test_a_built_in_name_stays_what_it_is(install):
    install("acme-parts", "[seepage.attacks]\ndlg = acme_parts:Grey\ngrey = acme_parts:Grey\n")
    with pytest.warns(PluginWarning) as caught:
        assert sp.attacks.ATTACKS["dlg"] is sp.attacks.dlg
    (warned,) = caught
    assert "the package 'acme-parts' registers the attack 'dlg'" in str(warned.message)
    assert sp.attacks.ATTACKS["grey"]().shade == 0.5


def test_of_two_packages_with_one_name_the_first_by_name_has_it(install):
    entries = "[seepage.attacks]\ngrey = {}:Grey\n"
    install("other-parts", entries.format("other_parts"), module="other_parts")
    install("acme-parts", entries.format("acme_parts"))
    with pytest.warns(PluginWarning) as caught:
        found = sp.attacks.ATTACKS["grey"]
    (warned,) = caught
    assert "'other-parts' registers the attack 'grey', which acme-parts has" in str(warned.message)
    assert found.__module__ == "acme_parts"


def test_one_package_with_a_name_twice_keeps_the_first(install):
    entries = "[seepage.attacks]\ngrey = acme_parts:Grey\ngrey = acme_parts:Halve\n"
    install("acme-parts", entries)
    with pytest.warns(PluginWarning, match="'acme-parts' registers the attack 'grey' twice"):
        assert sp.attacks.ATTACKS["grey"].__name__ == "Grey"


@pytest.mark.parametrize(
    ("old", "new", "error", "sentence"),
    [
        ("analytic_fc", "acme_local:NOTHING", UnknownName, "unknown factory 'NOTHING'"),
        ("analytic_fc", "acme_local:number", InvalidValue, "to make an attack, got int"),
        ("analytic_fc", "acme_local:fails", InvalidValue, "raised ZeroDivisionError: no"),
        ("analytic_fc", "acme_absent:attack", InvalidValue, "no module 'acme_absent'"),
        ("photos", "acme_local:number", InvalidValue, r"return a seepage.data.Dataset, got int"),
        ("photos", "acme_local:fails", InvalidValue, "it raised ZeroDivisionError: no"),
        ('"psnr"', '"acme_local:number"', InvalidValue, "to be a metric with `name`"),
        ('"psnr"', '"seepage.scoring:MSE"', InvalidValue, "which calls itself 'mse'"),
    ],
)
def test_a_path_that_leads_to_no_part_is_one_sentence(place, old, new, error, sentence):
    (place / "acme_local.py").write_text(
        "def number():\n    return 3\n\n\ndef fails():\n    raise ZeroDivisionError('no')\n"
    )
    (place / "spec.toml").write_text(TINY.replace(old, new))
    with pytest.raises(error, match=sentence):
        CliRunner().invoke(app, ["audit", "spec.toml", "--out", "out"], catch_exceptions=False)


def test_looking_for_plugins_is_quick(install):
    install("acme-parts")
    attacks = Catalogue("attack", "seepage.attacks", {})
    times = []
    for number in range(5):
        sys.path.append(f"/nowhere/{number}")
        began = time.perf_counter()
        assert "grey" in attacks
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


def test_a_named_module_and_its_neighbours_are_found_here_and_nothing_else_afterwards(place):
    (place / "acme_nets.py").write_text("import acme_blocks\ndef build(): return acme_blocks.SIZE")
    (place / "acme_blocks.py").write_text("SIZE = 3")
    (place / "acme_planted.py").write_text("")
    before = list(sys.path)
    assert plugins.import_factory("acme_nets:build", kind="network")() == 3
    assert sys.path == before
    assert importlib.util.find_spec("acme_planted") is None


def test_a_package_here_imports_from_itself_at_any_time(place):
    (place / "acme").mkdir()
    (place / "acme" / "__init__.py").write_text("")
    (place / "acme" / "blocks.py").write_text("SIZE = 3")
    lazy = "def build():\n    from acme import blocks\n    return blocks.SIZE\n"
    (place / "acme" / "nets.py").write_text(lazy)
    assert plugins.import_factory("acme.nets:build", kind="network")() == 3


def test_a_folder_that_a_named_module_puts_on_the_path_stays_there(place):
    (place / "acme_nets.py").write_text(
        "import os, sys\nsys.path.insert(0, os.getcwd())\nbuild = int"
    )
    before = list(sys.path)
    plugins.import_factory("acme_nets:build", kind="network")
    assert sys.path == [str(place), *before]


def test_an_installed_module_is_taken_and_a_namesake_here_is_named(install, place):
    install("acme-parts")
    (place / "acme_parts.py").write_text("def mine(): return 3")
    assert plugins.import_factory("acme_parts:Grey", kind="attack")
    with pytest.raises(InvalidValue, match=r"imports 'acme_parts' from .* 'acme_parts.py'; rename"):
        plugins.import_factory("acme_parts:mine", kind="attack")
