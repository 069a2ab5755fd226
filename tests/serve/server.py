"""A server on loopback, in a thread of the tests' process, and a client that speaks HTTP."""

import asyncio
import http.client
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from gatf.serve.app import build
from gatf.serve.run import config
from gatf.serve.studio import Options, Studio

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
    address: str = "127.0.0.1"
    """Of the client."""

    def __call__(
        self, method: str, path: str, body: bytes | None = None, *, seconds: float = 60, **headers: str
    ) -> Reply:  # fmt: skip
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=seconds, source_address=(self.address, 0)
        )
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


@contextmanager
def serving(options: Options) -> Iterator[tuple[Client, Studio]]:
    """The application as `gatf serve` runs it, in a thread."""
    app, studio = build(options)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(config(app, options.limits))
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


def forward_that_waits(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The model's forward passes wait: an event that reports the first, and one that lets all continue."""
    started, go_on = threading.Event(), threading.Event()
    hold_forward(studio, monkeypatch, started, lambda: go_on.wait(60))
    return started, go_on


def hold_forward(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, started: threading.Event, wait: Callable[[], bool]
) -> None:
    """Report each forward pass of the model, and start it when `wait` returns."""
    kind = type(studio.live.served().model)
    forward = kind.forward

    def slow(self: Any, *args: Any, **more: Any) -> Any:
        started.set()
        assert wait()
        return forward(self, *args, **more)

    monkeypatch.setattr(kind, "forward", slow)
