"""Pictures of digits, and a model that knows some of them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the processes that servers start, as in the tests' own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def digits(digit_images: tuple[np.ndarray, np.ndarray]) -> Callable[[str, int], list[bytes]]:
    """`digits("d3", 20)`: so many pictures of a class, as PNG files."""
    images, labels = digit_images

    def some(name: str, count: int) -> list[bytes]:
        return [png(pixels) for pixels in images[labels == name][:count]]

    return some


@pytest.fixture(scope="session")
def taught(
    digit_images: tuple[np.ndarray, np.ndarray], tiny_classifier: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """A model file that knows d0, d1 and d2. Not to be changed."""
    images, labels = digit_images
    chosen = np.concatenate([np.flatnonzero(labels == name)[:50] for name in ("d0", "d1", "d2")])
    path = tmp_path_factory.mktemp("taught") / "shop.gatf"
    tiny_classifier(epochs=12).fit(images[chosen], labels[chosen]).save(path)
    return path


@pytest.fixture(scope="module")
def shop(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it for one module."""
    path = tmp_path_factory.mktemp("shop") / "shop.gatf"
    path.write_bytes(taught.read_bytes())
    return path
