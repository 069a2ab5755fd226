"""Every promise of the server's about what it refuses, and how."""

import asyncio
import json
import logging
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gatf.errors import UserError
from gatf.serve.guard import is_loopback
from gatf.serve.limits import Limits
from gatf.serve.run import check_address
from gatf.serve.studio import Options, Studio

from .server import Client, form, look_that_waits, serving, until

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
def test_another_address_needs_a_token_and_says_so(host: str) -> None:
    with pytest.raises(UserError, match=r"a token is needed: put one into GATF_TOKEN .* 'Authorization: Bearer TOKEN'"):
        check_address(host, None)
    check_address(host, TOKEN)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(UserError, match="too easy to guess"):
        check_address("0.0.0.0", "secret")


def test_with_a_token_nothing_is_told_without_it(taught: Path, digits: Digits) -> None:
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
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", "http://localhost:8000@evil"]
)
def test_pages_of_other_sites_are_refused(client: Client, digits: Digits, origin: str) -> None:
    parts = [("image", digits("d0", 1)[0])]
    assert "other sites" in problem(client.send("/v1/predict", parts, origin=origin), 403)
    assert "other sites" in problem(client("POST", "/v1/rollback", b"", origin=origin), 403)
    reply = client("OPTIONS", "/v1/predict", origin=origin, access_control_request_method="POST")
    assert not any(name.startswith("access-control") for name in reply.headers)


def test_cross_site_posts_without_origin_are_refused(client: Client) -> None:
    problem(client("POST", "/v1/rollback", b"", sec_fetch_site="cross-site"), 403)


def test_the_own_page_may_ask_and_no_other_site_is_told(client: Client, digits: Digits) -> None:
    reply = client.send("/v1/predict", [("image", digits("d0", 1)[0])], origin=f"http://127.0.0.1:{client.port}")
    assert reply.status == 200
    assert not any(name.startswith("access-control") for name in reply.headers)


def test_a_foreign_name_that_points_here_is_refused(client: Client) -> None:
    """A site whose name was made to resolve to this machine sends its own name as Host and as Origin."""
    evil = "evil.example:8000"
    assert "name of this machine" in problem(client.get("/v1/model", host=evil, origin=f"http://{evil}"), 421)
    assert client.get("/v1/model", host=f"localhost:{client.port}").status == 200


def test_a_site_that_was_allowed_is_answered(taught: Path) -> None:
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


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that says it is so large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [400, 40_000])
def test_decompression_bombs_are_refused(client: Client, side: int) -> None:
    assert "more than 100000 pixels" in problem(client.send("/v1/predict", [("image", bomb(side, side))]), 413)
    parts = [("label", b"a"), ("image", bomb(side, side))]
    assert "more than 100000 pixels" in problem(client.send("/v1/updates", parts), 413)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0", bomb(50, 50)])
def test_what_is_no_picture_is_a_sentence(client: Client, data: bytes) -> None:
    assert "image 0" in problem(client.send("/v1/predict", [("image", data)]), 422)


def test_who_comes_when_too_many_wait_is_told_to_come_back(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    looking, go_on = look_that_waits(studio, monkeypatch)
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
    refused = client.send("/v1/predict", [picture])
    assert "come back later" in problem(refused, 429)
    assert refused.headers["retry-after"] == "1"
    go_on.set()
    for thread in threads:
        thread.join()
    assert statuses == [200, 200, 200]


def test_predictions_under_way_are_counted_from_their_first_byte(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running
    monkeypatch.setattr(studio, "under_way", LIMITS.queue)
    refused = client.send("/v1/predict", [("image", digits("d0", 1)[0])])
    assert "come back later" in problem(refused, 429)
    assert studio.under_way == LIMITS.queue


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


def test_an_answer_that_takes_too_long_is_given_up(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, studio = running

    async def never(question: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(studio.batcher, "ask", never)
    monkeypatch.setattr(studio, "limits", Limits(seconds=0.2))
    assert "within 0.2 seconds" in problem(client.send("/v1/predict", [("image", digits("d0", 1)[0])]), 503)


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
    problem(client("POST", "/v1/predict", b'{"images": ' * 500, content_type="application/json"), 422)
    assert studio.updates.active is None
    assert [file.name for file in studio.updates.folder.iterdir()] == ["lock"]
    assert studio.updates.folder.stat().st_mode & 0o077 == 0


# --- what is told


def test_errors_have_no_traceback_and_logs_no_content(
    running: tuple[Client, Studio], digits: Digits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = running
    picture = digits("d0", 1)[0]

    def broken(*given: Any, **more: Any) -> None:
        raise RuntimeError(f"cannot work with {picture!r}")

    monkeypatch.setattr("gatf.serve.batching.answer", broken)
    with caplog.at_level(logging.DEBUG, logger="gatf"):
        detail = problem(client.send("/v1/predict?top=2", [("image", picture)]), 500)
        until(lambda: "POST /v1/predict 500" in caplog.text)  # it is written when the answer has been sent
    assert "unforeseen" in detail
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


def test_every_answer_says_what_browsers_may_do_with_it(client: Client) -> None:
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
