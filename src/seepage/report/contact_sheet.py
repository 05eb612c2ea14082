"""Truth beside reconstruction, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from seepage.audit import Outcome
from seepage.report.words import decibels, defense_words

if TYPE_CHECKING:
    from PIL import Image as Pillow
    from PIL.ImageDraw import ImageDraw

TILE, GAP, MARGIN, LINE, LEFT = 96, 8, 28, 20, 150
INK, FAINT, PAPER = (24, 24, 27), (113, 113, 122), (255, 255, 255)
SHOWN = 8
ACROSS = 2


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of pictures: a label, and for each person a picture (or none) and a caption."""

    label: str
    pictures: tuple[Tensor | None, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """A heading with the rows under it: the truth, then what came back behind each defense."""

    heading: str
    strips: tuple[Strip, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, with the margin to the right and below."""
        columns = max(len(strip.pictures) for strip in self.strips)
        width = LEFT + columns * (TILE + GAP) + MARGIN
        return width, LINE + GAP + len(self.strips) * (TILE + LINE + GAP) + MARGIN


def save_contact_sheet(outcomes: Sequence[Outcome], path: Path) -> bool:
    """Draw every case whose inputs are images, and tell whether there was any."""
    blocks = _blocks([o for o in outcomes if _images(o)])
    if blocks:
        _draw(blocks).save(path)
    return bool(blocks)


def _images(outcome: Outcome) -> bool:
    shown = outcome.guess if outcome.truth is None else outcome.truth
    return shown is not None and shown.ndim == 4


def _blocks(outcomes: Sequence[Outcome]) -> list[Block]:
    groups: dict[tuple[str | int, ...], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        record = outcome.record
        same = (record.data, record.attack, record.model, record.local, record.threat, record.seed)
        groups.setdefault(same, {}).setdefault(record.defense, []).append(outcome)
    headings = [f"{key[0]}, {str(key[1]).partition('(')[0]} on {key[2]}" for key in groups]
    # What the short headings leave out is added where two would read the same.
    full = [", ".join(map(str, key)) for key in groups]
    shown = [
        short if headings.count(short) == 1 else long
        for short, long in zip(headings, full, strict=True)
    ]
    return [_block(name, group) for name, group in zip(shown, groups.values(), strict=True)]


def _block(heading: str, by_defense: dict[str, list[Outcome]]) -> Block:
    first = next(iter(by_defense.values()))
    known = [o for o in first if o.truth is not None]
    people = [f"#{person}" for o in known for person in o.record.people]
    truth = [image for o in known if o.truth is not None for image in o.truth]
    strips = [Strip("truth", tuple(truth[:SHOWN]), tuple(people[:SHOWN]))] if known else []
    strips.extend(_strip(defense, outcomes) for defense, outcomes in by_defense.items())
    return Block(heading, tuple(strips))


def _strip(defense: str, outcomes: list[Outcome]) -> Strip:
    pictures: list[Tensor | None] = []
    captions: list[str] = []
    for outcome in outcomes:
        if outcome.guess is None:
            pictures.extend([None] * len(outcome.record.people))
            captions.extend(["failed"] * len(outcome.record.people))
        else:
            unscored = tuple(None for _ in outcome.guess)
            pictures.extend(outcome.guess)
            captions.extend(decibels(v) for v in outcome.record.scores.get("psnr", unscored))
    label = "no defense" if defense == "chain()" else defense_words(defense)
    return Strip(label.replace(" + ", " +\n"), tuple(pictures[:SHOWN]), tuple(captions[:SHOWN]))


def _draw(blocks: Sequence[Block]) -> Pillow.Image:
    """Lay the blocks out two in a row."""
    from PIL import Image, ImageDraw

    rows = [blocks[i : i + ACROSS] for i in range(0, len(blocks), ACROSS)]
    wide = max(block.size[0] for block in blocks)
    width = MARGIN + wide * min(ACROSS, len(blocks))
    height = MARGIN + sum(max(block.size[1] for block in row) for row in rows)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = MARGIN
    for row in rows:
        for column, block in enumerate(row):
            _draw_block(sheet, pen, block, MARGIN + column * wide, top)
        top += max(block.size[1] for block in row)
    return sheet


def _draw_block(sheet: Pillow.Image, pen: ImageDraw, block: Block, left: int, top: int) -> None:
    from PIL import ImageFont

    large, small = ImageFont.load_default(15), ImageFont.load_default(12)
    pen.text((left, top), block.heading, fill=INK, font=large)
    top += LINE + GAP
    for strip in block.strips:
        pen.multiline_text((left, top), strip.label, fill=INK, font=small, spacing=5)
        pairs = zip(strip.pictures, strip.captions, strict=True)
        for column, (picture, caption) in enumerate(pairs):
            x = left + LEFT + column * (TILE + GAP)
            if picture is None:
                pen.rectangle((x, top, x + TILE - 1, top + TILE - 1), outline=FAINT)
            else:
                sheet.paste(_tile(picture), (x, top))
            pen.text((x + TILE / 2, top + TILE + 3), caption, fill=FAINT, font=small, anchor="ma")
        top += TILE + LINE + GAP


def _tile(picture: Tensor) -> Pillow.Image:
    """One image `(C, H, W)` at the size of a tile, its pixels kept as they are."""
    from PIL import Image

    colours = picture.expand(3, -1, -1) if picture.shape[0] == 1 else picture[:3]
    levels = (colours.clamp(0, 1).permute(1, 2, 0) * 255).round().byte()
    return Image.fromarray(levels.numpy()).resize((TILE, TILE), Image.Resampling.NEAREST)
