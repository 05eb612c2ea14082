"""The verdict: what an audit found of the people in it, and what that rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from seepage.audit._audit_result import AuditResult
from seepage.audit._record import Control, Record
from seepage.audit._words import NO_DEFENSE, Setup, label_setups
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._intervals import share_not_ruled_out
from seepage.audit.results._judge import may_gain, shows_more
from seepage.core._grouping import group_by
from seepage.report._contradiction import contradictions
from seepage.report._finding import Finding, Verdict, find
from seepage.report._headroom import headrooms
from seepage.report._limits import find_beaten, find_ceiling, find_limits, find_settled
from seepage.report._unscored import (
    find_assumed,
    find_certain_words,
    find_unjudged,
    verdict_without_truth,
)
from seepage.report.wording import Cause, Kind
from seepage.scoring._identification import fewest_strangers, is_close_call

_Groups = Mapping[Setup, Results]
_Labels = Mapping[Setup, str]
# What chooses among attacks, and says itself that none applies.
_CHOOSES = "auto"


def verdict(records: Results | Sequence[Record], *, noun: str = "inputs") -> Verdict:
    """Judge an audit by its people without a defense, then say what each defense changes.

    If the audit has no case without a defense, the headline is about all its cases.

    Args:
        records: Of the audit.
        noun: What a person's data are called, e.g. "images".
    """
    results = Results.of(records)
    if results.records and all(record.error is not None for record in results.records):
        return Verdict(None, _find_common_error(results.records))
    groups = {setup: group.strongest() for setup, group in results.setups.items()}
    if not groups:
        without_truth = verdict_without_truth(results, noun=noun)
        return without_truth or Verdict(None, find(Kind.no_result_yet))
    bare = {setup: people for setup, people in groups.items() if setup.defense == NO_DEFENSE}
    defended = {setup: people for setup, people in groups.items() if setup not in bare}
    people = results.bare.strongest()
    lacking = {Setup.of(r): False for r in results.records if not r.applicable}
    lacking |= {Setup.of(r): True for r in results.records if r.failed}
    unknown = {setup: failed for setup, failed in lacking.items() if setup not in groups}
    labels = label_setups([*groups, *unknown])
    where = (" without a defense" if bare else " behind these defenses") if defended else ""
    main = find_people(people, noun, where=where, ceiling=find_ceiling(people))
    findings = (
        find(Kind.worst_off, people[0].level, row=people[0]),
        *_find_counted_together(results),
        *_find_repeated(groups, labels),
        *_find_outdone(groups, labels),
        *_find_scarce(groups.values()),
        *_find_unsimulated(results, labels),
        *_find_population(bare),
        *_compare_setups(bare, labels),
        *_find_changes(defended, labels),
        *(find(Kind.no_result, what=f"with {labels[s]}", failed=f) for s, f in unknown.items()),
        *find_unjudged(results, {setup: labels[setup] for setup in groups}),
        *find_certain_words(results.records),
        *find_limits(results),
        *_find_effort(results),
        *_find_controls(results),
        *_find_rehearsals(results),
    )
    return Verdict(people[0].level, main, findings, people[0])


def audit_verdict(audit: AuditResult) -> Verdict:
    """Judge an audit in the words of its data: images, signals, or inputs of any kind."""
    found = contradictions(headrooms(audit.results, audit.bounds))
    alarms = (*(one.finding for one in found), *find_beaten(audit.results))
    judged = verdict(audit.results, noun=name_inputs(audit))
    findings = (*find_assumed(audit), *judged.findings)
    return replace(judged, findings=findings, contradictions=alarms)


def name_inputs(audit: AuditResult) -> str:
    """What a person's data are called: images, signals, texts, or inputs of any kind."""
    kinds = {record.kind for record in audit.records}
    return (kinds.pop() if len(kinds) == 1 else "") or "inputs"


def _find_common_error(records: Sequence[Record]) -> Finding:
    """Why there is no result at all: the most frequent reason."""
    [(reason, _)] = Counter(str(record.error) for record in records).most_common(1)
    if any(record.failed for record in records):
        return find(Kind.every_case_failed, reason=reason.rstrip("."))
    chooses = all(record.attack.name == _CHOOSES for record in records)
    kind = Kind.nothing_measured if chooses else Kind.nothing_applies
    return find(kind, reason=reason.rstrip("."))


def find_people(people: Results, noun: str, *, where: str = "", ceiling: float = 1.0) -> Finding:
    """How many of these people were identified and how, or why that cannot be told.

    Args:
        people: The strongest result on each.
        noun: What a person's data are called.
        where: With which defenses, as a clause.
        ceiling: The share of people that any attack identifies at most; 1 if that is not known.
    """
    found = people.identified
    kind = Kind.identified
    if not found:
        kind = Kind.inconclusive if people.unclear else Kind.not_identified
        if people.unclear and any(not part.in_order for row in people for part in row.parts):
            kind = Kind.words_leaked
    return find(
        kind,
        people[0].level if len(people) else None,
        noun=noun,
        where=where,
        levels=Counter(row.level for row in people if row.level.identified),
        **_count_parts(people),
        doubtful=sum(row.doubtful for row in people),
        unsimulated=any(map(_is_unsimulated, people)),
        because=_explain(people) if people.unclear else None,
        ceiling=ceiling,
    )


