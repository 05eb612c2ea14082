"""Write `requirements.lock`: every package of the test environment, with the hashes of its wheels.

    python -m scripts.lock --index URL

URL is a simple index (PEP 503) with hashes; of each wheel only the part that says what it needs is
downloaded. Versions are those of constraints.txt, then those installed here, then the newest.
Packages that only x86-64 or only ARM64 needs get a marker. `make locked` installs from the file and
nothing else.
"""

from __future__ import annotations

import argparse
import io
import re
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from functools import cache
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("py3", "py2.py3", "cp311", "cp312", "cp313")
# What builds the package itself, since `make locked` may download nothing else.
_BUILD = ("hatchling", "editables")
_OURS = ("seepage", "seepage-papers")


@dataclass(frozen=True)
class Wheel:
    """A file of the index: its version, its name, where it is, and its SHA-256."""

    version: Version
    name: str
    address: str
    sha256: str


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of a link."""
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.found.append(target)


@cache
def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


class _Remote(io.RawIOBase):
    """A file on a server, of which only what is asked for is downloaded."""

    def __init__(self, address: str) -> None:
        self._address, self._at = address, 0
        asked = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Where it is."""
        return self._at

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        """Download what fits."""
        end = min(self._at + len(into), self._size)
        if end <= self._at:
            return 0
        part = {"Range": f"bytes={self._at}-{end - 1}"}
        asked = urllib.request.Request(self._address, headers=part)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            data = answer.read()
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


@cache
def _read_metadata(address: str) -> str:
    with zipfile.ZipFile(io.BufferedReader(_Remote(address), 2**16)) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        return wheel.read(name).decode()


@cache
def list_wheels(index: str, name: str) -> tuple[Wheel, ...]:
    """List the wheels of a package that Python 3.11 to 3.13 can use, on any platform."""
    page, links = f"{index.rstrip('/')}/{name}/", _Links()
    links.feed(_read(page))
    found = []
    for link in links.found:
        address, fragment = urldefrag(urljoin(page, link))
        file = address.rpartition("/")[2].replace("%2B", "+")
        if not file.endswith(".whl") or not fragment.startswith("sha256="):
            continue
        try:
            _, number, _, tags = parse_wheel_filename(file)
        except ValueError:
            continue
        if any(tag.interpreter in PYTHONS or tag.abi == "abi3" for tag in tags):
            found.append(Wheel(number, file, address, fragment.removeprefix("sha256=")))
    return tuple(found)


def choose_version(index: str, name: str, wanted: SpecifierSet, pinned: dict[str, str]) -> Version:
    """Choose the version of a package, or raise `SystemExit` if there is none."""
    known = {wheel.version for wheel in list_wheels(index, name)}
    given = pinned.get(name)
    if given is None:
        try:
            given = Version(version(name)).public
        except PackageNotFoundError:
            given = None
    if given is not None and Version(given) in known and Version(given) in wanted:
        return Version(given)
    fitting = [one for one in known if one in wanted]
    if not fitting:
        raise SystemExit(f"no wheel of {name}{wanted} in the index")
    return max(fitting)


def read_requirements(index: str, name: str, number: Version, machine: str) -> list[Requirement]:
    """Read what a version of a package needs, from the metadata of a wheel."""
    wheels = [wheel for wheel in list_wheels(index, name) if wheel.version == number]
    fitting = [w for w in wheels if f"linux_{machine}" in w.name or w.name.endswith("-any.whl")]
    about = Parser().parsestr(_read_metadata((fitting or wheels)[0].address))
    return [Requirement(line) for line in about.get_all("Requires-Dist") or ()]


def resolve(index: str, machine: str, pinned: dict[str, str]) -> dict[str, Version]:
    """Find every package that the test environment of a machine has."""
    marks = {
        **default_environment(),
        "python_version": "3.11",
        "python_full_version": "3.11.0",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
    }
    waiting = [(requirement, "") for requirement in list_roots()]
    chosen: dict[str, Version] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in _OURS or (marker and not marker.evaluate({**marks, "extra": extra})):
            continue
        if name not in chosen:
            chosen[name] = choose_version(index, name, requirement.specifier, pinned)
        elif chosen[name] not in requirement.specifier:
            raise SystemExit(f"{requirement} does not fit {name} {chosen[name]}; pin another")
        for asked in ("", *sorted(requirement.extras)):
            if (name, asked) not in seen:
                seen.add((name, asked))
                needed = read_requirements(index, name, chosen[name], machine)
                waiting += [(one, asked) for one in needed]
    return chosen


def list_roots() -> Iterator[Requirement]:
    """What the two distributions and their tests need, and what builds them."""
    for folder in (ROOT, ROOT / "papers"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        yield from map(Requirement, project.get("dependencies", ()))
        yield from map(Requirement, project.get("optional-dependencies", {}).get("dev", ()))
    yield from map(Requirement, _BUILD)


def read_pins() -> dict[str, str]:
    """Read the exact versions of constraints.txt."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): number for name, number in found}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", required=True, help="a simple index, such as your mirror's")
    index = parser.parse_args().index
    resolved = {machine: resolve(index, machine, read_pins()) for machine in MACHINES}
    lines = ["# Written by scripts/lock.py; `make locked` installs it. Do not edit."]
    for name in sorted({name for chosen in resolved.values() for name in chosen}):
        where = [machine for machine in MACHINES if name in resolved[machine]]
        number = resolved[where[0]][name]
        alone = "" if len(where) > 1 else f' ; platform_machine == "{where[0]}"'
        wheels = [wheel for wheel in list_wheels(index, name) if wheel.version == number]
        hashes = sorted({f"    --hash=sha256:{wheel.sha256}" for wheel in wheels})
        lines.append(" \\\n".join([f"{name}=={number}{alone}", *hashes]))
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} packages in {LOCK.name}")


if __name__ == "__main__":
    main()
