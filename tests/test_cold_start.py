"""What a person waits for before the first answer: a prediction imports nothing that only learning needs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from gatf.incremental.classifier import IncrementalClassifier

SLOW = ("lightning_fabric", "sklearn", "scipy", "matplotlib", "sympy", "torch._dynamo", "onnx", "datasets")
"""Packages that take from 0.3 to 3 seconds to import."""
PREDICT = """
import sys
sys.argv = ["gatf", "predict", *sys.argv[1:]]
from gatf.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_a_prediction_imports_nothing_that_only_learning_needs(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    classifier = IncrementalClassifier(epochs=1, held_out=0.2).fit(images, np.arange(20) % 2)
    classifier.save(tmp_path / "model.gatf")
    Image.fromarray(images[0]).save(tmp_path / "one.png")
    command = [
        sys.executable,
        "-c",
        PREDICT,
        str(tmp_path / "model.gatf"),
        str(tmp_path / "one.png"),
        "--unknown",
        "0.4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "one.png" in done.stdout
    imported = done.stderr.split()
    assert [name for name in SLOW if name in imported] == []
