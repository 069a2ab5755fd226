"""The studio's page in a real browser: two classes of digits, a third, a question, one step back."""

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from gatf.report.style import css_variables
from gatf.serve.files import PAGE
from gatf.serve.studio import Options

from .browser import BROWSER, BROWSERS, Page
from .server import Client, serving

Digits = Callable[[str, int], list[bytes]]
INERT = "<img src=x onerror=alert(1)>"
PICTURED = """
const letters = atob("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7");
const bytes = Uint8Array.from(letters, letter => letter.charCodeAt());
const moved = new DataTransfer();
moved.items.add(new File([bytes], "a.gif", {type: "image/gif"}))
"""
"""What is pasted or dropped: a picture of one pixel."""
SMALL = {"method.samples": 100, "backbone.width": 8, "backbone.bottleneck": 8}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if BROWSER is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(BROWSERS)})")
    made = Page(tmp_path / "profile")
    yield made
    made.close()


def teach(page: Page, folder: Path, name: str, pictures: list[bytes]) -> None:
    """Choose the pictures of one class and type its name."""
    place = folder / f"class{len(list(folder.iterdir()))}"
    place.mkdir()
    paths = [place / f"{number}.png" for number in range(len(pictures))]
    for path, data in zip(paths, pictures, strict=True):
        path.write_bytes(data)
    before = page.run("document.querySelectorAll('.draft').length")
    page.choose("#teach-files", paths)
    page.wait(f"document.querySelectorAll('.draft').length === {before + 1}")
    assert page.run("document.activeElement.matches('.draft input[type=text]')")  # the name can be typed at once
    page("Input.insertText", text=name)


def no_sideways(page: Page) -> None:
    """At the width of a phone nothing sticks out of any part."""
    page.resize(390, 844)
    for tab in ("teach", "ask", "look"):
        page.run(f"document.getElementById('tab-{tab}').click()")
        assert page.run("document.documentElement.scrollWidth") == 390, tab
    page.resize(1280, 900)


@pytest.mark.slow
def test_teach_ask_look_and_roll_back(page: Page, tmp_path: Path, digits: Digits) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    parameters = {"epochs": 12, "device": "cpu", "settings": SMALL}
    with serving(Options(tmp_path / "digits.gatf", page=True, parameters=parameters)) as (client, _):
        page.resize(1280, 900)
        page.visit(f"http://127.0.0.1:{client.port}/")
        page.wait("document.documentElement?.dataset.ready")
        assert page.run("document.getElementById('tab-ask').disabled")  # there is nothing to ask yet
        teach(page, folder, "zero", digits("d0", 24))
        assert page.run("document.getElementById('learn').disabled")
        assert "second class" in page.run("document.getElementById('learn-hint').textContent")
        teach(page, folder, "", digits("d1", 25))
        page.run("document.getElementById('learn').click()")  # asks for the name first
        assert page.run("document.getElementById('learn-hint').textContent") == "Name every class."
        assert page.run("document.activeElement.id") == "name-1"
        page("Input.insertText", text=INERT)
        page.run("document.querySelector('.draft:last-child .thumbs button').click()")  # a wrong picture is taken out
        assert page.run("document.querySelectorAll('.draft:last-child .thumbs img').length") == 24
        learn(page)
        assert page.run("document.getElementById('outcome-text').textContent").startswith("First fit: added 2 classes")
        assert "The 48 images have been deleted" in page.run("document.getElementById('outcome').textContent")
        assert "a covariance of features for each of 2 classes" in page.run(
            "document.getElementById('outcome-kept').textContent"
        )
        teach(page, folder, "four", digits("d4", 24))
        learn(page)
        assert page.run("document.getElementById('outcome-text').textContent").startswith("Update 1: added 1 class")
        ask(page, folder / "class0" / "3.png")
        forward(page, client)
        no_sideways(page)
        assert page.complaints == []


def learn(page: Page) -> None:
    page.run("document.getElementById('learn').click()")
    page.wait("!document.getElementById('progress').hidden")
    page.wait("document.getElementById('progress').hidden && !document.getElementById('outcome').hidden")
    assert page.run("document.getElementById('outcome-title').textContent") == "Learnt"


