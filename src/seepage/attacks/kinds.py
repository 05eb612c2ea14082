"""Which attacks can ever fit a kind of inputs, whatever the network and the update."""

from __future__ import annotations

from collections.abc import Mapping

from seepage.attacks.catalogue import ATTACKS
from seepage.core import Domain
from seepage.core.errors import NotApplicable
from seepage.domains import Image, Signal, Tabular, Tokens

_NOUNS: Mapping[type, str] = {
    Image: "images",
    Signal: "signals",
    Tabular: "rows of tables",
    Tokens: "texts",
}
# All others compute with inputs as numbers, which those of words are not.
_ONLY: Mapping[str, type] = {"dager": Tokens, "tableak": Tabular}


def attacks_on(domain: Domain) -> list[str]:
    """The names of the built-in attacks that may fit inputs of this kind.

    Example:
        >>> attacks_on(Tokens(8, 50))
        ['dager']
    """
    numbers = not isinstance(domain, Tokens)
    return [
        name
        for name in ATTACKS.built_in
        if (isinstance(domain, _ONLY[name]) if name in _ONLY else numbers)
    ]


def require_kind(name: str, domain: Domain) -> None:
    """Raise `NotApplicable` if the attack of this name can never fit inputs of this kind.

    Attacks of other packages say it themselves when they run.
    """
    fitting = attacks_on(domain)
    if name in fitting or name not in ATTACKS.built_in:
        return
    kind = _NOUNS.get(type(domain), "other inputs")
    meant = f"is for {_NOUNS[_ONLY[name]]}" if name in _ONLY else "computes with numbers"
    raise NotApplicable(f"{name} {meant}, got {kind}; what fits those: {', '.join(fitting)}")
