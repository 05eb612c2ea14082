"""Parts of other packages, found by their entry points and imported when they are used.

A package adds an attack by a line in its `pyproject.toml`,

    [project.entry-points."seepage.attacks"]
    my_attack = "my_package.attacks:my_attack"

and specs can say `attacks = { name = "my_attack" }` wherever it is installed. The groups are
`seepage.attacks`, `seepage.defenses`, `seepage.models`, `seepage.data`, `seepage.metrics`,
`seepage.bounds`, `seepage.risks` and `seepage.commands`. A part that is not installed as a package
is named by its path, `name = "my_package.attacks:my_attack"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from seepage.core.errors import (
    BrokenPlugin,
    InvalidValue,
    SeepageError,
    UnknownName,
    summarise_error,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_warned: set[str] = set()


class PluginWarning(UserWarning):
    """A part of another package cannot be used; everything else can."""


@dataclass(frozen=True)
class _Plugin:
    """A part of another package at the path `value`, not yet imported."""

    kind: str
    name: str
    package: str
    value: str

    def load(self) -> Any:  # noqa: ANN401
        """Import it.

        Raises:
            BrokenPlugin: Its module does not import, or has no such attribute.
        """
        from importlib.metadata import EntryPoint

        try:
            return EntryPoint(self.name, self.value, self.kind).load()
        except (Exception, SystemExit) as error:
            raise self.broken(f"cannot be imported: {summarise_error(error)}") from error

    def broken(self, why: str) -> BrokenPlugin:
        """Make the error that says why this part cannot be used, and whose it is."""
        return BrokenPlugin(
            f"the {self.kind} {self.name!r} of the package {self.package!r} {why}; repair or "
            "uninstall that package"
        )


class Catalogue(Mapping[str, T_co], Generic[T_co]):
    """Parts by name: the built-in ones, then those of installed packages.

    Looking a part up imports that part alone. Iterating imports all of them, and skips those that
    cannot be imported, with a warning. If two packages register a name, a warning says which one is
    used.

    Args:
        kind: What messages call a part, e.g. "attack".
        group: The entry points to look at.
        built_in: The parts that come with Seepage.
        adapt: Makes a part of a name and of what a package registered under it; by default the
            part is what was registered, and has to be callable.

    Example:
        >>> ATTACKS = Catalogue("attack", "seepage.examples", {"guess": print})
        >>> list(ATTACKS)
        ['guess']
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T_co],
        *,
        adapt: Callable[[str, Any], T_co] | None = None,
    ) -> None:
        """Copy the built-in parts; packages are searched later."""
        self.kind = kind
        self.group = group
        self.built_in: Mapping[str, T_co] = MappingProxyType(dict(built_in))
        self._taken = frozenset(built_in)
        self._adapt = adapt
        self._made: dict[_Plugin, T_co] = {}

    def __getitem__(self, name: str) -> T_co:
        """The part of this name.

        Raises:
            BrokenPlugin: A package registers it, and it cannot be imported.
        """
        plugins = self.plugins()
        if name in self.built_in:
            return self.built_in[name]
        plugin = plugins[name]
        if plugin not in self._made:
            self._made[plugin] = self._load(plugin)
        return self._made[plugin]

    def __contains__(self, name: object) -> bool:
        """Whether the name is registered; what it names may still fail to import."""
        return name in self.built_in or name in self.plugins()

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        for name in self.plugins():
            try:
                self[name]
            except BrokenPlugin as error:
                _warn(str(error))
            else:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        """The names, without importing anything."""
        return f"Catalogue({self.kind!r}, {[*self.built_in, *self.plugins()]})"

    def plugins(self) -> Mapping[str, _Plugin]:
        """The parts of other packages, by name; none of them is imported."""
        return _find_plugins(self.kind, self.group, self._taken, tuple(sys.path))

    def origin(self, name: str) -> str | None:
        """The package that a part comes with; None if it is built in."""
        plugin = self.plugins().get(name)
        return None if plugin is None else plugin.package

    def _load(self, plugin: _Plugin) -> T_co:
        found = plugin.load()
        if self._adapt is None:
            if not callable(found):
                raise plugin.broken(f"is of type {type(found).__name__}, which cannot be called")
            part: T_co = found
            return part
        try:
            return self._adapt(plugin.name, found)
        except Exception as error:
            why = str(error) if isinstance(error, SeepageError) else summarise_error(error)
            raise plugin.broken(f"cannot be used: {why}") from error


