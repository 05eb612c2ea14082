"""Make docs/pictures/recovered.png: private photos beside what an attack recovers of them.

    python scripts/readme_picture.py [OUT]

Photos, network and attack are those of the quickstart. Each photo is sent as one client's gradient,
without a defense and with two, and attacked by an adversary who knows the label.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import seepage as sp
from seepage.core import Defense
from seepage.rehearsal import auto

PEOPLE, SIDE, GAP, MARGIN = 4, 96, 6, 200
DEFENSES: dict[str, Defense] = {
    "no defense": sp.chain(),
    "pruned to 10 %": sp.chain(sp.Prune(0.9)),
    "DP-SGD, C = 1, std 0.01": sp.chain(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.01)),
}


def recover_photo(batch: sp.Batch, defense: Defense) -> tuple[Tensor, float]:
    """Attack one photo's gradient; returns the guess and its PSNR."""
    task = sp.zoo.cnn(variant="cnn3-v3")
    client = sp.Client(sp.Gradient(), defense)
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    guess = auto(effort="quick", budget=1_500)(seen, rng=sp.rng(1))
    return guess.inputs[0], float(sp.score(guess, batch)["psnr"])


def draw_rows(rows: dict[str, list[tuple[Tensor, str]]]) -> Image.Image:
    """Draw one row of pictures per entry, with the row's name on the left."""
    height = SIDE + 26
    picture = Image.new("RGB", (MARGIN + PEOPLE * (SIDE + GAP), len(rows) * height), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=15)
    for number, (name, cells) in enumerate(rows.items()):
        top = number * height + 3
        pen.text((6, top + SIDE // 2 - 9), name, fill="black", font=font)
        for column, (pixels, words) in enumerate(cells):
            left = MARGIN + column * (SIDE + GAP)
            values = (pixels.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            shown = Image.fromarray(values).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            picture.paste(shown, (left, top))
            pen.text((left + SIDE // 2, top + SIDE + 2), words, "dimgray", font, anchor="ma")
    return picture


def main() -> None:
    """Attack, draw and save."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/recovered.png")
    photos = sp.data.load("photos")
    people = [photos.batch(1, start=number) for number in range(PEOPLE)]
    rows = {"the private photos": [(batch.inputs[0], "") for batch in people]}
    for name, defense in DEFENSES.items():
        found = [recover_photo(batch, defense) for batch in people]
        rows[name] = [(pixels, f"{psnr:.0f} dB") for pixels, psnr in found]
        print(name, [f"{psnr:.1f}" for _, psnr in found])
    draw_rows(rows).quantize(192).save(out, optimize=True)


if __name__ == "__main__":
    main()
