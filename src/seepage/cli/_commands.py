"""The options of every command, and what its help says; `seepage.cli.app` says what it does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from seepage._options import Device, Option, Overwrite, Panel, RunOptions, Workers, refuse
from seepage.cli._parser import write_words

# What the help calls a model.
MODEL = "a name or FILE.py:NAME, with options as in mlp:hidden=64,32"
Effort = Literal["quick", "standard", "thorough"]
# fmt: off
Format = Literal[
    "html", "markdown", "csv", "json", "parquet", "pivot", "latex", "svg", "pdf", "junit", "sarif"
]
# fmt: on
Kind = Literal["attacks", "bounds", "risks", "defenses", "locals", "models", "data", "metrics"]

Printed = Annotated[Literal["text", "json"], Option("Output format.", flags="--format")]
NetworkOptions = Annotated[
    tuple[str, ...],
    Option("An argument of the model, as key=value; repeatable.", flags="--option -o"),
]
Attacks = Annotated[
    tuple[str, ...],
    Option("As NAME, NAME(key=value) or NAME:key=value; repeatable. auto by default."),
]
Defenses = Annotated[
    tuple[str, ...],
    Option(
        "A defense to compare with none, as NAME(key=value) or NAME:key=value with links joined "
        "by +, e.g. Prune:ratio=0.9+Sign; repeatable; see `seepage list defenses`."
    ),
]
KnowsLabels = Annotated[bool, Option("The adversary knows the labels.", flags="--knows-labels")]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is shown while cases run."""

    dry_run: Annotated[
        bool, Option("List the cases and estimate the time; run nothing.", flags="--dry-run")
    ] = False
    plain: Annotated[
        bool, Option("Print lines for a log instead of a progress bar.", flags="--plain")
    ] = False
    quiet: Annotated[bool, Option("Show only the result, no progress.")] = False


@dataclass(frozen=True, kw_only=True)
class InsteadOfSpec:
    """A model and a data set, or a captured update, to audit without a spec."""

    capture: Annotated[
        Path | None,
        Option(
            "Attack this captured update, or all in this folder, instead of a spec; needs --model."
        ),
    ] = None
    model: Annotated[str | None, Option(f"The model that is trained: {MODEL}.")] = None
    option: NetworkOptions = ()
    data: Annotated[
        str | None,
        Option(
            "Attack --model on people of this data set, e.g. folder:PATH:pixels=28; see "
            "`seepage list data`."
        ),
    ] = None
    people: Annotated[
        int | None, Option("How many people of --data to attack; 4 by default.", least=1)
    ] = None
    defense: Defenses = ()
    effort: Annotated[
        Effort | None, Option("How hard to attack --model or --capture; quick by default.")
    ] = None
    public: Annotated[
        str | None,
        Option("With --capture: public data like the private data, for rehearsals."),
    ] = None
    truth: Annotated[
        Path | None, Option("The private batch of the capture; used only for scoring.")
    ] = None
    labels: Annotated[
        str | None, Option("Labels the adversary knows, e.g. 3,5; inferred by default.")
    ] = None
    form: Annotated[
        Literal["gradient", "difference", "weights_after"] | None,
        Option("What the captured update is, if its file says something else."),
    ] = None
    shape: Annotated[
        str | None,
        Option("Input shape, e.g. 3x32x32; needed only if the capture does not record it."),
    ] = None
    batch_size: Annotated[
        int | None, Option("Batch size; with --capture, only if it does not record it.", least=1)
    ] = None
    steps: Annotated[
        int | None, Option("Number of steps in all, instead of that of --effort.", least=1)
    ] = None

    def __post_init__(self) -> None:
        """Refuse an option without the one that it goes with."""
        if self.capture is not None and self.model is None:
            refuse("--capture needs --model, the model that was trained; give both")
        if self.data is not None and self.model is None:
            refuse("--data needs --model, the model to attack; give both")
        for needed, options in _GO_WITH.items():
            given = [name for name in options if getattr(self, name) not in (None, ())]
            if given and getattr(self, needed) is None:
                name = given[0].replace("_", "-")
                refuse(f"--{name} needs --{needed}, which is missing")
        if (self.data is None) == (self.capture is None) and self.model is not None:
            refuse("expected --model with --data, or --model with --capture")


