"""What a dossier reads: audits, and files of evidence on membership, attributes and epsilon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._claims import CASES
from seepage.audit._evidence import FORMAT
from seepage.audit._folder import ENVIRONMENT, SPEC, SUFFIX
from seepage.audit._plan import PLAN
from seepage.audit._record import Record
from seepage.audit._words import (
    Setup,
    count_noun,
    label_setups,
    list_words,
    short_names,
    threat_words,
)
from seepage.audit.results import Results
from seepage.audit.results._intervals import share_interval
from seepage.core._whole_file import checksum, read_plain
from seepage.core.errors import UnreadableFile
from seepage.report._dossier import TESTS, DossierFinding, Source, Status, read_json
from seepage.report._limits import find_limits
from seepage.report._unscored import inapplicable, is_proved, missing
from seepage.report._verdict import (
    audit_verdict,
    find_people,
    name_inputs,
    verdict,
)
from seepage.report.wording import describe_effort
from seepage.scoring._identification import compute_luck

# Probability with which luck alone may be called a leak.
_LUCK = 0.05
# A test that finds no member is inconclusive unless it finds this share of rehearsed ones.
_ABLE = 0.9
# People in a file of evidence.
_MOST = 10_000_000


def read_source(path: Path) -> Source:
    """Read the folder of an audit, or a file of evidence.

    Raises:
        SeepageError: If it is neither, or damaged.
    """
    return _read_audit(path) if path.is_dir() else _read_evidence(path)


def _spell_name(path: Path) -> str:
    """The name of a file as UTF-8; names on disk are bytes, and need not be text."""
    return os.fsencode(path.name).decode("utf-8", "replace")


def _read_audit(path: Path) -> Source:
    audit = load_audit(path)
    lacks = missing(audit)
    environment = audit.environment
    packages = environment.get("packages")
    versions = {key: environment.get(key) for key in ("python", "platform", "device")}
    versions |= packages if isinstance(packages, dict) else {}
    name = _spell_name(path.resolve())
    # On top: what is missing may have found more.
    lacking = (f"{name}: {lacks}",) if lacks else ()
    return Source(
        name=name,
        title=audit.title,
        files=_sum_files(path),
        about=_describe_audit(audit),
        versions={key: str(value) for key, value in versions.items() if value},
        seeds=tuple(sorted({record.seed for record in audit.records})),
        findings=tuple(_find_in_audit(audit, name)),
        notes=(
            *_tell_sampling(audit.records, name),
            *_tell_galleries(audit.results, name),
            *map(str, find_limits(audit.results)),
            *inapplicable(audit.records),
        ),
        alarms=(*lacking, *audit_verdict(audit).alarms),
    )


def _sum_files(path: Path) -> dict[str, str]:
    """Checksums of an audit's files; of all cases, that of the lines that `sha256sum` prints."""
    there = [path / name for name in (PLAN, SPEC, ENVIRONMENT) if (path / name).is_file()]
    cases = sorted((path / CASES).glob(f"*{SUFFIX}"))
    lines = [f"{checksum(read_plain(file))}  {CASES}/{file.name}\n" for file in cases]
    sums = {file.name: checksum(read_plain(file)) for file in there}
    return {**sums, CASES: checksum("".join(lines).encode())} if cases else sums


def _describe_audit(audit: AuditResult) -> dict[str, str]:
    records = audit.records
    models = dict.fromkeys(record.model for record in records)
    weights = dict.fromkeys(str(one.identity.get("weights")) for one in audit.planned)
    people = {person for record in records for person in record.persons}
    labels = label_setups(Setup.of(record) for record in records)
    sizes = sorted({record.batch_size for record in records})
    # Names of data and settings have commas of their own.
    return {
        "networks": list_words(list(models)),
        "digests of weights": ", ".join(weights),
        "data": "; ".join(dict.fromkeys(record.data for record in records)),
        "people attacked": f"{len(people)}, {_name_sampling(records)}",
        "people per update": list_words([str(size) for size in sizes]),
        "settings": "; ".join(dict.fromkeys(labels.values())),
    }


_SAMPLING = {
    "": "those of the updates that were given, where the same input of one client counts once",
    "at random": "drawn at random",
    "in order": "taken in order",
    "by number": "chosen by number",
}


def _name_sampling(records: Sequence[Record]) -> str:
    named = dict.fromkeys(record.sampling for record in records)
    return list_words([_SAMPLING.get(one, one) for one in named])


def _tell_sampling(records: Sequence[Record], name: str) -> list[str]:
    if all(record.sampling == "at random" for record in records):
        return []
    return [
        f"{name}: not all people were drawn at random ({_name_sampling(records)}): the intervals "
        "hold for people who are like them, and not for everybody in the data."
    ]


_GALLERIES = {
    "synthetic": "no other people were given, and strangers were made up",
    "few of the label": "too few strangers have the label of the person",
    "one shade": "an input has one shade, so that nothing in it tells it apart",
}


