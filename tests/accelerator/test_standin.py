"""Training on a stand-in accelerator (standin.cpp): the CPU's bits, no wait within a step, all state on the device."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gatf.cli.launch import free_port
from gatf.data.augment import STEPS
from gatf.methods import METHODS

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SMALL_FEATURES = {"backbone.bottleneck": 8, "method.samples": 100}
SETTINGS: dict[str, dict[str, Any]] = {
    "gatf": SMALL_FEATURES,
    "gatf-release": SMALL_FEATURES,
    "adagauss": SMALL_FEATURES,
    "fetril": {"method.fc_epochs": 2},
    "ldc": {"method.projector_epochs": 2},
    "bicyc": SMALL_FEATURES,
    "apr": {"method.transfer_epochs": 2, "method.transport_candidates": 20},
    "ranpac": {"method.projections": 100},
    "klda": {"method.projections": 100},
    "acil": {"method.projections": 100},
    "ds-al": {"method.projections": 100},
    "sdc paper": {"method.base.softmax_epochs": 4},
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
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gatf", {"method.refine": True, "method.anchor.final_refresh": True}),
    ("gatf", {"method.refine": True, "method.anchor.kind": "none", "method.covariance.kind": "lowrank"}),
    ("gatf", {"method.anchor.kind": "identity", "method.top_aware": False}),
    ("gatf", {"optimisation.next.optimiser": "adam", "optimisation.next.clip": None}),
    ("gatf", {"diagnostics": True}),
    ("adagauss", {"method.adapter": "residual", "method.readout_shrink": 0.1, "method.rda.mixture": 0.5}),
    ("lwf", {"method.head": "cosine", "method.train_old_heads": True}),
    ("lwf", {"method.kd_groups": "per_task", "method.warmup_epochs": 1, "method.readout": "ncm"}),
    ("pass", {"method.radius": "running", "method.proto_aug_view": True}),
    ("efc", {"method.fill_batch": True, "method.stats_transform": "test"}),
    ("fetril", {"method.task0_rotation": True}),
    ("fecam", {"method.task0_rotation": True, "method.covariance": "common"}),
    ("joint", {"scenario.tasks": 2, "scenario.domains": ["original", "fog"]}),
    ("finetune", {"backbone.batch_norm": "fixed", "optimisation.first.warmup": 0.1}),
]


LARGE = {"method": "finetune", "name": "images decoded on demand"}
"""Its settings name a folder that the fixture makes."""


def compared() -> list[dict[str, Any]]:
    """A case for every method, preset, augmentation and option of training."""
    cases = []
    for name, kind in METHODS.items():
        settings = SETTINGS.get(name, {})
        cases.append({"name": name, "method": name, "settings": settings})
        for preset in kind.Config.preset_names()[1:]:
            case = f"{name} {preset}"
            changed = {**settings, "method.preset": preset, **SETTINGS.get(case, {})}
            cases.append({"name": case, "method": name, "settings": changed})
    for steps in AUGMENTATIONS:
        settings = COLOURED | {"data.augment": steps, "scenario.tasks": 2}
        cases.append({"name": " ".join(steps), "method": "finetune", "recipe": "glyphs", "settings": settings})
    for method, options in OPTIONS:
        settings = SETTINGS.get(method, {}) | options
        cases.append({"name": f"{method} {options}", "method": method, "settings": settings})
    return cases


def resumed() -> list[dict[str, Any]]:
    """Stopped on one device, continued on the other."""
    methods = ("gatf", "efc", "pass", "sdc")
    ways = (("cpu", "standin"), ("standin", "cpu"))
    return [
        {
            "name": f"{method} from {before} to {after}", "kind": "resume", "method": method, "from": before,
            "to": after, "settings": SETTINGS.get(method, {}),
        }
        for method in methods
        for before, after in ways
    ]  # fmt: skip


LAUNCHES: dict[str, int] = json.loads((HERE / "operations.json").read_text(encoding="utf-8"))
"""Operations per training step of ResNet-18 at 12 pixels with crop and flip; docs/performance.md has the table."""


def counted() -> list[dict[str, Any]]:
    """The first two tasks of each method with the network of the papers, narrow."""
    network = {
        "backbone.name": "resnet18",
        "backbone.width": 4,
        "scenario.tasks": 2,
        "data.augment": ["crop:4", "flip"],
        "optimisation.first.epochs": 1,
        "optimisation.next.epochs": 1,
    }
    return [
        {
            "name": f"launches of {name}", "kind": "count", "method": name, "recipe": "glyphs",
            "settings": COLOURED | network | SETTINGS.get(name, {}),
        }
        for name in METHODS
    ]  # fmt: skip


def shared(device: str) -> list[dict[str, Any]]:
    """Runs that two processes share."""
    return [
        {"name": f"{method} on {device}", "kind": "share", "method": method, "device": device, "settings": settings}
        for method, settings in (("gatf", SMALL_FEATURES), ("efc", {}), ("lwf", {}))
    ]


def halved() -> list[dict[str, Any]]:
    """Every method in bfloat16, and the loss scale of float16."""
    return [
        {
            "name": f"{method} in {precision}", "kind": "half", "method": method,
            "settings": SETTINGS.get(method, {}) | {"precision": precision},
        }
        for method, precision in [*((method, "bf16-mixed") for method in METHODS), ("gatf", "16-mixed")]
    ]  # fmt: skip


DOCTOR = {"name": "doctor", "kind": "doctor"}
PRODUCT = [{"name": kind, "kind": kind} for kind in ("update", "vectors")]
WITHOUT_FLOAT64 = {"name": "no float64", "kind": "without_float64", "method": "gatf", "settings": SMALL_FEATURES}
COMPARED, RESUMED, COUNTED, HALVED = compared(), resumed(), counted(), halved()
Outcome = Callable[[str], dict[str, Any]]


def photos(folder: Path) -> Path:
    """Four classes of images larger than those that a run decodes beforehand."""
    draws = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 3)):
        for name in "abcd":
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (80, 80, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`outcome(name)`: what became of a case. Other processes run them: renaming a backend holds for a process."""
    sys.path.insert(0, str(HERE))
    try:
        import standin
    finally:
        sys.path.remove(str(HERE))
    if standin.compiler() is None:
        pytest.skip("no g++ here: the stand-in accelerator cannot be compiled")
    standin.build()
    folder = tmp_path_factory.mktemp("standin")
    settings = {
        "data.name": "folder", "data.root": str(photos(folder / "photos")), "data.image_size": 72,
        "data.augment": ["resized_crop:72", "flip"], "scenario.tasks": 2,
    }  # fmt: skip
    cases = [*COMPARED, *RESUMED, *COUNTED, *HALVED, *PRODUCT, DOCTOR, WITHOUT_FLOAT64, LARGE | {"settings": settings}]
    work = [{"environment": {}, "cases": cases[half::2]} for half in range(2)]
    for device in ("standin", "cpu"):
        launched = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
        for rank in range(2):
            environment = {**launched, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
            work.append({"environment": environment, "cases": shared(device)})
    for number, part in enumerate(work):
        text = {name: str(value) for name, value in part["environment"].items()}
        part["environment"] = {**text, "GATF_CACHE": str(folder / f"cache{number}")}
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")
    command = [sys.executable, str(HERE / "worker.py"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    sys.stderr.write(done.stderr)  # pytest shows it beside a failure
    lines = [line for path in folder.glob("outcomes*") for line in path.read_text(encoding="utf-8").splitlines()]
    failures_last = sorted(map(json.loads, lines), key=lambda each: "failed" in each)
    found = {each["name"]: each for each in failures_last}
    return lambda name: found[name]


def of(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


def test_every_augmentation_is_compared() -> None:
    assert {step.partition(":")[0] for steps in AUGMENTATIONS for step in steps} == STEPS.keys()


@pytest.mark.parametrize("name", [*of(COMPARED), LARGE["name"]])
def test_a_run_on_the_device_has_the_cpus_bits_and_never_waits(name: str, outcome: Outcome) -> None:
    found = outcome(name)
    assert "failed" not in found, found["failed"]
    assert found["differs"] == []
    assert found["elsewhere"] == []
    assert found["waits"] == []


@pytest.mark.parametrize("name", of(RESUMED))
def test_a_checkpoint_continues_with_the_same_bits_on_another_device(name: str, outcome: Outcome) -> None:
    found = outcome(name)
    assert "failed" not in found, found["failed"]
    assert found["differs"] == []


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_never_waits_and_keeps_float32(method: str, outcome: Outcome) -> None:
    found = outcome(f"{method} in bf16-mixed")
    assert "failed" not in found, found["failed"]
    assert "torch.bfloat16" in found["computed"]
    assert not {"torch.bfloat16", "torch.float16"} & set(found["kept"])
    assert found["waits"] == []


def test_float16_waits_for_its_loss_scale_only(outcome: Outcome) -> None:
    found = outcome("gatf in 16-mixed")
    assert "failed" not in found, found["failed"]
    assert "torch.float16" in found["computed"]
    assert all("read of a scalar at loop.py" in wait for wait in found["waits"])
    assert len(found["waits"]) == 2  # one place, in two tasks


@pytest.mark.parametrize("name", of(PRODUCT))
def test_what_users_train_and_load_has_the_cpus_bits_on_the_device(name: str, outcome: Outcome) -> None:
    """Updates and model files, classifiers of vectors."""
    found = outcome(name)
    assert "failed" not in found, found["failed"]
    assert found["differs"] == []
    assert found.get("elsewhere", []) == []


@pytest.mark.parametrize("method", METHODS)
def test_launches_per_step_do_not_creep_up(method: str, outcome: Outcome) -> None:
    found = outcome(f"launches of {method}")
    assert "failed" not in found, found["failed"]
    assert found["operations"] <= LAUNCHES[method]


@pytest.mark.parametrize("method", ["gatf", "efc", "lwf"])
def test_two_processes_exchange_on_the_device_alone_and_have_the_cpus_bits(method: str, outcome: Outcome) -> None:
    """The stand-in's exchange refuses tensors of the CPU."""
    there, here = outcome(f"{method} on standin"), outcome(f"{method} on cpu")
    assert "failed" not in there, there["failed"]
    assert "failed" not in here, here["failed"]
    assert there["elsewhere"] == []
    assert there["digests"] == here["digests"]
    assert there["digests"][0] == there["digests"][1]


def test_doctor_finds_the_cpus_results_in_five_lines(outcome: Outcome) -> None:
    found = outcome("doctor")
    assert "failed" not in found, found["failed"]
    assert found["sound"]
    assert len(found["lines"]) == 5
    assert found["lines"][1].endswith("class means differ by 0e+00")


def test_a_device_without_float64_is_refused_in_one_sentence(outcome: Outcome) -> None:
    found = outcome("no float64")
    assert found["error"] == "UserError"
    assert found["text"].startswith("device=standin cannot be used: it has no float64")
