"""Section: truth beside reconstruction for every person, worst first."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from seepage.audit.record import Record
from seepage.report.leak import (
    Amount,
    Attempt,
    Victim,
    group_by_setup,
    residual_of,
    strength,
    strongest,
    unscored,
)
from seepage.report.page.document import (
    Markup,
    Section,
    amount,
    badge,
    element,
    join_markup,
    level_class,
)
from seepage.report.words import defense_words, label_setups

# Longest side of a picture, in pixels; larger images are reduced.
LARGEST = 96
POINTS = 160


Shown = Tensor | tuple[str, ...]


def picture(values: Shown, *, alt: str, over: Shown | None = None) -> Markup:
    """An image `(C, H, W)` as pixels, words as words; anything else, `(C, L)` or `(L,)`, as lines.

    Args:
        values: One person's input or a guess at it, in natural units, or in words.
        alt: What it shows, for those who do not see it.
        over: The truth under a guess: lines are drawn over it, faintly and to the same scale, and
            words that are not its own are marked.
    """
    if not isinstance(values, Tensor):
        return words(values, over=over if isinstance(over, tuple) else values)
    over = over if isinstance(over, Tensor) else None
    if values.ndim == 3:
        return element("img", {"class": "pixels", "src": png(values), "alt": alt})
    return signal(values, alt=alt, over=over)


def words(said: tuple[str, ...], *, over: tuple[str, ...]) -> Markup:
    """A text or the columns of a row, with the words marked that differ from the truth's.

    Example:
        >>> words(("good", "night"), over=("good", "morrow"))
        '<p class="said"><span>good</span> <mark>night</mark> </p>'
    """
    pairs = zip(said, over, strict=True)
    return element(
        "p",
        {"class": "said"},
        *(
            join_markup(element("span" if ours == theirs else "mark", None, ours), " ")
            for ours, theirs in pairs
        ),
    )


def png(image: Tensor) -> str:
    """An image `(C, H, W)` in [0, 1] as a data address, its pixels kept as they are if it is small.

    Example:
        >>> png(torch.zeros(1, 2, 2))[:22]
        'data:image/png;base64,'
    """
    from PIL import Image

    colours = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    levels = (colours.nan_to_num().clamp(0, 1).permute(1, 2, 0) * 255).round().byte()
    drawn = Image.fromarray(levels.contiguous().numpy())
    drawn.thumbnail((LARGEST, LARGEST))
    kept = io.BytesIO()
    drawn.save(kept, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode("ascii")


def signal(values: Tensor, *, alt: str, over: Tensor | None = None) -> Markup:
    """A signal `(C, L)` or `(L,)` as one line per channel; arguments as for `picture`."""
    drawn = {"": _channels(values), "under": None if over is None else _channels(over)}
    layers = {kind: lines for kind, lines in drawn.items() if lines is not None}
    low = min(float(lines.min()) for lines in layers.values())
    high = max(float(lines.max()) for lines in layers.values())
    lines = [
        _line((line - low) / max(high - low, 1e-12), kind)
        for kind, channels in reversed(layers.items())
        for line in channels
    ]
    frame = {"class": "signal", "viewBox": "0 0 96 40", "role": "img", "aria-label": alt}
    return element("svg", frame, *lines)


def _channels(values: Tensor) -> Tensor:
    lines = values.nan_to_num().reshape(-1, values.shape[-1])
    return lines[:, :: max(1, lines.shape[-1] // POINTS)]


def _line(heights: Tensor, kind: str) -> Markup:
    """A line of heights in [0, 1]."""
    across = torch.linspace(2, 94, len(heights)).tolist()
    points = " ".join(
        f"{x:.1f},{36 - 32 * y:.1f}" for x, y in zip(across, heights.tolist(), strict=True)
    )
    return element("polyline", {"class": kind or None, "points": points})


# Pictures are for looking at: with many people the worst-off tell the story, and the page stays
# small enough to send.
PEOPLE = 24
BYTES = 4_000_000

Look = Callable[[Attempt], Shown | None]


def people_section(tried: Sequence[Attempt], *, truth: Look, guess: Look) -> Section:
    """Truth, then what came back with each defense, for the worst-off people.

    Args:
        tried: Every attempt of the audit.
        truth: The private input of an attempt, or None if it was not kept.
        guess: What the attempt made of it, or None if it was not kept.
    """
    groups = group_by_setup(tried)
    labels = label_setups(groups)
    guesses = {labels[setup]: strongest(group) for setup, group in groups.items()}
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
        "The private input, then the best guess of any attack for each defense." + beyond,
        join_markup(*cards),
    )


def pair(attempt: Attempt, *, truth: Look, guess: Look) -> Markup | None:
    """The private input beside one guess, or None where either was not kept."""
    original, reconstruction = truth(attempt), guess(attempt)
    if original is None or reconstruction is None:
        return None
    return join_markup(
        _figure(picture(original, alt=f"private input of {_name(attempt.victim)}"), "the truth"),
        _figure(
            picture(reconstruction, alt=_alt(attempt), over=original),
            join_markup("what came back ", element("b", None, amount(attempt))),
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
        *(_guess(name, one, guess(one), original) for name, one in mine.items()),
    ]
    return element(
        "article",
        {"class": "person"},
        element("h3", None, _name(victim), " ", badge(worst.level)),
        element("p", {"class": "faint"}, _baselines(worst)),
        element("div", {"class": "figures"}, *figures),
    )


def _guess(label: str, attempt: Attempt, values: Shown | None, truth: Shown | None) -> Markup:
    return _figure(
        _missing() if values is None else picture(values, alt=_alt(attempt), over=truth),
        join_markup(
            element("span", {"class": "behind"}, label),
            element("b", {"class": level_class(attempt.level)}, amount(attempt)),
            element("span", {"class": "faint"}, _fine_print(attempt)),
        ),
    )


def _fine_print(attempt: Attempt) -> str:
    parts = [attempt.record.attack.name]
    if attempt.score("exact"):
        parts.append(attempt.amount.words())
    parts += [
        f"{name} {value:.2f}"
        for name in ("ssim", "lpips")
        if (value := attempt.score(name)) is not None
    ]
    certificate = attempt.record.certificate
    if certificate is not None:
        parts.append(_certificate_words(certificate))
    return ", ".join(parts)


def _certificate_words(certificate: Mapping[str, float | bool | None]) -> str:
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
    where = defense_words(attempt.record.defense)
    how = attempt.record.attack.name
    return f"{_name(attempt.victim)} as {how} saw it, {where}: {amount(attempt)}, {attempt.level}"


def _name(victim: Victim) -> str:
    return f"{victim[0]} #{victim[1]}"


def unscored_section(
    records: Sequence[Record], *, guess: Callable[[Record], Tensor | None]
) -> Section | None:
    """Pictures of every guess, the one that explains the update best first; None if there is none.

    Args:
        records: Of the audit.
        guess: What came back, or None if it was not kept.
    """
    blind = sorted(unscored(records), key=residual_of)
    if not blind:
        return None
    return Section(
        "unscored",
        "What came back, with no truth to compare it with",
        "Every guess as the attack left it, the one that explains the update best first. The "
        "residual is the relative difference between the update recomputed at the guess and the "
        "one that was seen; unique means that no input nearby explains it as well.",
        join_markup(*(_unscored_card(record, guess(record)) for record in blind)),
    )


def _unscored_card(record: Record, guesses: Tensor | None) -> Markup:
    name = record.attack.name
    checked = _certificate_words(record.certificate) if record.certificate else "not checked"
    shown = [] if guesses is None else list(guesses[:PEOPLE])
    figures = [
        element(
            "figure",
            None,
            picture(values, alt=f"guess {number} of {name} on {record.data}"),
            element("figcaption", None, f"guess {number}"),
        )
        for number, values in enumerate(shown)
    ]
    return element(
        "article",
        {"class": "person"},
        element("h3", None, f"{record.data}, {name}"),
        element("p", {"class": "faint"}, checked),
        element("div", {"class": "figures"}, *figures),
    )
