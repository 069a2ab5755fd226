"""A server on loopback, in a thread of the tests' process, and a client that speaks HTTP."""

import asyncio
import http.client
import io
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra studio is not installed")
pytest.importorskip("uvicorn", reason="the extra studio is not installed")

import uvicorn

from gatf.serve.app import Options, Studio, build

Parts = list[tuple[str, bytes]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Requests to one port of this machine, each on a connection of its own."""

    port: int

    def __call__(
        self, method: str, path: str, body: bytes | None = None, *, seconds: float = 60, **headers: str
    ) -> Reply:  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self("GET", path, **headers)

    def send(self, path: str, parts: Parts, **headers: str) -> Reply:
        """A multipart form: every part but `label` is a file, whose name nobody should look at."""
        body, kind = form(parts)
        return self("POST", path, body, **{"content_type": kind, **headers})

    def send_json(self, path: str, content: Any, **headers: str) -> Reply:
        return self("POST", path, json.dumps(content).encode(), **{"content_type": "application/json", **headers})

    def ended(self, name: str) -> dict[str, Any]:
        """The update when it has ended."""
        until(lambda: self.get(f"/v1/updates/{name}").json["state"] not in ("receiving", "running"))
        found: dict[str, Any] = self.get(f"/v1/updates/{name}").json
        return found


def until(happened: Callable[[], Any], seconds: float = 180) -> None:
    """Wait for it."""
    last = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < last, "it did not happen"
        time.sleep(0.02)


def form(parts: Parts) -> tuple[bytes, str]:
    boundary = secrets.token_hex(8)
    pieces = []
    for name, data in parts:
        file = "" if name == "label" else '; filename="../../../etc/passwd"'
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode())
        pieces.append(data + b"\r\n")
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@contextmanager
def serving(options: Options) -> Iterator[tuple[Client, Studio]]:
    """The application as `gatf serve` runs it, in a thread."""
    app, studio = build(options)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_config=None, lifespan="on", ws="none"))
    studio.stopping = lambda: server.should_exit
    studio.open()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield Client(listening.getsockname()[1]), studio
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


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
