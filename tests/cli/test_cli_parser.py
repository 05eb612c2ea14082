"""A dataclass of options, the command that Typer makes of it, and the words that give it again."""

import inspect
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import seepage as sp
from seepage._options import Option
from seepage.audit import RunOptions
from seepage.cli._app import _COMMANDS
from seepage.cli._commands import Audit, InsteadOfSpec, Shown
from seepage.cli._parser import make_command, write_words

TEXT = st.text("ab é\"'$=-_\\", min_size=1, max_size=8).map(lambda text: f"_{text}")
SETTINGS = st.builds(
    RunOptions,
    device=st.sampled_from(["auto", "cpu", "cuda"]),
    executor=st.sampled_from(["local", "ray"]),
    workers=st.none() | st.integers(1, 99),
    timeout=st.none() | st.floats(0.001, 1e6),
    gates=st.lists(TEXT, max_size=3).map(tuple),
    resume=st.just(True),
    retry_failed=st.booleans(),
    keep_private=st.booleans(),
)
AUDITS = st.builds(
    Audit,
    out=TEXT.map(Path),
    own=st.sampled_from(
        [
            InsteadOfSpec(),
            InsteadOfSpec(model="mlp", data="digits", option=("a=1", "b=2"), effort="thorough"),
            InsteadOfSpec(model="mlp", capture=Path("c"), form="gradient", batch_size=2),
        ]
    ),
    settings=SETTINGS,
    shown=st.builds(Shown, dry_run=st.booleans(), plain=st.booleans(), quiet=st.booleans()),
    fail_if_inconclusive=st.booleans(),
    fail_if_worse=st.none() | TEXT.map(Path),
)


def read_words(options, words):
    """What a command of these options is called with."""
    kept = []
    module = ModuleType("kept_options")
    module.keep = lambda asked, _: kept.append(asked)
    sys.modules["kept_options"] = module
    app = typer.Typer()
    app.command()(make_command(options, "kept_options:keep"))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return kept[0]


@given(AUDITS)
def test_the_words_of_options_give_the_same_options(asked):
    assert read_words(Audit, write_words(asked)) == asked


def test_defaults_are_those_of_the_dataclass():
    assert read_words(Audit, []) == Audit()


@given(AUDITS)
def test_the_command_that_goes_on_resumes_the_same_audit(asked):
    _, command, *words = asked.resuming()
    again = read_words(Audit, words)
    assert command == "audit"
    assert again.resuming()[2:] == words
    assert again.out == asked.out
    assert again.settings == replace(asked.settings, retry_failed=False)


@pytest.mark.parametrize(
    ("options", "action"), [pair for listed in _COMMANDS.values() for pair in listed.items()]
)
def test_what_a_command_does_takes_its_options_and_a_console(options, action):
    module, _, name = action.partition(":")
    taken = signature(getattr(import_module(f"seepage.cli.{module}"), name)).parameters
    assert [one.annotation for one in taken.values()] == [options.__name__, "Console"]


def test_a_function_is_called_with_the_fields_of_its_options():
    assert list(signature(sp.audit.run).parameters) == list(signature(RunOptions).parameters)
    with pytest.raises(TypeError, match="worker"):
        sp.audit.run(worker=3)


def test_an_option_is_declared_once_with_its_type_its_flag_and_its_help():
    @dataclass(frozen=True)
    class Toy:
        """Play."""

        size: Annotated[Literal["small", "large"], Option("How large.")] = "small"
        tidy: Annotated[bool, Option("Leave a mess.", flags="--no-tidy")] = True
        times: Annotated[tuple[int, ...], Option("How often.", flags="--times -t", least=1)] = ()

    made = inspect.signature(make_command(Toy, "any:thing"))
    assert list(made.parameters) == ["size", "tidy", "times"]
    assert read_words(Toy, ["--size", "large", "--no-tidy", "-t", "3", "-t", "4"]) == Toy(
        size="large", tidy=False, times=(3, 4)
    )