def _count_parts(people: Results) -> dict[str, object]:
    """How many labels came back, and which shares of columns or words."""
    parts = dict.fromkeys(part for row in people for part in row.parts)
    return {"total": len(people), "labels": sum(row.label for row in people), "parts": (*parts,)}


def _explain(people: Results) -> tuple[Cause, int]:
    """Why it is inconclusive, and how many strangers it takes if there were too few."""
    cause = find_cause(people)
    return cause, fewest_strangers(len(people)) if cause is Cause.close_call else 0


def _is_unsimulated(row: Result) -> bool:
    """Whether the defense does something else than what attacks simulate."""
    return bool(row.record.effort.get("unsimulated"))


def find_cause(people: Results) -> Cause:
    """Why it is inconclusive that these people were not identified."""
    unclear = [row for row in people if row.unclear]
    controlled = [row.record.control for row in unclear if row.record.control is not None]
    places = [row.identification for row in unclear if row.identification is not None]
    flags = {flag for row in unclear for flag, value in row.record.effort.items() if value}
    if "unsimulated" in flags:
        return Cause.unsimulated
    if all(row.exact for row in unclear):
        if not places:
            return Cause.exact_alone
        if all(place.rank > 1 for place in places):
            return Cause.exact_fits_others
    if places and not any(place.fair for place in places):
        return Cause(places[0].gallery)
    if any(is_close_call(place, len(people)) for place in places):
        return Cause.close_call
    if "foreign" in flags:
        return Cause.foreign
    if not controlled:
        return Cause.no_control
    if any(control.works for control in controlled):
        if "cut" in flags:
            return Cause.cut
        if "misled" in flags:
            return Cause.misled
        # More canaries would not help if the attacks may still gain.
        if any(may_gain(row.record) for row in unclear) or any(c.able for c in controlled):
            return Cause.more_steps
        return Cause.few_canaries
    return Cause.too_weak


def _find_unsimulated(results: Results, labels: _Labels) -> Iterator[Finding]:
    """Which defenses no attack could simulate."""
    names = dict.fromkeys(labels[row.setup] for row in results if _is_unsimulated(row))
    if names:
        yield find(Kind.unsimulated, setups=[*names])


def _find_scarce(groups: Collection[Results]) -> Iterator[Finding]:
    """How many people only a near copy can identify, because there are too few strangers."""
    people = {row.person for group in groups for row in group}
    missed = {row.person: row for group in groups for row in group if not row.level.identified}
    places = [row.identification for row in missed.values() if row.identification is not None]
    scarce = sum(place.gallery in ("few of the label", "synthetic") for place in places)
    if scarce:
        yield find(Kind.scarce, scarce=scarce, total=len(people))


def _find_counted_together(results: Results) -> Iterator[Finding]:
    """How people of several captured updates were counted."""
    updates = {row.update for row in results if row.record.known_as}
    if len(updates) > 1:
        yield find(Kind.counting, updates=len(updates))


def _find_repeated(groups: _Groups, labels: _Labels) -> Iterator[Finding]:
    """People found only after a step that the adversary can apply to the update itself."""
    for setup, people in groups.items():
        for links, found in group_by(people, lambda row: row.behind).items():
            if links:
                numbers = {"found": len(found), "total": len(people), "worst": found[0]}
                yield find(Kind.repeated, found[0].level, setup=labels[setup], **numbers)


def _find_outdone(groups: _Groups, labels: _Labels) -> Iterator[Finding]:
    """Defenses with which more came back of a person than without one."""
    for setup, people in groups.items():
        bare = replace(setup, defense=NO_DEFENSE)
        known = {row.victim: row for row in groups.get(bare, Results(()))}
        pairs = [(row, known[row.victim]) for row in people if row.victim in known]
        more = [(row, without) for row, without in pairs if shows_more(row, without)]
        if more:
            yield find(
                Kind.outdone,
                more[0][0].level,
                setup=labels[setup],
                bare=labels[bare],
                found=len(more),
                total=len(pairs),
                worst=more[0][0],
                without=more[0][1],
            )


def _find_effort(results: Results) -> Iterator[Finding]:
    """Whether more steps would find more, of attacks that ran with several numbers of steps."""
    curves = results.curves
    rising = sorted((c for c in curves if c.rising), key=lambda c: -c.gain.high)
    if curves:
        labels = label_setups(curve.setup for curve in curves)
        most = (labels[rising[0].setup], rising[0]) if rising else None
        yield find(Kind.effort, rising=len(rising), total=len(curves), most=most)


