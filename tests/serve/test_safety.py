"""Every promise of the server's about what it refuses, and how."""

import asyncio
import base64
import gc
import io
import json
import logging
import os
import re
import socket
import struct
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import torch
from PIL import Image
from uvicorn.protocols.http.h11_impl import H11Protocol

from gatf.errors import UserError
from gatf.serve import pictures
from gatf.serve.batching import LARGEST_BATCH, largest_batch
from gatf.serve.connections import BODY_PIECE, PIECE, Seldom, Turns
from gatf.serve.decoding import SMALL_IMAGE, Lane
from gatf.serve.guard import is_loopback
from gatf.serve.limits import Budget, Limits, Problem
from gatf.serve.pictures import InMemory, check_image, multipart_reader
from gatf.serve.run import check_address
from gatf.serve.studio import Options, Studio

from .server import Client, form, forward_that_waits, hold_forward, serving, until

Digits = Callable[[str, int], list[bytes]]
TOKEN = "a-token-that-nobody-guesses"
LIMITS = Limits(request_bytes=60_000, images=8, image_bytes=50_000, pixels=100_000, queue=4, update_images=6, seconds=3)


@pytest.fixture(scope="module")
def running(shop: Path) -> Iterator[tuple[Client, Studio]]:
    with serving(Options(shop, limits=LIMITS)) as found:
        yield found


@pytest.fixture(scope="module")
def client(running: tuple[Client, Studio]) -> Client:
    return running[0]


