"""The sentences of reports: one for each kind of finding, and no decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any

from seepage.audit._record import Record
from seepage.audit._words import (
    UNSIMULATED,
    count_noun,
    decibels,
    defense_words,
    list_words,
    percent,
    residual_words,
    short_names,
)
from seepage.audit.results import Level, Result
from seepage.audit.results._amount import Amount
from seepage.audit.results._effort_curve import EffortCurve
from seepage.audit.results._intervals import Interval
from seepage.core._reconstruction import Proof
from seepage.scoring._gallery import FEWEST
from seepage.scoring._identification import Identification, fewest_strangers

if TYPE_CHECKING:
    from seepage.report._change import Change
    from seepage.report._headroom import Headroom


class Kind(StrEnum):
    """What a finding is about."""

    # Of an audit without a result.
    no_result_yet = auto()
    every_case_failed = auto()
    nothing_measured = auto()
    nothing_applies = auto()
    # Of people, the headline.
    identified = auto()
    not_identified = auto()
    inconclusive = auto()
    words_leaked = auto()
    # Of people, further.
    worst_off = auto()
    counting = auto()
    repeated = auto()
    outdone = auto()
    scarce = auto()
    unsimulated = auto()
    population = auto()
    identified_by_setup = auto()
    identified_behind = auto()
    settled_behind = auto()
    held_behind = auto()
    inconclusive_behind = auto()
    parts_behind = auto()
    nothing_holds = auto()
    no_result = auto()
    more_without_result = auto()
    certain_words = auto()
    # Of theory.
    limit = auto()
    no_limit = auto()
    limit_beaten = auto()
    bound_beaten = auto()
    bound_on_people = auto()
    bound_silent = auto()
    bound_contradicted = auto()
    bound_without_attack = auto()
    bound_holds = auto()
    bound_looser_than_guess = auto()
    bound_passed_by_luck = auto()
    bound_passed_by_bias = auto()
    bound_passed_by_prior = auto()
    # Of how hard the attacks looked.
    effort = auto()
    control_without_result = auto()
    control_found = auto()
    control_found_few = auto()
    control_found_nobody = auto()
    negative_control = auto()
    masked = auto()
    rehearsal_rising = auto()
    made_up = auto()
    # Of captured updates whose truth nobody gave.
    nothing_assumed = auto()
    assumed = auto()
    words_proved = auto()
    layer_read = auto()
    proved = auto()
    explained = auto()
    not_proved = auto()
    layers_read = auto()
    updates_proved = auto()
    updates_explained = auto()
    updates_not_proved = auto()
    read_off_embeddings = auto()
    not_checked = auto()
    layer_solved = auto()
    residual = auto()
    no_proof_of_nothing = auto()
    # Of two audits.
    nothing_changed = auto()
    noise_only = auto()
    less_leaks = auto()
    more_leaks = auto()
    within_noise = auto()
    most_changed = auto()
    compared = auto()


class Cause(StrEnum):
    """Why nothing can be concluded from having found nobody; galleries by their own names."""

    unsimulated = auto()
    exact_alone = auto()
    exact_fits_others = auto()
    few_of_the_label = "few of the label"
    synthetic = "synthetic"
    one_shade = "one shade"
    close_call = auto()
    foreign = auto()
    no_control = auto()
    cut = auto()
    misled = auto()
    more_steps = auto()
    few_canaries = auto()
    too_weak = auto()


_CAUSES: Mapping[Cause, str] = {
    Cause.unsimulated: UNSIMULATED,
    Cause.exact_alone: "what came back is exact, but there is nobody to compare with",
    Cause.exact_fits_others: "what came back is exact, but fits others as well",
    Cause.few_of_the_label: "there were too few strangers of the same label to compare with",
    Cause.synthetic: "no inputs of other people were given to compare with",
    Cause.one_shade: "the input has one shade, so only its values can be compared",
    Cause.close_call: "the person came first among strangers, but among too few to rule out luck, "
    "which takes {strangers}",
    Cause.foreign: "what was simulated is not the step of the training loop",
    Cause.no_control: "no control was run, so the attacks may be too weak",
    Cause.cut: "time cut the attacks short",
    Cause.misled: "no guess explains the update as the inputs do, so the attack may only be misled",
    Cause.more_steps: "more steps may still find more",
    Cause.few_canaries: "the control found somebody, but was of too few people",
    Cause.too_weak: "the attacks were too weak to tell",
}


def phrase(kind: Kind, numbers: Mapping[str, Any]) -> str:
    """The sentence of a finding."""
    template = _TEMPLATES[kind]
    return template.format(**numbers) if isinstance(template, str) else template(**numbers)


def _say_cause(because: tuple[Cause, int]) -> str:
    cause, strangers = because
    return _CAUSES[cause].format(strangers=strangers)


def _say_people(people: int) -> str:
    return count_noun(people, "person", "people")


def _say_ceiling(ceiling: float) -> str:
    """What theory adds to a headline that found nobody."""
    said = f"; in theory no attack identifies more than {percent(ceiling)} of people"
    return said if ceiling < 1 else ""


def _say_identified(
    *,
    total: int,
    noun: str,
    where: str,
    levels: Counter[Level],
    labels: int,
    parts: Sequence[Amount],
    doubtful: int,
    unsimulated: bool,
    **_: object,
) -> str:
    found = levels.total()
    who = f"{found} of {total} people were" if total > 1 else "The one person attacked was"
    which = f"{labels} of {total} labels" if total > 1 else "the label"
    besides = f"; {which} came back too" if labels else ""
    loose = _say_parts([part for part in parts if not part.in_order])
    besides += f"; {loose} came back" if loose and found < total else ""
    besides += f"; {UNSIMULATED}" * unsimulated
    if doubtful:
        of = f" for {doubtful} of them" if doubtful < found else ""
        besides += f"; this cannot be trusted{of}: the attacks also find people who are not there"
    return f"{who} identified{where}: {_say_levels(levels, total, noun)}{besides}"


def _say_levels(levels: Counter[Level], total: int, noun: str) -> str:
    """How many are reconstructed, recognisable and singled out."""
    one = levels[Level.reconstructed] == 1
    words = {
        Level.reconstructed: f"{noun.removesuffix('s') if one else noun} reconstructed",
        Level.recognisable: "recognisable",
        Level.singled_out: "singled out among strangers",
    }
    said = [(levels[level], text) for level, text in words.items() if levels[level]]
    return said[0][1] if total == 1 else list_words([f"{count} {text}" for count, text in said])


def _say_parts(parts: Sequence[Amount], labels: int = 0, total: int = 1) -> str:
    """What came back besides inputs: labels, columns, words."""
    which = f"the labels of {labels} of {total} people" if total > 1 else "the label"
    shares = dict.fromkeys(part.words() for part in parts)
    return list_words([*[which] * bool(labels), *shares])


def _say_not_identified(
    *, total: int, where: str, parts: Sequence[Amount], labels: int, ceiling: float, **_: object
) -> str:
    said = _say_parts(parts, labels, total)
    besides = f", but {said} came back" if said else f" ({_say_people(total)} attacked)"
    return f"Nobody was identified{where}{besides}{_say_ceiling(ceiling)}"


def _say_inconclusive(
    *,
    total: int,
    where: str,
    parts: Sequence[Amount],
    labels: int,
    because: tuple[Cause, int],
    ceiling: float,
    **_: object,
) -> str:
    said = _say_parts(parts, labels, total)
    besides = f"; {said} came back" if said else ""
    why = f"{_say_cause(because)} ({_say_people(total)} attacked)"
    return f"Inconclusive{where}: {why}{besides}{_say_ceiling(ceiling)}"


def _say_words_leaked(
    *,
    total: int,
    where: str,
    parts: Sequence[Amount],
    labels: int,
    because: tuple[Cause, int],
    ceiling: float,
    **_: object,
) -> str:
    return (
        f"Words leaked{where}: {_say_parts(parts, labels, total)} came back; whether anybody is "
        f"identified is inconclusive: {_say_cause(because)} ({_say_people(total)} attacked)"
        f"{_say_ceiling(ceiling)}"
    )


def _say_worst(*, row: Result) -> str:
    data, person = row.victim
    if row.level is Level.reconstructed:
        how = "came back exactly"
    elif row.level.identified:
        how = f"came back at {row.amount.words()}"
    elif row.exact:
        how = "was not identified, although a guess is exact"
    else:
        how = f"was not identified: the best guess has {row.amount.words()}"
    guess = row.without_update
    guessed = f"; a guess that needs no update reaches {guess.words()}" if guess.value else ""
    return f"The worst-off person, {data} #{person}, {how}{_say_place(row)}{guessed}."


def _say_place(row: Result) -> str:
    """Where the person came among strangers."""
    found = row.identification
    if found is None:
        return ": there is nobody to compare with" if row.exact else ""
    strangers = f"{found.strangers} strangers{_say_gallery(found)}"
    if found.singled_out and row.level.identified:
        # How rare a match is can be told from strangers who are like the person only.
        is_told = found.fair and row.level is not Level.reconstructed and not row.doubtful
        low = found.one_in_low
        claim = f"{float(f'{low:.1g}'):,.0f}" if low < 1e9 else "a billion"
        rare = f" (luck matches this well at most once in {claim})"
        return f", first among {strangers}{rare * is_told}"
    if not row.exact or found.rank == 1:
        return f", {'first' if found.rank == 1 else f'place {found.rank}'} among {strangers}"
    if found.copies:
        return f": it is the input of {found.copies} others in the data too"
    if found.gallery == "one shade":
        return ": the input is blank, and anybody can guess that"
    return f": it is as near to {found.rank - 1} of {strangers}"


def _say_gallery(found: Identification) -> str:
    return {
        "same label": " of the same label",
        "any label": "",
        "few of the label": ", too few of whom share the label",
        "synthetic": " made up for the comparison, since no others were given",
        "one shade": ", compared by values alone, since the input has one shade",
    }[found.gallery]


def _say_repeated(*, setup: str, found: int, total: int, worst: Result) -> str:
    data, person = worst.victim
    return (
        f"With {setup}, {found} of {total} people count as found behind "
        f"{defense_words(worst.behind)}, which whoever sees the update can apply to it: the search "
        f"without it was too weak (there {data} #{person} came back at {worst.amount.words()})."
    )


def _say_outdone(
    *, setup: str, bare: str, found: int, total: int, worst: Result, without: Result
) -> str:
    data, person = worst.victim
    return (
        f"More came back of {found} of {total} people with {setup} than with {bare} (of {data} "
        f"#{person} {worst.amount.words()}, and {without.amount.words()}): the search without it "
        "was too weak, unless the defense itself gives more away."
    )


def _say_scarce(*, scarce: int, total: int) -> str:
    who, alone = f"For {scarce} of {total} people", ""
    if total == 1:
        who = "For the one person attacked"
        alone = f", and {fewest_strangers(1)} if one person alone is attacked"
    return (
        f"{who} only a near copy of the input counts; singling out takes {FEWEST} strangers of the "
        f"same label{alone}."
    )


def _say_unsimulated(*, setups: Sequence[str]) -> str:
    return (
        f"What {list_words(setups)} prepares is not what its prepare_expected tells those who "
        "simulate it, so a guess that explains the update may still be wrong, and none is proved."
    )


def _say_rest(*, people: int, updates: int, share: float) -> str:
    shared = f" in {count_noun(updates, 'update')}" if updates < people else ""
    return (
        f"with {_say_people(people)}{shared} tested, up to {100 * share:.0f} % of a population may "
        "still be (95 % confidence)"
    )


def _say_identified_by_setup(*, shares: Sequence[tuple[str, int, int]]) -> str:
    said = [f"{found} of {total} with {setup}" for setup, found, total in shares]
    return f"Identified were {list_words(said)}."


def _say_identified_behind(*, shares: Sequence[tuple[str, int, int, int]]) -> str:
    said = []
    for setup, found, total, doubtful in shares:
        some = "" if doubtful == found else f"{doubtful} "
        warning = f", {some}not to be trusted" if doubtful else ""
        said.append(f"{setup} ({found} of {total}{warning})")
    return f"People were still identified behind {list_words(said)}."


def _say_no_result(*, what: str, failed: bool) -> str:
    return f"No result {what}: {'every case failed' if failed else 'no attack applies'}."


def _say_certain_words(*, words: int) -> str:
    verb = "is" if words == 1 else "are"
    return f"{count_noun(words, 'different word')} of one batch {verb} proved to be in it."


def _say_limit(*, setup: str, strangers: int, chance: float, luck: float, settled: bool) -> str:
    settles = (
        " That settles the verdict, whatever the controls found and however long an attack "
        "searches: it is the theorem of IdentificationLimit, the blow-up of two Gaussians (Hayes "
        "et al., 2023)."
    )
    return (
        f"Theory: behind {setup} no attack on one update, known or not, puts a person first among "
        f"{count_noun(strangers, 'stranger')} in more than {percent(chance)} of all cases; luck "
        f"does in {percent(luck)}.{settles * settled}"
    )


def _say_limit_beaten(
    *, attack: str, hits: int, people: int, model: str, setup: str, chance: float
) -> str:
    return (
        f"CONTRADICTION: {attack} identified {hits} of {people} people on {model} behind {setup}, "
        f"where any attack identifies {percent(chance)} at most: the defense does not do what it "
        "says, or the attack has a bug."
    )


def _say_bound_beaten(*, headroom: Headroom, attack: str, ratio: float, cases: int) -> str:
    scene, middle = headroom.scene, headroom.middle
    cause = "the bound or the attack has a bug"
    if middle.covers_every_attack:
        cause = (
            "do not rely on this ceiling. These inputs are easier to guess than the bound assumes, "
            f"or {cause}"
        )
    return (
        f"CONTRADICTION: {attack} came {1 / ratio:.3g} times closer than {headroom.bound} allows "
        f"on {scene.model} behind {defense_words(scene.setup.defense)} (at most "
        f"{decibels(middle.ceiling)}), over {count_noun(cases, 'case')}: {cause}."
    )


def _say_standing(template: str) -> Callable[..., str]:
    """How attacks stand to a bound, which ends with of how many people it says nothing."""

    def say(*, tried: int, passed: int, gap: float | None, silent: int) -> str:
        share, people = f"{passed} of {tried}", _say_people(tried)
        rest = f"; says nothing of {silent}" if silent else ""
        return template.format(share=share, people=people, gap=gap) + rest

    return say


def _say_effort(*, rising: int, total: int, most: tuple[str, EffortCurve] | None) -> str:
    told = f"Effort: {rising} of {count_noun(total, 'curve')} may still rise"
    if most is None:
        return f"{told}: doubling the steps gains little."
    return f"{told}. With {most[0]}, {curve_words(most[1])}."


def curve_words(curve: EffortCurve) -> str:
    """The end of a curve of effort, without a full stop."""
    (fewer, _), (more, _) = curve.medians[-2:]
    gain = curve.gain
    state = "may still rise" if curve.rising else "has reached a plateau"
    return (
        f"{curve.attack.name} {state}: from {fewer:,} to {more:,} steps, doubling them gains "
        f"{gain.middle:+.1f} dB ({gain.low:+.1f} to {gain.high:+.1f})"
    )


def describe_effort(records: Sequence[Record]) -> str:
    """Attacks, cases, steps and time of these records, in words."""
    done = [record for record in records if record.error is None]
    attacks = short_names(record.attack for record in records)
    steps = sum(int(r.effort.get("steps", 0)) * int(r.effort.get("restarts", 0)) for r in done)
    hours = _duration(sum(float(record.effort.get("seconds", 0)) for record in done))
    devices = list_words(list(dict.fromkeys(str(r.effort.get("device")) for r in done)))
    searched = f", {steps:,} search steps" if steps else ""
    return (
        f"{list_words(list(attacks.values()))}: {count_noun(len(done), 'case')}{searched}, {hours} "
        f"on {devices}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_CANARIES = "people whom the audit had chosen itself"


def _say_control_found(
    *, hits: int, tested: int, by_search: bool, by_form: bool, useless: bool, readable: bool
) -> str:
    how = "a closed form" if by_form else "the search alone" if by_search else "the attack"
    told = f"Positive control: without a defense {how} found {hits} of {tested} {_CANARIES}"
    if not useless:
        return f"{told}."
    if not readable:
        return f"{told}, but behind the defense it has no gradient to read."
    return f"{told}, but it does not explain the updates that were attacked."


def _say_control_found_few(*, hits: int, tested: int, alone: bool, finds_people: bool) -> str:
    by = " by the search alone" * alone
    besides = "though it found others" if finds_people else "even without a defense"
    return f"Positive control: only {hits} of {tested} {_CANARIES} were found{by}, {besides}."


def _say_control_found_nobody(*, alone: bool, finds_people: bool, **_: object) -> str:
    by = " by the search alone" * alone
    besides = "though it found others" if finds_people else "not even without a defense"
    return f"Positive control: {_CANARIES} were not singled out{by}, {besides}."


def _say_negative_control(*, hits: int, tested: int, luck: float, misleading: Sequence[str]) -> str:
    told = (
        f"Negative control: in guesses made from other updates, {hits} of {tested} people were "
        f"found, where luck finds {luck:.2g}."
    )
    names = list_words(misleading)
    return f"{told} With {names} that is more than luck explains." if names else told


def _say_masked(*, setups: Sequence[str]) -> str:
    return (
        f"Masked: behind {list_words(setups)}, searches that ignore the defense recovered more in "
        "rehearsal than those that simulate it. It misleads the search more than it hides the data."
    )


def _say_assumed(*, update: str, defenses: Sequence[str]) -> str:
    return f"Assumed behind the {update}, as given: {list_words(defenses, 'or')}."


def proof_words(certificate: Proof) -> str:
    """What a proof says of a guess. Tokens are the same or not, so theirs has no error.

    Example:
        >>> proof_words({"unique": True, "error": 1e-5})
        'right to 8 bits'
        >>> proof_words({"unique": True, "error": None})
        'right in every token'
    """
    return (
        "right to 8 bits" if certificate.get("error", 0.0) is not None else "right in every token"
    )


def _say_guess(template: str) -> Callable[..., str]:
    """Words on captured updates, which end with whether the defense could be simulated."""

    def say(*, unsimulated: bool, **numbers: object) -> str:
        return template.format(**numbers) + f"; {UNSIMULATED}" * unsimulated

    return say


def _say_updates_proved(
    *,
    noun: str,
    proved: int,
    updates: str,
    proofs: Sequence[str],
    explained: int,
    unsimulated: bool,
) -> str:
    more = f"; a guess explains {explained}" if explained > proved else ""
    more += f"; {UNSIMULATED}" * unsimulated
    return f"The {noun} of {proved} of {updates} came back, proved {list_words(proofs)}{more}"


def _say_size(residual: float) -> str:
    return f"{residual_words(residual)} {'of' if residual < 1 else 'times'} its length"


def _say_shift(*, where: str, before: int, now: int, people: int, gained: Interval) -> str:
    return (
        f"with {where}, {before} of {people} identified before and {now} now "
        f"({gained.middle:+.1f} dB, interval {gained.low:+.1f} to {gained.high:+.1f})"
    )


def _say_direction(way: str) -> Callable[..., str]:
    def say(*, more: int, **shift: Any) -> str:  # noqa: ANN401 - as of _say_shift
        also = f", and {count_noun(more, 'setup')} more" if more else ""
        return f"{way} leaks than before: {_say_shift(**shift)}{also}"

    return say


def _say_most_changed(*, change: Change, where: str) -> str:
    data, person = change.victim
    sides = [
        f"{row.level} {when} ({decibels(row.psnr)})"
        for row, when in ((change.before, "before"), (change.after, "now"))
        if row is not None
    ]
    return f"Most: {data} #{person} with {where}, {' and '.join(sides)}."


def _say_compared(
    *, people: int, setups: int, worse: int, better: int, noticed: float, alone: int
) -> str:
    rest = f"{people - worse - better} within {noticed:g} dB"
    left = f"; {alone} are in one audit only." if alone else "."
    return (
        f"Compared: {_say_people(people)} of {count_noun(setups, 'setup')} ({worse} worse, "
        f"{better} better, {rest}){left}"
    )


_TEMPLATES: Mapping[Kind, str | Callable[..., str]] = {
    Kind.no_result_yet: "There is no result yet",
    Kind.every_case_failed: "Every case failed: {reason}",
    Kind.nothing_measured: "Nothing was measured: {reason}",
    Kind.nothing_applies: "Nothing was measured, since no attack applies: {reason}",
    Kind.identified: _say_identified,
    Kind.not_identified: _say_not_identified,
    Kind.inconclusive: _say_inconclusive,
    Kind.words_leaked: _say_words_leaked,
    Kind.worst_off: _say_worst,
    Kind.counting: "In {updates} captured updates the same input of one client counts as one "
    "person; whether different inputs are of one person cannot be known, so each of them counts.",
    Kind.repeated: _say_repeated,
    Kind.outdone: _say_outdone,
    Kind.scarce: _say_scarce,
    Kind.unsimulated: _say_unsimulated,
    Kind.population: lambda **rest: (
        f"That nobody was identified is no proof for others: {_say_rest(**rest)}."
    ),
    Kind.identified_by_setup: _say_identified_by_setup,
    Kind.identified_behind: _say_identified_behind,
    Kind.settled_behind: lambda setups: (
        f"Nobody was identified behind {list_words(setups, 'or')}; in theory no attack does better "
        "than luck."
    ),
    Kind.held_behind: lambda setups, **rest: (
        f"Nobody was identified behind {list_words(setups, 'or')}; {_say_rest(**rest)}."
    ),
    Kind.inconclusive_behind: lambda setups, because: (
        f"Inconclusive behind {list_words(setups, 'or')}: {_say_cause(because)}."
    ),
    Kind.parts_behind: lambda setup, **parts: (
        f"Behind {setup}, {_say_parts(**parts)} came back all the same."
    ),
    Kind.nothing_holds: "No defense tried here hides everybody.",
    Kind.no_result: _say_no_result,
    Kind.more_without_result: "No result for {more} more networks or data sets.",
    Kind.certain_words: _say_certain_words,
    Kind.limit: _say_limit,
    Kind.no_limit: lambda setups: (
        f"Theory sets no limit behind {list_words(setups, 'or')}: nothing bounds how far one "
        "person can move the update. Clip each example before the noise, as dp_sgd does, or the "
        "whole update."
    ),
    Kind.limit_beaten: _say_limit_beaten,
    Kind.bound_beaten: _say_bound_beaten,
    Kind.bound_on_people: lambda share: (
        f"no attack identifies more than {percent(share)} of people"
    ),
    Kind.bound_silent: "says nothing",
    Kind.bound_contradicted: _say_standing("BEATEN: one of the two has a bug"),
    Kind.bound_without_attack: _say_standing("no attack to compare with"),
    Kind.bound_holds: _say_standing("holds for {people}, {gap:.1f} dB above"),
    Kind.bound_looser_than_guess: _say_standing(
        "a guess without any update is closer, for {share}"
    ),
    Kind.bound_passed_by_luck: _say_standing("closer for {share}, no more than luck explains"),
    Kind.bound_passed_by_bias: _say_standing(
        "closer for {share}, by bias or luck: the bound covers unbiased attacks only"
    ),
    Kind.bound_passed_by_prior: _say_standing(
        "closer for {share}, by what the bound leaves out: a prior, or luck"
    ),
    Kind.effort: _say_effort,
    Kind.control_without_result: "Positive control: it gave no result.",
    Kind.control_found: _say_control_found,
    Kind.control_found_few: _say_control_found_few,
    Kind.control_found_nobody: _say_control_found_nobody,
    Kind.negative_control: _say_negative_control,
    Kind.masked: _say_masked,
    Kind.rehearsal_rising: lambda setups: (
        f"With {list_words(setups)}, more steps still recovered more in rehearsal; a higher effort "
        "may find more."
    ),
    Kind.made_up: "Rehearsals used made-up inputs, since no public ones were given.",
    Kind.nothing_assumed: "No defense was assumed behind the {update}; if the client used one, "
    "name it with --defense, so that the attacks allow for it.",
    Kind.assumed: _say_assumed,
    Kind.words_proved: _say_guess(
        "{words} of {people} came back in no order, each proved to be in the batch"
    ),
    Kind.layer_read: _say_guess("What the first layer read of {sure} of {people} came back"),
    Kind.proved: _say_guess("The {noun} of {people} came back, proved {proof}"),
    Kind.explained: _say_guess(
        "What came back explains the update of {people}; others might as well"
    ),
    Kind.not_proved: _say_guess(
        "Cannot tell what leaked of {people}: the guesses are not proved right, and there is no "
        "truth to compare with"
    ),
    Kind.layers_read: _say_guess("What the first layer read came back from {read} of {updates}"),
    Kind.updates_proved: _say_updates_proved,
    Kind.updates_explained: _say_guess(
        "What came back explains {explained} of {updates}; others might as well"
    ),
    Kind.updates_not_proved: _say_guess(
        "Cannot tell what leaked from {updates}: no guess is proved right, and there is no truth "
        "to compare with"
    ),
    Kind.read_off_embeddings: "{attack} read them off the gradient of the embeddings.",
    Kind.not_checked: "The guess of {attack} could not be checked: it comes without labels.",
    Kind.layer_solved: lambda attack, residual: (
        f"{attack} solved the equations of that layer, which have no other solution. The whole "
        f"update, recomputed at the guess, differs by {_say_size(residual)} in some layer, as it "
        "does behind dropout, which cannot be simulated. So labels could not be checked, and if "
        "the client mixed its inputs, these are mixtures."
    ),
    Kind.residual: lambda attack, residual: (
        f"The update recomputed at the guess of {attack} differs from the captured one by "
        f"{_say_size(residual)}, in the layer where it differs most."
    ),
    Kind.no_proof_of_nothing: "That is no proof that nothing leaked: a guess may show a person "
    "without explaining the update to the last digit. Look at the pictures, or give the truth.",
    Kind.nothing_changed: "Nothing changed",
    Kind.noise_only: "Nothing changed beyond noise",
    Kind.less_leaks: _say_direction("Less"),
    Kind.more_leaks: _say_direction("More"),
    Kind.within_noise: lambda **shift: f"Within noise: {_say_shift(**shift)}.",
    Kind.most_changed: _say_most_changed,
    Kind.compared: _say_compared,
}
