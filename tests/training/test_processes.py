"""Several processes, one model: the same result as one process with the same batches."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gatf.config import RunConfig
from gatf.methods import METHODS

from ..faults import PATIENCE

pytestmark = pytest.mark.slow

Tiny = Callable[..., RunConfig]
MadeOnce = Callable[[str, Callable[[Path], None]], Path]
HERE = Path(__file__).resolve().parent
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
COMPARED = ("gatf", "adagauss", "lwf")
SHORT = {
    "scenario.stop_after": 2,
    "optimisation.first.epochs": 1,
    "optimisation.next.epochs": 1,
    "data.max_per_class": 25,
    "checkpoint_every": None,
}
"""For all methods: whether they run at all, and end with one state."""
SMALL = {"ldc": {"method.projector_updates": 20}}
AUGMENTED = {"data.augment": ["crop:1", "trivial"], "optimisation.next.drop_last": False}


def together(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ALONE, capture_output=True, text=True, timeout=PATIENCE, check=False)


def wanted(folder: Path, config: RunConfig) -> None:
    folder.mkdir(parents=True)
    (folder / "wanted.json").write_text(json.dumps(config.model_dump(mode="json")))


@pytest.fixture(scope="module")
def runs(made_once: MadeOnce, tiny_config: Tiny) -> Path:
    """Folders `one` and `two`: runs of one process and of two, with the same batches."""
    return made_once("processes", lambda folder: _make(folder, tiny_config))


def _make(folder: Path, tiny_config: Tiny) -> None:
    for place in ("one", "two"):
        for name in COMPARED:
            wanted(folder / place / name, tiny_config(name, **AUGMENTED))
        for name in METHODS:
            wanted(folder / place / f"float32-{name}", tiny_config(name, **SHORT, **SMALL.get(name, {})))
    worker = str(HERE / "worker.py")
    alone = together(sys.executable, worker, str(folder / "one"))
    assert alone.returncode == 0, alone.stderr
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = together(sys.executable, *torchrun, worker, str(folder / "two"))
    assert both.returncode == 0, both.stderr


@pytest.mark.parametrize("name", COMPARED)
def test_two_processes_give_the_model_of_one(runs: Path, name: str) -> None:
    one, two = (load_file(runs / place / name / "state.safetensors") for place in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-6, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", COMPARED)
def test_two_processes_give_the_metrics_of_one(runs: Path, name: str) -> None:
    one, two = (json.loads((runs / place / name / "summary.json").read_text()) for place in ("one", "two"))
    for key in ("accuracy_matrix", "a_last", "a_inc", "forgetting"):
        assert two[key] == one[key]
    lines = [(runs / place / name / "metrics.jsonl").read_text().splitlines() for place in ("one", "two")]
    assert len(lines[0]) == len(lines[1])
    for events in zip(*lines, strict=True):
        before, after = map(json.loads, events)
        if before["event"] == "epoch":
            assert after["losses"] == pytest.approx(before["losses"], abs=1e-6)


def test_two_processes_give_the_anchors_of_one(runs: Path) -> None:
    one, two = (load_file(runs / place / "gatf" / "anchors.safetensors") for place in ("one", "two"))
    assert len(one) >= 2
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_in_two_processes_that_end_with_the_same_state(runs: Path, name: str) -> None:
    one, two = (runs / place / f"float32-{name}" for place in ("one", "two"))
    alone, shared = (json.loads((folder / "summary.json").read_text())["accuracy_seen"] for folder in (one, two))
    assert len(shared) == 2
    assert shared[0] == pytest.approx(alone[0], abs=3)  # later tasks may draw other pseudo-samples
    digests = load_file(two / "digests.safetensors")["digests"]
    assert torch.equal(digests[0], digests[1])