def problem(reply: Any, status: int) -> str:
    """The sentence of a refusal, which is JSON as RFC 9457 has it and holds no traceback."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.json) == {"type", "title", "status", "detail"}
    assert reply.json["status"] == status
    assert "Traceback" not in reply.body.decode()
    assert ".py" not in reply.body.decode()
    return str(reply.json["detail"])


# --- who may ask


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_address(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "shop.example", "::", "127.0.0.1.evil.example"])
def test_another_host_needs_a_token(host: str) -> None:
    with pytest.raises(UserError, match=r"a token is needed: put one into GATF_TOKEN .* 'Authorization: Bearer TOKEN'"):
        check_address(host, None)
    check_address(host, TOKEN)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(UserError, match="too easy to guess"):
        check_address("0.0.0.0", "secret")


def test_with_a_token_nothing_is_returned_without_it(taught: Path, digits: Digits) -> None:
    with serving(Options(taught, page=True, token=TOKEN)) as (client, _):
        parts = [("image", digits("d0", 1)[0])]
        for reply in (
            client.get("/v1/model"), client.send("/v1/predict", parts), client.get("/metrics"),
            client.get("/v1/model", authorization="Bearer wrong"), client.get("/openapi.json"),
            client.get("/v1/model", authorization=TOKEN), client.get("/nowhere"),
        ):  # fmt: skip
            assert "Authorization: Bearer" in problem(reply, 401)
            assert reply.headers["www-authenticate"] == "Bearer"
        own = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/model", **own).status == 200
        assert client.send("/v1/predict", parts, **own).status == 200
        assert client.get("/healthz").status == client.get("/").status == client.get("/studio.js").status == 200
        assert client.get("/v1/model", host="shop.example", **own).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://[",
        "://",
        "http://127.0.0.1:1",
        "https://127.0.0.1",
        "http://localhost:8000@evil",
    ],
)
def test_pages_of_other_sites_are_refused(client: Client, digits: Digits, origin: str) -> None:
    parts = [("image", digits("d0", 1)[0])]
    assert "other sites" in problem(client.send("/v1/predict", parts, origin=origin), 403)
    assert "other sites" in problem(client("POST", "/v1/rollback", b"", origin=origin), 403)
    reply = client("OPTIONS", "/v1/predict", origin=origin, access_control_request_method="POST")
    assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_requests_without_origin_are_refused(client: Client, site: str) -> None:
    """Images and links of other pages: they send no Origin, and an export costs as much as ever."""
    problem(client("POST", "/v1/rollback", b"", sec_fetch_site=site), 403)
    for path in ("/v1/model/onnx", "/v1/model/report", "/v1/map", "/v1/model/file"):
        problem(client.get(path, sec_fetch_site=site), 403)
    assert client.get("/docs", sec_fetch_site=site).status == 200  # a link to a page
    assert client.get("/v1/model", sec_fetch_site="none").status == 200  # an address that was typed


def test_the_own_page_may_ask_without_cors(client: Client, digits: Digits) -> None:
    reply = client.send("/v1/predict", [("image", digits("d0", 1)[0])], origin=f"http://127.0.0.1:{client.port}")
    assert reply.status == 200
    assert not any(name.startswith("access-control") for name in reply.headers)


def test_a_foreign_name_that_points_here_is_refused(client: Client) -> None:
    """A site whose name was made to resolve to this machine sends its own name as Host and as Origin."""
    evil = "evil.example:8000"
    assert "name of this machine" in problem(client.get("/v1/model", host=evil, origin=f"http://{evil}"), 421)
    assert client.get("/v1/model", host=f"localhost:{client.port}").status == 200


def test_an_allowed_site_gets_responses(taught: Path) -> None:
    site = "https://shop.example"
    with serving(Options(taught, origins=(site,))) as (client, _):
        reply = client.get("/v1/classes", origin=site)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, site)
        problem(client.get("/v1/classes", origin="https://other.example"), 403)


# --- how much


def test_a_large_request_is_refused_before_it_is_read(client: Client) -> None:
    problem(client("POST", "/v1/predict", b"x" * 70_000, content_type="application/json"), 413)


def test_a_large_request_without_a_length_is_refused_too(client: Client) -> None:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: application/json\r\n"
    connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(7):
        connection.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 413")
    connection.close()


def test_many_images_are_refused(client: Client, digits: Digits) -> None:
    assert "at most 8" in problem(client.send("/v1/predict", [("image", digits("d0", 1)[0])] * 9), 413)
    problem(client.send_json("/v1/predict", {"images": ["AA=="] * 9}), 413)


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG file of a few hundred bytes whose header claims this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [400, 40_000])
def test_decompression_bombs_are_refused(client: Client, side: int) -> None:
    assert "more than 100000 pixels" in problem(client.send("/v1/predict", [("image", bomb(side, side))]), 413)
    parts = [("label", b"a"), ("image", bomb(side, side))]
    assert "more than 100000 pixels" in problem(client.send("/v1/updates", parts), 413)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_the_images_of_a_request_share_a_limit_of_pixels_that_is_checked_before_decoding(
    monkeypatch: pytest.MonkeyPatch, shop: Path
) -> None:
    def decoded(*given: Any) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr("gatf.serve.pictures.decode", decoded)
    with serving(Options(shop, limits=replace(LIMITS, request_pixels=100_000))) as (client, _):
        large = encoded(Image.new("L", (300, 300)), "PNG")
        assert "100000 pixels together" in problem(client.send("/v1/predict", [("image", large)] * 2), 413)


def test_an_image_that_would_take_too_much_memory_is_refused_by_its_header() -> None:
    limits = Limits()
    header = struct.pack(">IIBBBBB", 7070, 7070, 1, 3, 0, 0, 0)
    palette = chunk(b"PLTE", b"\0" * 6) + chunk(b"tRNS", b"\0")
    transparent = SIGNATURE + chunk(b"IHDR", header) + palette + chunk(b"IDAT", zlib.compress(b"\0" * 100))
    with pytest.raises(Problem, match="too much time or memory"):
        check_image(transparent, "image 0", limits)
    photo = encoded(Image.new("RGB", (4000, 3000)), "JPEG")
    assert check_image(photo, "image 0", limits).work < SMALL_IMAGE  # the photo of a phone
    with pytest.raises(Problem, match="too much time or memory"):
        check_image(photo + b"\xff\xda" * 1000, "image 0", limits)  # decoded again for each of its scans


def jpeg_of_fill_bytes() -> bytes:
    plain = encoded(Image.new("L", (8, 8)), "JPEG")
    return plain[:2] + b"\xff" * 500_000 + plain[3:]


def png_with(kind: bytes, content: bytes, number: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(8 * 9)))
    return SIGNATURE + header + number * chunk(kind, content) + pixels + chunk(b"IEND", b"")


PROFILE = b"x\0\0" + zlib.compress(bytes(2**20 - 100), 9)


@pytest.mark.parametrize(
    "data", [jpeg_of_fill_bytes(), png_with(b"iCCP", PROFILE, 200), b"P6\n#" + b"a" * 500_000 + b"\n1 1\n255\n123"]
)
def test_reading_a_header_ends_after_a_time(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatf.serve.pictures.HEADER_SECONDS", 0.01)
    (tmp_path / "000000").write_bytes(data)
    for given in (data, tmp_path / "000000"):
        with pytest.raises(Problem, match="too much time or memory"):
            check_image(given, "image 0", Limits())


def test_decoding_an_image_ends_after_a_time(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatf.serve.pictures.SECONDS", -1)
    sentence = problem(running[0].send("/v1/predict", [("image", digits("d0", 1)[0])]), 413)
    assert "too much time or memory" in sentence


def test_images_that_pillow_decodes_slowly_count_as_large() -> None:
    text = b"P2\n1000 1000\n9\n" + b"1 " * 1_000_000
    assert check_image(text, "image 0", Limits()).work > SMALL_IMAGE
    assert check_image(b"P5\n1000 1000\n255\n" + bytes(1_000_000), "image 0", Limits()).work <= SMALL_IMAGE


def test_descriptions_of_the_model_leave_time_for_predictions(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    described, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def chart(*given: Any) -> dict[str, Any]:
        described.set()
        assert go_on.wait(60)
        order.append("map")
        return {}

    def check(*given: Any) -> Any:
        order.append("image")
        return check_image(*given)

    monkeypatch.setattr("gatf.serve.app.chart", chart)
    monkeypatch.setattr("gatf.serve.decoding.check_image", check)
    other = Client(client.port, "127.0.0.2")
    threads = [threading.Thread(target=other.get, args=("/v1/map",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert described.wait(60)
    picture = ("image", digits("d0", 1)[0])
    threads.append(threading.Thread(target=client.send, args=("/v1/predict", [picture])))
    threads[-1].start()
    until(lambda: len(studio.decoders.requests._tasks) == 4)
    go_on.set()
    for thread in threads:
        thread.join()
    assert order == ["map", "image", "map", "map", "map"]


def test_requests_are_served_during_a_rollback(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = running
    begun, go_on = threading.Event(), threading.Event()

    def slow(*given: Any, **more: Any) -> None:
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr("gatf.serve.updates.run_gatf", slow)
    rollback = threading.Thread(target=client, args=("POST", "/v1/rollback"))
    rollback.start()
    assert begun.wait(60)
    try:
        update = [("label", b"a"), ("image", digits("d0", 1)[0])]
        assert "a rollback is in progress" in problem(client.send("/v1/updates", update), 409)
        assert "a rollback is in progress" in problem(client("POST", "/v1/rollback"), 409)
        assert client.get("/healthz").status == 200
    finally:
        go_on.set()
        rollback.join()


def test_small_requests_do_not_wait_for_large_ones(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large image is decoded for as long as it takes; small ones are answered, and a second large one waits."""
    decode, decoding, go_on = pictures.decode, threading.Event(), threading.Event()
    large = encoded(Image.new("L", (2500, 2500)), "PNG")
    at_once: list[int] = []

    def slow(data: bytes, *given: Any) -> Any:
        if data == large:
            at_once.append(1)
            decoding.set()
            assert go_on.wait(60)
            at_once.pop()
        return decode(data, *given)

    monkeypatch.setattr("gatf.serve.pictures.decode", slow)
    small = encoded(Image.new("L", (8, 8)), "PNG")
    with serving(Options(taught, limits=Limits(request_pixels=16_000_000))) as (client, studio):
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(client.send("/v1/predict", [("image", large)]).status))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert decoding.wait(60)
        until(lambda: studio.decoders.large.budget.used == 12_500_000)
        assert client.send("/v1/predict", [("image", small)] * 3).status == 200
        assert len(at_once) == 1
        assert "wait to be decoded" in problem(client.send("/v1/predict", [("image", large)]), 429)
        go_on.set()
        for thread in threads:
            thread.join()
    assert statuses == [200, 200]
    assert studio.decoders.large.budget.used == 0


