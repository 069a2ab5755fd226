"""From a Matplotlib figure to an SVG that lives inside the page: small, themed, described."""

import io
import re
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from gatf.report.style import INK, NAMES, PAPER, RC

_NUMBER = re.compile(r"(-?\d+\.\d{3,})")


def inline_svg(figure: Figure, *, name: str, alt: str) -> str:
    """The figure as one `<svg>` element: no fixed size, ids that no other figure has, colours as CSS variables."""
    text = io.StringIO()
    with matplotlib.rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r' xmlns:xlink="[^"]*"| xmlns="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = _NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda match: f"var(--{NAMES[match[0]]})" if match[0] in NAMES else match[0], svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    label = escape(alt, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """For papers and READMEs: PDF, and PNG on paper colour at 200 dots an inch."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.pdf", folder / f"{name}.png"]
    with matplotlib.rc_context({**RC, "savefig.transparent": False}):
        figure.savefig(paths[0], metadata={"CreationDate": None, "Creator": None, "Producer": None}, facecolor="none")
        figure.savefig(paths[1], dpi=200, facecolor=PAPER, edgecolor=INK, metadata={"Software": None})
    return paths
