"""The report in a real browser, light and dark, on a desk and on a phone. Skipped where no Chromium is installed."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from gatf.report.page import write_report

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--virtual-time-budget=4000",
)  # fmt: skip
PROBE = """
const seen = {};
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const all = what => [...page.querySelectorAll(what)], box = element => element.getBoundingClientRect();
  const first = () => page.querySelector("table tbody tr td").textContent.trim();
  const sorted = [first()];
  const button = page.querySelectorAll("table thead button")[1];
  for (let click = 0; click < 2; click++) { button.click(); sorted.push(first()); }
  const copied = {};
  for (const copy of page.querySelector(".copy").querySelectorAll("button")) {
    copy.click();
    copied[copy.dataset.copy] = copy.dataset.copied;
  }
  const before = getComputedStyle(page.body).backgroundColor;
  page.querySelector("button.theme").click();
  const after = getComputedStyle(page.body).backgroundColor;
  page.querySelector("button.theme").click();
  seen[frame.id] = {
    overflow: root.scrollWidth - root.clientWidth,
    figures: all("figure svg").map(svg => [box(svg).width, box(svg).height]),
    outside: all("figure").filter(figure => box(figure).right > root.clientWidth + 1).length,
    lines: page.querySelectorAll("#accuracy svg path").length,
    stroke: getComputedStyle(page.querySelector("#accuracy svg path[style*='series']")).stroke,
    letters: Math.min(...all("#accuracy svg text").map(text => box(text).height)),
    hints: all(".more").filter(hint => box(hint).width > 0).length, copied,
    sorted, before, after, order: button.parentElement.getAttribute("aria-sort"),
  };
}
addEventListener("load", () => {
  document.querySelectorAll("iframe").forEach(measure);
  document.getElementById("probe").textContent = JSON.stringify(seen);
});
"""


@pytest.fixture(scope="module")
def seen(fake_bench: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one visit with two frames, 1280 and 390 pixels wide, has measured."""
    if BROWSER is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(BROWSERS)})")
    folder = tmp_path_factory.mktemp("browser")
    write_report([fake_bench], folder / "report.html")
    report = escape((folder / "report.html").read_text(encoding="utf-8"), quote=True)
    frames = "".join(
        f'<iframe id="{name}" style="width:{width}px;height:900px" srcdoc="{report}"></iframe>'
        for name, width in (("desk", 1280), ("phone", 390))
    )
    page = f"<!doctype html><meta charset='utf-8'><script>{PROBE}</script>{frames}<pre id='probe'></pre>"
    (folder / "visit.html").write_text(page, encoding="utf-8")
    visited = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", (folder / "visit.html").as_uri()],
        capture_output=True, encoding="utf-8", timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="probe">(.*?)</pre>', visited.stdout, flags=re.DOTALL)
    assert found, visited.stderr
    measured: dict[str, Any] = json.loads(unescape(found[1]))
    measured["console"] = [line for line in visited.stderr.splitlines() if "CONSOLE" in line]
    return measured


def test_the_console_is_silent(seen: dict[str, Any]) -> None:
    assert seen["console"] == []


@pytest.mark.parametrize("frame", ["desk", "phone"])
def test_figures_are_there_and_nothing_sticks_out(seen: dict[str, Any], frame: str) -> None:
    page = seen[frame]
    assert page["overflow"] <= 0
    assert page["outside"] == 0
    assert len(page["figures"]) == 14
    assert all(width > 250 and height > 120 for width, height in page["figures"])
    assert page["lines"] >= 5
    assert page["stroke"].startswith("rgb(")
    assert page["letters"] >= 9


@pytest.mark.parametrize("frame", ["desk", "phone"])
def test_tables_sort_and_the_theme_changes(seen: dict[str, Any], frame: str) -> None:
    page = seen[frame]
    assert page["sorted"][1:] == ["joint", "finetune"]  # best A_last first, then worst
    assert page["order"] == "ascending"
    assert page["before"] != page["after"]


def test_tables_say_that_they_scroll_and_can_be_copied(seen: dict[str, Any]) -> None:
    assert seen["phone"]["hints"] > seen["desk"]["hints"]
    copied = seen["desk"]["copied"]
    assert copied["markdown"].splitlines()[0].startswith("| method | A_last % |")
    assert copied["markdown"].splitlines()[1].startswith("|---|")
    assert copied["csv"].splitlines()[0].startswith("method,A_last %,")
    assert copied["latex"].splitlines()[2].startswith(r"method & A\_last \% & ")
    assert copied["latex"].splitlines()[-1] == r"\end{tabular}"
    assert "@inproceedings{gatf2026," in copied["bibtex"]


def test_the_value_under_the_pointer_is_shown(seen: dict[str, Any]) -> None:
    """Squares that are not seen, in front of all else; those of 100 classes have the classes' names."""
