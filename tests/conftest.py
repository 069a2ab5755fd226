"""Shared by all tests: one thread a process (tests run side by side), and a run small enough to repeat often."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when SciPy's library is loaded; its threads wait for each other else

import numpy as np
import pytest
import torch
from filelock import FileLock

from gatf import cli
from gatf.config import RunConfig, load_config

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "file operations of each command in which a process dies, per fault; 0: all of them, which takes long"
    parser.addoption("--crash-points", type=int, default=2, help=what)
    parser.addoption("--fuzz", type=int, default=25, help="changed files that each reader is given")
    parser.addoption("--tasks", type=int, default=6, help="tasks of the streams that last long")
    parser.addoption("--updates", type=int, default=6, help="updates of a model that lives long")
    parser.addoption("--kills", type=int, default=3, help="processes that are killed at any moment")
    what = "append a line per test to this file: its processor seconds, for tools/slowest.py"
    parser.addoption("--costs", type=Path, default=None, help=what)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Processor seconds of a test with its fixtures and the processes it waited for; a busy machine changes them
    little."""
    costs = item.config.getoption("--costs")
    before = sum(os.times()[:4])
    result = yield
    if costs is not None:
        line = {"test": item.nodeid, "seconds": round(sum(os.times()[:4]) - before, 2)}
        with Path(costs).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return result


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """`made_once("name", make)`: a folder that `make` fills, once for all test processes that work side by side. Tests
    only read in it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        done, begun = shared / name, shared / f"{name}.begun"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(begun, ignore_errors=True)
                begun.mkdir()
                make(begun)
                begun.rename(done)
        return done

    return folder


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., RunConfig]:
    """`tiny_config("gatf", **{"seed": 1})`: three tasks of digits in about a second."""

    def build(method: str, **overrides: Any) -> RunConfig:
        small = {
            "data.max_per_class": 40,
            "scenario.stop_after": 3,
            "backbone.width": 8,
            "optimisation.first.epochs": 3,
            "optimisation.next.epochs": 3,
            "optimisation.first.batch_size": 48,
            "optimisation.next.batch_size": 48,
            "checkpoint_every": 1,
        }
        if method in ("gatf", "adagauss", "bicyc"):
            small |= {"backbone.bottleneck": 8, "method.samples": 200}
        if method in ("ranpac", "klda", "acil", "ds-al"):
            small |= {"method.projections": 200}
        return load_config("digits", method=method, overrides=small | overrides)

    return build


@pytest.fixture(scope="session")
def digit_images() -> tuple[np.ndarray, np.ndarray]:
    """The handwritten digits as uint8 [N, 8, 8], and their labels as text: "d0" … "d9"."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return pixels, np.array([f"d{digit}" for digit in digits.target])


@pytest.fixture(scope="session")
def tiny_classifier() -> Callable[..., Any]:
    """`tiny_classifier(epochs=2)`: an IncrementalClassifier that learns digits in a fraction of a second."""
    from gatf import IncrementalClassifier

    def build(**parameters: Any) -> Any:
        method = parameters.get("method", "gatf")
        settings = {"method.samples": 100} if method in ("gatf", "adagauss") else {}
        small = {"width": 8, "feature_dim": 8, "epochs": 3, "device": "cpu", "settings": settings}
        return IncrementalClassifier(**(small | parameters))

    return build


@pytest.fixture(scope="session")
def grown(digit_images: tuple[np.ndarray, np.ndarray], tiny_classifier: Callable[..., Any]) -> Any:
    """A classifier that learnt d0 … d3, then d4 … d6. Not to be changed."""
    images, labels = digit_images
    classifier = tiny_classifier(epochs=20, width=16, feature_dim=16)
    for names in (("d0", "d1", "d2", "d3"), ("d4", "d5", "d6")):
        chosen = np.isin(labels, names) & (np.arange(len(labels)) % 5 > 0)
        classifier.partial_fit(images[chosen], labels[chosen])
    return classifier


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Exit code, output and errors of one command, through the real entry point."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gatf", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        reported = capsys.readouterr()
        return int(ended.value.code or 0), reported.out, reported.err

    return run
