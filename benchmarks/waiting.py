"""Threads that wait for each other: a step of small networks alone, and while other processes want the cores.

    python benchmarks/waiting.py [--quick] [--out benchmarks/results/waiting.json]

The reference has as many threads as torch takes by itself, and they wait as they do by default. Ours is what `gatf run`
does: one thread where a step is light (gatf.training.threads), else as many, which sleep soon while they wait. A step
is one of training the recipe's network on random images; each side runs for a moment in a process of its own, and a
turn is the median of its steps. Rows say how idle the processors were beforehand.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from harness import LIBRARIES, Report, idle, options

from gatf.cli import SPINS, WAITING
from gatf.config import load_config
from gatf.nets import build_backbone
from gatf.training.memory import keep_freed_memory
from gatf.training.threads import LIGHT, multiplications, one_thread_if

CHANNELS, SIDES = 1, {"digits": 8, "glyphs": 16}
"""Of the recipes' images."""
BUSY = (0, 4)
"""Processes that take a core meanwhile."""


def steps(recipe: str, ours: bool, budget: float) -> None:
    """Print the median seconds of the training steps that fit into so many seconds; three at the least."""
    keep_freed_memory()
    config = load_config(recipe, method="gatf", overrides={})
    shape, batch = (CHANNELS, SIDES[recipe], SIDES[recipe]), config.optimisation.next.batch_size
    net = build_backbone(config.backbone, CHANNELS).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    light = ours and batch * multiplications(net, shape) < LIGHT
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, *shape).to(memory_format=torch.channels_last)
    times: list[float] = []
    end = time.perf_counter() + budget
    with one_thread_if(light):
        while time.perf_counter() < end or len(times) < 3:
            started = time.perf_counter()
            net(images).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            times.append(time.perf_counter() - started)
    print(statistics.median(times))


def step_seconds(recipe: str, *, ours: bool, budget: float) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in (*WAITING, *LIBRARIES)}
    environment |= {WAITING[0]: SPINS} if ours else {}
    command = [sys.executable, __file__, "steps", recipe, str(int(ours)), str(budget)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Inside, so many other processes do nothing but take a core."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    arguments = options("waiting", __doc__, threads=os.cpu_count())
    budget, repeats = (0.2, 1) if arguments.quick else (0.6, 2)
    report = Report(arguments, {"reference": "torch's own number of threads", "spins": int(SPINS), "light": LIGHT})
    quiet = f"processors {100 * idle():.0f} % idle"
    for recipe in SIDES:
        for busy in BUSY:
            with busy_processes(busy):
                turns = [
                    tuple(step_seconds(recipe, ours=ours, budget=budget) for ours in (False, True))
                    for _ in range(repeats)
                ]
            report.add(
                f"a step of {recipe}, {quiet}{f', then {busy} busy processes' if busy else ''}",
                ours=statistics.median(own for _, own in turns),
                reference=statistics.median(theirs for theirs, _ in turns),
                ratio=statistics.median(theirs / own for theirs, own in turns),
            )  # fmt: skip
    report.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["steps"]:
        steps(sys.argv[2], sys.argv[3] == "1", float(sys.argv[4]))
    else:
        main()
