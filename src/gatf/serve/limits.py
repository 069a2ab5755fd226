"""The limits of a request, and the responses to requests that exceed them."""

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
    held_bytes: int = 256 * MEGABYTE
    """Of all bodies in memory together, without the first megabyte of each."""
    images: int = 256
    """Of one prediction."""
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
    """Predictions in progress, and images that wait for the network; more are refused with 429."""
    connections: int = 256
    streams: int = 32
    """Event streams that are open at the same time."""
    seconds: float = 60.0
    """For a prediction to arrive, and again for its answer."""
    header_seconds: float = 10.0
    """For the headers of a request, and for a client that does not read its response."""
    slowest: int = 16 * 1024
    """Bytes per second below which an upload is given up, after `header_seconds`."""
    update_seconds: float = 3600.0
    """For the images of an update to arrive."""
    export_seconds: float = 120.0
    """For an export to ONNX, and for a rollback."""


class Budget:
    """An amount that all requests share."""

    def __init__(self, most: float, what: str) -> None:
        self.most, self.what, self.used = most, what, 0.0

    def take(self, amount: float) -> None:
        """A `Problem` if that is more than there is, unless nothing else is in use."""
        if self.used and self.used + amount > self.most:
            raise busy(self.what)
        self.used += amount

    def give_back(self, amount: float) -> None:
        self.used -= amount


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
