"""The picture of `kaishu eval`: divergence against bytes, a dot for each form.

Owns what is drawn and where. A picture is a list of lines, dots and labels, which are written as SVG by hand, or as PNG
with the package Pillow, which brings a font of its own; so both show the same. Numbers come from eval_forms.py.

    the dot is the mean, the line above it ends where 99 of 100 tokens stay below
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kaishu.errors import InvalidParameterError, MissingDependencyError

if TYPE_CHECKING:
    from kaishu.cli.eval_forms import Evaluation, Form

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 64, 52  # margins; at the right there is room for labels
INK, PALE, ACCENT = "#222222", "#bbbbbb", "#b5352c"
SMALLEST = 1e-12  # nats; what is less, such as the same model's zero, is drawn there
_LINE_HEIGHT = 14
_LETTER_WIDTH = 6.5
_PNG_SCALE = 2


@dataclass(frozen=True)
class Line:
    """From one point to another, in pixels from the left and from the top."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str = PALE


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    colour: str = ACCENT
    radius: float = 4.5


@dataclass(frozen=True)
class Label:
    """A line of text; y is its middle."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: int = 12
    colour: str = INK


Shape = Line | Dot | Label


def check_plot(path: Path) -> None:
    """Refuse a picture that couldn't be written, before anything is computed.

    raises: InvalidParameterError, MissingDependencyError
    """
    if path.suffix.lower() not in (".svg", ".png"):
        raise InvalidParameterError("--plot", str(path), "the name of a .svg or a .png file")
    if not path.parent.is_dir():
        raise InvalidParameterError("--plot", str(path), "a file in a folder that exists")
    if path.suffix.lower() == ".png" and importlib.util.find_spec("PIL") is None:
        raise MissingDependencyError("A PNG picture (a .svg needs nothing)", package="pillow", extra="plot")


def write_plot(evaluation: Evaluation, path: Path) -> None:
    """Draw it into a file, as its name says.

    raises: OSError
    """
    shapes = list(shapes_of(evaluation))
    path.write_bytes(as_png(shapes) if path.suffix.lower() == ".png" else as_svg(shapes).encode())


def shapes_of(evaluation: Evaluation) -> Iterator[Shape]:
    """What is drawn: bytes from zero to the right, divergence upwards in powers of ten."""
    from kaishu.byte_sizes import size

    forms = evaluation.forms
    most = max(form.bytes for form in forms) * 1.05
    values = [max(value, SMALLEST) for form in forms for value in _means(form)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def x(num_bytes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * num_bytes / most

    def y(nats: float) -> float:
        share = (math.log10(max(nats, SMALLEST)) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    yield Label(LEFT, 20, f"{evaluation.model}: divergence from the truth, nats a token", size=14)
    yield Label(LEFT, 40, f"{evaluation.text}; dot: mean, end of line: 99th percentile", size=11, colour="#555555")
    for power in range(low, high + 1):
        yield Line(LEFT, y(10.0**power), WIDTH - RIGHT, y(10.0**power), "#eeeeee")
        yield Label(LEFT - 8, y(10.0**power), f"1e{power}", "end", 11)
    for step in range(5):
        at = most / 1.05 * step / 4
        yield Line(x(at), HEIGHT - BOTTOM, x(at), HEIGHT - BOTTOM + 4)
        yield Label(x(at), HEIGHT - BOTTOM + 16, size(round(at)), "middle", 11)
    yield Line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM)
    yield Label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "weights in memory", "middle", 11, "#555555")
    bars = [
        Line(x(form.bytes), y(largest), x(form.bytes), y(mean), ACCENT)
        for form in forms
        for mean, largest in [_means(form)]
    ]
    labels: list[Label] = []
    for form, bar in sorted(zip(forms, bars, strict=True), key=lambda pair: pair[1].y2):
        yield bar
        yield Dot(bar.x2, bar.y2)
        labels.append(_placed(bar, form.label, labels, bars))
    yield from labels


def _means(form: Form) -> tuple[float, float]:
    return form.comparison.kl_mean, max(form.comparison.kl_99_percent, form.comparison.kl_mean)


def _placed(dot: Line, text: str, labels: Sequence[Label], bars: Sequence[Line]) -> Label:
    """A form's label where it lies neither on another nor on a bar or its dot: at the right, the left, or below."""
    y = dot.y2
    while True:
        for label in (Label(dot.x2 + 9, y, text), Label(dot.x2 - 9, y, text, "end")):
            start, end = _span(label)
            on_label = any(
                abs(y - other.y) < _LINE_HEIGHT and start < _span(other)[1] and _span(other)[0] < end
                for other in labels
            )
            on_bar = any(
                start - 4 < bar.x1 < end + 4 and bar.y1 - _LINE_HEIGHT / 2 < y < bar.y2 + _LINE_HEIGHT for bar in bars
            )
            if not on_label and not on_bar:
                return label
        y += _LINE_HEIGHT / 2


def _span(label: Label) -> tuple[float, float]:
    """From where to where a label reaches, about."""
    width = _LETTER_WIDTH * len(label.text)
    return (label.x, label.x + width) if label.anchor == "start" else (label.x - width, label.x)


def _drawable(text: str) -> str:
    """One line without control characters, which XML can't hold."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def as_svg(shapes: Sequence[Shape]) -> str:
    """The shapes as an SVG file."""
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for shape in shapes:
        if isinstance(shape, Line):
            ends = f'x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}"'
            rows.append(f'<line {ends} stroke="{shape.colour}" stroke-width="1.5"/>')
        elif isinstance(shape, Dot):
            rows.append(f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.radius}" fill="{shape.colour}"/>')
        else:
            text = escape(_drawable(shape.text))
            rows.append(
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" fill="{shape.colour}" '
                f'text-anchor="{shape.anchor}" dominant-baseline="central">{text}</text>'
            )
    return "\n".join([*rows, "</svg>", ""])


def as_png(shapes: Sequence[Shape]) -> bytes:
    """The shapes as a PNG file, twice as large. Letters that Pillow's own font lacks, such as Chinese, are escaped."""
    from PIL import Image, ImageDraw, ImageFont

    scale = _PNG_SCALE
    image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "#ffffff")
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        if isinstance(shape, Line):
            ends = [scale * each for each in (shape.x1, shape.y1, shape.x2, shape.y2)]
            draw.line(ends, fill=shape.colour, width=round(1.5 * scale))
        elif isinstance(shape, Dot):
            x, y, radius = scale * shape.x, scale * shape.y, scale * shape.radius
            draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=shape.colour)
        else:
            text = _drawable(shape.text).encode("latin-1", "backslashreplace").decode("latin-1")
            anchor = {"start": "lm", "middle": "mm", "end": "rm"}[shape.anchor]
            font = ImageFont.load_default(shape.size * scale)
            draw.text((scale * shape.x, scale * shape.y), text, fill=shape.colour, anchor=anchor, font=font)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
