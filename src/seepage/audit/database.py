"""The database of an audit: one SQLite file, one transaction per case."""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from seepage.audit.artifacts import NAME, SUFFIX
from seepage.audit.record import Record
from seepage.audit.record_schema import parse_json
from seepage.core.encryption import ENCRYPTION
from seepage.core.errors import DataNotFound, UnreadableFile
from seepage.core.whole_file import checksum, open_plain, read_plain, write_whole

DATABASE = "audit.sqlite"
ARTIFACTS = "artifacts"
ARTIFACT = re.compile(rf"{ARTIFACTS}/({NAME}){re.escape(SUFFIX)}")
# Under this name `about` says whether private inputs and guesses are stored.
PRIVATE = "private inputs"
KEPT, LEFT_OUT = "kept", "left out"
# A database is built under this name and then renamed, which begins the audit.
TEMPORARY = ".seepage-new-audit.sqlite"

# Stored in the header of the file. Raise the format whenever the tables change, or what records or
# identities hold; nothing else needs to change.
APPLICATION = int.from_bytes(b"Seep", "big")
FORMAT = 5
# How a file of SQLite begins, and how many bytes its header has.
_MAGIC, _HEADER = b"SQLite format 3\0", 100
_FIRST_TABLES = {"about", "planned", "records"}
# Most bytes of one value, which no record reaches.
LARGEST = 256 * 2**20

