"""Contact sheets: truth and reconstruction side by side, as one picture."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from seepage.audit._record import Outcome, Record
from seepage.audit._words import decibels, defense_words, local_words, threat_label
from seepage.core._grouping import group_by
from seepage.core._whole_file import write_whole

if TYPE_CHECKING:
    from PIL import Image as Pillow
    from PIL.ImageDraw import ImageDraw


TILE, GAP, MARGIN, LINE, LEFT = 96, 8, 28, 20, 150
LARGE, SMALL = 15, 12
INK, FAINT, PAPER = (24, 24, 27), (113, 113, 122), (255, 255, 255)
ACROSS = 2


@dataclass(frozen=True, eq=False)
class PictureStrip:
    """One row of pictures: a label, and for each person a picture (or none) and a caption."""

    label: str
    pictures: tuple[Tensor | None, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class SheetBlock:
    """A heading with the rows under it: the truth, then what came back."""

    heading: str
    strips: tuple[PictureStrip, ...]

    def size(self, tile: int = TILE) -> tuple[int, int]:
        """Width and height in pixels, with the margin to the right and below."""
        columns = max(len(strip.pictures) for strip in self.strips)
        width = LEFT + columns * (tile + GAP) + MARGIN
        title = LINE * len(self.title(tile))
        return width, title + GAP + len(self.strips) * (tile + LINE + GAP) + MARGIN

    def title(self, tile: int = TILE) -> list[str]:
        """The heading in lines that end with the pictures under it."""
        columns = max(len(strip.pictures) for strip in self.strips)
        return _wrap_words(self.heading, width=LEFT + columns * (tile + GAP), size=LARGE)


def _wrap_words(text: str, *, width: int, size: int) -> list[str]:
    """Break text into lines of at most this many pixels, Greek letters spelled out.

    The font that comes with Pillow has no Greek letters and draws boxes instead.

    """
    from PIL import ImageFont

    font, lines = ImageFont.load_default(size), [""]
    for word in "".join(map(_spell, text)).split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _spell(letter: str) -> str:
    name = unicodedata.name(letter, "")
    return name.rpartition(" ")[2].lower() if name.startswith("GREEK SMALL") else letter


def draw(blocks: Sequence[SheetBlock], *, tile: int = TILE, across: int = ACROSS) -> Pillow.Image:
    """Draw one or more blocks, `across` in a row, with pictures of `tile` by `tile` pixels."""
    from PIL import Image, ImageDraw

    rows = [blocks[i : i + across] for i in range(0, len(blocks), across)]
    wide = max(block.size(tile)[0] for block in blocks)
    heights = [max(block.size(tile)[1] for block in row) for row in rows]
    width = MARGIN + wide * min(across, len(blocks))
    sheet = Image.new("RGB", (width, MARGIN + sum(heights)), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, block in enumerate(row):
            _draw_block(sheet, pen, block, MARGIN + column * wide, top, tile)
        top += height
    return sheet


def _draw_block(
    sheet: Pillow.Image, pen: ImageDraw, block: SheetBlock, left: int, top: int, tile: int
) -> None:
    from PIL import ImageFont

    large, small = ImageFont.load_default(LARGE), ImageFont.load_default(SMALL)
    for line in block.title(tile):
        pen.text((left, top), line, fill=INK, font=large)
        top += LINE
    top += GAP
    for strip in block.strips:
        label = "\n".join(_wrap_words(strip.label, width=LEFT - GAP, size=SMALL))
        pen.multiline_text((left, top), label, fill=INK, font=small, spacing=5)
        pairs = zip(strip.pictures, strip.captions, strict=True)
        for column, (picture, caption) in enumerate(pairs):
            x = left + LEFT + column * (tile + GAP)
            if picture is None:
                pen.rectangle((x, top, x + tile - 1, top + tile - 1), outline=FAINT)
            else:
                sheet.paste(_draw_tile(picture, tile), (x, top))
            pen.text((x + tile / 2, top + tile + 3), caption, fill=FAINT, font=small, anchor="ma")
        top += tile + LINE + GAP


def _draw_tile(picture: Tensor, size: int) -> Pillow.Image:
    """Draw an image `(C, H, W)` at the size of a tile, or a signal as one line per channel."""
    from PIL import Image

    if picture.ndim != 3:
        return _draw_lines(picture, size)
    larger = min(picture.shape[1:]) > size
    # Small images keep sharp pixels; large ones are averaged.
    how = Image.Resampling.BOX if larger else Image.Resampling.NEAREST
    return draw_image(picture).resize((size, size), how)


def draw_image(image: Tensor) -> Pillow.Image:
    """Draw an image `(C, H, W)` in [0, 1] with its own pixels."""
    from PIL import Image

    colours = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    levels = (colours.nan_to_num().clamp(0, 1).permute(1, 2, 0) * 255).round().byte()
    return Image.fromarray(levels.contiguous().numpy())


def _draw_lines(signal: Tensor, size: int) -> Pillow.Image:
    """Draw a signal `(C, L)` between its extremes, in a frame."""
    from PIL import Image, ImageDraw

    tile = Image.new("RGB", (size, size), PAPER)
    pen = ImageDraw.Draw(tile)
    pen.rectangle((0, 0, size - 1, size - 1), outline=FAINT)
    channels = signal.reshape(-1, signal.shape[-1]).nan_to_num()
    low, high = float(channels.min()), float(channels.max())
    levels = (high - channels) / ((high - low) or 1.0) * (size - 7) + 3
    for channel in levels.tolist():
        step = (size - 7) / max(len(channel) - 1, 1)
        pen.line([(3 + i * step, y) for i, y in enumerate(channel)], fill=INK)
    return tile


SHOWN = 8


def save_contact_sheet(outcomes: Sequence[Outcome], path: Path) -> bool:
    """Draw every case whose inputs are images; return whether there was any.

    The picture is for its owner alone, since it shows private inputs.
    """
    inputs = [(o, o.guess if o.truth is None else o.truth) for o in outcomes]
    blocks = _make_blocks([o for o, shown in inputs if shown is not None and shown.ndim == 4])
    if blocks:
        kept = io.BytesIO()
        draw(blocks).save(kept, "png")
        write_whole(path, kept.getvalue())
    return bool(blocks)


def truth_strip(outcomes: Sequence[Outcome], *, shown: int = SHOWN) -> PictureStrip | None:
    """The private inputs of the first people, with their numbers; None if there are none."""
    known = [o for o in outcomes if o.truth is not None]
    people = [f"#{person}" for o in known for person in o.record.people]
    truth = [image for o in known if o.truth is not None for image in o.truth]
    return PictureStrip("truth", tuple(truth[:shown]), tuple(people[:shown])) if known else None


def guess_strip(label: str, outcomes: Sequence[Outcome], *, shown: int = SHOWN) -> PictureStrip:
    """What came back of the first people, with its PSNR."""
    pictures: list[Tensor | None] = []
    captions: list[str] = []
    for outcome in outcomes:
        nothing = [None] * outcome.record.batch_size
        pictures.extend(nothing if outcome.guess is None else outcome.guess)
        if outcome.guess is None:
            captions.extend(["failed" if outcome.record.failed else "n/a"] * len(nothing))
        else:
            captions.extend(map(decibels, outcome.record.scores.get("psnr", nothing)))
    return PictureStrip(label, tuple(pictures[:shown]), tuple(captions[:shown]))


def _make_blocks(outcomes: Sequence[Outcome]) -> list[SheetBlock]:
    groups = group_by(outcomes, lambda one: _read_scene(one.record))
    blocks = []
    for (heading, *details), group in groups.items():
        # Blocks with the same heading are told apart by what differs between them.
        same = [key[1:] for key in groups if key[0] == heading]
        columns = zip(details, zip(*same, strict=True), strict=True)
        telling = [detail for detail, values in columns if len(set(values)) > 1]
        by_defense = group_by(group, lambda one: one.record.defense)
        truth = truth_strip(next(iter(by_defense.values())))
        guesses = [guess_strip(defense_words(links), some) for links, some in by_defense.items()]
        strips = guesses if truth is None else [truth, *guesses]
        blocks.append(SheetBlock(", ".join([heading, *telling]), tuple(strips)))
    return blocks


def _read_scene(record: Record) -> tuple[str, ...]:
    """The heading of a block, and what may tell it from others with the same heading."""
    return (
        f"{record.data}, {record.attack.name} on {record.model}",
        str(record.attack),
        local_words(record.local),
        "" if record.threat is None else threat_label(record.threat),
        f"batch size {record.batch_size}",
        f"seed {record.seed}",
    )
