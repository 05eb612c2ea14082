"""The documents are true: what they cite, name, link, quote and show exists and works."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import load_audit, load_spec
from seepage.audit._words import decibels, defense_words
from seepage.cli import app
from seepage.clients import LOCALS
from seepage.core._construct import Component
from seepage.defenses import DEFENSES
from seepage.rehearsal import ALL_ATTACKS
from seepage.scoring import METRICS

ROOT = Path(__file__).parents[2]
FOLDERS = (".ci", "docs", "examples", "papers", "scripts", "specs", "src", "tests")
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.md"),
        *(ROOT / "papers").rglob("*.md"),
    ]
)
CITATION = re.compile(r"\(([a-z]+(?:19|20)\d\d[a-z]+)\)")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)


def section(name: str, heading: str) -> str:
    _, _, rest = text(name).partition(f"\n## {heading}\n")
    assert rest, f"{name} has no section {heading!r}"
    return rest.partition("\n## ")[0]


def bibliography() -> dict[str, str]:
    entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text("docs/references.bib"), re.M | re.S)
    assert len(entries) == len(dict(entries)), "a key stands twice in docs/references.bib"
    return dict(entries)


def cited() -> dict[str, Path]:
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "papers" / "src").rglob("*.py")])
    return {key: file for file in files for key in CITATION.findall(file.read_text())}


def run(code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Import code from a document as a module of its own, in a folder of its own."""
    monkeypatch.chdir(folder)
    file = folder / f"{name}.py"
    file.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return vars(module)


def texts() -> Iterator[tuple[str, str]]:
    # In a worktree, .git is a file that names a folder of the machine.
    loose = (file for file in ROOT.iterdir() if file.is_file() and file.name != ".git")
    kept = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    for file in [*loose, *kept]:
        try:
            yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_every_key_cited_in_the_code_is_in_the_bibliography():
    unknown = {key: str(file) for key, file in cited().items() if key not in bibliography()}
    assert not unknown


def test_every_entry_of_the_bibliography_is_cited_in_the_code():
    assert bibliography().keys() <= cited().keys()


def test_the_bibliography_holds_nothing_but_entries_and_comments():
    rest = re.sub(r"^@\w+\{\w+,\n.*?^\}", "", text("docs/references.bib"), flags=re.M | re.S)
    assert not [line for line in rest.splitlines() if line and not line.startswith("%")]


@pytest.mark.parametrize("key", bibliography())
def test_a_key_is_the_first_author_the_year_and_a_word_of_the_title(key):
    entry = bibliography()[key]
    fields = dict(re.findall(r"^\s*(\w+)\s*=\s*\{(.*)\},$", entry, re.M))
    surname, year, word = re.fullmatch(r"([a-z]+)(\d{4})([a-z]+)", key).groups()
    without_accents = re.sub(r"\{\\.(\w)\}", r"\1", fields["author"])
    assert without_accents.partition(",")[0].lower() == surname
    assert fields["year"] == year
    assert word in re.sub(r"[{}]", "", fields["title"]).lower()


@pytest.mark.parametrize(
    "part", [*ALL_ATTACKS.values(), *DEFENSES.values()], ids=lambda p: p.__name__
)
def test_every_attack_and_defense_cites_its_paper(part):
    assert set(CITATION.findall(part.__doc__)) & bibliography().keys()


def test_the_example_of_the_readme_runs_and_recovers(tmp_path, monkeypatch, capsys):
    found = run(blocks("README.md", "python")[0], "readme", tmp_path, monkeypatch)
    assert float(found["result"].scores["psnr"].min()) > 60
    assert "reconstructed" in capsys.readouterr().out


def test_the_spec_in_the_reference_is_a_valid_spec(tmp_path):
    (shown,) = blocks("docs/reference/specs.md", "toml")
    (tmp_path / "shown.toml").write_text(shown, encoding="utf-8")
    (part,) = load_spec(tmp_path / "shown.toml").parts
    cases = part.audit.cases(part.batches)
    assert len([case for case in cases if not case.control]) == 2 * 2 * 3 * 2


@pytest.mark.slow
def test_the_spec_with_a_network_of_ones_own_runs(tmp_path, monkeypatch):
    spec = text("specs/own_model.toml")
    assert spec.count("steps = 100") == 2
    (tmp_path / "own.toml").write_text(spec.replace("steps = 100", "steps = 3"), encoding="utf-8")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "own.toml"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    records = load_audit(out).records
    assert {record.model for record in records} == {"specs.own_model:network"}
    assert {record.local.name for record in records} == {"Gradient", "FedAvg"}


def test_the_attack_of_contributing_keeps_every_law(tmp_path, monkeypatch):
    attack, check, *_ = blocks("CONTRIBUTING.md", "python")
    found = run(f"{attack}\n{check}", "strongest_row", tmp_path, monkeypatch)
    assert set(CITATION.findall(found["strongest_row"].__doc__)) & bibliography().keys()


@pytest.mark.parametrize("number", [2, 3], ids=["defense", "metric"])
def test_the_other_examples_of_contributing_keep_every_law(number, tmp_path, monkeypatch):
    code = blocks("CONTRIBUTING.md", "python")[number]
    assert "\ncheck_" in code
    run(code, f"contributed_{number}", tmp_path, monkeypatch)


LABELS = {
    (): "no defense",
    ("Prune",): "Prune 0.9",
    ("AddGaussian",): "Gaussian noise 0.001",
    ("ClipEach", "Mean", "AddGaussian"): "DP-SGD C=1 noise 0.01",
}


