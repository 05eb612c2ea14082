"""The verdict: the first sentences of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from seepage.audit.audit_result import AuditResult
from seepage.audit.record import Record
from seepage.audit.results import Level, Result, Results
from seepage.audit.results.intervals import share_not_ruled_out
from seepage.audit.results.judge import may_gain
from seepage.audit.words import (
    NO_DEFENSE,
    UNSIMULATED,
    Setup,
    count_noun,
    defense_words,
    label_setups,
    list_words,
)
from seepage.core.grouping import group_by
from seepage.report.contradiction import contradictions
from seepage.report.effort import tell_effort
from seepage.report.finding import Verdict
from seepage.report.headroom import headrooms
from seepage.report.limits import find_beaten, find_settled, tell_ceiling, tell_limits
from seepage.report.races import tell_races
from seepage.report.unscored import (
    tell_assumed,
    tell_certain_words,
    tell_unjudged,
    verdict_without_truth,
)
from seepage.scoring.gallery import FEWEST
from seepage.scoring.identification import Identification, fewest_strangers, is_close_call

_MISLED = "the attacks also find people who are not there"


def verdict(records: Results | Sequence[Record], *, noun: str = "inputs") -> Verdict:
    """Judge an audit by its people without a defense, then say what each defense changes.

    If the audit has no case without a defense, the headline is about all its cases.

    Args:
        records: Of the audit.
        noun: What a person's data are called, e.g. "images".
    """
    results = Results.of(records)
    errors = Counter(record.error for record in results.records if record.error is not None)
    if errors and errors.total() == len(results.records):
        reason, _ = errors.most_common(1)[0]
        said = "Nothing was measured"
        if any(record.failed for record in results.records):
            said = "Every case failed"
        elif not reason.startswith("no attack applies"):
            said += ", since no attack applies"
        return Verdict(None, f"{said}: {reason.rstrip('.')}")
    groups = {setup: group.strongest() for setup, group in results.setups.items()}
    if not groups:
        without_truth = verdict_without_truth(results.records, noun=noun)
        return without_truth or Verdict(None, "There is no result yet")
    bare = {setup: people for setup, people in groups.items() if setup.defense == NO_DEFENSE}
    defended = {setup: people for setup, people in groups.items() if setup not in bare}
    people = results.bare.strongest()
    where = ""
    if defended:
        where = " without a defense" if bare else " behind these defenses"
    lacking = {Setup.of(r): "no attack applies" for r in results.records if not r.applicable}
    lacking |= {Setup.of(r): "every case failed" for r in results.records if r.failed}
    unknown = {setup: why for setup, why in lacking.items() if setup not in groups}
    labels = label_setups([*groups, *unknown])
    return Verdict(
        level=people[0].level,
        headline=tell_people(people, noun, where) + tell_ceiling(people),
        details=(
            _tell_worst(people[0]),
            *_tell_counting(results),
            *_tell_repeated(groups, labels),
            *_tell_scarce(groups.values()),
            *_tell_unsimulated(results, labels),
            *_tell_population(bare),
            *_compare_setups(bare, labels),
            *_changes(defended, labels),
            *(f"No result with {labels[setup]}: {why}." for setup, why in unknown.items()),
            *tell_unjudged(results, {setup: labels[setup] for setup in groups}),
            *tell_certain_words(results.records),
            *tell_limits(results),
            *tell_effort(results.curves),
            *_tell_controls(results),
            *tell_races(results.records, settled=find_settled(results)),
        ),
        worst=people[0],
    )


def audit_verdict(audit: AuditResult) -> Verdict:
    """Judge an audit in the words of its data: images, signals, or inputs of any kind."""
    found = contradictions(headrooms(audit.results, audit.bounds))
    alarms = (*(contradiction.sentence for contradiction in found), *find_beaten(audit.results))
    judged = verdict(audit.results, noun=name_inputs(audit))
    return replace(judged, details=(*tell_assumed(audit), *judged.details), alarms=alarms)


def name_inputs(audit: AuditResult) -> str:
    """What a person's data are called: images, signals, texts, or inputs of any kind."""
    kinds = {record.kind for record in audit.records}
    return (kinds.pop() if len(kinds) == 1 else "") or "inputs"