def find_part(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Find what a spec names: a part that is known, or one given as `package.module:factory`.

    Raises:
        UnknownName: The name is in no catalogue and is no path.
        InvalidValue: The path leads nowhere.
        BrokenPlugin: A package registers the name, and it cannot be imported.
    """
    if name in known:
        return known[name]
    if not is_path(name):
        raise UnknownName(kind, name, known)
    part: T = import_factory(name, kind=kind)
    return part


def first_line(part: object) -> str:
    """Return the first line of a part's docstring."""
    return (part.__doc__ or "").strip().partition("\n")[0]


def is_path(name: str) -> bool:
    """Whether a name has the form `package.module:factory`.

    Example:
        >>> is_path("mine.attacks:guess"), is_path("npz:data/my.npz")
        (True, False)
    """
    return _PATH.fullmatch(name) is not None


def import_factory(path: str, *, kind: str) -> Any:  # noqa: ANN401
    """Import the function or class at `package.module:factory`.

    Example:
        >>> import_factory("collections:OrderedDict", kind="mapping")
        <class 'collections.OrderedDict'>
    """
    module_name, separator, attribute = path.partition(":")
    if not (module_name and separator and attribute):
        raise InvalidValue(
            f"expected {add_article(kind)} as 'package.module:factory', got {path!r}"
        )
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InvalidValue(
            f"expected {add_article(kind)} as 'package.module:factory', got the path {path!r}; "
            f"write {dotted}:{attribute}"
        )
    module = _import_module(module_name, path)
    found = getattr(module, attribute, None)
    if found is None:
        _refuse_shadow(module)
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName("factory", attribute, public, where=f"in {module_name}")
    if not callable(found):
        raise InvalidValue(
            f"expected {path!r} to be a function or class that builds {add_article(kind)}, got "
            f"{type(found).__name__}"
        )
    return found


def add_article(noun: str) -> str:
    """Write "a" or "an" before a noun."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _import_module(name: str, path: str) -> ModuleType:
    try:
        with _look_here(name):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise InvalidValue(
                f"no module {missing!r} to import {path!r} from; run in the folder that holds it, "
                "or install its package"
            ) from error
        raise InvalidValue(f"importing {name!r} raised {summarise_error(error)}") from error


@contextmanager
def _look_here(name: str) -> Iterator[None]:
    """While a module is imported, look in the current folder for what is found nowhere else.

    Anybody may have filled that folder. So nothing else is ever imported from it: not what Seepage
    or another library imports, neither before nor afterwards, and no module that is installed.
    """
    top = name.partition(".")[0]
    if top in sys.modules or _is_installed(top):
        yield
        return
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        # This entry alone: the module may have added the same folder by itself.
        sys.path[:] = [folder for folder in sys.path if folder is not here]


def _is_installed(top: str) -> bool:
    """Whether Python finds a module; a folder without Python files is none."""
    found = importlib.util.find_spec(top)
    return found is not None and found.origin is not None


def _refuse_shadow(module: ModuleType) -> None:
    """Raise if the current folder has a module of this name, but another was imported."""
    top = module.__name__.partition(".")[0]
    origin = getattr(sys.modules[top], "__file__", None) or top
    mine = [place for place in (Path(f"{top}.py"), Path(top, "__init__.py")) if place.is_file()]
    if mine and Path(origin).resolve() not in [place.resolve() for place in mine]:
        raise InvalidValue(
            f"Python imports {top!r} from {origin!r} instead of {str(mine[0])!r}; rename yours"
        )


@cache
def _find_plugins(
    kind: str, group: str, taken: frozenset[str], path: tuple[str, ...]
) -> Mapping[str, _Plugin]:
    """Find the plugins of a group, each under a name that nothing else has."""
    found: dict[str, _Plugin] = {}
    for package, name, value in _find_entry_points(path).get(group, ()):
        part = f"the package {package!r} registers the {kind} {name!r}"
        if name not in taken and name not in found:
            found[name] = _Plugin(kind, name, package, value)
        elif name in found and found[name].package == package:
            _warn(f"{part} twice; the first is used")
        else:
            holder = "Seepage" if name in taken else found[name].package
            _warn(f"{part}, which {holder} has; that one is used")
    return MappingProxyType(found)


@cache
def _find_entry_points(path: tuple[str, ...]) -> Mapping[str, tuple[tuple[str, str, str], ...]]:
    """Find package, name and value of our entry points, by group, in the order of packages."""
    # Imported here because the import takes longer than the call.
    from importlib.metadata import distributions

    packages: dict[str, list[tuple[str, str, str]]] = {}
    for distribution in distributions(path=list(path)):
        if "[seepage." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        package = distribution.metadata["Name"]
        ours = [e for e in distribution.entry_points if e.group.startswith("seepage.")]
        # The first of the same name is the one that Python imports.
        packages.setdefault(package, [(e.group, e.name, e.value) for e in ours])
    groups: dict[str, tuple[tuple[str, str, str], ...]] = {}
    for package in sorted(packages):
        for group, name, value in packages[package]:
            groups[group] = (*groups.get(group, ()), (package, name, value))
    return groups


def _warn(sentence: str) -> None:
    """Warn once, and only in the main process."""
    if sentence in _warned or parent_process() is not None:
        return
    _warned.add(sentence)
    warnings.warn(sentence, PluginWarning, stacklevel=2)
