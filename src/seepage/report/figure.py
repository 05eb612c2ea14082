"""A figure for a paper: every person's score behind every defense, as SVG and as PDF."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

from seepage.audit.results import Result, Results
from seepage.audit.results.amount import SATURATED
from seepage.audit.words import label_setups
from seepage.printable import make_printable
from seepage.report.page.line_chart import Axis, span_axis

# In points: one column of a paper, or both.
COLUMN, PAGE = 252.0, 516.0
_SIZE, _ROW, _TOP, _BOTTOM, _GAP = 8.0, 18.0, 8.0, 30.0, 6.0
_INK, _FAINT, _LEAK, _SAFE = "#222222", "#bbbbbb", "#b2432f", "#2a6f77"
# Of Helvetica, from the space to the tilde, in thousandths of the font size.
_WIDTHS = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *([556] * 10),
    *(278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667),
    *(556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278),
    *(469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
)


@dataclass(frozen=True)
class _Stroke:
    """A straight line."""

    start: tuple[float, float]
    end: tuple[float, float]
    colour: str = _INK
    width: float = 0.6


@dataclass(frozen=True)
class _Dot:
    """A filled disc."""

    at: tuple[float, float]
    colour: str
    radius: float = 2.2


@dataclass(frozen=True)
class _Caption:
    """A text that begins, ends or is centred at a point."""

    at: tuple[float, float]
    text: str
    anchor: str = "start"


@dataclass(frozen=True)
class Figure:
    """What is drawn, in points from the upper left corner."""

    width: float
    height: float
    parts: tuple[_Stroke | _Dot | _Caption, ...]

    def svg(self) -> str:
        """Write the figure as SVG, with its size in points."""
        body = "\n".join(map(_write_svg, self.parts))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}pt" '
            f'height="{self.height:g}pt" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{_SIZE:g}">\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
        )

    def pdf(self) -> bytes:
        """Write the figure as a PDF of one page, as vectors."""
        drawn = "\n".join(_write_pdf(part, self.height) for part in self.parts)
        content = zlib.compress(drawn.encode("cp1252", errors="replace"))
        size = f"[0 0 {self.width:g} {self.height:g}]"
        font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
        objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox {size} /Contents 4 0 R "
            "/Resources << /Font << /F1 5 0 R >> >> >>".encode(),
            f"<< /Length {len(content)} /Filter /FlateDecode >>\nstream\n".encode()
            + content
            + b"\nendstream",
            font.encode(),
        ]
        return _join_objects(objects)


def _join_objects(objects: Sequence[bytes]) -> bytes:
    written, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n".encode() + text + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    return written + f"{head}{table}{trailer}startxref\n{len(written)}\n%%EOF\n".encode()


def _write_svg(part: _Stroke | _Dot | _Caption) -> str:
    match part:
        case _Stroke((x1, y1), (x2, y2), colour, width):
            place = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
            return f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>'
        case _Dot((x, y), colour, radius):
            return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:g}" fill="{colour}"/>'
        case _Caption((x, y), text, anchor):
            words = f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{_INK}">'
            return f"{words}{escape(make_printable(text))}</text>"


def _write_pdf(part: _Stroke | _Dot | _Caption, height: float) -> str:
    match part:
        case _Stroke((x1, y1), (x2, y2), colour, width):
            line = f"{x1:.2f} {height - y1:.2f} m {x2:.2f} {height - y2:.2f} l S"
            return f"{_mix(colour)} RG {width:g} w {line}"
        case _Dot((x, y), colour, radius):
            # A line of no length with round ends is a disc.
            point = f"{x:.2f} {height - y:.2f}"
            return f"q {_mix(colour)} RG 1 J {2 * radius:g} w {point} m {point} l S Q"
        case _Caption((x, y), text, anchor):
            plain = make_printable(text).replace("\N{GREEK SMALL LETTER SIGMA}", "sigma")
            shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * _measure_text(plain)
            safe = plain.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
            ink = f"{_mix(_INK)} rg"
            return f"BT {ink} /F1 {_SIZE:g} Tf {x - shift:.2f} {height - y:.2f} Td ({safe}) Tj ET"


def _mix(colour: str) -> str:
    return " ".join(f"{int(colour[i : i + 2], 16) / 255:.3f}" for i in (1, 3, 5))


def _measure_text(text: str) -> float:
    """The width of a text in points.

    Example:
        >>> round(_measure_text("dB"), 1)
        9.8
    """
    widths = (_WIDTHS[ord(s) - 32] if 32 <= ord(s) <= 126 else 556 for s in text)
    return _SIZE * sum(widths) / 1000


_ACROSS = "PSNR of each person in dB; red: identified"
_SHARED = "% right of each person; red: identified"


def leak_figure(results: Results) -> Figure:
    """Draw one strip per setup: every person at the best of any attack, and the median.

    The axis is PSNR, or the share of columns or words that is right if all inputs have those. The
    figure is as wide as one column of a paper, or as the page if the labels are long.
    """
    groups = {setup: group.strongest() for setup, group in results.setups.items()}
    labels = label_setups(groups)
    everybody = [row for people in groups.values() for row in people]
    shares = bool(everybody) and all(row.is_share for row in everybody)

    def value_of(row: Result) -> float:
        return row.measured if shares else min(row.psnr, SATURATED)

    # Where Helvetica is missing, another font is wider.
    left = 1.2 * max(map(_measure_text, labels.values()), default=0.0) + 2 * _GAP
    width = COLUMN if left <= COLUMN / 2 else PAGE
    right, bottom = width - 2 * _GAP, _TOP + _ROW * max(1, len(groups))
    axis = Axis(0.0, 100.0) if shares else span_axis(map(value_of, everybody))

    def across(value: float) -> float:
        return left + (right - left) * axis.place(value) / 100

    parts: list[_Stroke | _Dot | _Caption] = []
    for tick in axis.ticks(5):
        parts.append(_Stroke((across(tick), _TOP), (across(tick), bottom), _FAINT, 0.4))
        plus = "+" * (tick >= SATURATED and not shares)
        parts.append(_Caption((across(tick), bottom + _SIZE + 3), f"{tick:g}{plus}", "middle"))
    parts.append(_Stroke((left, bottom), (right, bottom)))
    title = _SHARED if shares else _ACROSS
    parts.append(_Caption(((left + right) / 2, bottom + _BOTTOM - 6), title, "middle"))
    for number, (setup, people) in enumerate(groups.items()):
        middle = _TOP + _ROW * (number + 0.5)
        parts.append(_Caption((left - _GAP, middle + 0.35 * _SIZE), labels[setup], "end"))
        found = median(map(value_of, people))
        parts.append(_Stroke((across(found), middle - 6), (across(found), middle + 6), _INK, 1.4))
        parts += [
            _Dot((across(value_of(a)), middle), _LEAK if a.level.identified else _SAFE)
            for a in people
        ]
    return Figure(width, bottom + _BOTTOM, tuple(parts))