def tell_people(people: Results, noun: str, where: str = "") -> str:
    """Say in one sentence how many of these people were identified, and how."""
    found, total = people.identified, len(people)
    if found:
        who = f"{found} of {total} people" if total > 1 else "The one person attacked"
        verb = "were" if found > 1 or total > 1 else "was"
        labels = count_labels(people)
        which = f"{labels} of {total} labels" if total > 1 else "the label"
        besides = f"; {which} came back too" if labels else ""
        said = _list_words(people)
        besides += f"; {said} came back" if said and found < total else ""
        told = f"{who} {verb} identified{where}: {_count_levels(people, noun)}{besides}"
        told += f"; {UNSIMULATED}" * any(map(_is_unsimulated, people))
        doubtful = count_doubtful(people)
        of = f" for {doubtful} of them" if doubtful < found else ""
        return told + f"; this cannot be trusted{of}: {_MISLED}" * bool(doubtful)
    attacked = count_noun(total, "person", "people")
    parts = _list_leaked_parts(people)
    if people.unclear and _list_words(people):
        return (
            f"Words leaked{where}: {parts} came back; whether anybody is identified is "
            f"inconclusive: {_excuse(people)} ({attacked} attacked)"
        )
    if people.unclear:
        besides = f"; {parts} came back" if parts else ""
        return f"Inconclusive{where}: {_excuse(people)} ({attacked} attacked){besides}"
    if parts:
        return f"Nobody was identified{where}, but {parts} came back"
    return f"Nobody was identified{where} ({attacked} attacked)"


def count_doubtful(people: Results) -> int:
    """How many are identified only by attacks that also find people who are not there."""
    return sum(row.doubtful for row in people)


def _is_unsimulated(row: Result) -> bool:
    """Whether the defense did something else than it tells who simulates it."""
    return bool(row.record.effort.get("unsimulated"))


_SCARCE = ("few of the label", "synthetic")
# Why first place among these strangers proves too little.
_UNFAIR: Mapping[str, str] = {
    "few of the label": "there were too few strangers of the same label to compare with",
    "synthetic": "no inputs of other people were given to compare with",
    "one shade": "the input has one shade, so only its values can be compared",
}


def _excuse(people: Results) -> str:
    """Why nothing can be concluded from having found nobody."""
    unclear = [row for row in people if row.unclear]
    controlled = [a.record.control for a in unclear if a.record.control is not None]
    places = [a.identification for a in unclear if a.identification is not None]
    if any(map(_is_unsimulated, unclear)):
        return UNSIMULATED
    if all(a.exact for a in unclear):
        if not places:
            return "what came back is exact, but there is nobody to compare with"
        if all(place.rank > 1 for place in places):
            return "what came back is exact, but fits others as well"
    if places and not any(place.fair for place in places):
        return _UNFAIR[places[0].gallery]
    if any(is_close_call(place, len(people)) for place in places):
        return (
            "the person came first among strangers, but among too few to rule out luck, which "
            f"takes {fewest_strangers(len(people))}"
        )
    if any(a.record.effort.get("foreign") for a in unclear):
        return "what was simulated is not the step of the training loop"
    if not controlled:
        return "no control was run, so the attacks may be too weak"
    if any(control.works for control in controlled):
        if any(a.record.effort.get("cut") for a in unclear):
            return "time cut the attacks short"
        if any(a.record.effort.get("misled") for a in unclear):
            return "no guess explains the update as the inputs do, so the attack may only be misled"
        # A single batch of canaries is enough where more of them would clear nobody.
        if any(may_gain(a.record) for a in unclear) or any(control.able for control in controlled):
            return "more steps may still find more"
        return "the control found somebody, but was of too few people"
    return "the attacks were too weak to tell"


def _tell_unsimulated(results: Results, labels: Mapping[Setup, str]) -> list[str]:
    """Which defenses no attack could simulate, and what that means."""
    names = dict.fromkeys(labels[row.setup] for row in results if _is_unsimulated(row))
    return [
        f"What {list_words([*names])} prepares is not what its prepare_expected tells those who "
        "simulate it, so a guess that explains the update may still be wrong, and none is proved."
    ] * bool(names)


def _tell_scarce(groups: Collection[Results]) -> list[str]:
    """Whom only a near copy can identify, and how many strangers it takes to single them out."""
    everybody = {row.person for people in groups for row in people}
    missed = {row.person: row for people in groups for row in people if not row.level.identified}
    places = [a.identification for a in missed.values() if a.identification is not None]
    scarce = sum(place.gallery in _SCARCE for place in places)
    who, alone = f"For {scarce} of {len(everybody)} people", ""
    if len(everybody) == 1:
        who = "For the one person attacked"
        alone = f", and {fewest_strangers(1)} if one person alone is attacked"
    return [
        f"{who} only a near copy of the input counts; singling out takes {FEWEST} strangers of the "
        f"same label{alone}."
    ] * bool(scarce)


def _count_levels(people: Results, noun: str) -> str:
    """How many are reconstructed, recognisable and singled out, in words."""
    counts = Counter(row.level for row in people)
    words = {
        Level.reconstructed: f"{noun} reconstructed",
        Level.recognisable: "recognisable",
        Level.singled_out: "singled out among strangers",
    }
    said = [(counts[level], text) for level, text in words.items() if counts[level]]
    if counts[Level.reconstructed] == 1:
        said[0] = 1, f"{noun.removesuffix('s')} reconstructed"
    if len(people) == 1:
        return said[0][1]
    return list_words([f"{count} {text}" for count, text in said])


