"""Processor seconds until `import gatf`, `gatf --help` and `gatf predict` of one image are done, against `import torch`
alone, each in a fresh process.

    python benchmarks/startup.py [--quick] [--out benchmarks/results/startup.json]

Starting Python itself is part of every number, with one thread: others, while they wait, would count as well. Files
are in the system's cache after the first turn, which is not counted, and modules are compiled by then, as those of an
installed package are, whatever PYTHONDONTWRITEBYTECODE says here. A prediction needs torch, and half a second more
is what it may take; from an ONNX file beside the model, made by `gatf export`, it does not.
"""

import tempfile
from pathlib import Path

import numpy as np
from harness import Report, options, process, processor_time, seconds, take_turns
from PIL import Image

from gatf import IncrementalClassifier

LIMIT, BEYOND_TORCH, WITHOUT_TORCH = 0.5, 0.5, 1.0
TORCH = ("-c", "import torch")


def make_model(folder: Path) -> tuple[str, ...]:
    """A small model and an image; returns the command that predicts."""
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    IncrementalClassifier(epochs=1, held_out=0.2).fit(images, np.arange(40) % 2).save(folder / "shop.gatf")
    Image.fromarray(images[0]).save(folder / "one.png")
    return ("-m", "gatf", "predict", str(folder / "shop.gatf"), str(folder / "one.png"))


def main() -> None:
    arguments = options("startup", __doc__, threads=1)
    empty = min(seconds(process("-c", "pass"), processor_time) for _ in range(5))
    report = Report(arguments, {"reference": "import torch", "clock": "processor", "empty_process": empty})

    def compare(*command: str) -> dict[str, float]:
        repeats = 2 if arguments.quick else 3
        return take_turns(process(*TORCH), process(*command), repeats=repeats, clock=processor_time)

    report.add("import gatf", **compare("-c", "import gatf"), at_most=LIMIT)
    report.add("gatf --help", **compare("-m", "gatf", "--help"), at_most=LIMIT)
    with tempfile.TemporaryDirectory() as place:
        predict = make_model(Path(place))
        turns = compare(*predict)
        report.add("gatf predict of one image", **turns, at_most=round(turns["reference"] + BEYOND_TORCH, 2))
        process("-m", "gatf", "export", predict[3], str(Path(place) / "shop.onnx"))()
        report.add("the same with an ONNX file beside the model", **compare(*predict), at_most=WITHOUT_TORCH)
    report.write("typer", "onnxruntime")


if __name__ == "__main__":
    main()
