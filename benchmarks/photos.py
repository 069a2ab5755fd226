"""What a person with photos waits for: one answer from a cold start, many answers, and the file that makes one quick.

    python benchmarks/photos.py [--quick] [--out benchmarks/results/photos.json] [--threads N]

Time on the clock, each call in a process of its own, of a model of 20 classes at 128 pixels with EfficientNet-Lite0
(the extra `pretrained`). One answer is compared with `import torch`. Many are compared with the bare network on the
same photos (`reference/photos.py`), reading and decoding them and importing torch included on both sides. Files are in
the system's cache, and Python's are compiled, as those of an installed package are.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from harness import Report, options, process, take_turns
from PIL import Image

from gatf.incremental.update_file import update_model_file

COLD, OWN_SPEED = 2.0, 1.0
CLASSES, PHOTOS_PER_CLASS, SIDE = 20, 6, 128
REFERENCE = str(Path(__file__).parent / "reference" / "photos.py")


def photo(draws: np.random.Generator, path: Path) -> None:
    """A JPEG of coloured clouds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clouds = Image.fromarray(draws.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    clouds.resize((SIDE * 5 // 4, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def main() -> None:
    arguments = options("photos", __doc__)
    many, repeats = (60, 1) if arguments.quick else (500, 2)
    report = Report(arguments, {"classes": CLASSES, "side": SIDE, "photos": many, "clock": "wall"})
    draws = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(CLASSES * PHOTOS_PER_CLASS):
            photo(draws, folder / "taught" / f"class {number % CLASSES}" / f"{number}.jpg")
        for number in range(many):
            photo(draws, folder / "asked" / f"{number}.jpg")
        model, one = folder / "photos.gatf", str(folder / "asked" / "0.jpg")
        update_model_file(model, folder / "taught", parameters={"device": "cpu"})
        alone = folder / "photos"  # a name without an ending has no ONNX file
        shutil.copy(model, alone)
        torch_alone, bare = process("-c", "import torch"), process(REFERENCE, str(folder / "asked"), str(SIDE))
        process("-m", "gatf", "predict", str(model), one)()  # writes the ONNX file
        for path, how in ((model, ""), (alone, ", without the ONNX file beside the model")):
            cold = process("-m", "gatf", "predict", str(path), one)
            asked = process("-m", "gatf", "predict", str(path), str(folder / "asked"))
            turns = take_turns(torch_alone, cold, repeats=repeats)
            report.add(f"gatf predict of one photo, from a cold start{how}", **turns, at_most=COLD)
            turns = take_turns(bare, asked, repeats=repeats, warm_up=False)
            report.add(f"gatf predict of {many} photos, against the bare network{how}", **turns, target=OWN_SPEED)
        export = process("-m", "gatf", "export", str(model), str(folder / "photos.onnx"))
        turns = take_turns(torch_alone, export, repeats=1)
        report.add("gatf export of that model", **turns)
    report.write("onnxruntime")


if __name__ == "__main__":
    main()
