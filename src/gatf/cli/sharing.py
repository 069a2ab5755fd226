"""Whether `gatf run --devices N` is worth it without a GPU, found by trying: one process already uses every core."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gatf.errors import UserError

if TYPE_CHECKING:
    from gatf.config import RunConfig

TIMEOUT = 600
"""Seconds, after which a trial counts as failed."""


def refuse_if_slower(config: "RunConfig", devices: int) -> None:
    """A `UserError` where steps of this run take longer with so many processes on processors than with one."""
    import torch

    if config.device not in ("auto", "cpu") or (config.device == "auto" and torch.accelerator.is_available()):
        return
    times = tried(config, devices)
    if times is not None and times > 1:
        raise UserError(
            f"with --devices {devices} a step of this run takes {times:.1f} times as long as in one process, which "
            "uses all cores already: leave it out, or add --force-devices"
        )


def tried(config: "RunConfig", devices: int) -> float | None:
    """How many times as long a step takes, by a few steps of two tasks: from the cache, or tried now; None where the
    trial fails."""
    from torch import __version__ as version

    from gatf.bench.probe import shortened
    from gatf.data.cache import cached_file, digest
    from gatf.experiment import Experiment
    from gatf.io.files import write_text
    from gatf.training.precision import processor

    short = shortened(config, max(Experiment(config).scenario.task_sizes)).to_yaml()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    path = cached_file(f"devices-{digest(processor(), str(version), devices, threads, short)}.json")
    with suppress(OSError, ValueError, TypeError):
        return float(json.loads(path.read_text(encoding="utf-8")))
    alone, shared = (seconds_of_steps(short, number) for number in (1, devices))
    if not alone or not shared:
        return None
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(shared / alone) + "\n")
    return shared / alone


def seconds_of_steps(config: str, devices: int) -> float | None:
    """Seconds of the epochs of a run but the first of each task, which warms up; None where it fails."""
    from gatf.io.events import Epoch
    from gatf.io.run_folder import RunFolder

    with tempfile.TemporaryDirectory() as place:
        recipe, folder = Path(place) / "run.yaml", Path(place) / "run"
        recipe.write_text(config, encoding="utf-8")
        command = [sys.executable, "-m", "gatf", "run", "--recipe", str(recipe), "--out", str(folder), "--quiet"]
        command += ["--no-report", "--devices", str(devices), "--force-devices"]
        try:
            subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
        except subprocess.SubprocessError:
            return None
        return sum(
            event.seconds for event in RunFolder(folder).read_events() if isinstance(event, Epoch) and event.epoch
        )