def links(row) -> tuple[str, ...]:
    return tuple(link["name"] for link in row["defense"])


def recorded_table() -> str:
    """The tutorial's table, written from the recorded run."""
    rows = json.loads(text("papers/benchmarks/results/quickstart.json"))["rows"]
    lines = [
        "| data | network | defense | worst-off | median | no update | exact |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        numbers = (decibels(float(row[n]), unit=False) for n in ("worst", "median", "baseline"))
        cells = (row["data"], f"`{row['model']}`", LABELS[links(row)], *numbers)
        lines.append(f"| {' | '.join(cells)} | {row['exact']} of {row['people']} |")
    return "\n".join(lines)


def test_the_numbers_of_the_tutorial_are_those_of_the_recorded_run():
    _, _, rest = text("docs/tutorial.md").partition("<!-- quickstart: begin -->\n")
    shown = rest.partition("<!-- quickstart: end -->")[0].strip()
    assert shown == recorded_table()


def test_the_recorded_run_is_of_the_bundled_quickstart():
    rows = json.loads(text("papers/benchmarks/results/quickstart.json"))["rows"]
    parts = load_spec().parts
    expected = {
        (
            who.data,
            task.name,
            str(attack),
            tuple(type(link).__name__ for link in sp.Client(sp.Gradient(), defense).chain.links),
        )
        for part in parts
        for who in part.batches
        for task in part.audit.tasks
        for attack in part.audit.attacks
        for defense in part.audit.defenses
    }
    recorded = {
        (row["data"], row["model"], str(Component(**row["attack"])), links(row)) for row in rows
    }
    assert recorded == expected


def test_the_catalogue_names_every_attack_and_defense_and_no_part_that_does_not_exist():
    known = {*ALL_ATTACKS, *DEFENSES, *LOCALS, *METRICS, *sp.zoo.MODELS, *sp.data.catalogue()}
    known |= {"package.module:factory"}
    parts = re.sub(
        r"^\| wrapper.*?\n\n", "", text("docs/reference/catalogue.md"), flags=re.M | re.S
    )
    rows = re.findall(r"^\| (`[^|]*) \|", parts, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {*ALL_ATTACKS, *DEFENSES, "convnet", "photos", "psnr"} <= named <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
            assert anchor in anchors, link


@pytest.fixture(scope="module")
def shown():
    return CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_command_a_document_names_is_in_the_help(document, shown):
    written = document.read_text(encoding="utf-8")
    code = [
        *re.findall(r"`(seepage [^`\n]+)`", written),
        *re.findall(r"^seepage .+$", written, re.M),
    ]
    commands = {line.split()[1] for line in code}
    assert all(re.search(rf"{command}\b", shown) for command in commands)


@pytest.mark.parametrize("page", ["read_the_report", "choose_a_defense"])
def test_the_file_of_utilities_names_defenses_as_the_report_does(page):
    (shown,) = re.findall(r'\{"[^{}]+": 0\.\d+\}', text(f"docs/how-to/{page}.md"))
    prune = Component("Prune", {"ratio": 0.9})
    assert list(json.loads(shown)) == [defense_words(()), defense_words((prune,))]


def test_the_table_of_the_terminal_is_explained_column_by_column():
    explained = section("docs/how-to/read_the_report.md", "The table on the terminal")
    shown = {"attack", "defense", "found", "worst-off", "no update", "median", "exact", "seconds"}
    cells = re.findall(r"^\| ([^|]+) \|", explained, re.MULTILINE)
    assert shown <= {name for cell in cells for name in cell.split(", ")}


def test_ci_runs_what_contributing_and_the_makefile_say():
    (said,) = re.findall(r"^CI runs (.+?)\. ", text("CONTRIBUTING.md"), re.M)
    (told,) = re.findall(r"^# CI runs (.+)\.$", text("Makefile"), re.M)
    run = re.findall(r"^make ([a-z-]+)$", text(".ci/run"), re.M)
    assert re.findall(r"`make ([a-z-]+)`", said) == re.split(r", | and ", told) == run


def test_an_install_without_constraints_is_tried():
    recipe = text("Makefile").partition("\nfresh:\n")[2].partition("\n\n")[0]
    assert "pip install --quiet --disable-pip-version-check .\n" in recipe
    assert " -c " not in recipe
    assert "scripts/check_install.py" in recipe


def test_the_architecture_shows_every_package_and_no_other():
    tree = section("docs/ARCHITECTURE.md", "Floors").partition("specs/")[0]
    shown = set(re.findall(r"^  (\w+)/ +\d", tree, re.MULTILINE))
    packages = {init.parent.name for init in (ROOT / "src" / "seepage").glob("*/__init__.py")}
    assert shown == packages


def test_every_dependency_is_explained():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(name for extra in extras.values() for name in extra)]
    names = {re.match(r"[\w-]+", requirement).group() for requirement in needed}
    explained = text("docs/dependencies.md")
    assert {name for name in {*names, *extras} if not re.search(rf"\b{name}\b", explained)} == set()


def test_the_licence_is_whole_and_the_versions_agree():
    licence = text("LICENSE")
    assert "END OF TERMS AND CONDITIONS" in licence
    assert "APPENDIX: How to apply the Apache License to your work." in licence
    assert f"version: {sp.__version__}\n" in text("CITATION.cff")
    assert sp.__version__ in text("CHANGELOG.md")


def test_no_file_mentions_a_path_of_somebodys_machine():
    homes = "|".join(("work", "root", "home", "Users", "tmp"))
    private = re.compile(rf"(?<![\w.])/(?:{homes})/")
    assert [name for name, content in texts() if private.search(content)] == []
