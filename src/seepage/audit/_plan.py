"""The plan of an audit, `plan.json`: what runs and who began it, written before anything else.

{"seepage audit": 6, "sha256": "...", "plan": {"title": ..., "spec": ..., "cases": [...]}}
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from seepage.audit._record import Name
from seepage.core._construct import LARGEST as LONGEST_SPEC
from seepage.core._construct import Component, parse_toml
from seepage.core._plugins import is_path
from seepage.core._schema import AtMost, from_plain, parse_json, to_plain
from seepage.core._whole_file import (
    PRIVATE_FOLDER,
    checksum,
    open_plain,
    read_plain,
    write_whole,
)
from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile

PLAN = "plan.json"
# Raise it whenever what plans, records or identities hold changes; nothing else needs to change.
FORMAT = 6
# What stands before a colon in names that import nothing of the spec's author.
_FAMILIES = ("npz", "folder", "torchvision", "hf", "timm", "ecg")
_BEGINNING = re.compile(rb'\{"seepage audit": (\d{1,9}), "sha256": "([0-9a-f]{64})", "plan": ')
# What formats 1 to 5 wrote, and the application id in the header of such a database.
_DATABASE, _MAGIC, _APPLICATION = "audit.sqlite", b"SQLite format 3\0", b"Seep"


@dataclass(frozen=True)
class Planned:
    """A case to run.

    Args:
        id: The hash of its identity.
        description: One line about it.
        identity: Everything that decides its result, by name.
        inputs: The name under which its private inputs are stored; empty if nobody has them.
    """

    id: Name
    description: str
    identity: Mapping[str, Any]
    inputs: Name = ""


@dataclass(frozen=True)
class Plan:
    """Everything about an audit that is known before its first case runs.

    Args:
        title: What the audit is called.
        spec: Text of its spec.
        environment: Versions, platform and device, as plain data.
        seal: Signature of the user who began it; see `make_seal`.
        private: Whether private inputs and guesses are stored, not scores alone.
        cases: What runs, in order.
    """

    title: str
    spec: Annotated[str, AtMost(LONGEST_SPEC)]
    environment: Mapping[str, Any]
    seal: str = ""
    private: bool = True
    cases: tuple[Planned, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether this user began the audit; known only of a spec that imports something."""
        try:
            made = _sign(_read_key(), self.spec)
            return bool(self.seal) and hmac.compare_digest(made, self.seal)
        except (OSError, TypeError):
            return False

    def write(self, folder: Path) -> None:
        """Write it, whole or not at all, in place of an earlier one."""
        text = json.dumps(to_plain(self), allow_nan=False)
        beginning = f'{{"seepage audit": {FORMAT}, "sha256": "{checksum(text.encode())}", "plan": '
        write_whole(folder / PLAN, f"{beginning}{text}}}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read the plan in a folder.

        Raises:
            DataNotFound: If there is no audit.
            UnreadableFile: If it is damaged, or of another format.
        """
        require_format(folder)
        path = folder / PLAN
        try:
            data = read_plain(path)
            begins = _BEGINNING.match(data)
            text = data[begins.end() : -2] if begins and data.endswith(b"}\n") else b""
            if begins is None or checksum(text).encode() != begins[2]:
                raise UnreadableFile("its checksum is another")
            plan = from_plain(cls, parse_json(text.decode(), "it"))
            names = {case.id for case in plan.cases}
            if "" in names or len(names) < len(plan.cases):
                raise UnreadableFile("it names a case twice, or not at all")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnreadableFile(
                f"{str(path)!r} is damaged ({reason}); restore it from a copy, or run the audit "
                "again in another folder"
            ) from error
        return plan


def read_format(folder: Path) -> int | None:
    """Read the format of the audit in a folder; None if it holds none, or anything else."""
    with suppress(OSError), open_plain(folder / PLAN) as file:
        if found := _BEGINNING.match(file.read(200)):
            return int(found[1])
    return _read_old_format(folder)


def _read_old_format(folder: Path) -> int | None:
    with suppress(OSError), open_plain(folder / _DATABASE) as file:
        head = file.read(100)
        if head.startswith(_MAGIC) and head[68:72] == _APPLICATION:
            return int.from_bytes(head[60:64], "big")
    return None


def require_format(folder: Path) -> None:
    """Raise unless a folder holds one audit, in the format of this version."""
    path, found, old = folder / PLAN, read_format(folder), _read_old_format(folder)
    if found is None:
        if path.exists() or path.is_symlink():
            raise UnreadableFile(
                f"expected the plan of an audit at {str(path)!r}, got another file or a link; name "
                "the folder of an audit"
            )
        raise DataNotFound(f"no audit in {str(folder)!r}: it has no {PLAN}")
    if found < FORMAT:
        raise UnreadableFile(
            f"{str(folder)!r} holds an audit in the older format {found}, which seepage 0.3 and "
            f"earlier versions read; use one of them, choose another folder, or delete this one by "
            "hand"
        )
    if found > FORMAT:
        raise UnreadableFile(
            f"{str(folder)!r} holds an audit in the newer format {found}; use the version of "
            "seepage that wrote it, choose another folder, or delete this one by hand"
        )
    if old is not None:
        raise UnreadableFile(
            f"{str(folder)!r} holds two audits, {PLAN} and the older {_DATABASE}; move one of them "
            "into a folder of its own"
        )


# A part that changes because another one did, and which; only the other one is reported.
_IMPLIED_BY: Mapping[str, tuple[str, ...]] = defaultdict(
    tuple,
    people=("data",),
    inputs=("data", "people"),
    domain=("data", "model"),
    weights=("data", "model"),
    options=("attack", "bound"),
)
_LONGEST = 80


def require_same_cases(folder: Path, before: Sequence[Planned], now: Sequence[Planned]) -> None:
    """Raise `InvalidValue`, saying what changed, unless two plans have the same cases."""
    if {case.id for case in before} != {case.id for case in now}:
        raise InvalidValue(
            f"the audit in {str(folder)!r} was begun with another spec: "
            f"{_describe_changes(before, now)}; resume it with the spec it began with, or choose "
            "another --out"
        )


def _describe_changes(before: Sequence[Planned], now: Sequence[Planned]) -> str:
    """Name the parts in which two plans differ.

    Example:
        >>> mlp = Planned("1", "", {"model": "mlp", "seed": "0"})
        >>> cnn = Planned("2", "", {"model": "cnn", "seed": "0"})
        >>> _describe_changes([mlp], [cnn])
        "model was 'mlp' and is now 'cnn'"
    """
    names = dict.fromkeys(name for case in (*before, *now) for name in case.identity)
    found = {name: words for name in names if (words := _describe_change(name, before, now))}
    told = [w for name, w in found.items() if not any(n in found for n in _IMPLIED_BY[name])]
    return ", and ".join(told) or f"it had {len(before)} cases and now has {len(now)}"


def _describe_change(name: str, before: Sequence[Planned], now: Sequence[Planned]) -> str:
    old, new = ({_write(case.identity.get(name, "")) for case in cases} for cases in (before, now))
    gone, come = sorted(old - new), sorted(new - old)
    if gone and come:
        return f"{name} was {_quote(gone)} and is now {_quote(come)}"
    if gone:
        return f"{name} {_quote(gone)} is gone"
    return f"{name} {_quote(come)} is new" if come else ""


def _write(value: Any) -> str:  # noqa: ANN401
    """Write a part of an identity: components as calls, anything else as JSON has it."""
    if isinstance(value, tuple | list):
        if all(isinstance(item, dict) for item in value):
            return " + ".join(map(_write, value)) or "none"
        return str(list(value))
    is_component = isinstance(value, dict) and value.keys() == {"name", "arguments"}
    return str(Component(**value)) if is_component else str(value)


def _quote(values: Sequence[str]) -> str:
    more = f" and {len(values) - 1} more" if len(values) > 1 else ""
    first = values[0] if len(values[0]) <= _LONGEST else values[0][:_LONGEST] + "..."
    return f"{first!r}{more}"


def find_imports(spec: str) -> list[str]:
    """Find what a spec would import by `package.module:factory`.

    Example:
        >>> find_imports('models = { name = "nets:small" }')
        ['nets:small']
    """
    try:
        return list(dict.fromkeys(_walk(parse_toml(spec))))
    except (InvalidValue, RecursionError):
        return []


def _walk(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _walk(one)
    elif isinstance(value, str) and is_path(value) and value.partition(":")[0] not in _FAMILIES:
        yield value


def make_seal(spec: str) -> str:
    """Sign a spec with this user's key; empty if it imports nothing."""
    if not find_imports(spec):
        return ""
    with suppress(OSError):  # without a home, every folder is a stranger's
        return _sign(_read_key(), spec)
    return ""


def _sign(key: bytes, spec: str) -> str:
    return hmac.new(key, spec.encode(), "sha256").hexdigest()


def _read_key() -> bytes:
    """Read this user's key; make it the first time."""
    home = os.environ.get("XDG_CONFIG_HOME")
    folder = (Path(home) if home else Path.home() / ".config") / "seepage"
    path = folder / "key"
    if not path.exists():
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_whole(path, secrets.token_bytes(32))
    return read_plain(path, largest=1000)
