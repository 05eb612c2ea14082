"""Section: truth beside reconstruction for every person, worst first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from seepage.report.amount import Amount
from seepage.report.leak import Attempt, Victim, by_defense, strength, strongest
from seepage.report.page.levels import amount, badge, level_class
from seepage.report.page.markup import Markup, element, joined
from seepage.report.page.picture import Shown, picture
from seepage.report.page.section import Section
from seepage.report.words import behind

# Pictures are for looking at: with many people the worst-off tell the story, and the page stays
# small enough to send.
PEOPLE = 24
BYTES = 4_000_000

Look = Callable[[Attempt], Shown | None]


def people_section(tried: Sequence[Attempt], *, truth: Look, guess: Look) -> Section:
    """Truth, then what came back behind each defense, for the worst-off people.

    Args:
        tried: Every attempt of the audit.
        truth: The private input behind an attempt, or None if it was not kept.
        guess: What the attempt made of it, or None if it was not kept.
    """
    guesses = {name: strongest(group) for name, group in by_defense(tried).items()}
    everybody = strongest(tried)
    cards: list[Markup] = []
    for victim in everybody:
        if len(cards) == PEOPLE or sum(map(len, cards)) > BYTES:
            break
        cards.append(_card(victim, guesses, truth, guess))
    left = len(everybody) - len(cards)
    beyond = (
        f" Shown are the {len(cards)} worst-off of {len(everybody)} people; the table below has "
        "the scores of all."
        if left
        else ""
    )
    return Section(
        "people",
        "Person by person, worst first",
        "The private input, then the best guess any attack made behind each defense." + beyond,
        joined(*cards),
    )


def pair(attempt: Attempt, *, truth: Look, guess: Look) -> Markup | None:
    """The private input beside one guess, or None where either was not kept."""
    original, reconstruction = truth(attempt), guess(attempt)
    if original is None or reconstruction is None:
        return None
    return joined(
        _figure(picture(original, alt=f"private input of {_name(attempt.victim)}"), "the truth"),
        _figure(
            picture(reconstruction, alt=_alt(attempt), over=original),
            joined("what came back ", element("b", None, amount(attempt))),
        ),
    )


def _card(
    victim: Victim, guesses: dict[str, dict[Victim, Attempt]], truth: Look, guess: Look
) -> Markup:
    mine = {name: people[victim] for name, people in guesses.items() if victim in people}
    worst = max(mine.values(), key=strength)
    original = truth(worst)
    alt = f"private input of {_name(victim)}"
    figures = [
        _figure(_missing() if original is None else picture(original, alt=alt), "the truth"),
        *(_guess(attempt, guess(attempt), original) for attempt in mine.values()),
    ]
    return element(
        "article",
        {"class": "person"},
        element("h3", None, _name(victim), " ", badge(worst.level)),
        element("p", {"class": "faint"}, _baselines(worst)),
        element("div", {"class": "figures"}, *figures),
    )


def _guess(attempt: Attempt, values: Shown | None, truth: Shown | None) -> Markup:
    return _figure(
        _missing() if values is None else picture(values, alt=_alt(attempt), over=truth),
        joined(
            element("span", {"class": "behind"}, behind(attempt.record.defense)),
            element("b", {"class": level_class(attempt.level)}, amount(attempt)),
            element("span", {"class": "faint"}, _fine_print(attempt)),
        ),
    )


def _fine_print(attempt: Attempt) -> str:
    parts = [attempt.record.attack.partition("(")[0]]
    if attempt.score("exact"):
        parts.append(attempt.amount.words())
    parts += [
        f"{name} {value:.2f}"
        for name in ("ssim", "lpips")
        if (value := attempt.score(name)) is not None
    ]
    certificate = attempt.record.certificate
    if certificate is not None:
        parts.append(certificate_words(certificate))
    return ", ".join(parts)


def certificate_words(certificate: Mapping[str, float | bool | None]) -> str:
    """What the attack can prove without the truth.

    Example:
        >>> certificate_words({"residual": 1.2e-7, "unique": True})
        'residual 1e-07, unique'
    """
    proof = ", unique" if certificate["unique"] else ""
    return f"residual {certificate['residual']:.0e}{proof}"


def _baselines(attempt: Attempt) -> str:
    guesses = {
        "the mean of others": attempt.record.baselines.get("mean"),
        "somebody else's": attempt.record.baselines.get("draw"),
    }
    metric = attempt.amount.metric
    said = [
        f"{name} {Amount(metric, scores[metric][attempt.index]).words()}"
        for name, scores in guesses.items()
        if scores
    ]
    return "Guesses that need no update: " + ", ".join(said) if said else ""


def _figure(content: Markup, caption: str) -> Markup:
    return element("figure", None, content, element("figcaption", None, caption))


def _missing() -> Markup:
    return element("div", {"class": "missing"}, "not kept")


def _alt(attempt: Attempt) -> str:
    where = behind(attempt.record.defense)
    how = attempt.record.attack.partition("(")[0]
    return f"{_name(attempt.victim)} as {how} saw it, {where}: {amount(attempt)}, {attempt.level}"


def _name(victim: Victim) -> str:
    return f"{victim[0]} #{victim[1]}"
