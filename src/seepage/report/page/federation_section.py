"""What the updates of a federation gave away, with clients and rounds as axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seepage.report.leak import Attempt, residual_of, strength, tell_proof, unscored
from seepage.report.page.document import (
    Markup,
    Section,
    amount,
    badge,
    element,
    faint,
    filter_link,
    make_scrollable,
)

if TYPE_CHECKING:
    from seepage.audit.record import Record

# What `seepage audit --capture FOLDER` calls the data behind an update.
_NAME = re.compile(r"client (?P<client>.+), round (?P<round>\d+)")
_TOGETHER = (
    " Each round was attacked alone. Where a client trained on the same data again, its rounds "
    "tell more together: see stack_rounds."
)


def federation_section(records: Sequence[Record], tried: Sequence[Attempt]) -> Section | None:
    """One cell for each update, by client and round; None unless there are several of them."""
    places = {
        record.data: (found["client"], int(found["round"]))
        for record in records
        if (found := _NAME.fullmatch(record.data)) is not None
    }
    if len(set(places.values())) < 2:
        return None
    clients = sorted({client for client, _ in places.values()})
    rounds = sorted({number for _, number in places.values()})
    names = {place: data for data, place in places.items()}
    head = element(
        "tr",
        None,
        element("th", {"scope": "col"}, "client"),
        *(element("th", {"scope": "col"}, f"round {number}") for number in rounds),
    )
    rows = [
        element(
            "tr",
            None,
            element("th", {"scope": "row"}, client),
            *(_draw_cell(names.get((client, number)), records, tried) for number in rounds),
        )
        for client in clients
    ]
    return Section(
        "federation",
        "By client and by round",
        f"{len(places)} updates of {len(clients)} clients in {len(rounds)} rounds. Each cell shows "
        "what came back of the worst-off person behind one update. Clients are named by the "
        "beginning of their hash, and a number leads to all results of an update. Without a truth "
        "it is the residual; a guess that is right to 8 bits, or in every token, is proved."
        + (_TOGETHER if len(places) > len(clients) else ""),
        make_scrollable("Clients and rounds", element("table", {"class": "grid"}, head, *rows)),
    )


def _draw_cell(data: str | None, records: Sequence[Record], tried: Sequence[Attempt]) -> Markup:
    if data is None:
        return element("td", None, faint("-"))
    mine = [attempt for attempt in tried if attempt.record.data == data]
    if mine:
        worst = max(mine, key=strength)
        return element("td", None, badge(worst.level), " ", filter_link(amount(worst), words=data))
    blind = sorted(unscored(r for r in records if r.data == data), key=residual_of)
    if not blind:
        return element("td", None, filter_link("failed", words=data))
    proofs = [r.certificate for r in blind if r.certificate and r.certificate["unique"]]
    said = tell_proof(proofs[0]) if proofs else "no truth"
    style = {"class": "badge leak" if proofs else "badge trace"}
    left = filter_link(f"residual {residual_of(blind[0]):.0e}", words=data)
    return element("td", None, element("span", style, said), " ", left)