_GO_WITH = {
    "model": ("option", "defense", "batch_size", "effort", "steps"),
    "capture": ("truth", "labels", "form", "shape", "public"),
    "data": ("people",),
}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Run every attack in a spec and show what leaked.

    Instead of a spec, --model with --data attacks people of a data set, and
    --model with --capture attacks a captured update; both by the strongest
    attack that fits. --defense says which defenses to compare with none; behind
    a capture, the one that the client used.

    Exit codes: 0 done, 1 a case failed or lost its files, 2 bad usage or spec, 3 somebody leaked
    beyond --fail-above or more than before, 4 inconclusive.
    """

    spec: Annotated[
        Path | None,
        Option("A spec in TOML; the bundled quickstart by default.", is_argument=True),
    ] = None
    out: Annotated[Path, Option("Output directory.")] = Path("seepage-audit")
    own: Annotated[InsteadOfSpec, Panel("Instead of a spec")] = InsteadOfSpec()
    settings: RunOptions = field(default_factory=RunOptions)
    shown: Annotated[Shown, Panel("How it runs")] = Shown()
    fail_if_inconclusive: Annotated[
        bool,
        Option(
            "Exit with code 4 if the attacks were too weak to tell.",
            flags="--fail-if-inconclusive",
        ),
        Panel("Exit codes for CI"),
    ] = False
    fail_if_worse: Annotated[
        Path | None,
        Option(
            "Exit with code 3 if more leaks than in this earlier audit, beyond noise.",
            metavar="DIR",
        ),
        Panel("Exit codes for CI"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse two things to audit."""
        if self.spec is not None and self.own.model is not None:
            other = "--model" if self.own.capture is None else "--capture"
            refuse(f"expected a spec or {other}, got both; leave one out")

    def resuming(self) -> list[str]:
        """The words of the command that goes on with this audit."""
        again = replace(
            self,
            own=InsteadOfSpec(),
            settings=replace(
                self.settings, resume=True, retry_failed=False, overwrite=False, trust=False
            ),
            shown=replace(self.shown, dry_run=False),
        )
        return ["seepage", "audit", *write_words(again)]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Test who was in the batch behind captured updates: a p-value for each candidate."""

    captures: Annotated[
        tuple[Path, ...],
        Option("Captured updates: one, or one for each round.", is_argument=True),
    ]
    model: Annotated[str, Option(f"The model that was trained: {MODEL}.")]
    candidates: Annotated[
        str, Option("Data set of the people to test, e.g. npz:PATH with inputs, labels.")
    ]
    public: Annotated[str, Option("Public data like the private data, to compute p-values with.")]
    option: NetworkOptions = ()
    noise: Annotated[
        float | None,
        Option("Standard deviation of Gaussian noise that the client added.", least=0.0),
    ] = None
    batch_size: Annotated[
        int | None, Option("Batch size, if the capture does not record it.", least=1)
    ] = None
    members: Annotated[
        int | None,
        Option(
            "The first N candidates are known to have been in the batch, the others not; the "
            "result then says how often the test is right.",
            least=1,
        ),
    ] = None
    out: Annotated[
        Path | None, Option("Also write the result to this file, for seepage dossier.")
    ] = None
    form: Printed = "text"


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Say what an architecture gives away before anything is shared: inputs, or words."""

    models: Annotated[tuple[str, ...], Option(f"Models, each {MODEL}.", is_argument=True)]
    option: NetworkOptions = ()
    shape: Annotated[
        str | None, Option("Input shape, e.g. 3x32x32 (the default), 1x140, or 12 for rows.")
    ] = None
    tokens: Annotated[
        str | None, Option("For texts: length and size of the vocabulary, e.g. 128x30522.")
    ] = None
    numerical: Annotated[
        bool, Option("Compute ranks instead of counting; takes minutes.", flags="--numerical")
    ] = False
    form: Printed = "text"


