"""The choice of `precision=auto` on this machine, by measurement.

Whether bfloat16 is faster on a processor depends on its instructions and on the network. Some builds of torch crash on
processors without these instructions. So a separate process, which may crash, times a step of the network both ways.
The cache stores the result per processor, version of torch, number of threads, network and batch size.
"""

import json
import platform
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gatf import distributed
from gatf.data.cache import cached_file, digest
from gatf.devices import available_device
from gatf.io.files import write_text
from gatf.nets import build_backbone
from gatf.settings import INSIDE, PYTHON, BackboneConfig

AUTO, FLOAT32, BFLOAT16 = "auto", "32-true", "bf16-mixed"
GAIN = 1.15
"""Required speed-up of bfloat16; smaller ones are within the noise of timings."""
STEPS = 3
TIMEOUT = 120
"""Seconds after which a trial has failed."""


@dataclass(frozen=True)
class Trial:
    """Seconds per step, or the reason of a failure."""

    float32: float | None = None
    bfloat16: float | None = None
    failed: str | None = None

    @property
    def choice(self) -> str:
        faster = self.float32 is not None and self.bfloat16 is not None and self.float32 >= GAIN * self.bfloat16
        return BFLOAT16 if faster else FLOAT32

    def __str__(self) -> str:
        if self.float32 is None or self.bfloat16 is None:
            return f"{self.choice}, because the trial of bfloat16 {self.failed}"
        return f"{self.choice}, because a step takes {self.bfloat16 / self.float32:.2f} of float32's time in bfloat16"


def chosen(
    precision: str, device: str, *, backbone: BackboneConfig, shape: tuple[int, int, int], batch: int
) -> tuple[str, str | None]:
    """A precision of Fabric, and a sentence that explains the choice of `auto`, else None."""
    if precision != AUTO:
        return precision, None
    if available_device(device) == "cuda":
        best = BFLOAT16 if torch.cuda.is_bf16_supported(including_emulation=False) else FLOAT32
        return best, f"precision: {best}, by the GPU's abilities"
    if distributed.launched() > 1 or backbone.name.startswith(PYTHON):
        return FLOAT32, f"precision: {FLOAT32}, because trials need one process and a named network"
    trial = tried(backbone, shape, batch)
    return trial.choice, f"precision: {trial}"


def tried(backbone: BackboneConfig, shape: tuple[int, int, int], batch: int) -> Trial:
    """The trial of this network on this machine, cached."""
    weights = None if backbone.pretrained is None else INSIDE  # the weights' values do not matter
    wanted = backbone.model_copy(update={"pretrained": weights}).model_dump(mode="json")
    question = json.dumps({"backbone": wanted, "shape": shape, "batch": batch, "threads": torch.get_num_threads()})
    path = cached_file(f"precision-{digest(processor(), torch.__version__, question)}.json")
    with suppress(OSError, ValueError, TypeError):
        return Trial(**json.loads(path.read_text(encoding="utf-8")))
    trial = _try_in_another_process(question)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(trial.__dict__) + "\n")
    return trial


def processor() -> str:
    """Name and instruction sets of the processor, from /proc/cpuinfo on Linux."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    return "\n".join(names) or platform.processor()


def _try_in_another_process(question: str) -> Trial:
    command = [sys.executable, "-m", "gatf.training.precision", question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Trial(failed=f"took more than {TIMEOUT} seconds")
    if done.returncode < 0:
        with suppress(ValueError):
            return Trial(failed=f"was killed by {signal.Signals(-done.returncode).name}")
    if done.returncode != 0:
        return Trial(failed=f"ended with code {done.returncode}")
    return Trial(**json.loads(done.stdout.splitlines()[-1]))


def time_steps(question: dict[str, Any]) -> Trial:
    """Time forward and backward passes on random images in both precisions, in turns, after one warm-up step each."""
    torch.set_num_threads(question["threads"])
    channels, height, width = question["shape"]
    backbone = build_backbone(BackboneConfig.model_validate(question["backbone"]), channels)
    backbone = backbone.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    images = torch.randn(question["batch"], channels, height, width).to(memory_format=torch.channels_last)

    def step(half: bool) -> float:
        started = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            features = backbone(images)
        features.float().square().mean().backward()
        backbone.zero_grad(set_to_none=True)
        return time.process_time() - started

    times = [(step(half=False), step(half=True)) for _ in range(STEPS + 1)][1:]
    return Trial(*(min(each) for each in zip(*times, strict=True)))


if __name__ == "__main__":
    print(json.dumps(time_steps(json.loads(sys.argv[1])).__dict__))  # noqa: T201
