"""The dossier: what a privacy officer hands to a regulator, as plain data with its own digest.

Each test that guidance asks for has its findings, or says that it was not run. The page is written
from this data alone, so that nothing stands on it that is not in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from seepage.audit._words import count_noun, list_words
from seepage.core._schema import parse_json
from seepage.core._whole_file import checksum, read_plain
from seepage.core.errors import InvalidValue, UnreadableFile

KIND, FORMAT = "dossier", 1
# Most bytes of a file that is read, which evidence on a million candidates does not reach.
_LARGEST = 256 * 2**20
_OPINION = "EDPB Opinion 28/2024, paragraph 55"
_NIST = "NIST AI 100-2e2023, section"
_OWN = "no guidance: our own addition"


class Status(StrEnum):
    """What a test showed, the worst first."""

    leak = "leak found"
    unclear = "inconclusive"
    resisted = "resisted these tests at this effort"
    absent = "not run"

    @property
    def rank(self) -> int:
        """Zero for the worst."""
        return list(Status).index(self)


@dataclass(frozen=True)
class DossierFinding:
    """What one test said of one system; all in words."""

    test: str
    subject: str
    status: Status
    result: str
    interval: str
    effort: str
    control: str
    adversary: str
    source: str = ""


@dataclass(frozen=True)
class Source:
    """An audit or a file of evidence."""

    name: str
    title: str
    files: Mapping[str, str]
    about: Mapping[str, str]
    versions: Mapping[str, str]
    seeds: tuple[int, ...] = ()
    findings: tuple[DossierFinding, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class _RequiredTest:
    """A test, the question it answers, where guidance names it, and how to run it."""

    name: str
    question: str
    guidance: tuple[str, ...]
    missing: str


_OUTSIDE = (
    "Seepage attacks what is shared during training. This test asks a trained model, and needs "
    "another tool."
)
TESTS: Mapping[str, _RequiredTest] = {
    "membership": _RequiredTest(
        "Membership inference",
        "Was a given person in the data?",
        (_OPINION, f"{_NIST} 2.4.2"),
        "To run it: seepage membership CAPTURE --members N --out FILE",
    ),
    "attributes": _RequiredTest(
        "Attribute inference",
        "What can be inferred about a given person, such as a diagnosis?",
        (_OPINION,),
        "To run it: sp.attributes and sp.audit.save_evidence, or an audit that withholds labels "
        "and measures label_accuracy",
    ),
    "reconstruction": _RequiredTest(
        "Reconstruction",
        "Can a person's data be computed from what is shared, or the person be singled out by it?",
        (_OPINION, f"{_NIST} 2.4.1"),
        "To run it: seepage audit",
    ),
    "inversion": _RequiredTest(
        "Model inversion",
        "What do the answers of the trained model tell of people?",
        (_OPINION,),
        _OUTSIDE,
    ),
    "regurgitation": _RequiredTest(
        "Regurgitation",
        "Does the model repeat its training data?",
        (_OPINION,),
        _OUTSIDE,
    ),
    "exfiltration": _RequiredTest(
        "Exfiltration", "Can training data be taken out of the model?", (_OPINION,), _OUTSIDE
    ),
    "property": _RequiredTest(
        "Property inference",
        "What can be inferred about the data as a whole?",
        (f"{_NIST} 2.4.4",),
        "Seepage has no such test.",
    ),
    "extraction": _RequiredTest(
        "Model extraction",
        "Can the model be copied?",
        (f"{_NIST} 2.4.3",),
        "Seepage has no such test, since it concerns the model and not people.",
    ),
    "epsilon": _RequiredTest(
        "Promised epsilon",
        "Does the differential privacy that is promised hold?",
        (_OWN,),
        "To run it: sp.audit_epsilon and sp.audit.save_evidence",
    ),
}

LIMITS = (
    "A test that found nothing shows that these attacks, with this knowledge and this effort, "
    "found nothing. It does not show that no attack can.",
    "Nothing is known here about a test that was not run.",
    "An adversary who has more than is listed here, or who looks longer, may find more.",
    "A setting speaks for a system only if the network, its weights, the clients, their defenses "
    "and the kind of data are those of the system. The digests of weights say which were tested.",
    "The digests show whether a file has changed since. They are no signature: whoever writes a "
    "file can write its digest. Keep the digest of this dossier where others cannot change it.",
    "This is no legal assessment. Which test answers which guidance is our own assignment, which "
    "nobody has approved. It was made without the text of EDPB Opinion 28/2024 at hand, and for "
    "NIST AI 100-2 from the headings of the edition of 2023: check both documents.",
)


def make_dossier(
    sources: Sequence[Source],
    *,
    title: str,
    version: str,
    written: str,
    author: str = "",
    against: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put findings in the order of the required tests, and compare them with an older dossier."""
    if not sources:
        raise InvalidValue("expected at least one audit or file of evidence, got none")
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue(f"expected sources of different names, got {twice!r} twice; rename one")
    findings = [finding for source in sources for finding in source.findings]
    tests = [_describe_test(key, test, findings) for key, test in TESTS.items()]
    dossier: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "seepage": version,
        "title": title,
        "written": written,
        "author": author,
        "headline": _headline(tests),
        "tests": tests,
        "sources": [_describe_source(source) for source in sources],
        "limits": [*LIMITS, *dict.fromkeys(note for s in sources for note in s.notes)],
        "alarms": [alarm for source in sources for alarm in source.alarms],
        "changes": None if against is None else _compare(against, tests),
    }
    return {**dossier, "digest": _find_digest(dossier)}


