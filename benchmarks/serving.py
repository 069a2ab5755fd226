"""`gatf serve`: seconds from start to first answer, and single-image requests of 16 clients against batched `predict`.

    python benchmarks/serving.py [--quick] [--out benchmarks/results/serving.json]

The server and the in-process `predict` of the same JPEG files have the same core, one after the other in every turn;
the clients have another one where there is one. The network is efficientnet_lite0 at 224 pixels, as photos get it
(extra `pretrained`). On the small network for digits, where a look costs less than a request, the ratio is for
information.
"""

import http.client
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from harness import Report, options, take_turns
from PIL import Image

from gatf import IncrementalClassifier

CLIENTS = 16
LIMIT = 5.0
TARGET = 0.7
CORES = sorted(os.sched_getaffinity(0))
OURS, THEIRS = {CORES[0]}, set(CORES[1:2] or CORES)


def pictures(folder: Path, side: int, kind: str) -> list[Path]:
    """Two classes of 16 pictures: smooth colours and stripes."""
    draws = np.random.default_rng(0)
    paths = []
    for number in range(32):
        coarse = draws.integers(0, 256, (4, 4 if number % 2 else 1, 3), dtype=np.uint8)
        path = folder / f"{number:02d}.{kind}"
        Image.fromarray(coarse).resize((side * 4 // 3 if kind == "jpg" else side, side)).save(path, quality=90)
        paths.append(path)
    return paths


def body(path: Path) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    return head + path.read_bytes() + b"\r\n--x--\r\n"


def ask(port: int, bodies: list[bytes]) -> None:
    """All of them over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for each in bodies:
        connection.request("POST", "/v1/predict", each, {"content-type": "multipart/form-data; boundary=x"})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
    connection.close()


@contextmanager
def server(
    model: Path, *, cores: set[int] = OURS, descriptors: int | None = None, log: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """`gatf serve` on these cores, with at most this many file descriptors: its port and its process."""

    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-m", "gatf", "serve", str(model), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "OMP_NUM_THREADS": str(len(cores))},
        preexec_fn=prepare,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rsplit(b":", 1)[1]), process
    finally:
        process.terminate()
        process.wait()


def first_answer(model: Path, picture: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, which a busy machine does not lengthen."""
    started = time.perf_counter()
    with server(model) as (port, process):
        ask(port, [body(picture)])
        waited = time.perf_counter() - started
        user, system = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return waited, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def compare(report: Report, what: str, model: Path, paths: list[Path], requests: int, target: float | None) -> None:
    bodies = [body(path) for path in paths]
    names = [str(path) for path in paths]
    known = IncrementalClassifier.load(model, device="cpu")

    def in_process() -> None:
        os.sched_setaffinity(0, OURS)
        known.predict([names[number % len(names)] for number in range(requests)])

    with server(model) as (port, _):

        def over_http() -> None:
            os.sched_setaffinity(0, THEIRS)
            shares = [[bodies[number % len(bodies)] for number in range(start, requests, CLIENTS)]
                      for start in range(CLIENTS)]  # fmt: skip
            threads = [threading.Thread(target=ask, args=(port, share)) for share in shares]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        turns = take_turns(in_process, over_http, repeats=2 if report.arguments.quick else 5)
    report.add(what, **turns, target=target)


def main() -> None:
    arguments = options("serving", __doc__, threads=1)
    report = Report(arguments, {"clients": CLIENTS, "server_cores": len(OURS), "client_cores": len(THEIRS)})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        labels = np.array(["smooth", "striped"] * 16)
        for name in ("photos", "digits"):
            (folder / name).mkdir()
        photos, digits = pictures(folder / "photos", 240, "jpg"), pictures(folder / "digits", 8, "png")
        large = IncrementalClassifier(adapt="never", backbone="efficientnet_lite0", held_out=0.2, device="cpu")
        large.fit([str(path) for path in photos], labels).save(folder / "photos.gatf")
        small = IncrementalClassifier(epochs=2, held_out=0.2, device="cpu")
        small.fit([str(path) for path in digits], labels).save(folder / "digits.gatf")
        waits = [first_answer(folder / "photos.gatf", photos[0]) for _ in range(2 if arguments.quick else 5)]
        clock, processor = (min(times) for times in zip(*waits, strict=True))
        report.add("start to first answer", ours=clock, reference=None, ratio=None, at_most=LIMIT, processor=processor)
        requests = 64 if arguments.quick else 256
        compare(report, "photos: 16 clients against predict", folder / "photos.gatf", photos, requests, TARGET)
        compare(report, "digits: 16 clients against predict", folder / "digits.gatf", digits, 8 * requests, None)
    report.write("fastapi", "uvicorn")


if __name__ == "__main__":
    main()