def test_a_request_that_is_given_up_is_not_decoded_further(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, go_on = pictures.decode, threading.Event()
    calls: list[int] = []

    def slow(*given: Any) -> Any:
        calls.append(1)
        assert go_on.wait(60)
        return decode(*given)

    monkeypatch.setattr("gatf.serve.pictures.decode", slow)
    small = encoded(Image.new("L", (8, 8)), "PNG")
    with serving(Options(taught, limits=Limits(seconds=3))) as (client, _):
        problem(client.send("/v1/predict", [("image", small)] * 50), 503)
        go_on.set()
    assert len(calls) < 50


def test_one_image_does_not_wait_for_a_request_with_many(
    taught: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Options(taught, limits=Limits(queue=300))) as (client, studio):
        looking, passes = threading.Event(), threading.Semaphore(0)
        hold_forward(studio, monkeypatch, looking, lambda: passes.acquire(timeout=60))
        picture = ("image", digits("d0", 1)[0])
        ended: list[int] = []

        def ask(count: int) -> None:
            assert client.send("/v1/predict", [picture] * count).status == 200
            ended.append(count)

        many = threading.Thread(target=ask, args=(200,))
        many.start()
        assert looking.wait(60)
        one = threading.Thread(target=ask, args=(1,))
        one.start()
        until(lambda: studio.batcher.waiting_images == 200 - LARGEST_BATCH + 1)
        passes.release(2)  # the batch that has begun, and the next one
        one.join(60)
        assert ended == [1]
        passes.release(200)
        many.join()
    assert ended == [1, 200]


def test_json_with_very_many_values_is_refused_before_it_is_parsed(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Options(taught)) as (client, _), monkeypatch.context() as patched:
        patched.setattr("gatf.serve.app.json", SimpleNamespace(loads=lambda body: pytest.fail("the body was parsed")))
        body = b'{"images": [' + b"1," * 400_000 + b"1]}"
        assert "values" in problem(client("POST", "/v1/predict", body, content_type="application/json"), 413)
        body = b'{"classes": [' + b"{}," * 200_000 + b"{}]}"
        assert "values" in problem(client("POST", "/v1/updates", body, content_type="application/json"), 413)
        body = b" " * (Limits().json_bytes + 1)
        assert "bytes" in problem(client("POST", "/v1/predict", body, content_type="application/json"), 413)


def test_json_with_many_wrong_values_names_the_first(taught: Path) -> None:
    with serving(Options(taught)) as (client, _):
        detail = problem(client.send_json("/v1/predict", {"images": [1] * 200}), 422)
        assert detail.count("images.") == 1
        detail = problem(client.send_json("/v1/updates", {"classes": [{"label": 1}] * 1000}), 422)
        assert detail.count("classes.0") == detail.count("classes.")
        detail = problem(client.send_json("/v1/learn", {"vectors": [[1]], "labels": [[]] * 1000}), 422)
        assert detail.count("labels.0") == detail.count("labels.")


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/forget", "/v1/updates"])
def test_json_with_many_unknown_fields_names_the_first(client: Client, path: str) -> None:
    """Pydantic would make an error of each, which takes minutes for as many as fit into a body."""
    detail = problem(client.send_json(path, {f"field{number}": 1 for number in range(100)}), 422)
    assert len(re.findall(r"field\d", detail)) == 1


def test_vectors_for_a_model_of_images_are_refused_before_they_are_parsed(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Options(taught)) as (client, _), monkeypatch.context() as patched:
        patched.setattr("gatf.serve.app.json", SimpleNamespace(loads=lambda body: pytest.fail("the body was parsed")))
        body = b'{"vectors": [[' + b"1," * 1000 + b"1]]}"
        for path in ("/v1/predict", "/v1/learn"):
            assert "images" in problem(client("POST", path, body, content_type="application/json"), 422)


@pytest.mark.parametrize("text", ["x" * 50_000, "a\0b", "\ud800"])
def test_names_that_a_command_cannot_take_are_refused(client: Client, text: str) -> None:
    problem(client.send_json("/v1/forget", {"label": text}), 422)
    problem(client.send_json("/v1/predict", {"images": ["a"], "encoder": text}), 422)
    problem(client.send_json("/v1/predict", {"images": ["a"], text: 1}), 422)
    if text.isascii():  # an address has no lone surrogates
        problem(client("POST", f"/v1/upgrade?encoder={quote(text[:900])}", b""), 422)


def test_images_in_very_many_pieces_take_little_memory() -> None:
    """The parser splits an image at every beginning of a boundary."""
    content = b"\r\n--" * 100_000
    body, kind = form([("image", content)])
    sink = InMemory(Limits())
    reader = multipart_reader(kind, sink, Limits())
    tracemalloc.start()
    try:
        reader.feed(body[:-10])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    reader.feed(body[-10:])
    assert sink.images == [content]
    assert held < 3 * len(content)


def test_bodies_of_changes_are_checked_before_they_are_parsed(taught: Path) -> None:
    with serving(Options(taught)) as (client, _):
        body = b'{"label": [' + b"1," * 1000 + b"1]}"
        assert "values" in problem(client("POST", "/v1/forget", body, content_type="application/json"), 413)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as written:
            for number in range(101):
                written.writestr(str(number), b"")
        kind = "application/octet-stream"
        assert "arrays" in problem(client("POST", "/v1/upgrade", archive.getvalue(), content_type=kind), 413)


def test_bodies_in_memory_share_a_limit_and_small_ones_always_get_in(
    taught: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(held_bytes=2**20, image_bytes=2**22)
    held = Budget(limits.held_bytes, "too many large requests")
    monkeypatch.setattr("gatf.serve.guard.Budget", lambda *given: held)
    with serving(Options(taught, limits=limits)) as (client, _):
        body, kind = form([("image", b"x" * (2**20 + 900_000))])
        first = socket.create_connection(("127.0.0.1", client.port), timeout=30)
        head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: {kind}\r\n"
        first.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:-100])
        until(lambda: held.used > 890_000)
        assert client("POST", "/v1/predict", body, content_type=kind).status == 429
        assert client.send("/v1/predict", [("image", digits("d0", 1)[0])]).status == 200
        other = Client(client.port, "127.0.0.2")  # has its own share
        smaller, its_kind = form([("image", b"x" * (2**20 + 400_000))])
        assert client("POST", "/v1/predict", smaller, content_type=its_kind).status == 429
        assert other("POST", "/v1/predict", smaller, content_type=its_kind).status == 422
        first.close()
        until(lambda: client("POST", "/v1/predict", body, content_type=kind).status == 422)


