"""What an error says can be printed and read, whatever it quotes."""

import pytest

from seepage.cli import main
from seepage.core.errors import (
    BrokenPlugin,
    DataNotFound,
    InvalidValue,
    NotApplicable,
    UnknownName,
    UnreadableFile,
    line_to_store,
    summarise_error,
)


@pytest.mark.parametrize("kind", [InvalidValue, DataNotFound, UnreadableFile, BrokenPlugin])
def test_a_message_is_cut_in_its_middle_and_keeps_its_lines(kind):
    said = str(kind(f"expected a name, got {'x' * 9_000}\n\ud800; write another"))
    assert len(said) == 1_500
    assert said.startswith("expected a name, got x")
    assert said.endswith("x\n\\ud800; write another")
    assert str(kind("short")) == "short"


def test_an_unknown_name_of_any_length_is_refused():
    said = str(UnknownName("attack", "dlg" * 5_000, ["dlg", "april"]))
    assert len(said) == 1_500
    assert said.endswith("(known: april, dlg)")


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "--data", "x" * 5_000, "--model", "mlp"],
        ["audit", "x" * 5_000],
        ["audit", "--out", "x" * 5_000],
        ["audit", "--capture", "x" * 5_000, "--model", "mlp"],
        ["audit", "--" + "x" * 5_000],
        ["audit", "--device", "x" * 5_000],
        ["report", "x" * 5_000],
        ["verify", "x" * 5_000],
        ["dossier", "x" * 5_000],
        ["vet", "x" * 5_000],
        ["inspect", "mlp", "--tokens", "\u00b2x5"],
        ["inspect", "mlp", "--tokens", "9" * 5_000 + "x5"],
        ["inspect", "mlp", "--shape", "9" * 5_000],
    ],
)
def test_the_command_line_says_short_sentences(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seepage", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("seepage: ")
    assert len(said) <= 1_501
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("said", ["for Ann Smith", "for Ann Smith \ud800", "for " + "Ann " * 45])
@pytest.mark.parametrize("before", ["it raised", "y" * 1_050, "y" * 1_200])
def test_no_part_of_what_other_code_says_is_stored_when_it_is_cut_or_escaped(before, said):
    cause = ValueError(said)
    error = NotApplicable(f"{before} {summarise_error(cause)}; {'z' * 300}")
    error.__cause__ = cause
    assert "Ann" not in line_to_store(error)


def test_what_other_code_says_is_not_stored_by_an_error_that_hides_its_cause():
    error = NotApplicable("it cannot be attacked: the network raised ValueError: for Ann Smith")
    error.__context__ = InvalidValue("the network raised ValueError: for Ann Smith")
    error.__context__.__cause__ = ValueError("for Ann Smith")
    assert line_to_store(error) == "it cannot be attacked: the network raised ValueError"
