"""The number of threads goes by the work alone, and what the user said stays."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gatf.config import load_config
from gatf.data.preprocessing import Preprocessing
from gatf.experiment import resume, start
from gatf.nets.resnet import ResNet18
from gatf.session import Session
from gatf.training.threads import LIGHT, free_threads, multiplications, on_free_cores, one_thread_if


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine of two cores whose owner said nothing."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_multiplications_of_a_network_counted_by_hand() -> None:
    """4 × 4 places of 3·3·2 weights for each of 8 channels; in two groups 4 × 4 of 3·3·4 for each of 6; 96 × 5."""
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(96, 5)
    )
    assert multiplications(net, (2, 4, 4)) == 16 * 18 * 8 + 16 * 36 * 6 + 480


def test_networks_in_float64_with_computed_weights_or_without_any_are_counted() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(12, 2).double())
    assert multiplications(nn.Sequential(nn.Flatten(), layer), (3, 2, 2)) == 24
    assert multiplications(nn.Flatten(), (3, 2, 2)) == 0


def test_counting_leaves_a_network_as_it_was() -> None:
    net = ResNet18(width=4, bottleneck=8).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    multiplications(net, (3, 16, 16))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.parametrize(("recipe", "side", "light"), [("digits", 8, True), ("glyphs", 16, False)])
def test_digits_are_light_and_glyphs_are_not(recipe: str, side: int, light: bool) -> None:
    config = load_config(recipe, method="gatf")
    session = Session(config, Preprocessing((1, side, side), (0.5,), (0.5,)))
    assert session.light is light


def test_light_work_gets_one_thread_and_the_others_come_back() -> None:
    with one_thread_if(True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with one_thread_if(False):
        assert torch.get_num_threads() == 2


def test_a_given_number_of_threads_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with one_thread_if(True):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("limit", "threads"), [(LIGHT, "1"), (0, "2")])
def test_a_run_records_its_number_of_threads(
    tmp_path: Path, tiny_config, monkeypatch: pytest.MonkeyPatch, limit: int, threads: str
) -> None:
    monkeypatch.setattr("gatf.session.LIGHT", limit)
    summary = start(tiny_config("finetune"), tmp_path / "run")
    assert summary.machine["threads"] == threads
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("said", "heard"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["nothing", "a number", "a policy"],
)
def test_threads_of_a_command_sleep_soon_by_default(said: dict[str, str], heard: str | None) -> None:
    script = (
        "import json, os, sys; sys.argv = ['gatf', '--version']\n"
        "from gatf.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n    main()\nfinally:\n    print(json.dumps(os.environ.get('GOMP_SPINCOUNT')))"
    )
    silent = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=silent | said, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == heard


@pytest.mark.parametrize(
    ("load", "running", "cores", "of", "free"),
    [(2.0, 3, 2, 2, 1), (0.1, 9, 2, 2, 2), (9.0, 1, 2, 2, 2), (1.0, 3, 2, 2, 1), (3.0, 9, 8, 8, 5), (8.0, 9, 4, 16, 2)],
)
def test_free_threads(
    monkeypatch: pytest.MonkeyPatch, load: float, running: int, cores: int, of: int, free: int
) -> None:
    """A past load, or a process that only just began, does not count; nor do cores that are not ours."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(os, "cpu_count", lambda: of)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: f"0 0 0 {running}/300 12345")
    assert free_threads() == free


def test_a_busy_machine_is_reported_once_and_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatf.training.threads.free_threads", lambda: 1)
    said: list[str] = []
    with on_free_cores(said.append):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert said == [
        "other programs use the cores: training uses at most 1 of 2 threads (OMP_NUM_THREADS=2 overrides this)"
    ]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with on_free_cores(said.append):
        assert torch.get_num_threads() == 2
    assert len(said) == 1


def test_a_resumed_run_uses_the_threads_of_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatf.session.LIGHT", 0)
    short = {"scenario.stop_after": 2, "optimisation.first.epochs": 1}
    start(load_config("digits", method="ncm", overrides=short), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    max((tmp_path / "run" / "checkpoints").iterdir()).unlink()
    torch.set_num_threads(1)
    assert resume(tmp_path / "run").machine["threads"] == "2"
