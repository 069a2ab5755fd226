"""What another client of `gatf serve` notices while somebody attacks: latency of its single predictions, and memory.

    python benchmarks/attacks.py digits|photos [--seconds 60]

Each attack has a server of its own and lasts this long. One client asks for one prediction at a time, each on a new
connection; it waits as long as `Retry-After` demands, which counts as latency. The attackers have another address than
the client, and all share two cores of this machine with the server. The goal: p99 of at most 2 s, and no more memory
than docs/studio.md allows. The output is one line `figure: JSON` per attack, which tools/torture.py records; the exit
code is 1 if one misses the goal.
"""

import argparse
import base64
import http.client
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import rounded, status
from load import FORM, SERVER_CORES, ask_often, learnt, quantiles
from PIL import Image
from serving import server

from gatf.serve.limits import MEGABYTE, Limits

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.serve.server import Client, form
from tests.serve.test_safety import SIGNATURE, chunk

LONGEST_P99 = 2.0
MOST_MEMORY = Limits().decode_bytes + 2 * Limits().held_bytes + Limits().connections * MEGABYTE
"""Above the model and PyTorch, as docs/studio.md adds it up."""
PAUSE = 0.01
SIDE = 7070
Act = Callable[[int, float], None]
ATTACKER = "127.0.0.2"
"""The attackers' address."""


@dataclass(frozen=True)
class Attack:
    """What an attacker does until a time: `act(port, end)` in so many threads of each of two processes."""

    what: str
    act: Act
    threads: int = 2
    descriptors: int | None = None
    """File descriptors of the server."""


def repeat(port: int, end: float, *, path: str, body: bytes, kind: str) -> None:
    """Post this body again and again."""
    client = Client(port, ATTACKER)
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError, http.client.HTTPException):
            client("POST", path, body, content_type=kind, seconds=max(left, 0.1))


def hold(port: int, end: float, *, sockets: int, text: bytes) -> None:
    """Keep connections open with half a request, and open closed ones again."""
    held: list[socket.socket] = []
    while time.monotonic() < end:
        while len(held) < sockets:
            try:
                held.append(connect(port, 1))
                held[-1].sendall(text)
            except OSError:
                break
        time.sleep(0.5)
        for each in [each for each in held if is_closed(each)]:
            each.close()
            held.remove(each)
    for each in held:
        each.close()


def connect(port: int, seconds: float) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds, source_address=(ATTACKER, 0))


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def trickle(port: int, end: float, *, path: str) -> None:
    """Send the images of a request at one byte per second, and begin again when the server gives up."""
    body, kind = form([("label", b"slow"), ("image", bytes(100_000))])
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    while time.monotonic() < end:
        with suppress(OSError), connect(port, 5) as connection:
            connection.sendall(head.encode())
            for byte in body:
                if time.monotonic() > end or is_closed(connection):
                    break
                connection.setblocking(True)
                connection.sendall(bytes([byte]))
                time.sleep(1)
        time.sleep(0.1)


def send(port: int, end: float, *, text: bytes) -> None:
    """Send these bytes on one new connection after the other."""
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError), connect(port, max(left, 0.1)) as connection:
            connection.sendall(text)
            connection.recv(4096)


def ask_for(port: int, end: float, *, path: str) -> None:
    """Get this again and again."""
    client = Client(port, ATTACKER)
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError, http.client.HTTPException):
            client("GET", path, seconds=max(left, 0.1))


def roll_back(port: int, end: float, *, update: Act) -> None:
    """Undo the last update, and ask for a new one at the same time."""
    other = threading.Thread(target=update, args=(port, end), daemon=True)
    other.start()
    repeat(port, end, path="/v1/rollback", body=b"", kind="text/plain")
    other.join()


