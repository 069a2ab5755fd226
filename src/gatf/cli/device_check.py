"""`gatf doctor --device`: does a device compute what the CPU computes, and how fast is a training step on it."""

import platform
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from gatf.config import RunConfig, load_config
from gatf.devices import check_device, set_determinism
from gatf.experiment import Experiment
from gatf.nets import build_backbone
from gatf.settings import BackboneConfig
from gatf.training.context import RunContext

TOLERANCE = 1e-3
"""Relative difference of class means that is not explained by sums in another order, which give about 1e-6."""
BATCH, PIXELS, STEPS = 256, 32, 10
"""Images per timed step, their side, and steps that are timed on a GPU; a CPU gets an eighth of the images."""


def check(device: str, say: Callable[[str], object]) -> bool:
    """Say in five lines what the device is, how its results compare with the CPU's and how fast it is; returns whether
    it computes what the CPU does."""
    check_device(device)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    say(f"device    {device}: {name}, torch {torch.__version__}")
    here, there = (trained(small_problem(each)) for each in (device, "cpu"))
    differs = float((here[1].cpu() - there[1]).norm() / there[1].norm())
    say(f"results   accuracy {here[0]:.1f} % here, {there[0]:.1f} % on the CPU; class means differ by {differs:.0e}")
    plain = speeds(torch.device(device), compiled=False)
    say(f"speed     {_listed(plain)} images per second of a ResNet-18 training step at {PIXELS} pixels")
    compiled = speeds(torch.device(device), compiled=True) if device == "cuda" else {}
    say(f"compiled  {_listed(compiled) + ' images per second' if compiled else 'measured on CUDA devices only'}")
    sound = differs <= TOLERANCE
    every = {**plain, **{f"{name} with compile=true": speed for name, speed in compiled.items()}}
    fastest = max(every, key=lambda name: every[name])
    say(
        f"verdict   {device} computes what the CPU does; the fastest is {fastest}"
        if sound
        else f"verdict   {device} does NOT compute what the CPU does: do not train on it, and report this"
    )
    return sound


def small_problem(device: str) -> RunConfig:
    """Two tasks of digits by GATF: every part of the method, in seconds. The steps are few and their batches large,
    because differences of rounding grow with every step and would decide about the accuracy."""
    short = {"epochs": 1, "batch_size": 256}
    settings = {f"optimisation.{stage}.{name}": value for stage in ("first", "next") for name, value in short.items()}
    small = {"scenario.stop_after": 2, "backbone.width": 16, "backbone.bottleneck": 16, "device": device}
    return load_config("digits", method="gatf", overrides={**settings, **small})


def trained(config: RunConfig) -> tuple[float, Tensor]:
    """Accuracy over the seen classes after two tasks, and the class means."""
    experiment = Experiment(config)
    for task in range(len(experiment.scenario)):
        experiment.session.learn_task(experiment.task_data(task), RunContext())
    means = experiment.method.state_dict()["memory.means"]
    return experiment.evaluate(len(experiment.scenario) - 1).seen, means.double()


def speeds(device: torch.device, *, compiled: bool) -> dict[str, float]:
    """Images per second of forward and backward pass, by number format."""
    wanted = {"float32": (False, False), "TF32": (True, False), "bfloat16": (False, True)}
    if device.type != "cuda":
        del wanted["TF32"]
    try:
        return {
            name: _images_per_second(device, fast=fast, half=half, compiled=compiled)
            for name, (fast, half) in wanted.items()
        }
    finally:
        set_determinism("auto", device)


def _images_per_second(device: torch.device, *, fast: bool, half: bool, compiled: bool) -> float:
    set_determinism(not fast and "auto", device)
    backbone = build_backbone(BackboneConfig(), 3).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = torch.compile(backbone) if compiled else backbone
    batch, steps = (BATCH, STEPS) if device.type == "cuda" else (BATCH // 8, 1)
    images = torch.randn(batch, 3, PIXELS, PIXELS, device=device).to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            features = net(images)
        features.float().square().mean().backward()
        backbone.zero_grad(set_to_none=True)

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())  # waits for the device
    timer.timeit(3 if device.type == "cuda" else 1)
    return batch / timer.timeit(steps).mean


def _listed(speeds: dict[str, float]) -> str:
    return ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