def _describe_test(
    key: str, test: _RequiredTest, findings: Iterable[DossierFinding]
) -> dict[str, Any]:
    own = [finding for finding in findings if finding.test == key]
    worst = min((finding.status for finding in own), key=lambda s: s.rank, default=Status.absent)
    return {
        "test": key,
        "name": test.name,
        "question": test.question,
        "guidance": list(test.guidance),
        "status": str(worst),
        "missing": "" if own else test.missing,
        "findings": [{k: v for k, v in asdict(one).items() if k != "test"} for one in own],
    }


def _describe_source(source: Source) -> dict[str, Any]:
    kept = {"name", "title", "files", "about", "versions", "seeds"}
    return {k: list(v) if k == "seeds" else v for k, v in asdict(source).items() if k in kept}


def _headline(tests: Sequence[Mapping[str, Any]]) -> str:
    counts = {s: sum(test["status"] == s for test in tests) for s in Status}
    verbs = {
        Status.leak: "found a leak",
        Status.unclear: "is inconclusive" if counts[Status.unclear] == 1 else "are inconclusive",
        Status.resisted: "was resisted at this effort"
        if counts[Status.resisted] == 1
        else "were resisted at this effort",
        Status.absent: "was not run" if counts[Status.absent] == 1 else "were not run",
    }
    said = [f"{counts[status]} {verb}" for status, verb in verbs.items() if counts[status]]
    return f"Of {len(tests)} tests, {list_words(said)}"


def _find_digest(dossier: Mapping[str, Any]) -> str:
    """SHA-256 of the dossier without its digest, in a form that does not depend on the writer.

    The canonical form is JSON in UTF-8 with sorted keys and no spaces.

    Example:
        >>> _find_digest({"b": 1, "a": 2}) == _find_digest({"a": 2, "b": 1, "digest": "any"})
        True
    """
    content = {key: value for key, value in dossier.items() if key != "digest"}
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return checksum(plain.encode())
    except UnicodeEncodeError:
        raise InvalidValue("expected --title and --author as text, got other bytes") from None


def read_json(path: Path, expected: str) -> tuple[Any, str]:
    """Read a file of JSON; return what it holds, and its SHA-256."""
    try:
        data = read_plain(path, follow=True, largest=_LARGEST)
        return parse_json(data.decode(), str(path)), checksum(data)
    except UnreadableFile:
        raise
    except OSError as error:
        raise UnreadableFile(
            f"cannot read {str(path)!r}: {error.strerror}; expected {expected}"
        ) from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"expected {expected}, got no text in {str(path)!r}") from error


def read_dossier(path: Path) -> Mapping[str, Any]:
    """Read the JSON of a dossier, and check its digest."""
    found, _ = read_json(path, "the dossier.json that seepage dossier wrote")
    return _check_dossier(found, str(path))


def _check_dossier(dossier: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    """Return what a file holds; raise `UnreadableFile` unless it is a dossier, unaltered."""
    if not isinstance(dossier, dict) or dossier.get("kind") != KIND:
        raise UnreadableFile(f"expected a dossier in {name!r}, got another file")
    if dossier.get("format") != FORMAT:
        raise UnreadableFile(
            f"expected a dossier in format {FORMAT} in {name!r}, got "
            f"{str(dossier.get('format'))[:20]!r}; use the version of seepage that wrote it"
        )
    if dossier.get("digest") != _find_digest(dossier):
        raise UnreadableFile(
            f"{name!r} was altered after it was written: its digest does not fit; use the original"
        )
    if not _is_whole(dossier):
        raise UnreadableFile(f"expected a whole dossier in {name!r}, got one that lacks parts")
    return dossier


def _is_whole(dossier: Mapping[str, Any]) -> bool:
    """Whether the parts are there that a comparison reads."""
    words = (dossier.get(key) for key in ("title", "written", "digest"))
    tests = dossier.get("tests")
    return (
        all(isinstance(word, str) for word in words)
        and isinstance(tests, list)
        and all(isinstance(test, dict) and isinstance(test.get("name"), str) for test in tests)
        and all(
            isinstance(one, dict)
            and all(isinstance(one.get(key), str) for key in ("subject", "result", "status"))
            and one["status"] in list(Status)
            for test in tests
            for one in (test.get("findings") if isinstance(test.get("findings"), list) else [None])
        )
    )


# How a finding may differ from the last dossier, the worst first.
_CHANGES = ("worse", "no longer run", "new", "other numbers", "better", "same")


def _compare(old: Mapping[str, Any], tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every finding that changed, the worst first."""
    before, now = ({(t["name"], f["subject"]): f for t in some for f in t["findings"]}
                   for some in (old["tests"], tests))  # fmt: skip
    nothing = {"status": Status.absent, "result": ""}
    rows = [
        _describe_change(*key, before.get(key, nothing), now.get(key, nothing))
        for key in dict.fromkeys([*now, *before])
    ]
    rows.sort(key=lambda row: _CHANGES.index(row["change"]))
    counts = [(sum(row["change"] == word for row in rows), word) for word in _CHANGES]
    said = list_words([f"{number} {word}" for number, word in counts if number])
    return {
        "against": {key: old[key] for key in ("title", "written", "digest")},
        "headline": f"{count_noun(len(rows), 'finding')}: {said}",
        "rows": rows,
    }


def _describe_change(
    test: str, subject: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """How one finding differs from the last dossier; the older or the newer may be missing."""
    was, is_now = Status(before["status"]), Status(now["status"])
    results = [before["result"], now["result"]]
    if Status.absent in (was, is_now):
        change = "new" if was is Status.absent else "no longer run"
    elif was is is_now:
        change = "same" if results[0] == results[1] else "other numbers"
    else:
        change = "worse" if is_now.rank < was.rank else "better"
    about = {"test": test, "subject": subject, "before": str(was), "now": str(is_now)}
    return {**about, "results": results, "change": change}