PADDED = encoded(Image.new("L", (8, 8)), "PNG") + bytes(2**21)


def lost(client: Client, body: bytes, kind: str) -> None:
    """A request that ends before its body does."""
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([("image", PADDED)], 200),
        ([("image", bytes(2**21))], 422),
        ([("image", PADDED), ("image", b"no image")], 422),
        ([("image", PADDED), ("other", b"")], 422),
        ([("image", PADDED[:45] + bytes(2**21))], 422),
        ([("image", PADDED)], None),
        (json.dumps({"images": [base64.b64encode(PADDED).decode()]}), 200),
        (json.dumps({"images": [base64.b64encode(bytes(2**21)).decode()]}), 422),
        (json.dumps({"images": [base64.b64encode(PADDED).decode() + "!"]}), 422),
        (json.dumps({"pictures": [base64.b64encode(PADDED).decode()]}), 422),
        ('{"images": ["' + "A" * 2**21, 422),
    ],
    ids=["image", "no image", "second is none", "wrong part", "damaged", "lost", "json", "json: no image",
         "json: wrong", "json: unknown field", "json: damaged"],
)  # fmt: skip
def test_the_body_of_a_request_is_freed_with_its_response(
    taught: Path, parts: list[tuple[str, bytes]] | str, status: int | None
) -> None:
    """Nothing waits for Python's search for cycles, which can be a hundred requests away."""
    body, kind = (parts.encode(), "application/json") if isinstance(parts, str) else form(parts)
    with serving(Options(taught)) as (client, _):

        def ask() -> None:
            if status is None:
                lost(client, body, kind)
            else:
                assert client("POST", "/v1/predict", body, content_type=kind).status == status

        ask()
        assert client.get("/healthz").status == 200
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(6):
                ask()
            until(lambda: tracemalloc.get_traced_memory()[0] < 2**21, 5)
        finally:
            tracemalloc.stop()
            gc.enable()