def ask(page: Page, picture: Path) -> None:
    page.run("document.getElementById('tab-teach').focus()")
    page.key("ArrowRight")  # by keyboard
    assert page.run("document.activeElement.id") == "tab-ask"
    page.choose("#ask-files", [picture])
    page.wait("document.querySelector('.answer')")
    said = page.run("document.querySelector('.answer h2').textContent")
    assert said in ("zero", INERT, "four")
    assert page.run("document.querySelectorAll('.answer .said > .bars li').length") == 3
    assert page.run("document.querySelector('.answer .badge').textContent") in (
        "unaffected by transport error", "transport error may matter"
    )  # fmt: skip
    assert page.run("document.querySelectorAll('.answer .why .bars li').length") == 3
    paste = "document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: moved, bubbles: true}))"
    page.run(f"{{{PICTURED}; {paste}}}")
    page.wait("document.querySelectorAll('.answer').length === 2")
    drop = (
        "document.getElementById('ask-drop').dispatchEvent(new DragEvent('drop', {dataTransfer: moved, bubbles: true}))"
    )
    page.run(f"{{{PICTURED}; {drop}}}")
    page.wait("document.querySelectorAll('.answer').length === 3")
    page.run("document.getElementById('camera').click()")
    page.wait("document.getElementById('camera-video').videoWidth > 0")
    page.run("document.getElementById('camera-shoot').click()")
    page.wait("document.querySelectorAll('.answer').length === 4")
    assert page.run("[...document.images].every(image => image.alt)")
    assert page.run("document.querySelectorAll('img[src=x]').length") == 0  # what a class is called is text


def forward(page: Page, client: Client) -> None:
    page.run("document.getElementById('tab-look').click()")
    page.wait("document.querySelectorAll('#chart ellipse').length === 3")
    assert page.run("document.querySelectorAll('#history li').length") == 2
    assert page.run("document.querySelectorAll('#classes tr').length") == 3
    assert page.run("[...document.querySelectorAll('svg')].every(svg => svg.getAttribute('aria-label'))")
    page.run("document.querySelector('[aria-label=\"Rename four\"]').click()")
    page("Input.insertText", text="4")
    page.key("Enter")
    page.wait("document.querySelector('[aria-label=\"Rename 4\"]')")
    page.run("document.getElementById('rollback').click()")
    page.wait("document.querySelectorAll('#classes tr').length === 2")
    assert "Update 1 was undone" in page.run("document.getElementById('rollback-words').textContent")
    assert [item["label"] for item in client.get("/v1/classes").json["classes"]] == sorted(["zero", INERT])
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.run("document.getElementById('theme').click()")
    assert page.run("getComputedStyle(document.body).backgroundColor") != light
    page.run("document.getElementById('theme').click()")


# --- the files


def shipped() -> dict[str, str]:
    folder = files("gatf.serve") / "page"
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}


def test_the_page_names_no_other_machine_and_builds_no_html_from_text() -> None:
    found = shipped()
    assert {*PAGE, "index.html", "docs.html"} == set(found)
    for name, text in found.items():
        others = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text)) - {"http://www.w3.org/2000/svg"}
        assert not [other for other in others if not other.startswith("// ")], name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name


def test_the_colours_are_the_reports() -> None:
    css = shipped()["studio.css"]
    light, dark = (re.findall(r"--([a-z]+\d?): (#\w+);", css_variables(dark=theme)) for theme in (False, True))
    wanted = [(name, colour) for name, colour in light if name != "grey" and not name.startswith("heat")]
    assert len(wanted) > 8
    for name, colour in wanted:
        assert f"--{name}: {colour};" in css
        assert f"--{name}: {dict(dark)[name]};" in css


def test_places_on_the_plane_by_hand() -> None:
    """Three means on two known axes: the plane is theirs, and a class's shadow its covariance in them."""
    from gatf.geometry.gaussians import Gaussians
    from gatf.serve.atlas import Plane

    means = torch.tensor([[-3.0, 0, 1], [3.0, 0, 1], [0.0, 1, 1]], dtype=torch.float64)
    covs = torch.diag(torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)).expand(3, 3, 3)
    plane = Plane.of(Gaussians(means, covs))
    assert plane.axes.abs().round(decimals=6).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert plane.share == pytest.approx(1)
    by_hand = torch.tensor([[-3, -1 / 3], [3, -1 / 3], [0, 2 / 3]], dtype=torch.float64)
    torch.testing.assert_close(plane(means), by_hand, atol=1e-6, rtol=0)
    pair = Plane.of(Gaussians(means[:2], covs[:2]))  # on a line: the other axis is where classes spread most
    assert pair.axes.abs().round(decimals=4).tolist() == [[1, 0], [0, 0], [0, 1]]


def test_a_plane_of_few_classes_in_many_dimensions() -> None:
    """Covariances of few images have a low rank, with which factorisations of the whole matrix did not converge."""
    from gatf.geometry.gaussians import Gaussians
    from gatf.serve.atlas import Plane

    draws = torch.Generator().manual_seed(0)
    points = torch.randn(20, 400, generator=draws, dtype=torch.float64)
    for classes in (1, 2, 3):
        means = torch.randn(classes, 400, generator=draws, dtype=torch.float64)
        plane = Plane.of(Gaussians.sharing(means, points.mT @ points))
        torch.testing.assert_close(plane.axes.mT @ plane.axes, torch.eye(2, dtype=torch.float64))
