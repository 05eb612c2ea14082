"""The setting of the leaderboard, frozen under a number, and its lines: one defense each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import seepage as sp
from seepage.audit import Spec, SpecSource, build_spec
from seepage.audit._case import describe_defense
from seepage.audit._record import Defense
from seepage.audit._spec_entries import read_defenses, read_model
from seepage.audit._spec_text import write_toml, write_value
from seepage.audit._words import label_defenses
from seepage.core import Protection
from seepage.core.errors import InvalidValue, SeepageError, UnknownName
from seepage.data import Dataset
from seepage.rehearsal import EFFORTS

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Board:
    """What is the same for every line; numbers of boards with another setting do not compare.

    Args:
        version: Raised whenever anything below changes.
        title: What the setting is called.
        data: The data set.
        train_split: Where the training examples are.
        model: The network as a spec names it; it is attacked as it begins, and trained from there.
        examples: How many to train on, from the first on.
        held_out: How many to measure accuracy on.
        held_start: The first of them.
        training_steps: Of one training.
        batch_size: Of the training.
        rates: Highest learning rates of a cycle; of the trainings, the one with the lowest loss on
            its own examples counts, so that no defense suffers from another's learning rate.
        people: How many are attacked at each batch size.
        start: The first of them.
        batch_sizes: How many of them share an update.
        effort: That of `auto`.
        steps: Of `auto`, instead of those of its effort.
        seed: Of weights, trainings, clients and attacks.
    """

    version: int = 1
    title: str = "board 1"
    data: str = "mnist"
    train_split: str = "train"
    model: Table = field(default_factory=lambda: MappingProxyType({"name": "lenet"}))
    examples: int = 10_000
    held_out: int = 2_000
    held_start: int = 0
    training_steps: int = 600
    batch_size: int = 64
    rates: tuple[float, ...] = (0.2, 0.02, 0.002)
    people: int = 8
    start: int = 0
    batch_sizes: tuple[int, ...] = (1, 4)
    effort: str = "quick"
    steps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what can be chosen on the command line."""
        if self.effort not in EFFORTS:
            raise UnknownName("effort", self.effort, EFFORTS)
        if self.steps is not None and self.steps < 1:
            raise InvalidValue(f"expected --steps >= 1, got {self.steps!r}")

    @property
    def words(self) -> str:
        """The title with what is not of the board itself.

        Example:
            >>> Board().words, Board(effort="standard", steps=100).words
            ('board 1, effort quick', 'board 1, effort standard, 100 steps')
        """
        steps = "" if self.steps is None else f", {self.steps} steps"
        return f"{self.title}, effort {self.effort}{steps}"

    @property
    def attack_steps(self) -> int:
        """Steps of `auto` for one update and its rehearsal together."""
        return EFFORTS[self.effort].steps if self.steps is None else self.steps

    def plain(self) -> dict[str, Any]:
        """Everything in it, as data that JSON gives back alike."""
        found = asdict(replace(self, model={}))
        listed = {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}
        return {**listed, "model": dict(self.model)}

    def load_people(self) -> Dataset:
        """The data set of the attacked people."""
        return sp.data.load(self.data)

    def build_network(self, people: Dataset) -> sp.Task:
        """The network as it begins."""
        return read_model({**self.model, "seed": self.seed}, people)

    def targets(self, size: int) -> Table:
        """Who is attacked in batches of this size, as a spec says it."""
        named = {"name": self.data, "start": self.start, "batch_size": size}
        return {**named, "people": self.people}


BOARD = Board()
# To see that it runs: bundled digits, a few steps, and numbers that say nothing.
SMOKE = Board(
    title="board 1 (smoke)",
    data="digits",
    train_split="test",
    model=MappingProxyType({"name": "mlp", "hidden": [8]}),
    examples=64,
    held_out=32,
    held_start=64,
    training_steps=4,
    batch_size=16,
    rates=(0.02,),
    people=2,
    batch_sizes=(1, 2),
    steps=24,
)


@dataclass(frozen=True, eq=False)
class Line:
    """A defense on the board.

    Args:
        links: As a spec writes it. `dp_sgd` without a `batch_size` takes that of every batch.
        label: Its name in the table.
    """

    links: tuple[Table, ...]
    label: str

    @property
    def text(self) -> str:
        """What `--add` takes, and by which its results are kept."""
        return _write(self.links)

    def fit(self, size: int) -> list[Table]:
        """As a spec writes it for batches of this size."""
        return [_fit(link, size) for link in self.links]

    def build(self, size: int) -> Protection:
        """The defense of a client with batches of this size."""
        [made] = read_defenses([self.fit(size)])
        return made

    def describe(self, size: int) -> Defense:
        """The same, as records have it."""
        return describe_defense(sp.Client(sp.Gradient(), self.build(size)))


def _write(links: Sequence[Table]) -> str:
    return write_value(list(links))


def _fit(link: Table, size: int) -> Table:
    if link.get("name") != "dp_sgd" or "batch_size" in link:
        return link
    return {**link, "batch_size": size}


