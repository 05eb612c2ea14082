"""Make docs/pictures/recovered.png: the quickstart's photos beside what its attack recovers.

    seepage audit --out demo
    python scripts/readme_picture.py demo [OUT]

Photos, guesses and PSNR are those that the audit of the quickstart keeps. Each photo was sent as
one client's gradient, without a defense and with two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from seepage.audit import AuditResult, Record, load_audit

SIDE, GAP, MARGIN = 96, 6, 200
DEFENSES = {
    "no defense": [],
    "pruned to 10 %": ["Prune"],
    "DP-SGD, C = 1, std 0.01": ["ClipEach", "Mean", "AddGaussian"],
}
Cell = tuple[Tensor, str]


def find_cells(audit: AuditResult, records: list[Record]) -> list[Cell]:
    """What came back of each photo, with its PSNR."""
    cells = []
    for record in records:
        guess, psnr = audit.guess(record), record.scores["psnr"][0]
        if guess is None or psnr is None:
            raise SystemExit(f"expected a guess and its PSNR, found none for {record.people}")
        cells.append((guess[0], f"{psnr:.0f} dB"))
    return cells


def draw_rows(rows: dict[str, list[Cell]]) -> Image.Image:
    """Draw one row of pictures per entry, with the row's name on the left."""
    height, people = SIDE + 26, max(map(len, rows.values()))
    picture = Image.new("RGB", (MARGIN + people * (SIDE + GAP), len(rows) * height), "white")
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
    """Read the audit, draw and save."""
    if len(sys.argv) < 2:
        raise SystemExit(
            "expected the folder of the quickstart's audit; see --out of seepage audit"
        )
    audit = load_audit(sys.argv[1])
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/pictures/recovered.png")
    photos = [r for r in audit.records if r.data.startswith("photos") and r.scores]
    found = {
        name: [r for r in photos if [part.name for part in r.defense] == parts]
        for name, parts in DEFENSES.items()
    }
    first = found["no defense"]
    truths = [truth for record in first if (truth := audit.truth(record)) is not None]
    rows = {"the private photos": [(truth[0], "") for truth in truths]}
    rows |= {name: find_cells(audit, records) for name, records in found.items()}
    draw_rows(rows).quantize(192).save(out, optimize=True)
    print({name: [words for _, words in cells] for name, cells in rows.items()})


if __name__ == "__main__":
    main()