def _tell_galleries(results: Results, name: str) -> list[str]:
    """Where the strangers are not of the kind that "identified" speaks of."""
    met = {a.identification.gallery for a in results if a.identification is not None}
    return [
        f"{name}: where {why}, only a guess that is nearly a copy counts as identified, and one "
        "that is not says nothing."
        for gallery, why in _GALLERIES.items()
        if gallery in met
    ]


def _find_in_audit(audit: AuditResult, source: str) -> Iterator[DossierFinding]:
    """One finding for each data set, network and setup, and one more if labels were not known."""
    noun = name_inputs(audit)
    models = short_names(record.model for record in audit.records)
    setups = label_setups(Setup.of(record) for record in audit.records)
    groups = audit.results.by("data", "model", "setup")
    for (data, model, setup), group in groups.items():
        records = group.records
        known = dict.fromkeys(
            f"the network and its weights, {threat_words(r.threat)}" for r in records
        )
        about = {
            "subject": f"{data}: {models[model]}, {setups[setup]}",
            "effort": describe_effort(records),
            "control": _tell_control(records),
            "adversary": list_words(list(known), "or"),
            "source": source,
        }
        if not group:
            yield _judge_unscored(group, noun, about)
            continue
        people = group.strongest()
        status = _judge_people(people)
        share = _tell_share([row.level.identified for row in people], people)
        yield DossierFinding(
            test="reconstruction",
            status=status,
            result=str(find_people(people, noun)),
            # An inconclusive attack says nothing of a share.
            interval="" if status is Status.unclear else share,
            **about,
        )
        hidden = [r for r in records if r.threat and not r.threat.arguments.get("knows_labels")]
        if any("label_accuracy" in record.scores for record in hidden):
            yield _judge_labels(people, about)


def _judge_people(people: Results) -> Status:
    found = people.identified
    if found > sum(row.doubtful for row in people):
        return Status.leak
    if any(row.parts for row in people) and not found:
        return Status.leak
    return Status.unclear if found or people.unclear else Status.resisted


def _judge_unscored(group: Results, noun: str, about: Mapping[str, str]) -> DossierFinding:
    """A finding on a capture without a known truth, or on cases without a result."""
    proved = any((r.certificate or {}).get("certain") or is_proved(r) for r in group.unscored)
    return DossierFinding(
        test="reconstruction",
        status=Status.leak if proved else Status.unclear,
        result=verdict(group, noun=noun).headline,
        interval="",
        **about,
    )


def _judge_labels(people: Results, about: Mapping[str, str]) -> DossierFinding:
    """Labels are attributes: a diagnosis may be one. No control tells whether a test is able."""
    found = sum(row.label for row in people)
    told = "the label" if len(people) == 1 else f"the labels of {found} of {len(people)} people"
    return DossierFinding(
        test="attributes",
        status=Status.leak if found else Status.unclear,
        result=f"{told[0].upper()}{told[1:]} came back, more than chance gives"
        if found
        else f"No more labels came back than chance gives ({len(people)} people)",
        interval=_tell_share([row.label for row in people], people),
        **{**about, "subject": f"label, {about['subject']}", "control": "none"},
    )


def _tell_share(found: Sequence[bool], people: Results) -> str:
    updates = [row.update for row in people]
    share = share_interval(found, updates)
    return (
        f"95 % interval from {count_noun(len(set(updates)), 'update')}: {100 * share.low:.1f} to "
        f"{100 * share.high:.1f} % of people"
    )


def _tell_control(records: Sequence[Record]) -> str:
    controls = dict.fromkeys(r.control for r in records if r.control is not None)
    if not controls:
        return "none was run"
    bare, defended = (_add([getattr(c, n) for c in controls]) for n in ("bare", "defended"))
    said = [f"canaries found without the defense: {bare}"] if bare else []
    if defended:
        said.append(f"with it: {defended}")
    hits, tested, luck = (sum(c.negative[i] for c in controls) for i in range(3))
    if tested:
        said.append(f"found in updates of others: {hits} of {tested} (luck: {luck:.1f})")
    return "; ".join(said) or "none was run"


def _add(found: Sequence[tuple[int, int, float] | None]) -> str:
    counts = [one for one in found if one is not None]
    return f"{sum(c[0] for c in counts)} of {sum(c[1] for c in counts)}" if counts else ""


def _read_evidence(path: Path) -> Source:
    expected = (
        "the folder of an audit, or a file that seepage membership --out or save_evidence wrote"
    )
    plain, digest = read_json(path, expected)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(kind, str) or kind not in _JUDGES:
        raise UnreadableFile(f"expected {expected}, got {str(path)!r}")
    if plain.get("format") != FORMAT:
        raise UnreadableFile(
            f"expected evidence in format {FORMAT} in {str(path)!r}, got "
            f"{str(plain.get('format'))[:20]!r}; use the version of seepage that wrote it"
        )
    try:
        name = _spell_name(path)
        finding = _JUDGES[kind](plain, name)
        seed = plain.get("seed")
        return Source(
            name=name,
            title=TESTS[finding.test].name,
            files={name: digest},
            about={"system": str(plain["system"]), "data": str(plain["data"])},
            versions={"seepage": str(plain["seepage"])},
            seeds=(seed,) if isinstance(seed, int) else (),
            findings=(finding,),
            notes=tuple(f"{name}: {note}." for note in plain.get("notes", ())),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} lacks something that evidence on {kind} has ({str(error)[:60]}); write "
            "it again"
        ) from error