def _list_words(people: Results) -> str:
    """How much of texts came back in no order, from the least to the most; empty if nothing."""
    parts = (part for row in people for part in row.parts if not part.in_order)
    return list_words(list(dict.fromkeys(part.words() for part in parts)))


def _list_leaked_parts(people: Results) -> str:
    """What came back besides inputs: labels, columns, words."""
    parts = dict.fromkeys(part.words() for row in people for part in row.parts)
    labels = count_labels(people)
    which = f"the labels of {labels} of {len(people)} people" if len(people) > 1 else "the label"
    return list_words([*[which] * bool(labels), *parts])


def _tell_worst(row: Result) -> str:
    data, person = row.victim
    if row.level is Level.reconstructed:
        how = "came back exactly"
    elif row.level.identified:
        how = f"came back at {row.amount.words()}"
    elif row.exact:
        how = "was not identified, although a guess is exact"
    else:
        how = f"was not identified: the best guess has {row.amount.words()}"
    found, among = row.identification, ""
    if found is not None and found.singled_out and row.level.identified:
        among = f", first among {found.strangers} strangers{_describe_gallery(found)}"
        # How rare a match is can be told from strangers who are like the person only.
        is_told = found.fair and row.level is not Level.reconstructed
        if is_told and not row.doubtful:
            low = found.one_in_low
            claim = f"{float(f'{low:.1g}'):,.0f}" if low < 1e9 else "a billion"
            among += f" (luck matches this well at most once in {claim})"
    elif found is not None:
        of = f"{found.strangers} strangers{_describe_gallery(found)}"
        among = f", {'first' if found.rank == 1 else f'place {found.rank}'} among {of}"
        if row.exact and found.rank > 1:
            among = f": {_tell_fitted(found)}"
    elif row.exact:
        among = ": there is nobody to compare with"
    beside = row.without_update
    guessed = f"; a guess that needs no update reaches {beside.words()}" if beside.value else ""
    return f"The worst-off person, {data} #{person}, {how}{among}{guessed}."


def _tell_fitted(found: Identification) -> str:
    """Whom an exact guess fits besides the person."""
    if found.copies:
        return f"it is the input of {found.copies} others in the data too"
    if found.gallery == "one shade":
        return "the input is blank, and anybody can guess that"
    of = f"{found.strangers} strangers{_describe_gallery(found)}"
    return f"it is as near to {found.rank - 1} of {of}"


def _tell_counting(results: Results) -> list[str]:
    """How people behind several captured updates were counted."""
    updates = {row.update for row in results if row.record.known_as}
    if len(updates) < 2:
        return []
    return [
        f"In {len(updates)} captured updates the same input of one client counts as one person; "
        "whether different inputs are of one person cannot be known, so each of them counts."
    ]


def _tell_repeated(groups: Mapping[Setup, Results], labels: Mapping[Setup, str]) -> list[str]:
    """Who counts as found behind a link that the adversary can apply itself."""
    told = []
    for setup, people in groups.items():
        for links, found in group_by(people, lambda a: a.behind).items():
            if links:
                worst = found[0]
                data, person = worst.victim
                told.append(
                    f"With {labels[setup]}, {len(found)} of {len(people)} people count as found "
                    f"behind {defense_words(links)}, which whoever sees the update can apply to "
                    f"it: the search without it was too weak (there {data} #{person} came back at "
                    f"{worst.amount.words()})."
                )
    return told


def _describe_gallery(found: Identification) -> str:
    return {
        "same label": " of the same label",
        "any label": "",
        "few of the label": ", too few of whom share the label",
        "synthetic": " made up for the comparison, since no others were given",
        "one shade": ", compared by values alone, since the input has one shade",
    }[found.gallery]


def count_labels(people: Results) -> int:
    """How many labels came back that the adversary did not know."""
    return sum(row.label for row in people)


