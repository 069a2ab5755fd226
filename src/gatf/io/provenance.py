"""Provenance of a result: machine, versions, commit and peak memory."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

import gatf
from gatf.io.text import COMMAND


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory of the process, or of the GPU since the last call; 0 on Windows, which does not report it."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    if sys.platform == "win32":
        return 0.0
    import resource

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (2**20 if sys.platform == "darwin" else 2**10)


def processor_name() -> str:
    """From /proc/cpuinfo on Linux, else from Python's `platform`."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8", errors="replace").splitlines() if known.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine(device: torch.device) -> dict[str, str]:
    """Date, processor, threads and device, and the command and commit if they are known."""
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor_name(),
        "threads": str(torch.get_num_threads()),
    }
    found |= {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    known = {"command": os.environ.get(COMMAND), "commit": commit(Path(gatf.__file__).parent)}
    return found | {name: text for name, text in known.items() if text}


def commit(code: Path) -> str | None:
    """The commit of the repository with this code, with `-dirty` after local changes; None for an installed package."""
    if not (code.parents[1] / ".git").exists():  # <repository>/src/gatf
        return None
    words = ["git", "-C", str(code), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "gatf": gatf.__version__,
        **{name: version(name) for name in ("torch", "numpy", "lightning-fabric")},
    }
