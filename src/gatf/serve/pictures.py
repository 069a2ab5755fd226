"""From the body of a request to pixels: images in multipart or JSON, checked before they are decoded."""

import asyncio
import base64
import binascii
import io
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor

from gatf.data.decode import BadImage, decode, likely_formats, plain_view
from gatf.data.inputs import grey
from gatf.data.preprocessing import Preprocessing
from gatf.io.text import harmless
from gatf.serve.limits import LONGEST_LABEL, Limits, Problem, not_understood, too_large

LONGEST_HEADERS = 8192
"""Bytes of one part's headers."""
HEADER_SECONDS = 0.2
"""Processor time to read the header of an image."""
SECONDS, SECONDS_PER_WORK = 0.2, 2e-7
"""Processor time to decode an image: about ten times of what it takes."""
PYTHON_DECODER = 50
"""How much longer Pillow's decoders take that are written in Python."""


class ImageSink(Protocol):
    """Takes images as they arrive. Clients do not choose file names: images are numbered."""

    def label(self, text: str) -> None:
        """The class of the images that follow."""
        ...

    def start(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class InMemory:
    """The images of a prediction."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.images: list[bytes] = []
        self._image = bytearray()

    def label(self, text: str) -> None:
        raise not_understood("a prediction takes parts named 'image' only")

    def start(self) -> None:
        if len(self.images) >= self.limits.images:
            raise too_large(f"at most {self.limits.images} images are classified at once")
        self._image = bytearray()

    def write(self, data: bytes) -> None:
        self._image += data

    def end(self) -> None:
        self.images.append(bytes(self._image))
        self._image = bytearray()


def checked_label(text: Any) -> str:
    """The class name without outer spaces; a `Problem` if it is not valid."""
    if not isinstance(text, str):
        raise not_understood("a class name is text")
    name = text.strip()
    if not 0 < len(name) <= LONGEST_LABEL:
        raise not_understood(f"a class name has 1 to {LONGEST_LABEL} characters")
    if harmless(name) != name:
        raise not_understood("a class name has characters that cannot be shown")
    return name


# --- multipart --------------------------------------------------------------------------------------------------------


def multipart_reader(content_type: str, sink: ImageSink, limits: Limits) -> "MultipartReader":
    from python_multipart.multipart import parse_options_header

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise not_understood("the multipart body names no boundary")
    return MultipartReader(boundary, sink, limits)


class MultipartReader:
    """Hands the parts of a multipart body to a sink while they arrive: `label` and `image`, in the order they are sent.

    A label counts for the images after it. File names are ignored.
    """

    def __init__(self, boundary: bytes, sink: ImageSink, limits: Limits) -> None:
        from python_multipart.multipart import MultipartParser

        self._parts = _Parts(sink, limits)
        self._parser: Any = MultipartParser(boundary, self._parts.callbacks())  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(data)
        except FormParserError:
            raise not_understood("the multipart body is malformed") from None

    def close(self) -> None:
        if not self._parts.ended:
            raise not_understood("the multipart body has no end")


class _Parts:
    """What the parser calls. It does not know the parser: a cycle of references would keep images in memory after the
    response, until Python looks for cycles."""

    def __init__(self, sink: ImageSink, limits: Limits) -> None:
        self.sink, self.limits = sink, limits
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._kind, self._size, self._text = "", 0, b""

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin, "on_header_field": self._header_field, "on_header_value": self._header_value,
            "on_header_end": self._header_end, "on_headers_finished": self._headers_finished,
            "on_part_data": self._data, "on_part_end": self._part_end, "on_end": self._end,
        }  # fmt: skip

    def _begin(self) -> None:
        self._headers, self._field, self._value = {}, b"", b""
        self._size, self._text = 0, b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]
        self._bound_headers()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._bound_headers()

    def _bound_headers(self) -> None:
        kept = sum(len(name) + len(value) for name, value in self._headers.items())
        if kept + len(self._field) + len(self._value) > LONGEST_HEADERS:
            raise too_large("a part of the multipart body has too long headers")

    def _header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _headers_finished(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._kind = options.get(b"name", b"").decode("utf-8", "replace")
        if self._kind not in ("label", "image"):
            raise not_understood("the parts of the multipart body are named 'image', or 'label' in an update")
        if self._kind == "image":
            self.sink.start()

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._kind == "label":
            if self._size > 4 * LONGEST_LABEL:
                raise not_understood(f"a class name has 1 to {LONGEST_LABEL} characters")
            self._text += data[start:end]
        elif self._size > self.limits.image_bytes:
            raise too_large(f"an image has more than {self.limits.image_bytes} bytes")
        else:
            self.sink.write(data[start:end])

    def _part_end(self) -> None:
        if self._kind == "image":
            self.sink.end()
            return
        try:
            self.sink.label(checked_label(self._text.decode("utf-8")))
        except UnicodeDecodeError:
            raise not_understood("a class name is not UTF-8") from None

    def _end(self) -> None:
        self.ended = True


async def read_multipart(
    content_type: str, body: AsyncIterator[bytes], sink: ImageSink, limits: Limits, turn: asyncio.Lock | None = None
) -> None:
    """Parse a body as it arrives: in a thread, because a sink may write to the disk, or in the event loop if `turn` is
    given, the lock of a client. Then other clients wait for one piece at most, and no threads compete for the
    interpreter."""
    reader = multipart_reader(content_type, sink, limits)
    async for data in body:
        if turn is None:
            await asyncio.to_thread(reader.feed, data)
            continue
        async with turn:
            reader.feed(data)
            await asyncio.sleep(0)
    reader.close()


def from_base64(text: Any, limits: Limits) -> bytes:
    if not isinstance(text, str):
        raise not_understood("an image in JSON is text in base64")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise not_understood("an image is not valid base64") from None
    if len(data) > limits.image_bytes:
        raise too_large(f"an image has more than {limits.image_bytes} bytes")
    return data


# --- pixels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What decoding an image takes, estimated from its header."""

    work: float
    """In pixels of a PNG file: time."""
    bytes: int
    """Memory at its peak."""


class _TookTooLong(Exception):
    """Neither an `OSError` nor another error that Pillow's readers catch."""


class _Timed:
    """A file whose reading fails after a processor time. Pillow reads chunks and markers one by one in Python, so that
    a few megabytes of them would take minutes."""

    end = float("inf")

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self.end:
            raise _TookTooLong
        found: bytes = super().read(size)  # type: ignore[misc]
        return found


class _TimedBytes(_Timed, io.BytesIO):
    pass


class _TimedFile(_Timed, io.BufferedReader):
    pass


def check_image(data: bytes | Path, name: str, limits: Limits) -> Cost:
    """The cost of an image; a `Problem` if its first bytes are of no image, or if it costs too much. Only the header is
    decoded."""
    started = time.thread_time()
    try:
        with _TimedBytes(data) if isinstance(data, bytes) else _TimedFile(io.FileIO(data)) as file:
            file.end = started + HEADER_SECONDS
            formats = likely_formats(file.read(2))
            with Image.open(file, formats=formats) as image:
                pixels, cost = image.width * image.height, _cost(image, data)
    except _TookTooLong:
        raise _too_expensive(name) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise too_large(f"{name} has more than {limits.pixels} pixels") from None
    except Exception:  # Pillow's readers raise nearly anything on damaged files
        raise Problem(422, "Not an image", f"{name} is not an image that can be read") from None
    if pixels > limits.pixels:
        raise too_large(f"{name} has more than {limits.pixels} pixels")
    if cost.bytes > limits.decode_bytes or cost.work > limits.request_pixels:
        raise _too_expensive(name)
    return Cost(max(cost.work, (time.thread_time() - started - HEADER_SECONDS / 10) / SECONDS_PER_WORK), cost.bytes)


def _too_expensive(name: str) -> Problem:
    return too_large(f"{name} would take too much time or memory to decode; make it smaller")


def _cost(image: ImageFile.ImageFile, data: bytes | Path) -> Cost:
    """Factors from measurements: a JPEG file is decoded at a fraction of its size, once per scan; transparency and 16
    bits take several copies of an image."""
    pixels = image.width * image.height
    if image.format == "JPEG":
        scans = data.count(b"\xff\xda") if isinstance(data, bytes) else 1
        return Cost(pixels * (1 + scans) / 8, pixels * (14 if "progressive" in image.info else 8))
    copies = 26 if image.mode.startswith("I") else 20 if image.has_transparency_data else 8
    slow, buffers = {"JPEG2000": (4, 12), "AVIF": (4, 12), "WEBP": (3, 12)}.get(image.format or "", (1, 0))
    if any(tile[0] in Image.DECODERS for tile in image.tile):
        slow = PYTHON_DECODER
    return Cost(pixels * slow * copies / 8, pixels * (copies + buffers))


def decoding(images: list[bytes], work: list[float], wanted: Preprocessing) -> Generator[None, None, Tensor]:
    """Decode images to a model's shape, uint8 [N, C, H, W], as `gatf predict` reads files; one image per step. `work`
    is that of each image, which bounds its time."""
    channels, side, _ = wanted.shape
    choose = plain_view(side, wanted.central_share)
    pixels = np.empty((len(images), side, side, 3), np.uint8)
    for number, data in enumerate(images):
        file = _TimedBytes(data)
        file.end = time.thread_time() + SECONDS + SECONDS_PER_WORK * work[number]
        try:
            pixels[number] = decode(data, f"image {number}", side, choose, file)
        except BadImage:
            if time.thread_time() > file.end:
                raise _too_expensive(f"image {number}") from None
            raise Problem(422, "Not an image", f"image {number} is damaged and cannot be decoded") from None
        yield
    found = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return found if channels == 3 else grey(found)
