"""Which device is meant, and how tensors get there."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gatf.bench.executors import one_gpu
from gatf.config import RunConfig
from gatf.devices import Determinism, available_device, numerics, set_determinism, upload
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.training import checkpoint
from gatf.training.precision import chosen


def test_auto_is_cuda_or_else_the_cpu_and_never_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert available_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert available_device("auto") == "cuda"


def test_mps_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"^device=mps cannot be used: .*float64.*use device=cpu$"):
        available_device("mps")


def test_emulated_bfloat16_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A V100 or T4 computes bfloat16 in software."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    precision, _ = chosen("auto", "cuda")
    assert precision == "32-true"


def test_upload_within_the_cpu_copies_nothing() -> None:
    tensor = torch.arange(3)
    assert upload(tensor, torch.device("cpu")) is tensor


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of the whole process, put back afterwards."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("wanted", "repeats", "refuses"), [("auto", True, False), (True, True, True), (False, False, False)]
)
@pytest.mark.usefixtures("backends")
def test_determinism_of_cuda(wanted: Determinism, repeats: bool, refuses: bool) -> None:
    set_determinism(wanted, torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled() == refuses
    assert torch.backends.cudnn.deterministic == repeats
    assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == (not repeats)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == repeats


@pytest.mark.usefixtures("backends")
def test_the_bits_of_features_depend_on_device_and_tf32() -> None:
    keys = {numerics(torch.device("cpu"))}
    for fast in (True, False):
        torch.backends.cudnn.allow_tf32 = fast
        keys.add(numerics(torch.device("cuda")))
    assert len(keys) == 3


def test_a_checkpoint_has_the_loss_scale_of_16_mixed(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    first, second = (Experiment(tiny_config("finetune", precision="bf16-mixed", device="cpu")) for _ in range(2))
    for experiment, scale in ((first, 512.0), (second, 65536.0)):  # Fabric makes a scaler on GPUs only
        experiment.session.fabric.strategy.precision.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    first.method.begin_task(first.task_info(0))
    first.session.save(tmp_path / "checkpoint", {}, optimiser=torch.optim.SGD(first.method.parameters(), 0.1))
    second.session.restore(*checkpoint.load(tmp_path / "checkpoint"), second.task_info(0))
    assert second.session.fabric.strategy.precision.scaler.get_scale() == 512.0


def test_processes_of_a_bench_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert one_gpu(1) == {} or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [one_gpu(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [one_gpu(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["4", "6", "4"]


def test_cuda_graphs_need_cuda(tiny_config: Callable[..., RunConfig]) -> None:
    with pytest.raises(UserError, match="compile=reduce-overhead records CUDA graphs, but device is cpu"):
        Experiment(tiny_config("finetune", compile="reduce-overhead", device="cpu"))
