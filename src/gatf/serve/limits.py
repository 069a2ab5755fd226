"""What a request may ask for, and what is said to one that asks for more."""

from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

MEGABYTE = 2**20
LONGEST_LABEL = 200


@dataclass(frozen=True)
class Limits:
    """Bounds that hold whoever asks."""

    request_bytes: int = 32 * MEGABYTE
    """Of a prediction, and of anything sent as JSON."""
    images: int = 256
    """Of one prediction."""
    image_bytes: int = 32 * MEGABYTE
    """Of one encoded picture."""
    pixels: int = 50_000_000
    """Of one picture: a small file can claim to be a very large one."""
    update_bytes: int = 4096 * MEGABYTE
    update_images: int = 50_000
    classes: int = 1000
    """Of one update."""
    queue: int = 128
    """Predictions under way, and images that wait for an answer; who comes then is told to come back later."""
    seconds: float = 60.0
    """For a prediction to arrive, and again for it to be answered."""
    update_seconds: float = 3600.0
    """For the pictures of an update to arrive."""
    export_seconds: float = 120.0
    """For an export to ONNX, and for a rollback."""


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
    return Problem(429, "Busy", f"{what}; come back later", Retry_After="1")


def too_slow() -> Problem:
    return Problem(408, "Too slow", "the request took too long to arrive")


def not_possible(what: str) -> Problem:
    """Nothing is wrong with the request, but not now."""
    return Problem(409, "Not possible now", what)