def download(port: int, end: float, *, sockets: int) -> None:
    """Begin downloads of the model and read little of them."""
    held: list[socket.socket] = []
    while time.monotonic() < end:
        for each in held:
            if is_closed(each):
                each.close()
        held = [each for each in held if each.fileno() >= 0]
        with suppress(OSError):
            while len(held) < sockets:
                held.append(connect(port, 1))
                held[-1].sendall(b"GET /v1/model/file HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(0.5)
    for each in held:
        each.close()


def padded_png(kind: bytes, content: bytes, number: int) -> bytes:
    """8² pixels, with this chunk again and again."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(8 * 9)))
    return SIGNATURE + header + number * chunk(kind, content) + pixels + chunk(b"IEND", b"")


def transparent_png() -> bytes:
    """7070² pixels in six kilobytes: one bit per pixel, a palette, transparency."""
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 1, 3, 0, 0, 0)
    lines = zlib.compress(bytes((1 + -(-SIDE // 8)) * SIDE), 9)
    palette = chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\0")
    return SIGNATURE + chunk(b"IHDR", header) + palette + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def posting(path: str, parts: list[tuple[str, bytes]]) -> Act:
    body, kind = form(parts)
    return partial(repeat, path=path, body=body, kind=kind)


def posting_json(path: str, start: bytes, item: bytes, size: int) -> Act:
    """JSON of this many bytes: a list of wrong items."""
    body = start + item * (size // max(len(item), 1)) + item.rstrip(b",") + b"]}"
    return partial(repeat, path=path, body=body, kind="application/json")


def attacks(question: bytes) -> list[Attack]:
    """`question`: a body of one prediction."""
    images, classes, predict, updates = b'{"images": [', b'{"classes": [', "/v1/predict", "/v1/updates"
    largest = png(Image.new("L", (SIDE, SIDE)))
    phone = png(Image.effect_noise((1900, 1900), 60))
    small = [("image", png(Image.effect_noise((32, 32), 60)))]
    profile = padded_png(b"iCCP", b"x\0\0" + zlib.compress(bytes(MEGABYTE - 100), 9), 3000)
    notes = padded_png(b"zTXt", b"x\0\0" + zlib.compress(bytes(MEGABYTE - 100), 9), 60)
    in_json = images + b'"' + base64.b64encode(padded_png(b"prVt", os.urandom(5_900_000), 1)) + b'"'
    head, json_head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"Content-Type: application/json\r\n"
    lines = head + b"a:b\r\n" * 12_000 + b"\r\n"
    chunks = head + json_head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n1\r\n" * 300_000 + b"0\r\n\r\n"
    fields = b'{"vectors": [[1]], ' + b",".join(b'"%d": 1' % number for number in range(500_000)) + b"}"
    taught = [("label", b"5"), *[("image", png(Image.effect_noise((8, 8), 5 + number))) for number in range(40)]]
    return [
        Attack("nobody attacks", lambda port, end: None),
        Attack("JSON of 1 MB with wrong items, to predict", posting_json(predict, images, b"1,", MEGABYTE)),
        Attack("JSON of 1 MB with wrong items, to update", posting_json(updates, classes, b"{},", MEGABYTE)),
        Attack("JSON of 30 MB with wrong items", posting_json(predict, images, b"1,", 30 * MEGABYTE)),
        Attack("JSON of 6 MB with unknown fields", partial(repeat, path=predict, body=fields, kind="application/json")),
        Attack("bodies in chunks of one byte", partial(send, text=chunks), threads=4),
        Attack("requests with 12 000 header lines", partial(send, text=lines), threads=4),
        Attack("images of 20 MB that begin a boundary again and again",
               posting(predict, [("image", b"\r\n--" * 5_000_000)]), threads=4),
        Attack("60 transparent PNG images of 7070² pixels per request",
               posting(predict, [("image", transparent_png())] * 60)),
        Attack("4 grey PNG images of 7070² pixels per request",
               posting(predict, [("image", largest)] * 4)),
        Attack("PNG images of 1900² pixels", posting(predict, [("image", phone)])),
        Attack("PNG images of 1900² pixels from 64 connections", posting(predict, [("image", phone)]), threads=32),
        Attack("256 small images per request", posting(predict, small * 256)),
        Attack("256 small images per request from 64 connections", posting(predict, small * 256), threads=32),
        Attack("single small images from 32 connections",
               partial(repeat, path=predict, body=question, kind=FORM["content-type"]), threads=16),
        Attack("single small images from 128 connections",
               partial(repeat, path=predict, body=question, kind=FORM["content-type"]), threads=64),
        Attack("300 idle connections, 256 file descriptors", partial(hold, sockets=75, text=b""), descriptors=256),
        Attack("300 half-sent headers, 256 file descriptors", partial(hold, sockets=75, text=b"GET /healthz HT"),
               descriptors=256),
        Attack("uploads of an update at one byte per second", partial(trickle, path=updates)),
        Attack("300 predictions at one byte per second", partial(trickle, path=predict), threads=150),
        Attack("JSON of 8 MB with one image from 64 connections", posting_json(predict, in_json, b"", 0), threads=32),
        Attack("PNG images with 60 MB of compressed text from 64 connections",
               posting(predict, [("image", notes)] * 4), threads=32),
        Attack("PNG images with 3000 colour profiles", posting(predict, [("image", profile)])),
        Attack("maps of the classes for 64 connections", partial(ask_for, path="/v1/map"), threads=32),
        Attack("128 downloads, 256 file descriptors", partial(download, sockets=32), descriptors=256),
        Attack("rollbacks and updates at the same time", partial(roll_back, update=posting(updates, taught))),
        Attack("updates that train, one after the other", posting(updates, taught), threads=1),
    ]  # fmt: skip


def in_threads(act: Act, threads: int, port: int, end: float) -> None:
    workers = [threading.Thread(target=act, args=(port, end), daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end + 5 - time.monotonic()))
    os._exit(0)


def ask(port: int, question: bytes, deadline: float, refusals: Counter[str]) -> float:
    """Seconds until one prediction was answered, or infinity if it was not by the deadline."""
    begun = time.monotonic()
    client = Client(port)
    while (left := deadline - time.monotonic()) > 0:
        try:
            reply = client("POST", "/v1/predict", question, seconds=left, **{"content_type": FORM["content-type"]})
        except (OSError, http.client.HTTPException):
            refusals["connection"] += 1
            time.sleep(PAUSE)
            continue
        if reply.status == 200:
            return time.monotonic() - begun
        refusals[str(reply.status)] += 1
        time.sleep(float(reply.headers.get("retry-after", 1)))
    return float("inf")


def responses(port: int) -> dict[str, int]:
    """The server's own count of responses by status, to attackers and client, and of updates that ended."""
    found: Counter[str] = Counter()
    for line in Client(port).get("/metrics").body.decode().splitlines():
        if counted := re.match(r'gatf_requests_total.*status="(\d+)"\} (\d+)|gatf_(updates_done)_total (\d+)', line):
            found[counted[1] or counted[3]] += int(counted[2] or counted[4])
    return dict(found)


def under(attack: Attack, model: Path, questions: list[bytes], seconds: float) -> dict[str, Any]:
    """The figures of one attack."""
    forking = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryFile() as log,
        server(model, cores=SERVER_CORES, descriptors=attack.descriptors, log=log) as (port, process),
    ):
        ask_often(port, questions[:20], [], Counter())
        before, logged = status("VmRSS", process.pid), log.seek(0, os.SEEK_END)
        end = time.monotonic() + seconds
        attackers = [forking.Process(target=in_threads, args=(attack.act, attack.threads, port, end)) for _ in range(2)]
        for attacker in attackers:
            attacker.start()
        time.sleep(0.5)
        taken: list[float] = []
        refusals: Counter[str] = Counter()
        while time.monotonic() < end:
            taken.append(ask(port, questions[len(taken) % len(questions)], end + 60, refusals))
            time.sleep(PAUSE)
        peak = status("VmHWM", process.pid) - before
        for attacker in attackers:
            attacker.join(10)
            attacker.kill()
        answers = responses(port)
        begun = time.monotonic()
        process.terminate()
        process.wait(120)
        stopped = time.monotonic() - begun
        logged = log.seek(0, os.SEEK_END) - logged
    latency = quantiles(taken)
    return {
        "what": attack.what, "seconds": seconds, "predictions": len(taken), **latency, "refusals": dict(refusals),
        "responses": answers,
        "memory_before": before, "memory_more": peak, "memory_allowed": MOST_MEMORY, "log_bytes": logged,
        "stop_seconds": stopped, "load_average": os.getloadavg()[0], "nice": os.nice(0),
        "met": latency["p99"] <= LONGEST_P99 and peak <= MOST_MEMORY,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=("digits", "photos"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that servers are ended, too
    missed = 0
    with learnt(asked.model) as (model, questions):
        for attack in attacks(questions[0]):
            if asked.only not in attack.what:
                continue
            copy = Path(shutil.copyfile(model, model.with_name("attacked.gatf")))
            figures = {"model": asked.model, **under(attack, copy, questions, asked.seconds)}
            missed += not figures["met"]
            print(f"figure: {json.dumps({'attacks': rounded(figures)})}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