Plain = Mapping[str, Any]


def _judge_membership(plain: Plain, name: str) -> DossierFinding:
    """With the truth, how many members were found; without, whether more than luck explains."""
    candidates, power, told = plain["candidates"], plain["power"], plain.get("detection")
    able = power is None or float(power["interval"][0]) > _ABLE
    if told is not None:
        level, members = float(told["false_positive_rate"]), told["members"]
        strangers = told["strangers"]
        leaked = compute_luck(*_read_counts(members), level) <= _LUCK
        result = (
            f"{_count(members)} members were found at p <= {level:.2g}, and {_count(strangers)} "
            "strangers were taken for members"
        )
        interval = f"95 % intervals: {_range(members)} of members, {_range(strangers)} of strangers"
        status = Status.leak if leaked else Status.resisted if able else Status.unclear
    else:
        level = float(plain["level"])
        found = sum(float(one["p_value"]) <= level for one in candidates)
        leaked = compute_luck(found, len(candidates), level) <= _LUCK
        result = (
            f"{found} of {len(candidates)} candidates have p <= {level:.2g}, where luck gives "
            f"{level * len(candidates):.1f}; who was a member is not known"
        )
        interval = ""
        status = Status.leak if leaked else Status.unclear
    known = plain["strangers"]
    return DossierFinding(
        test="membership",
        subject=str(plain["system"]),
        status=status,
        result=result,
        interval=interval,
        effort="; ".join(dict.fromkeys(map(str, plain["test"])))
        + ("" if known is None else f"; calibrated on {int(known)} public non-members"),
        control="exact, so none is needed"
        if power is None
        else f"rehearsed members found: {_count(power)} ({_range(power)})",
        adversary=str(plain["adversary"]),
        source=name,
    )


def _judge_attributes(plain: Plain, name: str) -> DossierFinding:
    rates, p_value = plain["rates"], float(plain["p_value"])
    with_update, by_model = rates["with the update"], rates["public model"]
    leaked = p_value <= _LUCK
    return DossierFinding(
        test="attributes",
        subject=f"{plain['column']}: {plain['system']}",
        status=Status.leak if leaked else Status.unclear,
        result=f"{_count(with_update)} people's {plain['column']} guessed right with the update, "
        f"{_count(by_model)} without it; p-value of the gain {p_value:.2g}",
        interval=f"95 % intervals: {_range(with_update)} with it, {_range(by_model)} without",
        effort="every value tried for every person",
        control="a model trained on public rows and the marginals guess without the update; "
        "no control shows that a gain would have been found",
        adversary=str(plain["adversary"]),
        source=name,
    )


def _judge_epsilon(plain: Plain, name: str) -> DossierFinding:
    proven, provable = float(plain["proven"]), float(plain["provable"])
    claimed = float("inf") if plain["claimed"] is None else float(plain["claimed"])
    promise = f"epsilon <= {claimed:.2f} at delta {float(plain['delta']):g}"
    other = float(plain.get("other_sign", 0.0))
    able, trials = provable > claimed and other <= proven, int(plain["trials"])
    reversed_sign = f"; with the other sign of the scores it would be {other:.2f}: check the sign"
    return DossierFinding(
        test="epsilon",
        subject=str(plain["system"]),
        status=Status.leak if proven > claimed else Status.resisted if able else Status.unclear,
        result=f"Promised {promise}; "
        + ("" if proven > claimed else "not ")
        + f"refuted: canaries prove at least {proven:.2f}"
        + reversed_sign * (other > proven),
        interval=f"with {100 * float(plain['confidence']):g} % confidence, at least {proven:.2f}",
        effort=f"{2 * trials} runs with and without a canary, and " * bool(trials)
        + f"one run with {count_noun(int(plain['canaries']), 'canary', 'canaries')}",
        control=f"so many canaries can prove at most epsilon {provable:.2f}",
        adversary=str(plain["adversary"]),
        source=name,
    )


_JUDGES: Mapping[str, Callable[[Plain, str], DossierFinding]] = {
    "membership": _judge_membership,
    "attributes": _judge_attributes,
    "epsilon": _judge_epsilon,
}


def _count(rate: Plain) -> str:
    return " of ".join(map(str, _read_counts(rate)))


def _read_counts(rate: Plain) -> tuple[int, int]:
    """How many were found, and of how many."""
    found, everybody = int(rate["found"]), int(rate["of"])
    if not 0 <= found <= everybody <= _MOST:
        raise ValueError(f"found {found:.9g} of {everybody:.9g}")
    return found, everybody


def _range(rate: Plain) -> str:
    low, high = (100 * float(end) for end in rate["interval"])
    return f"{low:.1f} to {high:.1f} %"
