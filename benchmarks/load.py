"""`gatf serve` under load: latency of single predictions for 1, 16 and 64 clients, memory, and recovery after kill -9.

    python benchmarks/load.py digits|photos [--predictions 10000]

Server and clients share two cores. `digits` is a small network for images of 8 × 8 pixels; `photos` is
EfficientNet-Lite0, frozen, on four breeds of Oxford-IIIT Pet in GATF_DATA/oxford-pets. The predictions are divided
among the three numbers of clients. The output is one line `figure: JSON`, which tools/torture.py records.
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from harness import environment, rounded, status
from PIL import Image
from serving import CORES, body, server
from sklearn.datasets import load_digits

CLIENTS = (1, 16, 64)
BREEDS = 4
RESTARTS = 3
FORM = {"content-type": "multipart/form-data; boundary=x"}
SERVER_CORES = set(CORES[:2])


def write_digits(folder: Path) -> tuple[Path, list[Path]]:
    """Class folders of five digits, and the images to ask about."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if label < 5 and number < 400:
            place = folder / "train" / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15).astype(np.uint8)).save(place / f"{number}.png")
    return folder / "train", sorted(folder.glob("train/*/*.png"))[::4]


def link_photos(folder: Path) -> tuple[Path, list[Path]]:
    """Class folders of the first breeds, and test images of theirs."""
    data = Path(os.environ.get("GATF_DATA", "")) / "oxford-pets"
    if not data.is_dir():
        raise SystemExit("benchmarks/load.py photos needs GATF_DATA/oxford-pets with train/BREED and test/BREED")
    (folder / "train").mkdir()
    breeds = sorted(path.name for path in (data / "train").iterdir())[:BREEDS]
    for breed in breeds:
        (folder / "train" / breed).symlink_to(data / "train" / breed)
    return folder / "train", [path for breed in breeds for path in sorted((data / "test" / breed).iterdir())]


@contextmanager
def learnt(kind: str) -> Iterator[tuple[Path, list[bytes]]]:
    """A model file as `gatf learn` makes it, and bodies of single predictions."""
    with tempfile.TemporaryDirectory() as place:
        images, asked = (write_digits if kind == "digits" else link_photos)(Path(place))
        model = Path(place) / "model.gatf"
        options = ["--epochs", "5"] if kind == "digits" else ["--adapt", "never"]
        command = [sys.executable, "-m", "gatf", "learn", str(model), str(images), "--device", "cpu", "-q", *options]
        subprocess.run(command, check=True)
        yield model, [body(path) for path in asked]


def ask_often(port: int, bodies: list[bytes], taken: list[float], statuses: Counter[int]) -> None:
    """One prediction after the other on one connection; adds the seconds of each response and its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for each in bodies:
        begun = time.perf_counter()
        connection.request("POST", "/v1/predict", each, FORM)
        response = connection.getresponse()
        response.read()
        taken.append(time.perf_counter() - begun)
        statuses[response.status] += 1
    connection.close()


def quantiles(taken: list[float]) -> dict[str, float]:
    """Of the latency, in seconds."""
    return {"p50": float(np.quantile(taken, 0.5)), "p99": float(np.quantile(taken, 0.99)), "longest": max(taken)}


def at_once(port: int, bodies: list[bytes], *, clients: int, predictions: int) -> dict[str, Any]:
    taken: list[float] = []
    statuses: Counter[int] = Counter()
    shares = [[bodies[number % len(bodies)] for number in range(start, predictions, clients)]
              for start in range(clients)]  # fmt: skip
    threads = [threading.Thread(target=ask_often, args=(port, share, taken, statuses)) for share in shares]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed = time.perf_counter() - begun
    answered, refused = statuses[200], statuses[429]
    return {
        "clients": clients, "predictions": predictions, "answered": answered, "refused": refused,
        "failed": predictions - answered - refused, **quantiles(taken), "per_second": answered / passed,
    }  # fmt: skip


def recovery(model: Path, question: bytes) -> list[float]:
    """Seconds from kill -9 to the first response of the server that is started next."""
    found = []
    for _ in range(RESTARTS):
        with server(model, cores=SERVER_CORES) as (port, process):
            ask_often(port, [question], [], Counter())
            begun = time.perf_counter()
            process.send_signal(signal.SIGKILL)
            process.wait()
        with server(model, cores=SERVER_CORES) as (port, _):
            ask_often(port, [question], [], Counter())
            found.append(time.perf_counter() - begun)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=("digits", "photos"))
    parser.add_argument("--predictions", type=int, default=10_000)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that servers are ended, too
    with learnt(asked.model) as (model, bodies):
        with server(model, cores=SERVER_CORES) as (port, process):
            ask_often(port, (bodies * 100)[:100], [], Counter())
            memory = [status("VmRSS", process.pid)]
            levels = [
                at_once(port, bodies, clients=clients, predictions=asked.predictions // len(CLIENTS))
                for clients in CLIENTS
            ]
            memory.append(status("VmRSS", process.pid))
        seconds = recovery(model, bodies[0])
    figures = {
        "model": asked.model, "levels": levels, "memory_after_100": memory[0], "memory_after_all": memory[1],
        "predictions": sum(level["predictions"] for level in levels), "recovery": statistics.median(seconds),
        "recovery_longest": max(seconds), "load_average": os.getloadavg()[1], "nice": os.nice(0),
        "environment": environment("uvicorn"),
    }  # fmt: skip
    print(f"figure: {json.dumps({'load': rounded(figures)})}")
    return 1 if any(level["failed"] for level in levels) else 0


if __name__ == "__main__":
    sys.exit(main())