def test_a_json_body_is_freed_when_its_images_are_decoded(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each counted byte would take two."""
    reached, go_on = threading.Event(), threading.Event()

    def waiting(*given: Any) -> Any:
        reached.set()
        assert go_on.wait(60)
        return check_image(*given)

    monkeypatch.setattr("gatf.serve.decoding.check_image", waiting)
    body = json.dumps({"images": [base64.b64encode(PADDED).decode()]}).encode()
    with serving(Options(taught)) as (client, _):
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            kind = {"content_type": "application/json"}
            asking = threading.Thread(target=client, args=("POST", "/v1/predict", body), kwargs=kind)
            asking.start()
            assert reached.wait(60)
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            go_on.set()
            asking.join()
    assert held < 1.2 * len(body)


def test_images_that_are_given_up_leave_the_queue_at_once() -> None:
    """Their bytes count no longer, so they must be freed."""
    lane, begun, go_on = Lane("test"), threading.Event(), threading.Event()

    def holding() -> Generator[None, None, None]:
        begun.set()
        assert go_on.wait(60)
        yield

    async def give_up() -> None:
        first = asyncio.ensure_future(lane.run("a", 1, 1, holding()))
        await asyncio.to_thread(begun.wait, 60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lane.run("a", 1, 1, holding())
        assert not lane._tasks
        go_on.set()
        await first

    asyncio.run(give_up())
    lane.close()


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0", bomb(50, 50)])
def test_a_file_that_is_no_image_is_one_sentence(client: Client, data: bytes) -> None:
    assert "image 0" in problem(client.send("/v1/predict", [("image", data)]), 422)


def test_requests_beyond_the_queue_get_a_retry_time(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    looking, go_on = forward_that_waits(studio, monkeypatch)
    statuses: list[int] = []
    picture = ("image", digits("d0", 1)[0])
    threads = [
        threading.Thread(target=lambda: statuses.append(client.send("/v1/predict", [picture] * 2).status))
        for _ in range(3)
    ]
    threads[0].start()
    assert looking.wait(60)
    for thread in threads[1:]:  # one batch is looked at, two requests wait: four images
        thread.start()
    until(lambda: studio.batcher.waiting_images == 4)
    refused = client.send("/v1/predict", [picture] * 3)
    assert "try again later" in problem(refused, 429)
    assert refused.headers["retry-after"] == "1"
    single = threading.Thread(target=lambda: statuses.append(client.send("/v1/predict", [picture]).status))
    single.start()  # requests with many images do not keep it out
    until(lambda: studio.batcher.waiting_images == 5)
    go_on.set()
    for thread in [*threads, single]:
        thread.join()
    assert statuses == [200] * 4


def test_a_client_with_many_predictions_does_not_keep_another_out_or_waiting(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn takes the address of a client from a proxy on this machine."""
    client, studio = running
    monkeypatch.setattr("gatf.serve.batching.LARGEST_BATCH", 2)
    looking, batches = threading.Event(), threading.Semaphore(0)
    hold_forward(studio, monkeypatch, looking, lambda: batches.acquire(timeout=60))
    picture = ("image", digits("d0", 1)[0])
    ended: list[str] = []

    def ask(address: str) -> None:
        assert client.send("/v1/predict", [picture], x_forwarded_for=address).status == 200
        ended.append(address)

    threads = [threading.Thread(target=ask, args=(address,)) for address in ("10.0.0.1",) * 4 + ("10.0.0.2",)]
    for number, thread in enumerate(threads):
        thread.start()
        assert looking.wait(60)
        until(lambda number=number: studio.batcher.waiting_images == number)
    assert "try again later" in problem(client.send("/v1/predict", [picture], x_forwarded_for="10.0.0.1"), 429)
    for answered in (1, 3):  # the first prediction had a batch of its own; the next batch has an image of each client
        batches.release()
        until(lambda answered=answered: len(ended) == answered)
    assert sorted(ended) == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    batches.release()
    for thread in threads:
        thread.join()
    assert studio.under_way.used == 0


def test_a_budget_is_shared_by_clients() -> None:
    budget = Budget(8, "too much")
    budget.take(20, "a")  # nothing else is in use
    budget.give_back(20, "a")
    for _ in range(8):
        budget.take(1, "a")
    for client, amount in (("a", 1), ("b", 5)):
        with pytest.raises(Problem):
            budget.take(amount, client)
    budget.take(4, "b")
    budget.take(2, "c")
    with pytest.raises(Problem):
        budget.take(1, "c")
    budget.take(2, "d")
    with pytest.raises(Problem):  # twice the amount is in use
        budget.take(1, "e")
    assert budget.used == 16


def test_clients_take_turns_in_decoding() -> None:
    order: list[str] = []
    go_on = threading.Event()

    def steps(client: str) -> Any:
        for _ in range(3):
            assert go_on.wait(60)
            order.append(client)
            yield
        return torch.zeros(0)

    async def all_of_them() -> None:
        lane = Lane("test", threads=1, most=100)
        tasks = [asyncio.create_task(lane.run("a", 3, 3, steps("a"))) for _ in range(5)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(lane.run("b", 9, 3, steps("b"))))  # its images are larger
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)
        lane.close()

    asyncio.run(all_of_them())
    assert sorted(order) == ["a"] * 15 + ["b"] * 3
    assert [number for number, client in enumerate(order) if client == "b"] == [1, 5, 9]


