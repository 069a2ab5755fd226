"""A small synthetic image set, and one undisturbed run of every method on it."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gatf.config import RunConfig, load_config
from gatf.data.loader import TaskData
from gatf.experiment import Experiment
from gatf.io import container
from gatf.io.events import Epoch, Event, Step, Task
from gatf.io.run_folder import MODEL, Summary
from gatf.methods import METHODS

MEASURED: dict[str, Any] = {
    "seconds": [],
    "total_seconds": 0.0,
    "processor_seconds": [],
    "peak_memory_mb": [],
    "machine": {},
}
"""What a summary says of the machine rather than of the run."""
BRIEF = {
    "data.max_per_class": 30,
    "scenario.stop_after": 2,
    "optimisation.first.epochs": 2,
    "optimisation.next.epochs": 2,
    "checkpoint_every": 1,
}


def write_images(
    path: Path,
    *,
    classes: int,
    train: int | list[int],
    test: int = 20,
    channels: int = 3,
    size: int = 10,
    noise: float = 30,
) -> Path:
    """Classes made of the same few parts, present or absent, under pixel noise, as an .npz file: what one task learns
    to look at matters to the others too, as with strokes of digits."""
    draw = np.random.default_rng(0)
    parts = (
        draw.normal(size=(8, channels, 5, 5)).repeat(size // 5, axis=2).repeat(size // 5, axis=3)
    )  # [parts, C, H, W]
    codes = 2.0 * (draw.permutation(256)[:classes, None] >> np.arange(len(parts)) & 1) - 1  # distinct, of ±1
    patterns = 128 + 18 * np.einsum("kp,pchw->kchw", codes, parts)  # [classes, C, H, W]

    def part(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(classes), counts)
        pixels = patterns[labels] + noise * draw.normal(size=(len(labels), channels, size, size))
        return pixels.clip(0, 255).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = (
        part([train] * classes if isinstance(train, int) else train),
        part([test] * classes),
    )
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def small_config(method: str, data: Path, **overrides: Any) -> RunConfig:
    """A config for a laptop's second: a narrow network, few epochs, the same for every method."""
    settings: dict[str, Any] = {
        "data.name": "npz",
        "data.root": str(data),
        "scenario.order": "natural",
        "scenario.tasks": 3,
        "backbone.name": "small",
        "backbone.width": 8,
        "optimisation.first.epochs": 8,
        "optimisation.next.epochs": 10,
        "optimisation.next.lr": 0.1,
        "optimisation.first.batch_size": 32,
        "optimisation.next.batch_size": 32,
    }
    if method in ("gatf", "gatf-release", "adagauss", "bicyc"):
        settings |= {"backbone.bottleneck": 12, "method.samples": 300, "method.adapter_lr": 0.1}
    if method in ("finetune", "ewc", "lwf"):  # long enough to forget, and for the penalties to show
        settings |= {"optimisation.first.epochs": 12, "optimisation.next.epochs": 16}
    own = {  # made for hundreds of epochs; a task here has some 80 steps
        "gatf": {"method.anchor.refresh": 2},
        "gatf-release": {"method.anchor.refresh": 2, "data.val_fraction": 0.0},  # the suite counts every image
        # a softmax this sure has Fisher values near 1e-10: a penalty to match, capped where SGD would not be stable
        "ewc": {"method.preset": "facil", "method.penalty": 5e8, "method.fisher_cap": 1e-8},
        "ldc": {"method.projector_updates": 200, "method.projector_lr": 0.005},
        "efc": {"optimisation.next.lr": 1e-3},
        "ranpac": {"method.projections": 100},
        "klda": {"method.projections": 100},
        "acil": {"method.projections": 100},
        "ds-al": {"method.projections": 100},
        "dpcr": {"optimisation.next.lr": 0.05},  # as published: a linear map does not follow a network that runs off
    }
    settings |= own.get(method, {})
    return load_config({}, method=method, overrides=settings | overrides)


@dataclass
class Finished:
    """A finished run, still in hand."""

    name: str
    config: RunConfig
    experiment: Experiment
    folder: Path
    summary: Summary
    state_bytes: list[int]
    """Size of the method's state after each task."""
    handed: list[TaskData]
    """The data of every task, as the method got it."""

    def backbone_matrices(self) -> list[Tensor]:
        """Every weight of the network that is drawn at random."""
        return [weight for weight in self.experiment.method.backbone.parameters() if weight.ndim > 1]


