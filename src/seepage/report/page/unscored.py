"""Section: what came back where nobody has the truth to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from seepage.audit import Record
from seepage.report.page.markup import Markup, element, joined
from seepage.report.page.people import PEOPLE, certificate_words
from seepage.report.page.picture import picture
from seepage.report.page.section import Section
from seepage.report.unscored import residual_of, unscored


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
        joined(*(_card(record, guess(record)) for record in blind)),
    )


def _card(record: Record, guesses: Tensor | None) -> Markup:
    name = record.attack.partition("(")[0]
    checked = certificate_words(record.certificate) if record.certificate else "not checked"
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
