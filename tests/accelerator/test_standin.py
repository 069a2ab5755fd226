"""Training on a stand-in accelerator (standin.cpp): the CPU's bits, no wait within a step, all state on the device."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatf.methods import METHODS

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SMALL_FEATURES = {"backbone.bottleneck": 8, "method.samples": 100}
SETTINGS: dict[str, dict[str, Any]] = {
    "gatf": SMALL_FEATURES,
    "gatf-release": SMALL_FEATURES,
    "adagauss": SMALL_FEATURES,
    "ranpac": {"method.projections": 100},
    "klda": {"method.projections": 100},
}
COLOURED = {"data.glyphs.size": 12, "data.glyphs.classes": 4, "data.glyphs.train_per_class": 40}
AUGMENTATIONS = [
    ["crop:4", "flip"],
    ["pad:2", "resized_crop:12"],
    ["window:10"],
    ["jitter:brightness=0.3,contrast=0.2,saturation=0.2"],
    ["trivial"],
    ["autoaugment:128", "cutout:6"],
    ["crop:4", "flip", "jitter:0.247", "autoaugment", "cutout:4,128"],
]
OPTIONS: list[dict[str, Any]] = [
    {"method.refine": True},
    {"method.readout": "linear"},
    {"optimisation.next.optimiser": "adam", "optimisation.next.clip": None},
    {"diagnostics": True},
]


def compared() -> list[dict[str, Any]]:
    """A case for every method, preset, augmentation and option of training."""
    cases = []
    for name, kind in METHODS.items():
        settings = SETTINGS.get(name, {})
        cases.append({"name": name, "method": name, "settings": settings})
        for preset in kind.Config.preset_names()[1:]:
            changed = {**settings, "method.preset": preset}
            cases.append({"name": f"{name} {preset}", "method": name, "settings": changed})
    for steps in AUGMENTATIONS:
        settings = COLOURED | {"data.augment": steps, "scenario.tasks": 2}
        cases.append({"name": " ".join(steps), "method": "finetune", "recipe": "glyphs", "settings": settings})
    for option in OPTIONS:
        cases.append({"name": f"gatf {option}", "method": "gatf", "settings": SMALL_FEATURES | option})
    cases.append({"name": "ewc sampled", "method": "ewc", "settings": {"method.label_mode": "sampled"}})
    return cases


def resumed() -> list[dict[str, Any]]:
    """Stopped on one device, continued on the other."""
    methods = ("gatf", "efc", "pass", "sdc")
    ways = (("cpu", "standin"), ("standin", "cpu"), ("standin", "standin"))
    return [
        {
            "name": f"{method} from {before} to {after}", "kind": "resume", "method": method, "from": before,
            "to": after, "settings": SETTINGS.get(method, {}),
        }
        for method in methods
        for before, after in ways
    ]  # fmt: skip


LAUNCHES = {
    "gatf": 347, "gatf-release": 450, "adagauss": 327, "finetune": 208, "joint": 208, "ewc": 813, "lwf": 283,
    "sdc": 314, "adc": 314, "ldc": 314, "pass": 313, "fetril": 200, "fecam": 237, "efc": 285, "dpcr": 314, "ncm": 199,
    "slda": 199, "ranpac": 199, "klda": 199,
}  # fmt: skip
"""Operations per training step of ResNet-18 at 12 pixels with crop and flip: docs/gpu.md has the table."""


def counted() -> list[dict[str, Any]]:
    """The first two tasks of each method with the network of the papers, narrow."""
    network = {
        "backbone.name": "resnet18",
        "backbone.width": 4,
        "scenario.tasks": 2,
        "data.augment": ["crop:4", "flip"],
    }
    return [
        {
            "name": f"launches of {name}", "kind": "count", "method": name, "recipe": "glyphs",
            "settings": COLOURED | network | SETTINGS.get(name, {}),
        }
        for name in METHODS
    ]  # fmt: skip


WITHOUT_FLOAT64 = {"name": "no float64", "kind": "without_float64", "method": "gatf", "settings": SMALL_FEATURES}
COMPARED, RESUMED, COUNTED = compared(), resumed(), counted()
Outcome = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`outcome(name)`: what became of a case. They run in two processes: renaming a backend holds for a process."""
    sys.path.insert(0, str(HERE))
    try:
        import standin
    finally:
        sys.path.remove(str(HERE))
    if standin.compiler() is None:
        pytest.skip("no g++ here: the stand-in accelerator cannot be compiled")
    standin.build()
    folder = tmp_path_factory.mktemp("standin")
    cases = [*COMPARED, *RESUMED, *COUNTED, WITHOUT_FLOAT64]
    started = []
    for number in range(2):
        environment = {**os.environ, "GATF_CACHE": str(folder / f"cache{number}"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "worker.py"), json.dumps(cases[number::2])]
        with (folder / f"errors{number}").open("w") as errors:
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
            )
    found: dict[str, dict[str, Any]] = {}
    for number, process in enumerate(started):
        told = process.communicate()[0]
        found |= {each["name"]: each for each in map(json.loads, told.splitlines())}
        assert process.returncode == 0, (folder / f"errors{number}").read_text()[-2000:]
    return lambda name: found[name]


def of(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


@pytest.mark.parametrize("name", of(COMPARED))
def test_a_run_on_the_device_has_the_cpus_bits_and_never_waits(name: str, outcome: Outcome) -> None:
    found = outcome(name)
    assert "failed" not in found, found["failed"]
    assert found["differs"] == []
    assert found["elsewhere"] == []
    assert found["waits"] == []


@pytest.mark.parametrize("name", of(RESUMED))
def test_a_checkpoint_goes_on_with_the_same_bits_on_another_device(name: str, outcome: Outcome) -> None:
    found = outcome(name)
    assert "failed" not in found, found["failed"]
    assert found["differs"] == []


@pytest.mark.parametrize("method", METHODS)
def test_launches_per_step_do_not_creep_up(method: str, outcome: Outcome) -> None:
    found = outcome(f"launches of {method}")
    assert "failed" not in found, found["failed"]
    assert found["operations"] <= LAUNCHES[method]


def test_a_device_without_float64_is_refused_in_one_sentence(outcome: Outcome) -> None:
    found = outcome("no float64")
    assert found["error"] == "UserError"
    assert found["text"].startswith("device=standin cannot be used: it has no float64")
