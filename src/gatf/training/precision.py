"""The choice of `precision=auto`: bfloat16 where the hardware computes it, else float32.

It depends on the hardware alone, not on timings, because the bits of a run depend on it.
"""

from pathlib import Path

import torch

from gatf.devices import available_device

AUTO, FLOAT32, BFLOAT16 = "auto", "32-true", "bf16-mixed"
INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
"""A processor without these emulates bfloat16, slowly, and some builds of torch crash there."""


def chosen(precision: str, device: str) -> tuple[str, str | None]:
    """A precision of Fabric, and a sentence that explains the choice of `auto`, else None."""
    if precision != AUTO:
        return precision, None
    on_gpu = available_device(device) == "cuda"
    able = torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else bool(INSTRUCTIONS & flags())
    best = BFLOAT16 if able else FLOAT32
    where, ability = "GPU" if on_gpu else "processor", "computes" if able else "does not compute"
    return best, f"precision: {best}, because the {where} {ability} bfloat16 in hardware"


def flags() -> set[str]:
    """The instruction sets of the processor, from /proc/cpuinfo; empty on other systems than Linux."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
