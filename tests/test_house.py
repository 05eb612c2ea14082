"""Every class and every file of the package has a name of its own."""

from pathlib import Path

from scripts.house import House, count_switches

HOUSE = House.read()
# Each class in it holds the options of a command, and is named after the command.
COMMANDS = Path("cli/_commands.py")
# What vetting finds is public under this name, as is what an audit finds.
SHARED = ["Finding"]


def test_no_class_name_is_defined_twice():
    texts = {at: text for at, text in HOUSE.texts.items() if at != COMMANDS}
    assert House(HOUSE.folder, texts).find_repeated_classes() == SHARED


def test_no_file_name_occurs_twice():
    assert HOUSE.find_repeated_files() == []


def test_repetitions_private_modules_and_file_switches_are_counted(tmp_path):
    for name, text in {
        "one": "def f(): ...\nclass Plan: ...\n",
        "two": "class Plan: ...\n",
        "_low": "def g(): ...\n",
        "deep/one": "def _h(): ...\n",
    }.items():
        path = tmp_path.joinpath(f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    house = House.read(tmp_path)
    assert house.find_repeated_classes() == ["Plan"]
    assert house.find_repeated_files() == ["one.py"]
    assert house.count_public() == 3
    inner = compile("def inner(): ...", str(tmp_path / "inner.py"), "exec")
    outer = compile("def outer():\n    inner()\n    inner()\n", str(tmp_path / "outer.py"), "exec")
    names = {}
    exec(inner, names)
    exec(outer, names)
    assert count_switches(names["outer"], tmp_path) == 2