def _tell_controls(results: Results) -> list[str]:
    """What the controls say about the attacks, in a sentence or two."""
    found = [
        group[-1].record
        for group in results.by("data", "model", "attack", "setup").values()
        if group and not group[-1].behind
    ]
    controls = [record.control for record in found if record.control is not None]
    if not controls:
        return []
    able = [c for c in controls if c.works]
    counts = [control.bare for control in able or controls if control.bare is not None]
    canaries = "people whom the audit had chosen itself"
    works = any(row.level.identified for row in results)
    besides = "though it found others" if works else "not even without a defense"
    alone = not able and any(control.searched for control in controls)
    by = " by the search alone" if alone else ""
    first = f"Positive control: {canaries} were not singled out{by}, {besides}."
    if not counts:
        first = "Positive control: it gave no result."
    elif able or not any(control.relevant for control in controls):
        found_of, tried_on, _ = least = min(counts, key=lambda count: (count[1], count[0]))
        alone = any(control.searched and control.bare == least for control in able)
        how = ("the search alone" if alone else "the attack") if able else "a closed form"
        first = (
            f"Positive control: without a defense {how} found {found_of} of {tried_on} {canaries}"
        )
        first += "." if able or works else f", {_tell_failed_form(results)}."
    elif (most := max(counts))[0]:
        besides = besides.removeprefix("not ")
        first = (
            f"Positive control: only {most[0]} of {most[1]} {canaries} were found{by}, {besides}."
        )
    hits, tested, luck = (sum(c.negative[i] for c in controls) for i in range(3))
    if not tested:
        return [first]
    second = (
        f"Negative control: in guesses made from other updates, {hits} of {tested} people were "
        f"found, where luck finds {luck:.2g}."
    )
    names = dict.fromkeys(
        record.attack.name
        for record in found
        if record.control is not None and record.control.misleading
    )
    if names:
        second += f" With {list_words(list(names))} that is more than luck explains."
    return [first, second]


def _tell_failed_form(results: Results) -> str:
    """Why a closed form says nothing of these people, although it found others."""
    if any(a.record.defense and not a.record.readable for a in results):
        return "but behind the defense it has no gradient to read"
    return "but it does not explain the updates that were attacked"


def _compare_setups(bare: Mapping[Setup, Results], labels: Mapping[Setup, str]) -> list[str]:
    """How many people are identified without a defense, if batch sizes or clients differ."""
    if len(bare) < 2:
        return []
    shares = [f"{_share(people)} with {labels[setup]}" for setup, people in bare.items()]
    return [f"Identified were {list_words(shares)}."]


def _changes(groups: Mapping[Setup, Results], labels: Mapping[Setup, str]) -> list[str]:
    """What each defense changes."""
    leaking = {setup: people for setup, people in groups.items() if people.identified}
    rest = {setup: people for setup, people in groups.items() if setup not in leaking}
    unclear = {setup: people for setup, people in rest.items() if people.unclear}
    holding = {setup: people for setup, people in rest.items() if setup not in unclear}
    sentences = []
    if leaking:
        ranked = sorted(leaking.items(), key=lambda item: -item[1].identified)
        kept = [f"{labels[setup]} ({_share(people)}{_warn(people)})" for setup, people in ranked]
        sentences.append(f"People were still identified behind {list_words(kept)}.")
    settled = [setup for setup, people in holding.items() if all(a.settled for a in people)]
    tested = [setup for setup in holding if setup not in settled]
    if settled:
        names = list_words([labels[setup] for setup in settled], "or")
        sentences.append(
            f"Nobody was identified behind {names}; in theory no attack does better than luck."
        )
    if tested:
        names = list_words([labels[setup] for setup in tested], "or")
        left = _tell_rest(min((holding[setup] for setup in tested), key=_count_updates))
        sentences.append(f"Nobody was identified behind {names}; {left}.")
    if unclear:
        for why in dict.fromkeys(map(_excuse, unclear.values())):
            listed = [labels[setup] for setup, people in unclear.items() if _excuse(people) == why]
            sentences.append(f"Inconclusive behind {list_words(listed, 'or')}: {why}.")
    for setup, people in rest.items():
        parts = _list_leaked_parts(people)
        if parts:
            sentences.append(f"Behind {labels[setup]}, {parts} came back all the same.")
    if groups and not holding and not unclear:
        sentences.append("No defense tried here hides everybody.")
    return sentences


def _tell_population(bare: Mapping[Setup, Results]) -> list[str]:
    """How many of a population may be identified although nobody was, without a defense."""
    if not bare or any(p.identified or p.unclear for p in bare.values()):
        return []
    left = _tell_rest(min(bare.values(), key=_count_updates))
    return [f"That nobody was identified is no proof for others: {left}."]


def _tell_rest(people: Results) -> str:
    """What having found none of these people leaves open."""
    updates, tested = _count_updates(people), count_noun(len(people), "person", "people")
    shared = f" in {count_noun(updates, 'update')}" if updates < len(people) else ""
    return (
        f"with {tested}{shared} tested, up to {100 * share_not_ruled_out(updates):.0f} % of a "
        "population may still be (95 % confidence)"
    )


def _count_updates(people: Results) -> int:
    """How many independent draws these people are: those of one update share all that varies."""
    return len({row.update for row in people})


def _warn(people: Results) -> str:
    doubtful = count_doubtful(people)
    if not doubtful:
        return ""
    return f", {'' if doubtful == people.identified else f'{doubtful} '}not to be trusted"


def _share(people: Results) -> str:
    return f"{people.identified} of {len(people)}"
