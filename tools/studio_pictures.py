"""Take the screenshots of the studio in docs/img with headless Chromium: python tools/studio_pictures.py [FOLDER].

The script teaches handwritten digits and asks for a prediction, at the screen sizes of a laptop and a phone.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "serve"))
from browser import Page  # noqa: E402

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven")
COUNT = 60
IMAGES = ROOT / "docs" / "img"


def digits(folder: Path) -> dict[str, list[Path]]:
    """Files of every class."""
    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)
    found = {}
    for number, name in enumerate(NAMES):
        paths = [folder / f"{name}{place}.png" for place in range(COUNT + 5)]
        for path, image in zip(paths, pixels[data.target == number], strict=False):
            Image.fromarray(255 - image).save(path)
        found[name] = paths
    return found


def teach(page: Page, name: str, paths: list[Path]) -> None:
    count = page.run("document.querySelectorAll('.draft').length")
    page.choose("#teach-files", paths)
    page.wait(f"document.querySelectorAll('.draft').length === {count + 1}")
    page("Input.insertText", text=name)


def learn(page: Page, out: Path | None = None) -> None:
    page.run("document.getElementById('learn').click()")
    page.wait("document.getElementById('progress-words').textContent.startsWith('epoch')", 600)
    if out is not None:
        page.picture(out)
    page.wait("document.getElementById('progress').hidden && !document.getElementById('outcome').hidden", 600)


def shots(page: Page, out: Path, name: str) -> None:
    """On a laptop; where they are not for docs, also in the dark and on a phone."""
    page.resize(1080, 840)
    page.run("scrollTo(0, 0)")
    laptop = out / f"studio-{name}.png"
    page.picture(laptop, whole=False)
    Image.open(laptop).convert("RGB").quantize(256).save(laptop, optimize=True)
    if out == IMAGES:
        return
    page.resize(1080, 840, dark=True)
    page.picture(out / f"dark-{name}.png")
    page.resize(390, 844)
    page.picture(out / f"phone-{name}.png")
    page.resize(1080, 840)


def main(out: Path, epochs: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = digits(folder)
        command = [sys.executable, "-m", "gatf", "studio", str(folder / "digits.gatf"), "--port", "0", "--no-browser"]
        server = subprocess.Popen([*command, "--epochs", epochs], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().split(": ")[1].strip()
        page = Page(folder / "profile")
        try:
            page.resize(1080, 840)
            page.visit(address)
            page.wait("document.documentElement?.dataset.ready")
            for name in NAMES[:4]:
                teach(page, name, files[name][:COUNT])
            learn(page, None if out == IMAGES else out / "learning.png")
            for name in NAMES[4:6]:
                teach(page, name, files[name][:COUNT])
            page.run("document.activeElement.blur()")
            shots(page, out, "teach")
            learn(page)
            page.run("document.getElementById('tab-ask').click()")
            page.run("document.getElementById('unknown').selectedIndex = 1")
            page.choose("#ask-files", [files["four"][-1], files["seven"][0]])
            page.wait("document.querySelectorAll('.answer').length === 2")
            shots(page, out, "ask")
            page.run("document.getElementById('tab-look').click()")
            page.wait("document.querySelectorAll('#chart ellipse').length === 6")
            shots(page, out, "look")
            print("\n".join(page.complaints) or "no complaints")
        finally:
            page.close()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES, sys.argv[2] if len(sys.argv) > 2 else "40")
