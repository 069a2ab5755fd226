"""Labels do not collide, colours stay with their methods and can be read, SVG lives alone in a page."""

import re
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import ConnectionPatch

from gatf.methods import METHODS
from gatf.report import figures, style
from gatf.report.load import by_row, load_runs
from gatf.report.sections import build_sections
from gatf.report.style import DARK, NAMES, SERIES, inline_svg, line_styles, save_figure


def test_labels_apart_stay_and_labels_together_part_evenly() -> None:
    assert style.spread_apart([10, 50, 90], 5, 0, 100) == [10, 50, 90]
    assert style.spread_apart([50, 50], 6, 0, 100) == [47, 53]
    assert style.spread_apart([0, 0, 0], 4, 0, 100) == [0, 4, 8]
    assert style.spread_apart([100, 99], 4, 0, 100) == [100, 96]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=14))
def test_labels_keep_their_order_their_distance_and_their_limits(heights: list[float]) -> None:
    placed = style.spread_apart(heights, 6.0, 3.0, 102.0)
    assert min(placed) >= 3 - 1e-9
    assert max(placed) <= 102 + 1e-9
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    for lower, upper in pairwise(order):
        assert placed[upper] - placed[lower] >= 6.0 - 1e-6


def test_a_method_looks_the_same_in_every_report_and_no_two_look_alike() -> None:
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


def test_names_of_lines_that_end_together_do_not_touch() -> None:
    """Their drawn boxes, ascenders and descenders included, of a few lines and of as many as there are methods."""
    for names in (["joint", "gatf"], ["lgp", "pgl", "ldj"], list(METHODS)):
        drawn = figures.lines_over_tasks({name: [[90.0, 50.0]] for name in names}, first=1, label="%")
        drawn.canvas.draw()
        boxes = sorted((text.get_window_extent() for text in drawn.axes[0].texts), key=lambda box: box.y0)
        assert all(lower.y1 < upper.y0 for lower, upper in pairwise(boxes)), names


def test_a_name_that_was_pushed_away_has_a_thread_to_its_line_and_the_lines_marker() -> None:
    drawn = figures.lines_over_tasks({name: [[90.0, 50.0]] for name in METHODS}, first=1, label="%")
    drawn.canvas.draw()
    axes = drawn.axes[0]
    lines, beside = axes.lines[: len(METHODS)], axes.lines[len(METHODS) :]
    threads = [patch for patch in axes.patches if isinstance(patch, ConnectionPatch)]
    for line, marker, thread, text in zip(lines, beside, threads, axes.texts, strict=True):
        height = text.get_window_extent().y0 + text.get_window_extent().height / 2
        ends = [axes.transAxes.transform(end)[1] for end in (thread.xy1, thread.xy2)]
        assert ends[0] == pytest.approx(axes.transData.transform((2, 50))[1], abs=0.5)
        assert ends[1] == pytest.approx(height, abs=3)
        assert marker.get_marker() == line.get_marker()
        assert marker.get_transform().transform((1.0, marker.get_ydata()[0]))[1] == pytest.approx(height, abs=3)
    apart = figures.lines_over_tasks({"gatf": [[90.0, 50.0]], "adc": [[90.0, 10.0]]}, first=1, label="%").axes[0]
    assert (len(apart.lines), len(apart.patches)) == (2, 0)