_LINKS: tuple[tuple[Table, ...], ...] = (
    (),
    ({"name": "Prune", "ratio": 0.5},),
    ({"name": "Prune", "ratio": 0.9},),
    ({"name": "Prune", "ratio": 0.99},),
    ({"name": "TopK", "k": 100},),
    ({"name": "AddGaussian", "std": 0.001},),
    ({"name": "AddGaussian", "std": 0.01},),
    ({"name": "AddGaussian", "std": 0.1},),
    ({"name": "Clip", "max_norm": 1.0},),
    ({"name": "dp_sgd", "max_norm": 1.0, "noise_multiplier": 0.1},),
    ({"name": "dp_sgd", "max_norm": 1.0, "noise_multiplier": 1.0},),
    ({"name": "Quantize", "bits": 4},),
    ({"name": "Sign"},),
    ({"name": "Dropout", "rate": 0.5},),
    ({"name": "Dropout", "rate": 0.9},),
    ({"name": "MixUp", "k": 2},),
    ({"name": "Soteria", "ratio": 0.8},),
    ({"name": "Precode", "code": 64},),
)


def parse_links(text: str) -> tuple[Table, ...]:
    """Read a defense as a spec writes it: a table, or a list of them.

    Example:
        >>> parse_links('{ name = "Prune", ratio = 0.95 }')
        ({'name': 'Prune', 'ratio': 0.95},)
    """
    example = "'[{ name = \"Prune\", ratio = 0.95 }]'"
    try:
        found = tomllib.loads(f"links = {text}")
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(
            f"expected --add with a defense in TOML such as {example}, got {text!r}: {error}"
        ) from error
    links = [found["links"]] if isinstance(found["links"], dict) else found["links"]
    listed = isinstance(links, list) and links and all(isinstance(link, dict) for link in links)
    if found.keys() != {"links"} or not listed:
        raise InvalidValue(f"expected --add with a defense such as {example}, got {text!r}")
    return tuple(links)


def list_lines(added: Iterable[str], *, size: int) -> list[Line]:
    """The lines of the board and those that are added; what is listed twice is one line.

    Args:
        added: Defenses, as a spec writes them.
        size: The batch size of the training, at which they are named.
    """
    found: dict[Defense, tuple[Table, ...]] = {}
    for links in _LINKS:
        found[Line(links, "").describe(size)] = links
    for text in added:
        links = parse_links(text)
        try:
            found.setdefault(Line(links, "").describe(size), links)
        except SeepageError as error:
            raise InvalidValue(f"--add {text}: {error}") from error
    labels = label_defenses(found)
    return [Line(links, labels[defense]) for defense, links in found.items()]


def choose_lines(lines: Sequence[Line], only: Sequence[str]) -> list[Line]:
    """The lines of these names, and no defense, which the others are compared with."""
    labels = [line.label for line in lines]
    for name in only:
        if name not in labels:
            raise UnknownName("line", name, labels)
    return [line for line in lines if not only or line.label in only or not line.links]


def find_sizes(
    board: Board, lines: Sequence[Line], people: Dataset, task: sp.Task
) -> dict[Line, dict[int, str]]:
    """For every line and batch size why it cannot be used there; empty if it can be.

    Raises:
        InvalidValue: A line cannot be trained, or fits no batch size.
    """
    found: dict[Line, dict[int, str]] = {}
    for line in lines:
        found[line] = {size: _try(line, size, people, task) for size in board.batch_sizes}
        trained = _try(line, board.batch_size, people, task)
        if trained or all(found[line].values()):
            reason = trained or next(iter(found[line].values()))
            raise InvalidValue(f"{line.label} does not fit {task.name}: {reason}")
    return found


def _try(line: Line, size: int, people: Dataset, task: sp.Task) -> str:
    try:
        client = sp.Client(sp.Gradient(), line.build(size))
        sp.Threat().observe(client, task, people.batch(size), rng=sp.rng(0))
    except SeepageError as error:
        return str(error)
    return ""


def write_spec(board: Board, reasons: Mapping[Line, Mapping[int, str]], *, device: str) -> Spec:
    """The audit of these lines, as `seepage audit` would run it."""
    attack: dict[str, str | int] = {"name": "auto", "effort": board.effort}
    if board.steps is not None:
        attack["budget"] = board.steps
    scenarios = []
    for size in board.batch_sizes:
        fitting = [line.fit(size) for line, why in reasons.items() if not why[size]]
        scenario = {"data": board.targets(size), "models": {**board.model, "seed": board.seed}}
        scenarios.append({**scenario, "defenses": fitting, "threats": {}, "attacks": attack})
    spec = {
        "title": f"Leaderboard, {board.words}",
        "seeds": [board.seed],
        "metrics": ["psnr", "exact", "label_accuracy"],
        "scenario": scenarios,
    }
    return build_spec(SpecSource("spec.toml", write_toml(spec), device))
