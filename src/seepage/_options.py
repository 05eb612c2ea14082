"""Options as dataclasses: the command line and Python functions are both built from them.

A field whose type is annotated with an `Option` is also an option of a command. `seepage --help`
reads this file, so nothing is imported here that takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from seepage.audit._record import Record
    from seepage.audit._run_case import AnyCase

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


@dataclass(frozen=True)
class Option:
    """How a command shows a field. A truth value that is true by default is what its flag ends.

    Args:
        help: What the help says of it.
        flags: How it is written, such as `--option -o`; by default as its field is called.
        metavar: What the help calls its value.
        least: The smallest number it can be.
        is_argument: Whether it is written without a flag.
        hidden: Whether the help leaves it out.
    """

    help: str = ""
    flags: str = ""
    metavar: str | None = None
    least: float | None = None
    is_argument: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Panel:
    """The part of the help that lists an option, or all of a group of options."""

    title: str


_HOW, _EARLIER, _CODES = "How it runs", "An earlier audit in --out", "Exit codes for CI"

Device = Annotated[Literal["auto", "cpu", "cuda"] | str, Option("Device to train and attack on.")]
Workers = Annotated[int | None, Option("Number of worker processes; a GPU takes one.", least=1)]
Resume = Annotated[
    bool, Option("Skip cases that already have a result in --out.", flags="--resume")
]
Overwrite = Annotated[bool, Option("Replace the audit in --out.")]


class ProgressListener:
    """Called while an audit runs. Subclass it and override what should be shown."""

    def begin(
        self, *, total: int, done: Sequence[Record], mended: Sequence[Path]
    ) -> AbstractContextManager[object]:
        """Begin with some of `total` cases done; the result is entered while cases run."""
        return nullcontext()

    def started(self, case: AnyCase) -> None:
        """Called when a case begins."""

    def finished(self, record: Record) -> None:
        """Called when a case has its result."""

    def failed(self, record: Record, shown: str) -> None:
        """Called with what the error of somebody else's code says, which is not stored."""


@dataclass(frozen=True)
class RunOptions:
    """The arguments of `seepage.audit.run`, and what `seepage audit` hands on to it.

    Args:
        spec_or_cases: A TOML file, a `Spec`, a mapping of the same form, or cases; None takes the
            spec of the audit in `out` if `resume`, else the bundled quickstart.
        out: Directory for records and tensors; None takes a temporary one, which is removed when
            the result is no longer used.
        device: "auto", "cpu" or "cuda"; ignored for a `Spec` and for cases.
        executor: "local", "ray", or a function that runs cases and yields outcomes.
        workers: Number of processes; None takes one, or all of a Ray cluster.
        timeout: Seconds after which a case of a spec is ended and recorded as failed; None takes
            what the spec says. Cases then run in worker processes.
        gates: How much may leak, e.g. "psnr=20"; a gate that can never trip is refused at once.
            `find_breaches` then tells who leaked.
        resume: Skip cases that already have a result in `out`; other processes may be at work
            there, on this machine or another, and each case is run by one of them.
        retry_failed: With `resume`, run failed cases again.
        extend: With `resume`, add cases that the audit in `out` was not begun with; its others
            stay as they are.
        overwrite: Replace the audit in `out`.
        trust: With `resume`, import what the spec in a stranger's `out` names.
        keep_private: Store private inputs and guesses; else only scores.
        progress: Called while the audit runs.
        title: What an audit of cases is called.
        notes: Text to store in place of a spec, for an audit of cases.

    Raises:
        InvalidValue: Two options contradict each other.
    """

    spec_or_cases: Any = None
    out: Path | str | None = None
    _: KW_ONLY
    device: Annotated[Device, Panel(_HOW)] = "auto"
    executor: Annotated[
        Literal["local", "ray"] | Callable[..., Any],
        Option("Run cases on this machine, or on a Ray cluster."),
        Panel(_HOW),
    ] = "local"
    workers: Annotated[Workers, Panel(_HOW)] = None
    timeout: Annotated[
        float | None,
        Option(
            "Seconds that a case may take; then it is ended and recorded as failed.", least=0.001
        ),
        Panel(_HOW),
    ] = None
    gates: Annotated[
        Sequence[Any],
        Option(
            "Exit with code 3 if more people than this are identified (identified=0), or if "
            "anybody's score is beyond this value and beats the best guess without an update: "
            "above it for psnr, below it for lpips. Repeatable.",
            flags="--fail-above",
            metavar="METRIC=VALUE",
        ),
        Panel(_CODES),
    ] = ()
    resume: Annotated[Resume, Panel(_EARLIER)] = False
    retry_failed: Annotated[
        bool,
        Option("With --resume, run failed cases again.", flags="--retry-failed"),
        Panel(_EARLIER),
    ] = False
    extend: bool = False
    overwrite: Annotated[Overwrite, Panel(_EARLIER)] = False
    trust: Annotated[
        bool,
        Option(
            "With --resume, run code that the spec of somebody else's audit names.",
            flags="--trust",
        ),
        Panel(_EARLIER),
    ] = False
    keep_private: Annotated[
        bool,
        Option("Store only scores, no private inputs and no guesses.", flags="--no-truth"),
    ] = True
    progress: ProgressListener | None = None
    title: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            refuse("expected --resume or --overwrite, got both; choose one")
        if self.retry_failed and not self.resume:
            refuse("--retry-failed goes with --resume, which is not given")
        if self.trust and not self.resume:
            refuse("--trust goes with --resume, which is not given")


def refuse(sentence: str) -> NoReturn:
    """Raise `InvalidValue`, which is imported only then."""
    from seepage.core.errors import InvalidValue

    raise InvalidValue(sentence)


def called_with(options: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Make a function of one dataclass of options take its fields as arguments.

    Example:
        >>> @called_with(RunOptions)
        ... def workers(options: RunOptions) -> int | None:
        ...     return options.workers
        >>> workers("spec.toml", workers=3)
        3
    """

    def decorate(function: Callable[[O], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(options(*args, **kwargs))

        call.__signature__ = signature(options)  # type: ignore[attr-defined]
        return call

    return decorate
