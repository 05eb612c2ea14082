"""Every error Seepage raises on purpose.

    SeepageError
    ├── InvalidValue        (ValueError)         a value that no run could use
    ├── UnknownName         (ValueError)         a name that is not in a catalogue
    ├── MissingKnowledge    (ValueError)         the threat withholds what the attack needs
    ├── NotApplicable       (ValueError)         an attack or metric does not fit what it was given
    ├── Diverged            (ArithmeticError)    a training or search went to NaN or infinity
    ├── DataNotFound        (FileNotFoundError)  a data set, folder or file is not there
    ├── UnreadableFile      (OSError)            a file is there but cannot be used
    ├── MissingExtra        (ImportError)        an optional dependency is not installed
    └── BrokenPlugin        (ImportError)        a part of another package cannot be used

Each message is one sentence: what was expected, what came, what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

# Characters that a message has at most, and how many of its end are kept.
_LONGEST, _END = 1_500, 400


def _shorten(message: str) -> str:
    r"""Write a message so that it can be printed, without its middle if it is long.

    Some messages say the reason in their first line, and list others below.

    Example:
        >>> _shorten("no attack applies\ndlg: too large"), len(_shorten("x" * 9_000))
        ('no attack applies\ndlg: too large', 1500)
    """
    printable = message.encode(errors="backslashreplace").decode()
    if len(printable) <= _LONGEST:
        return printable
    # What to do stands at the end.
    return f"{printable[: _LONGEST - _END - 5]} ... {printable[-_END:]}"


class SeepageError(Exception):
    """Root of the tree; the command line turns it into one sentence and exit code 2."""

    # Keys and numbers on the way to a mistake in a spec.
    place: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        """The sentence, however long a name or value is that it quotes."""
        return _shorten(super().__str__())


class InvalidValue(SeepageError, ValueError):
    """A value that no run could use: a wrong shape, range or combination."""


class UnknownName(SeepageError, ValueError):
    """A name that is not in a catalogue; the message offers the nearest one.

    Example:
        >>> print(UnknownName("attack", "analytic_fx", ["analytic_fc", "dlg"]))
        unknown attack 'analytic_fx'; did you mean 'analytic_fc'? (known: analytic_fc, dlg)
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1) or _match_letters(name, names)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        place = f" {where}" if where else ""
        super().__init__(f"unknown {kind} {name!r}{place}{hint} (known: {', '.join(names)})")


def _match_letters(name: str, names: Iterable[str]) -> list[str]:
    """Names that differ in capitals, hyphens and the like, such as `dp_sgd` from 'DP-SGD'."""

    def letters(written: str) -> str:
        return re.sub(r"[^a-z0-9]", "", written.lower())

    plain = {letters(one): one for one in names}
    return [plain[near] for near in get_close_matches(letters(name), plain, n=1)]


# How an adversary gets what attacks often cannot do without.
_HINTS = {
    "labels": "use Threat(knows_labels=True), or InferLabels to recover them",
    "batch size": "use Threat(knows_batch_size=True)",
}


class MissingKnowledge(SeepageError, ValueError):
    """The threat model withholds something the attack cannot do without."""

    def __init__(self, what: str, *, needed_by: object, hint: str = "") -> None:
        """Compose the sentence from what is missing, who needs it and what to do."""
        hint = hint or _HINTS.get(what, "grant it in the threat")
        super().__init__(f"{needed_by} needs the {what}, which this threat withholds; {hint}")


class NotApplicable(SeepageError, ValueError):
    """An attack does not fit this model or update, or a metric these inputs."""


class Diverged(SeepageError, ArithmeticError):
    """A training or all restarts of a search went to NaN or infinity."""


class DataNotFound(SeepageError, FileNotFoundError):
    """A data set, folder or file is not there."""


class UnreadableFile(SeepageError, OSError):
    """A file is there but truncated, of another format or not permitted."""


class MissingExtra(SeepageError, ImportError):
    """An optional dependency is not installed, or does not load."""


class BrokenPlugin(SeepageError, ImportError):
    """A part that another package registers cannot be imported, or is not what it says."""


Interval = Literal["(0, 1)", "[0, 1)", "(0, 1]", "[0, 1]"]


def require_at_least(least: float, **numbers: float | None) -> None:
    """Raise `InvalidValue` for a number that is below `least` or not finite; None passes.

    Example:
        >>> require_at_least(1, steps=3, restarts=None)
    """
    for name, value in numbers.items():
        if value is not None and not least <= value < math.inf:
            raise InvalidValue(f"expected {name} >= {least}, got {value!r}")


def require_positive(**numbers: float | None) -> None:
    """Raise `InvalidValue` for a number that is not above zero or not finite; None passes."""
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise InvalidValue(f"expected {name} > 0, got {value!r}")


def require_within(interval: Interval, **numbers: float) -> None:
    """Raise `InvalidValue` for a number outside an interval between 0 and 1.

    Example:
        >>> require_within("(0, 1]", sample_rate=1)
        >>> require_within("[0, 1)", momentum=1)
        Traceback (most recent call last):
        seepage.core.errors.InvalidValue: expected momentum in [0, 1), got 1
    """
    for name, value in numbers.items():
        above = value >= 0 if interval.startswith("[") else value > 0
        below = value <= 1 if interval.endswith("]") else value < 1
        if not (above and below):
            raise InvalidValue(f"expected {name} in {interval}, got {value!r}")