def test_very_many_predictions_are_refused(taught: Path, digits: Digits) -> None:
    with serving(Options(taught, limits=Limits(answers=5))) as (client, _):
        pictures = [("image", data) for data in digits("d0", 3)]
        assert client.send("/v1/predict?top=1", pictures).status == 200
        assert "'top'" in problem(client.send("/v1/predict?top=1000", pictures), 413)


def test_a_client_with_many_connections_does_not_keep_another_out(taught: Path) -> None:
    """All its connections have a request in progress."""
    with serving(Options(taught, limits=Limits(connections=4))) as (client, _):
        head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Length: 9\r\n\r\n1".encode()
        with ExitStack() as held:
            for _ in range(4):
                address = ("127.0.0.1", client.port)
                one = held.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
                one.sendall(head)
                time.sleep(0.1)
            assert client.get("/healthz").status == 200


def test_a_client_that_sends_tiny_chunks_does_not_keep_another_out(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing the first chunks waits until another client has sent a request; the others come after that request."""
    parse, parsed, go_on = H11Protocol.data_received, list[tuple[str, int]](), threading.Event()

    def recorded(self: Any, data: bytes) -> None:
        parsed.append((self.client[0], len(data)))
        if self.client[0] == "127.0.0.2":
            assert go_on.wait(60)
        parse(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", recorded)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    with serving(Options(taught)) as (client, _), ExitStack() as held:
        address = ("127.0.0.1", client.port)
        connection = held.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
        connection.sendall(head + b"Content-Type: application/json\r\n\r\n" + b"1\r\n1\r\n" * 60_000 + b"0\r\n\r\n")
        until(lambda: parsed)
        other = held.enter_context(opened(client, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
        go_on.set()
        assert other.recv(4096).startswith(b"HTTP/1.1 200")
        assert connection.recv(4096).startswith(b"HTTP/1.1 422")
    hosts = [host for host, _ in parsed]
    assert "127.0.0.2" in hosts[hosts.index("127.0.0.1") :]
    assert max(size for _, size in parsed) <= PIECE


def test_a_body_of_known_length_is_parsed_in_larger_pieces_up_to_its_end(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pieces of it take half of the processor time of requests with large bodies."""
    parse, sizes = H11Protocol.data_received, list[int]()

    def recorded(self: Any, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", recorded)
    body = b"x" * 1_000_000
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    next_one = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n"
    with serving(Options(taught)) as (client, _), opened(client) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + next_one)
        received = b""
        while received.count(b"HTTP/1.1 200") < 1:
            received += connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 422")
    assert max(sizes) == BODY_PIECE
    assert len(sizes) < 60
    assert all(size <= PIECE for size in sizes[-3:])


def test_requests_in_one_piece_are_answered_one_after_the_other(client: Client) -> None:
    with opened(client, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200) as connection:
        received = b""
        while received.count(b"HTTP/1.1 200") < 200:
            received += connection.recv(65536)


def test_very_long_headers_are_refused(client: Client) -> None:
    with opened(client, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "a:b\r\n" * 8000 + "\r\n") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")


def test_clients_take_turns_in_the_event_loop() -> None:
    done: list[str] = []

    async def take() -> None:
        turns = Turns()
        for name in ("a1", "a2", "a3", "b1"):
            turns.add(name[0], lambda name=name: done.append(name))
        while len(done) < 4:
            await asyncio.sleep(0)
        turns.add("c", lambda: done.append("c1"))
        await asyncio.sleep(0)

    asyncio.run(take())
    assert done == ["a1", "b1", "a2", "a3", "c1"]


def test_a_request_that_never_arrives_is_given_up(
    running: tuple[Client, Studio], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    monkeypatch.setattr(studio, "limits", Limits(seconds=0.3))
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: application/json\r\n"
    connection.sendall(head.encode() + b'Content-Length: 1000\r\n\r\n{"images": [')
    assert connection.recv(4096).startswith(b"HTTP/1.1 408")
    connection.close()


# --- connections


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed it."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def opened(client: Client, text: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    connection.sendall(text.encode())
    return connection


HURRIED = Limits(header_seconds=0.5, connections=20)


@pytest.mark.parametrize("text", ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea"])
def test_half_sent_headers_are_given_up(taught: Path, text: str) -> None:
    with serving(Options(taught, limits=HURRIED)) as (client, _), opened(client, text) as connection:
        assert closed(connection)


def test_idle_connections_do_not_keep_others_out(taught: Path) -> None:
    limits = Limits(header_seconds=30, connections=20)
    with ExitStack() as stack, serving(Options(taught, limits=limits)) as (client, _):
        idle = [stack.enter_context(opened(client)) for _ in range(60)]
        assert client.get("/healthz").status == 200
        assert closed(idle[0])


def test_a_client_that_does_not_read_is_given_up(taught: Path, tmp_path: Path) -> None:
    with serving(Options(taught, limits=HURRIED)) as (client, studio):
        large = tmp_path / "large"
        large.write_bytes(b"x" * 30_000_000)
        studio.live.path = large
        text = f"GET /v1/model/file HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n"
        with opened(client, text):
            until(lambda: b'file",method="GET",status="200"' in client.get("/metrics").body)  # it has ended


def test_an_upload_that_is_too_slow_is_given_up_and_frees_its_place(taught: Path, digits: Digits) -> None:
    body, kind = form([("label", b"a"), ("image", digits("d0", 1)[0])])
    head = (
        f"POST /v1/updates HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with serving(Options(taught, limits=HURRIED)) as (client, studio):
        with opened(client, head) as connection:
            for number in range(20):
                connection.sendall(body[number : number + 1])
                if studio.updates.active is None and number > 3:
                    break
                time.sleep(0.1)
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")
        assert studio.updates.active is None


def test_an_update_that_arrives_can_be_seen_and_cancelled(taught: Path, digits: Digits) -> None:
    parts = [("label", b"a"), ("image", digits("d0", 1)[0])]
    kind = form(parts)[1]
    head = f"POST /v1/updates HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 500\r\n\r\n"
    with serving(Options(taught)) as (client, studio), opened(client, head) as connection:
        until(lambda: studio.updates.active is not None)
        detail = problem(client.send("/v1/updates", parts), 409)
        name = re.search(r"/v1/updates/(\w+)", detail)
        assert name is not None
        assert client.get(name[0]).json["state"] == "receiving"
        assert client("DELETE", name[0]).json["state"] == "cancelled"
        assert connection.recv(65536).startswith(b"HTTP/1.1 409")
        ended = client.get(name[0]).json
        assert (ended["state"], ended["pictures_deleted"]) == ("cancelled", True)
        assert studio.updates.active is None
        assert [file.name for file in studio.updates.folder.iterdir()] == ["lock"]


def test_downloads_are_counted(taught: Path) -> None:
    """Each has a file open."""
    with serving(Options(taught, limits=Limits(downloads=2))) as (client, studio):
        studio.downloads.take(2, "127.0.0.1")
        assert "downloads" in problem(client.get("/v1/model/file"), 429)
        assert Client(client.port, "127.0.0.2").get("/v1/model/file").status == 200
        until(lambda: studio.downloads.used == 2)
        studio.downloads.give_back(2, "127.0.0.1")
        assert client.get("/v1/model/file").status == 200


def test_a_model_file_that_is_missing_or_a_pipe_is_not_sent(taught: Path, tmp_path: Path) -> None:
    with serving(Options(taught)) as (client, studio):
        studio.live.path = tmp_path / "other.gatf"
        assert "other.gatf" in problem(client.get("/v1/model/file"), 409)
        os.mkfifo(studio.live.path)
        assert "other.gatf" in problem(client.get("/v1/model/file"), 409)


def test_event_streams_are_counted(taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Options(taught, limits=Limits(streams=1))) as (client, studio):
        update, _ = studio.updates.reserve()
        text = f"GET /v1/updates/{update.id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with opened(client, text):
            until(lambda: studio.streams == 1)
            assert "event streams" in problem(client.get(f"/v1/updates/{update.id}/events"), 429)
        until(lambda: studio.streams == 0)
        studio.updates.discard(update)


def test_what_happens_very_often_is_logged_seldom() -> None:
    seldom = Seldom()

    def passes(created: float, text: str) -> bool:
        record = logging.LogRecord("a", logging.ERROR, "file", 1, text, (), None)
        record.created = created
        return seldom.filter(record)

    assert sum(passes(100.0 + number / 1000, "out of descriptors") for number in range(1000)) == 10
    assert passes(101, "another error")
    assert passes(170, "out of descriptors")


def test_a_slow_prediction_times_out(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running

    async def never(question: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(studio.batcher, "ask", never)
    monkeypatch.setattr(studio, "limits", Limits(seconds=0.2))
    assert "within 0.2 s;" in problem(client.send("/v1/predict", [("image", digits("d0", 1)[0])]), 503)


def test_updates_have_limits_and_leave_nothing(
    running: tuple[Client, Studio], digits: Digits, shop: Path
) -> None:  # fmt: skip
    client, studio = running
    picture = digits("d5", 1)[0]
    many = [("label", b"d5"), *[("image", picture)] * 7]
    assert "at most 6" in problem(client.send("/v1/updates", many), 413)
    for parts in (
        [("image", picture)], [("label", b" \t"), ("image", picture)], [("label", b"x" * 300), ("image", picture)],
        [("label", b"\xff"), ("image", picture)], [("label", b"a\x1b[2J"), ("image", picture)], [("label", b"a")],
        [("label", b"a"), ("image", b"no picture")], [("name", b"a")], [],
    ):  # fmt: skip
        problem(client.send("/v1/updates", parts), 422)
    half, kind = form([("label", b"a"), ("image", picture)])
    problem(client("POST", "/v1/updates", half[:-20], content_type=kind), 422)
    problem(client("POST", "/v1/updates", half, content_type="text/plain"), 415)
    problem(client("POST", "/v1/updates", half, content_type="multipart/form-data"), 422)
    problem(client("POST", "/v1/predict", b'{"images": ' * 20, content_type="application/json"), 422)
    assert studio.updates.active is None
    assert [file.name for file in studio.updates.folder.iterdir()] == ["lock"]
    assert studio.updates.folder.stat().st_mode & 0o077 == 0


# --- what is reported


def test_a_batch_of_photos_is_smaller_than_one_of_small_images() -> None:
    assert largest_batch(torch.zeros(1, 1, 8, 8)) == LARGEST_BATCH == 32
    assert largest_batch(torch.zeros(1, 3, 224, 224)) == 4
    assert largest_batch(torch.zeros(1, 3, 2000, 2000)) == 1


def test_errors_have_no_traceback_and_logs_no_content(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = running
    picture = digits("d0", 1)[0]

    def broken(*given: Any, **more: Any) -> None:
        raise RuntimeError(f"cannot work with {picture!r}")

    monkeypatch.setattr("gatf.serve.batching.predictions_from", broken)
    with caplog.at_level(logging.DEBUG, logger="gatf"):
        detail = problem(client.send("/v1/predict?top=2", [("image", picture)]), 500)
        until(lambda: "POST /v1/predict 500" in caplog.text)  # it is written when the answer has been sent
    assert "unexpected" in detail
    assert "RuntimeError in " in caplog.text
    assert "PNG" not in caplog.text
    assert "IHDR" not in caplog.text


def test_what_was_sent_is_not_repeated(client: Client) -> None:
    reply = client.send_json("/v1/predict", {"images": ["secret picture"], "more": "secret picture"})
    assert "secret" not in problem(reply, 422)
    assert "more" in reply.json["detail"]
    problem(client.get("/v1/predict"), 405)
    problem(client.get("/v1/updates/..%2f..%2fetc%2fpasswd"), 404)
    problem(client.get("/..%2f..%2fetc%2fpasswd"), 404)
    problem(client("POST", "/v1/predict?top=0", b"", content_type="application/json"), 422)


def test_every_response_has_security_headers(client: Client) -> None:
    for reply in (client.get("/v1/model"), client.get("/docs"), client.get("/nowhere")):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_class_names_are_text_everywhere(
    taught: Path, tmp_path: Path, tiny_classifier: Callable[..., Any]
) -> None:  # fmt: skip
    name = "<img src=x onerror=alert(1)>"
    pixels = torch.randint(256, (20, 8, 8), dtype=torch.uint8)
    path = tmp_path / "odd.gatf"
    tiny_classifier(epochs=1).fit(pixels, [name, "$x_1$"] * 10).save(path)
    with serving(Options(path)) as (client, _):
        classes = client.get("/v1/classes")
        assert {item["label"] for item in classes.json["classes"]} == {name, "$x_1$"}
        assert classes.headers["content-type"] == "application/json"
        report = client.get("/v1/model/report").body.decode()
    assert "<img" not in report
    assert "&lt;img src=x onerror" in report


def test_the_lock_keeps_a_second_server_from_learning(
    running: tuple[Client, Studio], shop: Path, digits: Digits
) -> None:
    with serving(Options(shop)) as (second, _):
        parts = [("label", b"d5"), ("image", digits("d5", 1)[0])]
        assert "another server" in problem(second.send("/v1/updates", parts), 409)
        assert "another server" in problem(second("POST", "/v1/rollback", b""), 409)
        assert second.send("/v1/predict", [("image", digits("d0", 1)[0])]).status == 200


def test_damaged_json_bodies_are_sentences(client: Client) -> None:
    for body in (b"", b"[]", b"null", b"{", b"\xff\xfe", json.dumps({"images": "AA"}).encode(), b'{"images": [1]}'):
        problem(client("POST", "/v1/predict", body, content_type="application/json"), 422)
