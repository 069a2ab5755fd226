"""The limits of a request, and the responses to requests that exceed them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

MEGABYTE = 2**20
LONGEST_LABEL = 200


@dataclass(frozen=True)
class Limits:
    """Bounds that hold for every client. docs/studio.md explains them."""

    request_bytes: int = 32 * MEGABYTE
    """Of a prediction."""
    json_bytes: int = 8 * MEGABYTE
    """Of a JSON body: parsing takes more memory than multipart."""
    held_bytes: int = 128 * MEGABYTE
    """Of one client's bodies in memory together, without the first megabyte of each; twice of it for all clients."""
    images: int = 256
    """Of one prediction, and of all predictions with several images that are in progress."""
    answers: int = 25_600
    """Classes returned for the images of one prediction together."""
    image_bytes: int = 32 * MEGABYTE
    """Of one encoded image."""
    pixels: int = 50_000_000
    """Of one image: a small file can contain a very large image."""
    request_pixels: int = 200_000_000
    """Of one prediction, and of all large images that wait to be decoded."""
    decode_bytes: int = 768 * MEGABYTE
    """Memory that decoding one image may take, estimated from its header."""
    update_bytes: int = 4096 * MEGABYTE
    update_images: int = 50_000
    classes: int = 1000
    """Of one update."""
    queue: int = 64
    """Predictions in progress; more are refused with 429."""
    connections: int = 256
    streams: int = 32
    """Event streams that are open at the same time."""
    downloads: int = 16
    """Of one client at the same time: each has a file open; twice as many for all clients."""
    seconds: float = 60.0
    """For a prediction to arrive, and again for its response."""
    header_seconds: float = 10.0
    """For the headers of a request, and for a client that does not read its response."""
    slowest: int = 16 * 1024
    """Bytes per second below which an upload is given up, after `header_seconds`."""
    update_seconds: float = 3600.0
    """For the images of an update to arrive."""
    export_seconds: float = 120.0
    """For an export to ONNX, and for a rollback."""
    vector_numbers: int = 1_000_000
    """In one JSON body of vectors."""
    change_seconds: float = 600.0
    """For learning vectors, an upgrade, a merge, or the removal of a class."""


class Budget:
    """An amount that all requests share. When one client uses all of it, others still get their equal shares."""

    def __init__(self, most: float, what: str) -> None:
        self.most, self.what, self.used = most, what, 0.0
        self._by_client: dict[str, float] = {}

    def take(self, amount: float, client: str = "") -> None:
        """A `Problem` if that is more than there is, unless nothing else is in use. A client below its share may exceed
        the amount, up to twice of it."""
        own, after = self._by_client.get(client, 0) + amount, self.used + amount
        share = self.most / len({*self._by_client, client})
        if self.used and (after > 2 * self.most or (after > self.most and own > share)):
            raise busy(self.what)
        self.used, self._by_client[client] = after, own

    def give_back(self, amount: float, client: str = "") -> None:
        self.used -= amount
        left = self._by_client.pop(client, 0) - amount
        if left > 1e-6:  # sums of fractions do not end at zero exactly
            self._by_client[client] = left

    @contextmanager
    def taken(self, amount: float, client: str) -> Iterator[None]:
        """Inside, the amount is taken."""
        self.take(amount, client)
        try:
            yield
        finally:
            self.give_back(amount, client)


class Problem(Exception):
    """What went wrong with a request, as RFC 9457 has it: a status and a sentence, never a traceback."""

    def __init__(self, status: int, title: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> JSONResponse:
        body: dict[str, Any] = {
            "type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail,
        }  # fmt: skip
        return JSONResponse(body, self.status, self.headers, media_type="application/problem+json")


def too_large(what: str) -> Problem:
    return Problem(413, "Too large", what)


def not_understood(what: str) -> Problem:
    return Problem(422, "Not understood", what)


def busy(what: str) -> Problem:
    return Problem(429, "Busy", f"{what}; try again later", Retry_After="1")


def too_slow() -> Problem:
    return Problem(408, "Too slow", "the request took too long to arrive")


def not_possible(what: str) -> Problem:
    """Nothing is wrong with the request, but not now."""
    return Problem(409, "Not possible now", what)
