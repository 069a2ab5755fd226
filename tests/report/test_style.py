"""Names do not collide, colours stay with their methods and can be read, SVG lives alone in a page."""

import re
from pathlib import Path

import matplotlib
import pytest

from gatf.methods import METHODS
from gatf.report import figures
from gatf.report.load import by_row, load_runs
from gatf.report.sections import build_sections
from gatf.report.style import DARK, NAMES, SERIES, inline_svg, line_styles, save_figure


def test_a_method_has_one_style_in_every_report_and_no_two_share_one() -> None:
    names = [
        "finetune",
        "ewc",
        "lwf",
        "sdc",
        "adc",
        "ldc",
        "pass",
        "fetril",
        "fecam",
        "efc",
        "dpcr",
        "adagauss",
        "gatf",
        "joint",
    ]
    many, few = line_styles(names), line_styles(["gatf", "adagauss"])
    assert many["gatf"] == few["gatf"]
    assert many["adagauss"] == few["adagauss"]
    assert len({(style.color, style.marker, style.dash) for style in many.values()}) == len(names)


def test_rows_called_after_a_method_have_its_colour() -> None:
    rows = ["dpcr", "gatf", "gatf plus", "gatf refined", "gatf without anchor, refined", "adagauss, rda", "gatforce"]
    styles = line_styles(rows)
    assert {styles[row].color for row in rows if row.startswith("gatf ")} == {styles["gatf"].color}
    assert styles["adagauss, rda"].color == line_styles(["adagauss"])["adagauss"].color
    assert styles["gatforce"].color not in (styles["gatf"].color, styles["adagauss, rda"].color)
    assert len({(style.color, style.marker, style.dash) for style in styles.values()}) == len(rows)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("card", "dark"), [("#ffffff", False), ("#1a1f26", True)])
def test_colours_can_be_read_on_their_background(card: str, dark: bool) -> None:
    """WCAG: 4.5 for text (labels have the colour of their line), also for numbers on heat-map cells, nearly."""
    from gatf.report.style import DEEP, HEAT, INK, MUTED, ON_DEEP, ON_PALE

    def shown(colour: str) -> str:
        return DARK[colour] if dark else colour

    for colour in (INK, MUTED, *SERIES):
        assert contrast(shown(colour), card) >= 4.5, NAMES[colour]
    for level, cell in enumerate(HEAT):
        text = ON_DEEP if level >= DEEP else ON_PALE
        assert contrast(shown(text), shown(cell)) >= 4.2, f"{NAMES[cell]}, dark {dark}"


def test_svg_is_themed_small_and_alone(fake_bench: Path) -> None:
    runs = load_runs([fake_bench])
    svg = inline_svg(figures.accuracy_over_tasks(runs), name="one", alt='says "this" & that')
    assert svg.startswith('<svg role="img" aria-label="says &quot;this&quot; &amp; that"')
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}
    assert "var(--series0)" in svg
    assert all(name.startswith("one-") for name in re.findall(r'\bid="([^"]*)"', svg))
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', svg)) <= set(re.findall(r'\bid="([^"]*)"', svg))
    assert "http" not in svg
    assert svg == inline_svg(figures.accuracy_over_tasks(runs), name="one", alt='says "this" & that')
    many = by_row(runs)["gatf"]
    assert len(inline_svg(figures.accuracy_by_class(many), name="two", alt="")) < 120_000


def test_the_users_own_matplotlib_settings_do_not_leak(fake_bench: Path) -> None:
    runs = load_runs([fake_bench])
    plain = inline_svg(figures.accuracy_over_tasks(runs), name="one", alt="")
    with matplotlib.rc_context({"axes.titlesize": 40, "axes.facecolor": "red", "lines.linewidth": 9}):
        assert inline_svg(figures.accuracy_over_tasks(runs), name="one", alt="") == plain


def test_figures_for_papers(fake_bench: Path, tmp_path: Path) -> None:
    spec = build_sections(load_runs([fake_bench]))[0].figures[0]
    paths = save_figure(spec.draw(), tmp_path, spec.name)
    assert [path.name for path in paths] == ["accuracy.pdf", "accuracy.png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_the_legend_fits_the_figure() -> None:
    """With a few lines and with as many as have names; the highest line is named first."""
    for names in (["joint", "gatf"], list(METHODS)[: figures.MOST_LABELLED]):
        series = {name: [[90.0, 50.0 + number]] for number, name in enumerate(names)}
        drawn = figures.lines_over_tasks(series, first=1, label="%")
        drawn.draw_without_rendering()
        legend = drawn.axes[0].get_legend()
        assert [text.get_text() for text in legend.get_texts()] == names[::-1]
        box = legend.get_window_extent()
        assert box.y0 >= 0
        assert box.y1 <= drawn.bbox.height
        assert box.x1 <= drawn.bbox.width
