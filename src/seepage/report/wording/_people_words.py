"""Sentences on people: how many were identified, who is worst off, and what a defense changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from seepage.audit._words import UNSIMULATED, count_noun, defense_words, list_words, percent
from seepage.audit.results import Level, Result
from seepage.audit.results._amount import Amount
from seepage.report.wording._kinds import Cause, Kind, Template, fill
from seepage.scoring._gallery import FEWEST
from seepage.scoring._identification import Identification, fewest_strangers

CAUSES: Mapping[Cause, str] = {
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


def _say_cause(because: tuple[Cause, int]) -> str:
    cause, strangers = because
    return fill(CAUSES[cause], strangers=strangers)


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


def _say_missed(template: str) -> Callable[..., str]:
    """Word a headline about people of whom none was identified."""

    def say(
        *,
        total: int,
        where: str,
        parts: Sequence[Amount],
        labels: int,
        because: tuple[Cause, int] | None,
        ceiling: float,
        **_: object,
    ) -> str:
        said = _say_parts(parts, labels, total)
        attacked = f"({count_noun(total, 'person', 'people')} attacked)"
        limit = f"; in theory no attack identifies more than {percent(ceiling)} of people"
        return template.format(
            where=where,
            said=said,
            but=f", but {said} came back" if said else f" {attacked}",
            also=f"; {said} came back" if said else "",
            why=f"{_say_cause(because)} {attacked}" if because else "",
            limit=limit if ceiling < 1 else "",
        )

    return say


def _say_worst(*, row: Result) -> str:
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
    return f"The worst-off person, {row.name}, {how}{_say_place(row)}{guessed}."


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


def _say_scarce(*, scarce: int, total: int) -> str:
    who, alone = f"For {scarce} of {total} people", ""
    if total == 1:
        who = "For the one person attacked"
        alone = f", and {fewest_strangers(1)} if one person alone is attacked"
    return (
        f"{who} only a near copy of the input counts; singling out takes {FEWEST} strangers of the "
        f"same label{alone}."
    )


def _say_rest(template: str) -> Callable[..., str]:
    """Word how many others may be identifiable, if none of these people was."""

    def say(*, people: int, updates: int, share: float, **numbers: object) -> str:
        shared = f" in {count_noun(updates, 'update')}" if updates < people else ""
        rest = (
            f"with {count_noun(people, 'person', 'people')}{shared} tested, up to "
            f"{100 * share:.0f} % of a population may still be (95 % confidence)"
        )
        return fill(template, rest=rest, **numbers)

    return say


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


PEOPLE: Mapping[Kind, Template] = {
    Kind.identified: _say_identified,
    Kind.not_identified: _say_missed("Nobody was identified{where}{but}{limit}"),
    Kind.inconclusive: _say_missed("Inconclusive{where}: {why}{also}{limit}"),
    Kind.words_leaked: _say_missed(
        "Words leaked{where}: {said} came back; whether anybody is identified is inconclusive: "
        "{why}{limit}"
    ),
    Kind.worst_off: _say_worst,
    Kind.counting: "In {updates} captured updates the same input of one client counts as one "
    "person; whether different inputs are of one person cannot be known, so each of them counts.",
    Kind.repeated: lambda worst, **numbers: fill(
        "With {setup}, {found} of {total} people count as found behind {links}, which whoever sees "
        "the update can apply to it: the search without it was too weak (there {worst.name} came "
        "back at {came}).",
        worst=worst, links=defense_words(worst.behind), came=worst.amount.words(), **numbers,
    ),
    Kind.outdone: lambda worst, without, **numbers: fill(
        "More came back of {found} of {total} people with {setup} than with {bare} (of "
        "{worst.name} {came}, and {bare_came}): the search without it was too weak, unless the "
        "defense itself gives more away.",
        worst=worst, came=worst.amount.words(), bare_came=without.amount.words(), **numbers,
    ),
    Kind.scarce: _say_scarce,
    Kind.unsimulated: "What {setups} prepares is not what its prepare_expected tells those who "
    "simulate it, so a guess that explains the update may still be wrong, and none is proved.",
    Kind.population: _say_rest("That nobody was identified is no proof for others: {rest}."),
    Kind.identified_by_setup: _say_identified_by_setup,
    Kind.identified_behind: _say_identified_behind,
    Kind.settled_behind: "Nobody was identified behind {setups:or}; in theory no attack does "
    "better than luck.",
    Kind.held_behind: _say_rest("Nobody was identified behind {setups:or}; {rest}."),
    Kind.inconclusive_behind: lambda setups, because: (
        f"Inconclusive behind {list_words(setups, 'or')}: {_say_cause(because)}."
    ),
    Kind.parts_behind: lambda setup, **parts: (
        f"Behind {setup}, {_say_parts(**parts)} came back all the same."
    ),
    Kind.nothing_holds: "No defense tried here hides everybody.",
    Kind.no_result: lambda what, failed: (
        f"No result {what}: {'every case failed' if failed else 'no attack applies'}."
    ),
    Kind.more_without_result: "No result for {more} more networks or data sets.",
    Kind.certain_words: lambda words: fill(
        "{words:different word} of one batch {verb} proved to be in it.",
        words=words, verb="is" if words == 1 else "are",
    ),
}  # fmt: skip
