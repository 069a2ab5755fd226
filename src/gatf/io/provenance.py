"""Which machine, versions and commit a result comes from, and the memory it took."""

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
    """Largest memory of the process so far, or allocated on the GPU since the last call; 0 on
    Windows, which has no such count."""
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
    """As Linux tells it, or else what Python knows."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8", errors="replace").splitlines() if known.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine(device: torch.device) -> dict[str, str]:
    """What seconds, and the last bits of a result, depend on; the date, the command and the commit."""
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor_name(),
        "threads": str(torch.get_num_threads()),
    }
    found |= {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    told = {"command": os.environ.get(COMMAND), "commit": commit(Path(gatf.__file__).parent)}
    return found | {name: text for name, text in told.items() if text}


def commit(code: Path) -> str | None:
    """The commit of the repository that the code lies in, with `-dirty` where files were changed; None where it was
    installed from elsewhere."""
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