def run(config: RunConfig, folder: Path) -> Finished:
    (folder / "checkpoints").mkdir(parents=True)
    experiment = Experiment(config)
    sizes: list[int] = []
    handed: list[TaskData] = []
    task_data = experiment.task_data

    def hand_over(task: int) -> TaskData:
        handed.append(task_data(task))
        return handed[-1]

    experiment.task_data = hand_over  # type: ignore[method-assign]

    def listen(event: Event) -> None:
        if isinstance(event, Task):
            state = experiment.method.state_dict()
            sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in state.values()))

    summary = experiment.run(folder, (listen,))
    return Finished(config.method.name, config, experiment, folder, summary, sizes, handed)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "images.npz", classes=9, train=60)


@pytest.fixture(scope="session")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """`finished(method)`: its undisturbed run, made once per process."""
    runs: dict[str, Finished] = {}

    def get(method: str) -> Finished:
        if method not in runs:
            runs[method] = run(small_config(method, images), tmp_path_factory.mktemp(method))
        return runs[method]

    return get


@pytest.fixture(scope="session")
def brief(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """`brief(method)`: two tasks of two epochs, made once per process."""
    runs: dict[str, Finished] = {}

    def get(method: str) -> Finished:
        if method not in runs:
            few = {"method.projector_updates": 20} if method == "ldc" else {}
            runs[method] = run(small_config(method, images, **BRIEF, **few), tmp_path_factory.mktemp(method))
        return runs[method]

    return get


def assert_same_run(summary: Summary, folder: Path, expected: Finished) -> None:
    """The same results, in every entry that is not the machine's, and the same model to the last bit."""
    assert replace(summary, **MEASURED) == replace(expected.summary, **MEASURED)
    tensors, _ = container.read(folder / MODEL)
    kept, _ = container.read(expected.folder / MODEL)
    assert tensors.keys() == kept.keys()
    for name in tensors:
        assert torch.equal(tensors[name], kept[name]), name


def run_elsewhere(configs: dict[Path, RunConfig]) -> None:
    """Run each config in its folder, all in one new interpreter that orders its sets differently."""
    for folder, config in configs.items():
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    script = (
        "import sys, pathlib, torch, gatf.experiment as e; torch.set_num_threads(1); "
        "[e.resume(pathlib.Path(folder)) for folder in sys.argv[1:]]"
    )
    subprocess.run(
        [sys.executable, "-c", script, *map(str, configs)], env=os.environ | {"PYTHONHASHSEED": "1"}, check=True
    )


def run_and_die(config: RunConfig, folder: Path, *, task: int, epoch: int) -> int | None:
    """Run in a process of its own that SIGKILLs itself while it trains; returns the exit code."""

    def child() -> None:
        last = (-1, -1)

        def listen(event: Event) -> None:
            nonlocal last
            if isinstance(event, Epoch):
                last = (event.task, event.epoch)
            reached = last == (task, epoch) and isinstance(event, Step)
            if reached or (isinstance(event, Task) and event.task == task):  # what trains nothing dies after the task
                os.kill(os.getpid(), signal.SIGKILL)

        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        Experiment(config).run(folder, (listen,))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--method", help="hold this method alone to the contract: one of ours, or package.module:Class")


def chosen_methods(config: pytest.Config) -> list[str]:
    one = config.getoption("--method", default=None)
    return list(METHODS) if one is None else [one]


@pytest.fixture(scope="session")
def methods(pytestconfig: pytest.Config) -> list[str]:
    """All that are held to the contract."""
    return chosen_methods(pytestconfig)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", chosen_methods(metafunc.config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests of a method one after the other, so that parallel workers, which take stretches, share few runs."""
    ours = [number for number, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    order = chosen_methods(config)

    def place(item: Any) -> int:
        return order.index(item.callspec.params["method"]) if hasattr(item, "callspec") else len(order)

    by_method = sorted((items[number] for number in ours), key=place)
    for number, item in zip(ours, by_method, strict=True):
        items[number] = item
