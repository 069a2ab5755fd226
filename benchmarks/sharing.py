"""Training steps in one process with one thread, in one with two, and in two with one each.

    python benchmarks/sharing.py [--quick] [--out benchmarks/results/sharing.json]

`gatf run` of two tasks, a width-16 ResNet-18 on random images of 32 pixels in batches of 128, as it is typed; two
processes are `--devices 2`. Measured are epochs of the second task: images per second of the fastest one, and the
processor time of an image, from what a run with more epochs takes more. Where something else keeps the processors busy
as the benchmark begins, images per second are left out: what they would say is how busy.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import LIBRARIES, Report, idle, options, processor_time
from scaling import random_archive

from gatf.config import load_config
from gatf.io.events import Epoch
from gatf.io.run_folder import RunFolder

WIDTH, BATCH, TASKS, PER_CLASS = 16, 128, 2, 10
"""Images of each of 100 classes: four steps per epoch."""
EPOCHS = (1, 4)
WAYS = {"one process, one thread": (1, 1), "one process, two threads": (1, 2), "two processes, one thread each": (2, 1)}
"""Processes, and threads of each."""
WANTED, FREE = 1.6, 0.9
"""Speed-up, and share of the processors that are idle before the benchmark begins."""


def main() -> None:
    arguments = options("sharing", __doc__)
    free = idle()
    per_class, epochs = (2, (1, 2)) if arguments.quick else (PER_CLASS, EPOCHS)
    images = 100 * per_class // TASKS
    speeds, costs = {}, {}
    with tempfile.TemporaryDirectory() as place:
        archive = random_archive(Path(place) / "random.npz", per_class, 1)
        for way, (processes, threads) in WAYS.items():
            (_, short), (fastest, long) = (run(settings(archive, number), processes, threads) for number in epochs)
            speeds[way] = images / fastest
            costs[way] = (long - short) / (images * (epochs[1] - epochs[0]))
    report = Report(arguments, {"batch": BATCH, "width": WIDTH, "idle": free, "processor_seconds_per_image": costs})
    alone, _, shared = WAYS
    report.add(
        "processor time of an image in training, two processes against one", ours=costs[shared],
        reference=costs[alone], ratio=costs[alone] / costs[shared],
    )  # fmt: skip
    if free >= FREE:
        report.about["images_per_second"] = speeds
        report.add(
            "training of CIFAR-sized images, two processes against one thread", ours=speeds[shared],
            reference=speeds[alone], ratio=speeds[shared] / speeds[alone], unit="images/s", target=WANTED,
        )  # fmt: skip
    report.write()


def settings(archive: Path, epochs: int) -> str:
    """The run as YAML; `epochs` are the second task's."""
    chosen: dict[str, object] = {
        "data.name": "npz", "data.root": str(archive), "data.max_per_class": None, "scenario.tasks": TASKS,
        "scenario.order": "natural", "backbone.width": WIDTH, "method.rotation": False, "method.refresh": 100,
        "optimisation.first.epochs": 1, "optimisation.next.epochs": epochs,
        "optimisation.first.batch_size": BATCH, "optimisation.next.batch_size": BATCH,
    }  # fmt: skip
    return load_config("cifar100-cpu", method="gatf", overrides=chosen).to_yaml()


def run(config: str, processes: int, threads: int) -> tuple[float, float]:
    """Seconds of the fastest epoch of the second task, and processor seconds of the whole run."""
    with tempfile.TemporaryDirectory() as place:
        recipe, folder = Path(place) / "run.yaml", Path(place) / "run"
        recipe.write_text(config, encoding="utf-8")
        command = [sys.executable, "-m", "gatf", "run", "--recipe", str(recipe), "--out", str(folder), "--quiet"]
        command += ["--no-report", "--devices", str(processes), "--force-devices"]
        before = processor_time()
        environment = os.environ | dict.fromkeys(LIBRARIES, str(threads))
        subprocess.run(command, check=True, env=environment, capture_output=True)
        taken = processor_time() - before
        epochs = [event for event in RunFolder(folder).read_events() if isinstance(event, Epoch)]
        return min(event.seconds for event in epochs if event.task > 0), taken


if __name__ == "__main__":
    main()
