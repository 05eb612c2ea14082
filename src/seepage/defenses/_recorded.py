"""Defenses as records hold them: the built-in one that a record names, and what people call it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from seepage.core import Protection
from seepage.core._chain import Link
from seepage.core._construct import Component, construct
from seepage.core.errors import SeepageError
from seepage.defenses import DEFENSES
from seepage.defenses._clip import AddGaussian, ClipEach, Mean


@lru_cache(maxsize=4096)
def find_built_in(link: Component) -> Protection | None:
    """The defense that a record names, if it is one of Seepage; nobody else's code is imported.

    Example:
        >>> find_built_in(Component("Prune", {"ratio": 0.9}))
        Prune(0.9)
        >>> find_built_in(Component("Prune", {"width": 3}))
    """
    made = DEFENSES.built_in.get(link.name)
    if not isinstance(made, type):
        return None
    try:
        defense: Protection = construct(link.name, made, link.arguments)
    except (SeepageError, ValueError, TypeError, ArithmeticError):  # somebody else's, so named
        return None
    return defense


def adds_noise(link: Component) -> bool:
    """Whether a recorded defense is known to add noise."""
    found = find_built_in(link)
    return isinstance(found, Link) and found.noise > 0


def only_scales(link: Component) -> bool:
    """Whether a recorded defense is known to only multiply an update by a number."""
    found = find_built_in(link)
    return isinstance(found, Link) and found.only_scales


def defense_words(defense: Sequence[Component]) -> str:
    """A few words for a chain of defenses; somebody else's read like the call that makes them.

    Example:
        >>> defense_words(()), defense_words((Component("Prune", {"ratio": 0.9}),))
        ('no defense', 'Prune 0.9')
        >>> defense_words((Component("Sign"), Component("Blur", {"width": 3})))
        'Sign + Blur(width=3)'
        >>> clip, mean = Component("ClipEach", {"max_norm": 1.0}), Component("Mean", {"over": 4})
        >>> defense_words((clip, mean, Component("AddGaussian", {"std": 0.125})))
        'DP-SGD C=1 σ=0.5'
        >>> defense_words((clip, Component("Mean"), Component("AddGaussian", {"std": 0.01})))
        'DP-SGD C=1 noise 0.01'
    """  # noqa: RUF002
    links = [find_built_in(link) or link for link in defense]
    for start in range(len(links) - 2):
        match links[start : start + 3]:
            case [ClipEach(max_norm=norm), Mean(over=over), AddGaussian(std=std)]:
                sigma = "\N{GREEK SMALL LETTER SIGMA}"
                noise = f"noise {std:g}" if over is None else f"{sigma}={std * over / norm:g}"
                before, after = map(_describe, links[:start]), map(_describe, links[start + 3 :])
                return " + ".join([*before, f"DP-SGD C={norm:g} {noise}", *after])
    return " + ".join(map(_describe, links)) or "no defense"


def _describe(link: object) -> str:
    return link.describe() if isinstance(link, Link) else str(link)
