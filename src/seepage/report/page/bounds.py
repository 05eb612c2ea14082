"""Section: what theory allows beside what was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seepage.report.bound_rows import closest_words, error_words, reading, silences
from seepage.report.headroom import Headroom, Scene, reached, scenes
from seepage.report.page.ceiling_chart import Pair, ceiling_chart, legend
from seepage.report.page.markup import Markup, element, joined, scrolling, table
from seepage.report.page.records import filter_link
from seepage.report.page.section import Section
from seepage.report.words import behind, decibels, short_names


def bound_section(found: Sequence[Headroom]) -> Section | None:
    """Floors and ceilings, network by network, or None where no bound was computed."""
    if not found:
        return None
    names = list(short_names(headroom.bound for headroom in found).items())
    speaking = {headroom.bound for headroom in found if headroom.speaks}
    heard = {bound: short for bound, short in names if bound in speaking}
    hues = {bound: number for number, bound in enumerate(heard)}
    return Section(
        "bounds",
        "What theory allows",
        "An attack shows that at least so much leaks, a bound that no attack it speaks of gets "
        "further. Dots are the strongest attack on each person; each lane below has a tick where "
        "theory stops that person's attacker, and is tinted beyond the last. Between dot and tick "
        "nobody knows. Most bounds are of unbiased attacks: one that prefers likely inputs may "
        "pass them, as may a guess without any update where they are wide. The axis is PSNR, and "
        "below it the error per entry (RMSE, in units of the range) that it means.",
        joined(
            legend(list(heard.values())),
            *(_network(group, hues) for group in _by_network(found)),
            element(
                "div", {"class": "assumptions"}, *(_assumptions(*pair, found) for pair in names)
            ),
        ),
    )


def _by_network(found: Sequence[Headroom]) -> list[list[Headroom]]:
    groups: dict[Scene, list[Headroom]] = {}
    for headroom in found:
        groups.setdefault(replace(headroom.scene, defense=""), []).append(headroom)
    return list(groups.values())


def _network(found: Sequence[Headroom], hues: dict[str, int]) -> Markup:
    scene = found[0].scene
    title = f"{scene.model} on {scene.data}"
    pairs = [_pair(scene, group, hues) for scene, group in scenes(found).items()]
    return joined(
        element("h3", {"class": "network"}, title),
        ceiling_chart(pairs, label=f"Floors and ceilings of {title}, in dB of PSNR"),
        _table(title, found, [bound for bound in hues if _speaks(bound, found)]),
    )


def _speaks(bound: str, found: Sequence[Headroom]) -> bool:
    return any(headroom.speaks for headroom in found if headroom.bound == bound)


def _pair(scene: Scene, group: Sequence[Headroom], hues: dict[str, int]) -> Pair:
    name = behind(scene.defense)
    people = list(reached(group).values())
    speaking = sorted(((hues[h.bound], h) for h in group if h.speaks), key=lambda lane: lane[0])
    return Pair(
        label=filter_link(name),
        name=name,
        note=f"closest: {closest_words(group)}{'' if speaking else '; no bound speaks'}",
        floor=people,
        ceilings=speaking,
    )


def _table(title: str, found: Sequence[Headroom], bounds: Sequence[str]) -> Markup:
    short = short_names(bounds)
    header = {"behind": "", "closest attack": "number", **{short[b]: "number" for b in bounds}}
    rows: list[list[str]] = []
    for scene, group in scenes(found).items():
        by_bound = {headroom.bound: headroom for headroom in group}
        cells = [_cell(by_bound.get(bound)) for bound in bounds]
        rows.append([behind(scene.defense), closest_words(group), *cells])
    caption = (
        "The person in the middle: the error (RMSE) that attacks have at least, the PSNR they "
        "have at most, and how that stands to what was reached."
    )
    return scrolling(f"Bounds on {title}", table(caption, header, rows, {"class": "matrix"}))


def _cell(headroom: Headroom | None) -> Markup:
    if headroom is None:
        return element("span", {"class": "faint"}, "not asked")
    if not headroom.speaks:
        return element("span", {"class": "faint"}, "says nothing")
    middle, said = headroom.middle, reading(headroom)
    beaten = said.startswith("BEATEN")
    return joined(
        element("span", {"class": "worst"}, f"{error_words(middle.rmse)}"),
        element("span", None, decibels(middle.ceiling)),
        element("span", {"class": "leak" if beaten else "faint wrap"}, said),
    )


def _assumptions(bound: str, short: str, found: Sequence[Headroom]) -> Markup:
    """What a bound rests on, and where it says nothing, behind one click."""
    own = [headroom for headroom in found if headroom.bound == bound]
    phrases = dict.fromkeys(phrase for headroom in own for phrase in headroom.assumptions)
    lines = [
        *(element("li", None, f"{phrase}.") for phrase in phrases),
        *(element("li", {"class": "faint"}, sentence) for sentence in silences(own)),
    ]
    speaks = _speaks(bound, own)
    title = f"What {short} assumes" if speaks else f"{short} says nothing here, and why"
    return element(
        "details",
        None,
        element("summary", None, title),
        element("ul", None, *lines) if lines else element("p", None, "Nothing."),
    )