def install_hint(extra: str) -> str:
    """The command that installs an extra, for a checkout or for an installed package.

    Example:
        >>> install_hint("lpips").endswith("[lpips]'")
        True
    """
    root = Path(__file__).parents[3]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "src" / "seepage").is_dir()
    return f"pip install -e '{root}[{extra}]'" if is_checkout else f"pip install 'seepage[{extra}]'"


def import_extra(module: str, extra: str, *, reason: str, otherwise: str = "") -> Any:  # noqa: ANN401 - any package
    """Import an optional package; `MissingExtra` gives the reason and the command to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{reason}: {install_hint(extra)}{otherwise}") from error


def summarise_error(error: BaseException) -> str:
    """Write an error of somebody else's code in one short line.

    Example:
        >>> summarise_error(RuntimeError("mat1 and mat2 differ"))
        'RuntimeError: mat1 and mat2 differ'
        >>> summarise_error(ZeroDivisionError())
        'ZeroDivisionError'
    """
    words = _hide_values(error)[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def line_to_store(error: BaseException) -> str:
    """Write an error in our words alone: of somebody else's, only the class is kept.

    What other code says of the data that it was given may hold a person's name, which nothing
    recognises.

    Example:
        >>> line_to_store(ValueError("no blood group for Ann Smith"))
        'ValueError: what it says is not stored, since it may quote private data'
        >>> try:
        ...     with explain_errors(NotApplicable, "net cannot be run, it raised"):
        ...         raise ValueError("no blood group for Ann Smith")
        ... except NotApplicable as error:
        ...     line_to_store(error)
        'net cannot be run, it raised ValueError'
    """
    if not isinstance(error, SeepageError):
        name = type(error).__name__
        return f"{name}: what it says is not stored, since it may quote private data"
    # As it was given: what is cut or escaped for printing would not be found in it.
    line = "".join(super(SeepageError, error).__str__().splitlines()[:1])
    cause = error.__cause__ or error.__context__
    while cause is not None:
        if not isinstance(cause, SeepageError):
            line = line.replace(summarise_error(cause), type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return _shorten(line)


@contextmanager
def explain_errors(kind: type[SeepageError], sentence: str) -> Iterator[None]:
    """Turn whatever somebody else's code raises into an error of ours, after a sentence."""
    try:
        yield
    except SeepageError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{sentence} {summarise_error(error)}") from error


def first_error_line(error: BaseException) -> str:
    """The first line of what an error says, cut if it is long; its class if it says nothing."""
    return str(error).partition("\n")[0][:200] or type(error).__name__


# What Python says of code and files, not of data.
_OF_CODE = (
    *(TypeError, AttributeError, NameError, ImportError, NotImplementedError, SyntaxError),
    OSError,
)
# Sizes and words stay; tensors, other numbers and quotations are hidden.
_SIZE = r"(?:[Ss]izes?|[Ss]hapes?|input|batch_size|dimension|tensor [ab])"
_KNOWN = (
    rf"\b{_SIZE}\b[\s:=('\[]*-?\d[\d, x]*|\d+(?:x\d+)+"
    r"|-?\d+(?= (?:channels|dimensions|elements))|(?!(?:tensor|array)\()[A-Za-z_]\w*"
)
_NUMBER = r"(?:tensor|array)\(.*|[-+]?\d[\w.+-]*"
_QUOTED = r"""'[^']*'|"[^"]*\""""


def _hide_values(error: BaseException) -> str:
    """Write the first line of an error without what may be private data.

    Our own errors never quote data. Those of others, such as torch or a loss of the user's, may.

    Example:
        >>> _hide_values(IndexError("Target 731 is out of bounds."))
        'Target ... is out of bounds.'
        >>> _hide_values(ValueError("bad entry in tensor([0.25, 0.5]), group 'Smith'"))
        'bad entry in ...'
        >>> _hide_values(RuntimeError("expected input[1, 3] to have 4 channels, got (1x784)"))
        'expected input[1, 3] to have 4 channels, got (1x784)'
    """
    line = "".join(str(error).splitlines()[:1])
    if isinstance(error, (SeepageError, *_OF_CODE)):
        return line
    # Texts and names do not pass through torch, which quotes operators and types.
    hidden = _NUMBER if type(error) is RuntimeError else f"{_NUMBER}|{_QUOTED}"
    return re.sub(f"({_KNOWN})|{hidden}", lambda found: found[1] or "...", line)


@contextmanager
def error_path(*place: str | int) -> Iterator[None]:
    """Put these keys and numbers before the place of any error raised inside.

    Example:
        >>> try:
        ...     with error_path("scenario", 0), error_path("attacks", 1):
        ...         raise SeepageError("no such attack")
        ... except SeepageError as error:
        ...     print(error.place, error)
        ('scenario', 0, 'attacks', 1) no such attack
    """
    try:
        yield
    except SeepageError as error:
        error.place = (*place, *error.place)
        raise