_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE planned (
    position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, description TEXT NOT NULL,
    identity TEXT NOT NULL
) STRICT;
CREATE TABLE records (
    id TEXT PRIMARY KEY REFERENCES planned (id), record TEXT NOT NULL, sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE files (path TEXT PRIMARY KEY, sha256 TEXT NOT NULL) STRICT;
CREATE TABLE begun (id TEXT PRIMARY KEY REFERENCES planned (id), times INTEGER NOT NULL) STRICT;
"""


@dataclass(frozen=True)
class Planned:
    """A case to run: the hash of its identity, one line about it, and the identity by name."""

    id: str
    description: str
    identity: Mapping[str, Any]


def read_format(path: Path) -> int | None:
    """Read the format of an audit's database; None if the path holds anything else.

    The file is not locked or repaired, and no other file is made, since it may not be ours.
    """
    if path.is_symlink() or not path.is_file():
        return None
    # Not by SQLite, which takes a file for damaged if a kill left part of it in the log beside it.
    try:
        with open_plain(path) as file:
            head = file.read(_HEADER)
    except (OSError, UnreadableFile):
        return None
    if len(head) < _HEADER or not head.startswith(_MAGIC):
        return None
    version, application = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    if application == APPLICATION:
        return version
    # Format 1 had no application id.
    is_first = (application, version) == (0, 1) and _list_tables(path) >= _FIRST_TABLES
    return 1 if is_first else None


def _list_tables(path: Path) -> set[str]:
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as sqlite:
            return {name for (name,) in sqlite.execute("SELECT name FROM sqlite_master")}
    except (sqlite3.Error, ValueError):
        return set()


def require_database(path: Path) -> None:
    """Raise unless a file is the database of an audit, in the format of this version."""
    if not path.is_file():
        raise DataNotFound(f"no audit in {str(path.parent)!r}: it has no {path.name}")
    found = read_format(path)
    if found is None:
        raise UnreadableFile(
            f"expected the database of an audit at {str(path)!r}, got another file or a link; name "
            "the folder of an audit"
        )
    if found != FORMAT:
        age = "older" if found < FORMAT else "newer"
        raise UnreadableFile(
            f"expected an audit in format {FORMAT}, but {str(path.parent)!r} holds one in the "
            f"{age} format {found}; use the version of seepage that wrote it, choose another "
            "folder, or delete this one by hand"
        )


def _read_tables(sqlite: sqlite3.Connection) -> list[tuple[str, str]]:
    """Read the statement that made each table, view and trigger."""
    return sqlite.execute(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()


@cache
def _wanted_tables() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as sqlite:
        sqlite.executescript(_TABLES)
        return _read_tables(sqlite)


def _connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Open a database, and check that it is whole and has the tables of an audit."""
    address = f"{path.absolute().as_uri()}?mode={mode}"
    sqlite = sqlite3.connect(address, uri=True, isolation_level=None)
    sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
    try:
        sqlite.execute("PRAGMA trusted_schema = OFF")
        [verdict] = sqlite.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(str(verdict).replace("\n", " "))
        if _read_tables(sqlite) != _wanted_tables():
            raise sqlite3.DatabaseError("its tables are not those of an audit")
    except BaseException:
        sqlite.close()
        raise
    return sqlite


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database that must stay as it is; what a kill left undone is undone in a copy."""
    try:
        return _connect(path, "ro")
    except sqlite3.OperationalError as error:
        # SQLite must write to go back to the last commit.
        # Python raises the same error without a code for text that is not UTF-8.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_READONLY:
            raise
    with tempfile.TemporaryDirectory(prefix="seepage-") as folder:
        for suffix in ("", "-journal", "-wal"):
            with suppress(FileNotFoundError):
                name = path.name + suffix
                (Path(folder) / name).write_bytes(read_plain(path.with_name(name)))
        held = sqlite3.connect(":memory:", isolation_level=None)
        with closing(_connect(Path(folder) / path.name, "rw")) as mended:
            mended.backup(held)
        return held


class Database:
    """An open file of records; every error of SQLite becomes one sentence.

    `read_only` never writes, not even to repair what a killed process left.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the file, and check that it is whole and ours."""
        self.path = path
        require_database(path)
        with _explain_errors(path):
            self._sqlite = _connect_to_read(path) if read_only else _connect(path, "rw")
            if not read_only:
                # A writer never blocks a reader, and every commit is on disk.
                self._sqlite.execute("PRAGMA journal_mode = WAL")
                self._sqlite.execute("PRAGMA synchronous = FULL")
            self._opened = _find_file(path)

    def is_there(self) -> bool:
        """Whether the file is still where it was opened: not moved, removed or replaced."""
        return _find_file(self.path) == self._opened

    @staticmethod
    def create(
        path: Path,
        *,
        about: Mapping[str, str],
        planned: Iterable[Planned],
        files: Iterable[str],
    ) -> None:
        """Write a new database, whole or not at all, in place of an earlier one."""
        rows = list(map(_write_planned, planned))
        # In memory, so that a kill leaves neither half a database nor its journal.
        with _explain_errors(path), closing(sqlite3.connect(":memory:")) as sqlite:
            sqlite.executescript(_TABLES)
            sqlite.execute(f"PRAGMA application_id = {APPLICATION}")
            sqlite.execute(f"PRAGMA user_version = {FORMAT}")
            sqlite.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            sqlite.executemany(
                "INSERT INTO planned (id, description, identity) VALUES (?, ?, ?)", rows
            )
            sqlite.executemany("INSERT INTO files VALUES (?, '')", [(file,) for file in files])
            sqlite.commit()
            data = sqlite.serialize()
        write_whole(path, data, partial=path.with_name(TEMPORARY))

    def extend(self, *, spec: str, planned: Iterable[Planned], files: Iterable[str]) -> None:
        """Plan further cases, after those that are planned; the spec is that of all of them."""
        rows = list(map(_write_planned, planned))
        with _explain_errors(self.path), self._sqlite:
            self._sqlite.execute("BEGIN IMMEDIATE")
            self._sqlite.execute("UPDATE about SET value = ? WHERE key = 'spec'", (spec,))
            self._sqlite.executemany(
                "INSERT OR IGNORE INTO planned (id, description, identity) VALUES (?, ?, ?)", rows
            )
            listed = [(file,) for file in files]
            self._sqlite.executemany("INSERT OR IGNORE INTO files VALUES (?, '')", listed)

    def add(self, record: Record, checksums: Mapping[str, str]) -> None:
        """Store a record, unless the case has one, and the checksums of files that were written."""
        text = json.dumps(record.plain(), allow_nan=False)
        row = (record.case, text, checksum(text.encode()))
        with self._write():
            self._sqlite.execute("INSERT OR IGNORE INTO records VALUES (?, ?, ?)", row)
            self._sqlite.execute("DELETE FROM begun WHERE id = ?", (record.case,))
            self._note(checksums)

    def note(self, checksums: Mapping[str, str]) -> None:
        """Store the checksums of files; an empty one says that a file is not there."""
        with self._write():
            self._note(checksums)

    def _note(self, checksums: Mapping[str, str]) -> None:
        rows = [(value, file) for file, value in checksums.items()]
        self._sqlite.executemany("UPDATE files SET sha256 = ? WHERE path = ?", rows)

    def leave_out_private(self, files: Iterable[str]) -> None:
        """Note that private inputs and guesses are not stored, and that these files are gone."""
        with self._write():
            self._sqlite.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (PRIVATE, LEFT_OUT))
            self._sqlite.execute("DELETE FROM about WHERE key = ?", (ENCRYPTION,))
            self._note(dict.fromkeys(files, ""))

    def keeps_private(self) -> bool:
        """Whether private inputs and guesses are stored."""
        return self.about().get(PRIVATE) != LEFT_OUT

    def begin(self, case: str, *, times: int) -> None:
        """Note that a case has begun so many times without a result."""
        with self._write():
            self._sqlite.execute("INSERT OR REPLACE INTO begun VALUES (?, ?)", (case, times))

    def begun(self) -> dict[str, int]:
        """How often each case without a result has begun."""
        return dict(self._rows("SELECT id, times FROM begun"))

    def forget(self, cases: Iterable[str]) -> None:
        """Drop the records of these cases, which will run again."""
        rows = [(case,) for case in cases]
        with self._write():
            self._sqlite.executemany("DELETE FROM records WHERE id = ?", rows)
            self._sqlite.executemany("DELETE FROM begun WHERE id = ?", rows)

    def empty(self) -> None:
        """Drop every record, and leave a single file, so that another can replace it."""
        with _explain_errors(self.path):
            self._sqlite.execute("PRAGMA journal_mode = DELETE")
            self._sqlite.execute("DELETE FROM records")
            self._sqlite.execute("DELETE FROM begun")
            self._sqlite.execute("UPDATE files SET sha256 = ''")

    def files(self) -> dict[str, str]:
        """What the audit may have written, relative to its directory, each with its checksum."""
        return dict(self._rows("SELECT path, sha256 FROM files ORDER BY rowid"))

    def about(self) -> dict[str, str]:
        """Title, spec and environment."""
        return dict(self._rows("SELECT key, value FROM about"))

    def planned(self) -> tuple[Planned, ...]:
        """Every case, in order."""
        rows = self._rows("SELECT id, description, identity FROM planned ORDER BY position")
        return tuple(Planned(case, line, self._parse(identity)) for case, line, identity in rows)

    def records(self) -> tuple[Record, ...]:
        """Every record there is, in the order of the plan; raise if one is damaged."""
        read = self._read_records()
        for case, found in read.items():
            if isinstance(found, UnreadableFile):
                raise UnreadableFile(
                    f"the record of {case[:40]!r} in {str(self.path)!r} is damaged: {found}; "
                    "--resume runs that case again"
                ) from found
        return tuple(found for found in read.values() if isinstance(found, Record))

    def find_damaged(self) -> dict[str, str]:
        """Find the records that are damaged: the case of each, and why."""
        read = self._read_records()
        return {case: str(why) for case, why in read.items() if isinstance(why, UnreadableFile)}

    def _read_records(self) -> dict[str, Record | UnreadableFile]:
        rows = self._rows(
            "SELECT id, record, sha256 FROM records LEFT JOIN planned USING (id) "
            "ORDER BY planned.position"
        )
        names = artifact_names(self.files())
        planned = {case for (case,) in self._rows("SELECT id FROM planned")}
        return {case: _read_record(case, text, sha, planned, names) for case, text, sha in rows}

    def _parse(self, text: str) -> dict[str, Any]:
        found = parse_json(text, f"what {str(self.path)!r} holds")
        if not isinstance(found, dict):
            raise UnreadableFile(f"{str(self.path)!r} is damaged: expected names and values")
        return found

    def close(self) -> None:
        """Close the database, which is then a single file unless somebody is reading it."""
        # Of a file that was moved, another may have taken the place, whose log is left alone.
        if self.is_there():
            with suppress(sqlite3.Error):
                self._sqlite.execute("PRAGMA journal_mode = DELETE")
        self._sqlite.close()

    @contextmanager
    def _write(self) -> Iterator[None]:
        """Write all that happens in the block, or nothing after an error."""
        # Leaving the connection's block commits, or rolls back.
        with _explain_errors(self.path), self._sqlite:
            self._sqlite.execute("BEGIN IMMEDIATE")
            yield
        # Emptied after every commit, a log needs no room when the disk is full, and can be removed.
        # Whoever reads right now is not waited for.
        with suppress(sqlite3.Error):
            self._sqlite.execute("PRAGMA busy_timeout = 0")
            self._sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._sqlite.execute("PRAGMA busy_timeout = 5000")

    def _rows(self, query: str) -> list[Any]:
        with _explain_errors(self.path):
            return self._sqlite.execute(query).fetchall()


def artifact_names(files: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the artifacts among the files of an audit, with what is said of each."""
    found = {ARTIFACT.fullmatch(file): said for file, said in files.items()}
    return {match[1]: said for match, said in found.items() if match}


def _read_record(
    case: str, text: str, wanted: str, planned: Container[str], names: Container[str]
) -> Record | UnreadableFile:
    """Read a record, or say why that is not possible."""
    try:
        if checksum(text.encode()) != wanted:
            raise UnreadableFile("its checksum is another")
        record = Record.from_plain(parse_json(text, "it"))
        if record.case != case or case not in planned or record.truth not in names:
            raise UnreadableFile("it belongs to no case of this audit")
    except UnreadableFile as error:
        return error
    return record


def _find_file(path: Path) -> tuple[int, int] | None:
    """What tells a file from every other; None if nothing is there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write_planned(planned: Planned) -> tuple[str, str, str]:
    return planned.id, planned.description, json.dumps(dict(planned.identity), allow_nan=False)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnreadableFile(
            f"cannot use {str(path)!r}: {' '.join(str(error).splitlines()[:1])}; what was stored "
            "before is still there"
        ) from error
    except (sqlite3.Error, UnicodeError) as error:  # a damaged header may name another encoding
        raise UnreadableFile(
            f"{str(path)!r} is damaged ({error}); restore it from a copy, or run the audit again "
            "in another folder"
        ) from error
