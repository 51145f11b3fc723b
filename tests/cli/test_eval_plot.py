"""The picture of an evaluation: where its dots are, and that both kinds of files are what they say."""

from __future__ import annotations

import io
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from kaishu.cli.eval_forms import Evaluation, Form
from kaishu.cli.eval_plot import Dot, Label, Line, as_png, as_svg, check_plot, shapes_of, write_plot
from kaishu.errors import InvalidParameterError, MissingDependencyError
from kaishu.evaluation import Comparison


def evaluation(*forms: tuple[str, str, int, float, float], model: str = "tiny") -> Evaluation:
    made = [
        Form(weights, head, num_bytes, 100.0, Comparison(512, kl, kl_99, 1.0, 1.1, 1.0))
        for weights, head, num_bytes, kl, kl_99 in forms
    ]
    return Evaluation(model, "512 tokens", "float32", tuple(made))


THREE = evaluation(
    ("bf16", "bf16", 8_000_000, 1e-6, 3e-6),
    ("int8", "int8", 4_000_000, 1e-5, 4e-5),
    ("int4", "int8", 2_000_000, 1e-3, 1e-2),
)


def test_a_dot_for_each_form_at_its_bytes_and_its_divergence():
    shapes = list(shapes_of(THREE))
    dots = {dot.x: dot.y for dot in shapes if isinstance(dot, Dot)}
    assert len(dots) == 3
    at = {label.text: label.y for label in shapes if isinstance(label, Label) and re.match(r"1e-\d+$", label.text)}
    assert at.keys() == {f"1e{power}" for power in range(-6, -1)}
    xs = sorted(dots)
    assert [dots[x] for x in xs] == pytest.approx([at["1e-3"], at["1e-5"], at["1e-6"]], abs=0.1)
    assert xs[2] - xs[1] == pytest.approx(2 * (xs[1] - xs[0]))  # 8, 4 and 2 MB
    tops = [line for line in shapes if isinstance(line, Line) and line.x1 == line.x2 == xs[0]]
    assert min(line.y1 for line in tops) == pytest.approx(at["1e-2"], abs=0.1)


def test_forms_are_named_once_each_and_labels_do_not_lie_on_each_other():
    many = evaluation(*[("int4", head, 2_000_000 + i, 1e-3, 1e-3) for i, head in enumerate(("bf16", "int8", "int4"))])
    labels = [shape for shape in shapes_of(many) if isinstance(shape, Label) and "int4" in shape.text]
    assert sorted(label.text for label in labels) == ["int4", "int4, bf16 head", "int4, int8 head"]
    for one, other in combinations(labels, 2):
        assert abs(one.y - other.y) >= 14 or one.anchor != other.anchor


@pytest.mark.parametrize("kl", [0.0, 1e-300, math.pi])
def test_any_divergence_can_be_drawn(kl):
    for shape in shapes_of(evaluation(("bf16", "bf16", 1, kl, kl))):
        assert all(math.isfinite(value) for value in vars(shape).values() if isinstance(value, float))


def test_svg_is_xml_whatever_the_model_is_called():
    text = as_svg(list(shapes_of(evaluation(("int8", "int8", 5, 1e-3, 1e-2), model='<楷书> & "\x1b[2J\x00"'))))
    root = ElementTree.fromstring(text)
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert titles[0] == '<楷书> & "\ufffd[2J\ufffd": divergence from the truth, nats a token'


def test_png_shows_the_dots_where_svg_has_them(tmp_path):
    from PIL import Image

    shapes = list(shapes_of(evaluation(("int8", "int8", 5, 1e-3, 1e-2), model="楷书\n")))
    image = Image.open(io.BytesIO(as_png(shapes)))
    assert image.format == "PNG" and image.size == (1440, 880)
    dot = next(shape for shape in shapes if isinstance(shape, Dot))
    assert image.getpixel((round(2 * dot.x), round(2 * dot.y))) == (0xB5, 0x35, 0x2C)
    for name in ("x.svg", "x.PNG"):
        write_plot(THREE, tmp_path / name)
    assert (tmp_path / "x.svg").read_text().startswith("<svg") and (tmp_path / "x.PNG").read_bytes()[1:4] == b"PNG"


def test_what_could_not_be_written_is_refused_first(tmp_path, monkeypatch):
    with pytest.raises(
        InvalidParameterError, match=r"--plot is .*x\.pdf'; allowed: the name of a \.svg or a \.png file"
    ):
        check_plot(tmp_path / "x.pdf")
    with pytest.raises(InvalidParameterError, match="in a folder that exists"):
        check_plot(tmp_path / "nowhere" / "x.svg")
    check_plot(tmp_path / "x.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"needs the package pillow.*\n.*pip install 'kaishu\[plot\]'"):
        check_plot(tmp_path / "x.png")
    check_plot(tmp_path / "x.svg")