@dataclass(frozen=True, kw_only=True)
class Vet:
    """Check a received model for signs that the server manipulated it to read the update.

    Exit codes: 0 clean, 2 bad usage, 3 suspicious, 4 malicious.
    """

    model: Annotated[str, Option(f"The model: {MODEL}.", is_argument=True)]
    option: NetworkOptions = ()
    weights: Annotated[Path | None, Option("The received weights: .safetensors or .pt.")] = None
    data: Annotated[
        str | None, Option("Your own data to run the model on; see `seepage list data`.")
    ] = None
    people: Annotated[int, Option("Number of examples to use.", least=1)] = 16
    shape: Annotated[
        str | None, Option("Input shape, e.g. 3x32x32; that of --data if not given.")
    ] = None
    form: Printed = "text"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Measure leakage, accuracy and epsilon at several values of one setting; draw the curve.

    Exit codes: 0 done, 1 a case failed, 2 bad usage.
    """

    noise: Annotated[
        str | None, Option("Standard deviations of Gaussian noise, e.g. 0,0.01,0.1.")
    ] = None
    epsilon: Annotated[
        str | None, Option("DP-SGD: epsilon of one update at delta 1e-5, e.g. 1,4,16.")
    ] = None
    prune: Annotated[str | None, Option("Shares that Prune zeroes, e.g. 0,0.9.")] = None
    batch_sizes: Annotated[str | None, Option("People per update, e.g. 1,4,16.")] = None
    model: Annotated[str, Option(f"The model: {MODEL}.")] = "lenet"
    option: NetworkOptions = ()
    data: Annotated[str, Option("A data set; see `seepage list data`.")] = "digits"
    people: Annotated[int, Option("How many people to attack.", least=1)] = 4
    batch_size: Annotated[int, Option("People per update, if not swept.", least=1)] = 4
    attack: Attacks = ()
    knows_labels: KnowsLabels = False
    train_steps: Annotated[
        int | None,
        Option(
            "Steps of training for the accuracy, by default 20 passes (300 to 1000 steps); 0 "
            "trains nothing.",
            least=0,
        ),
    ] = None
    out: Annotated[Path, Option("Output directory.")] = Path("seepage-sweep")
    device: Device = "auto"
    workers: Workers = None
    overwrite: Overwrite = False
    shown: Shown = Shown()


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the report of an audit, or compare two audits.

    The audit may still be running or may have been interrupted: the report says what is missing.
    """

    directories: Annotated[
        tuple[Path, ...],
        Option("The directory of an audit, or two to compare.", is_argument=True),
    ]
    form: Annotated[Format, Option("Output format.", flags="--format")] = "html"
    out: Annotated[
        Path | None,
        Option("Output file; by default report.* (or comparison.*) in the last directory."),
    ] = None
    utility: Annotated[
        Path | None,
        Option("JSON file with the utility of each defense, plotted against leakage."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Dossier:
    """Write one document for a regulator: every test and its result, or that it was not run."""

    sources: Annotated[
        tuple[Path, ...],
        Option(
            "Directories of audits, and files of `seepage membership --out` or save_evidence.",
            is_argument=True,
        ),
    ]
    out: Annotated[Path, Option("Output directory.")] = Path("seepage-dossier")
    title: Annotated[
        str | None, Option("What was tested; by default the title of the first audit.")
    ] = None
    author: Annotated[str, Option("Who is responsible for it.")] = ""
    against: Annotated[Path | None, Option("An earlier dossier.json to compare with.")] = None


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Show many audits over time on one page: which version of a model leaks more."""

    directories: Annotated[
        tuple[Path, ...],
        Option(
            "Directories of audits, or directories above them; here by default.", is_argument=True
        ),
    ] = ()
    out: Annotated[
        Path | None, Option("Output file; else dashboard.html in the first directory.")
    ] = None
    serve: Annotated[bool, Option(flags="--serve", hidden=True)] = False
    port: Annotated[int | None, Option(hidden=True)] = None


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check that an audit or a dossier was not altered or damaged: checksums, records and files.

    Exit codes: 0 whole, 1 something is missing or was altered, 2 no audit.
    """

    directory: Annotated[
        Path, Option("The directory of an audit, or the JSON of a dossier.", is_argument=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Purge:
    """Remove the private inputs and the guesses of an audit, and keep its scores."""

    directory: Annotated[Path, Option("The directory of an audit.", is_argument=True)]


@dataclass(frozen=True, kw_only=True)
class List:
    """List the names that a spec can use, or show the options of one of them."""

    kind: Annotated[Kind, Option("What to list.", is_argument=True)]
    name: Annotated[
        str | None,
        Option("Show one of them: its options, what it needs, its paper.", is_argument=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class New:
    """Write a commented spec from these options; on a terminal, ask for what is missing."""

    out: Annotated[Path, Option("The spec to write.", is_argument=True)] = Path("audit.toml")
    data: Annotated[str | None, Option("Data set to attack; see `seepage list data`.")] = None
    model: Annotated[str | None, Option(f"Model to train: {MODEL}.")] = None
    option: NetworkOptions = ()
    people: Annotated[int, Option("How many people to attack.", least=1)] = 4
    batch_size: Annotated[tuple[int, ...], Option("People per update; repeatable.", least=1)] = ()
    attack: Attacks = ()
    defense: Defenses = ()
    local_steps: Annotated[
        int | None, Option("Local steps that each client takes (FedAvg).", least=1)
    ] = None
    knows_labels: KnowsLabels = False
    overwrite: Annotated[bool, Option("Replace the file.")] = False


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is installed, which optional parts can be used, and what they are for.

    Exit codes: 0 an audit works here, 1 it does not.
    """