def _find_controls(results: Results) -> Iterator[Finding]:
    """What the controls say about the attacks."""
    found = [
        group[-1].record
        for group in results.by("data", "model", "attack", "setup").values()
        if group and not group[-1].behind
    ]
    controls = [record.control for record in found if record.control is not None]
    if not controls:
        return
    finds_people = any(row.level.identified for row in results)
    yield _judge_positive(controls, results, finds_people=finds_people)
    hits, tested, luck = (sum(c.negative[i] for c in controls) for i in range(3))
    if tested:
        misleading = [r.attack.name for r in found if r.control and r.control.misleading]
        names = [*dict.fromkeys(misleading)]
        yield find(Kind.negative_control, hits=hits, tested=tested, luck=luck, misleading=names)


def _judge_positive(
    controls: Sequence[Control], results: Results, *, finds_people: bool
) -> Finding:
    able = [control for control in controls if control.works]
    counts = [control.bare for control in able or controls if control.bare is not None]
    alone = not able and any(control.searched for control in controls)
    if not counts:
        return find(Kind.control_without_result)
    if able or not any(control.relevant for control in controls):
        hits, tested, _ = least = min(counts, key=lambda count: (count[1], count[0]))
        readable = not any(row.record.defense and not row.record.readable for row in results)
        return find(
            Kind.control_found,
            hits=hits,
            tested=tested,
            by_search=any(control.searched and control.bare == least for control in able),
            by_form=not able,
            useless=not able and not finds_people,
            readable=readable,
        )
    most = max(counts)
    kind = Kind.control_found_few if most[0] else Kind.control_found_nobody
    return find(kind, hits=most[0], tested=most[1], alone=alone, finds_people=finds_people)


def _compare_setups(bare: _Groups, labels: _Labels) -> Iterator[Finding]:
    """How many people are identified without a defense, if batch sizes or clients differ."""
    if len(bare) > 1:
        shares = [(labels[setup], group.identified, len(group)) for setup, group in bare.items()]
        yield find(Kind.identified_by_setup, shares=shares)


def _find_changes(groups: _Groups, labels: _Labels) -> Iterator[Finding]:
    """What each defense changes."""
    leaking = {setup: people for setup, people in groups.items() if people.identified}
    rest = {setup: people for setup, people in groups.items() if setup not in leaking}
    unclear = {setup: people for setup, people in rest.items() if people.unclear}
    holding = {setup: people for setup, people in rest.items() if setup not in unclear}
    if leaking:
        ranked = sorted(leaking.items(), key=lambda item: -item[1].identified)
        shares = [
            (labels[s], people.identified, len(people), sum(row.doubtful for row in people))
            for s, people in ranked
        ]
        yield find(Kind.identified_behind, Level.singled_out, shares=shares)
    settled = [s for s, people in holding.items() if all(row.settled for row in people)]
    tested = [setup for setup in holding if setup not in settled]
    if settled:
        yield find(Kind.settled_behind, Level.not_shown, setups=[labels[s] for s in settled])
    if tested:
        least = min((holding[setup] for setup in tested), key=_count_updates)
        names = [labels[setup] for setup in tested]
        yield find(Kind.held_behind, Level.not_shown, setups=names, **_count_rest(least))
    by_cause = group_by(unclear, lambda setup: _explain(unclear[setup]))
    for because, setups in by_cause.items():
        names = [labels[setup] for setup in setups]
        yield find(Kind.inconclusive_behind, Level.inconclusive, setups=names, because=because)
    for setup, people in rest.items():
        if any(row.label or row.parts for row in people):
            yield find(Kind.parts_behind, Level.partly, setup=labels[setup], **_count_parts(people))
    if groups and not holding and not unclear:
        yield find(Kind.nothing_holds)


def _find_population(bare: _Groups) -> Iterator[Finding]:
    """What is left open if no one was identified without a defense."""
    if bare and not any(people.identified or people.unclear for people in bare.values()):
        yield find(Kind.population, **_count_rest(min(bare.values(), key=_count_updates)))


def _count_rest(people: Results) -> dict[str, object]:
    """How large a share of a population may still be identifiable."""
    updates = _count_updates(people)
    return {"people": len(people), "updates": updates, "share": share_not_ruled_out(updates)}


def _count_updates(people: Results) -> int:
    """How many independent draws these people are: one for each update."""
    return len({row.update for row in people})


def _find_rehearsals(results: Results) -> Iterator[Finding]:
    """What rehearsals of `auto` say, but for setups that a theorem has settled."""
    raced = [(Setup.of(r), r.race) for r in results.records if r.race is not None and r.race.trials]
    labels = label_setups(setup for setup, _ in raced)
    settled = find_settled(results)
    masked = dict.fromkeys(labels[setup] for setup, race in raced if race.masked)
    rising = dict.fromkeys(labels[s] for s, race in raced if race.rising and s not in settled)
    if masked:
        yield find(Kind.masked, setups=[*masked])
    if rising:
        yield find(Kind.rehearsal_rising, setups=[*rising])
    if any(race.made_up for _, race in raced):
        yield find(Kind.made_up)
