"""The pages on performance say what the benchmarks wrote, and the cost model counts what the code does."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    for folder in ("benchmarks", "tools"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module


def test_the_pages_are_up_to_date(load: Load) -> None:
    performance = load("performance")
    for name, parts in performance.sections(performance.RESULTS).items():
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page == performance.filled(page, parts), "run python tools/performance.py"
        assert "<!-- /" in page


def test_a_missing_result_is_named_with_the_command_that_makes_it(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no .*startup\.json: run python benchmarks/run\.py startup"):
        load("performance").sections(tmp_path)
    (tmp_path / "startup.json").write_text(json.dumps({"results": {}}), encoding="utf-8")
    with pytest.raises(SystemExit, match="older kind"):
        load("performance").sections(tmp_path)


@pytest.fixture
def results(load: Load, tmp_path: Path) -> Path:
    """What all benchmarks would write, in small."""
    environment = {"python": "3.11", "torch": "2.6", "system": "Linux", "processor": "x", "processors": 2, "threads": 2}
    comparison = {"what": "some", "unit": "s", "ours": 2.0, "reference": 6.0, "ratio": 3.0, "target": "ratio ≥ 2"}
    comparison["met"] = True
    wholes: dict[str, dict[str, Any]] = {name: {"results": [comparison]} for name in load("performance").COMPARED}
    wholes["training"]["profile"] = [{"operation": "conv", "percent": 51.23, "calls": 40}]
    curve = {"loop": {"100": {"cov": 0.2}, "200": {"cov": 0.1}}, "mirrored": {"200": {"cov": 0.05}}}
    wholes["pushforward"]["results"].append(comparison | {"what": "equal error, g = 0.3, 200", "error_curve": curve})
    wholes["memory"] |= {"tasks": 3, "living_megabytes": [1.0, 2.0, 2.5], "resident_megabytes": [100.0, 101.0, 102.0]}
    compiled = {"compile_seconds": 30.0, "break_even_steps": 500.0}
    wholes["compiling"] = {"batch": 128, "results": [comparison | compiled]}
    accuracy = {"mean": 90.0, "std": 1.5, "values": [88.5, 91.5]}
    row = {"a_last": accuracy, "a_inc": accuracy, "bytes_per_class": 8576, "seconds": 12.0}
    wholes["covariance"] = {"results": {"digits": {"full": row}}}
    costs, outlook = load("costs"), load("outlook")
    rate = {"once": 1e-3, "operations": 1e-11, "bytes": 1e-10}
    names = ["training step", "anchor refresh, pass", "transport"]
    names += [f"scoring {images}, {kind}" for images in ("one image", "256 images") for kind in outlook.KINDS]
    fitted = dict.fromkeys(names, rate) | {"fitting low rank": {"once": 0.0, "squares": 0.0, "cubes": 1e-9}}
    works = [{"once": 1, "bytes": amount * 1e9} for amount in (1, 2, 4)]
    part = costs.Component("checkpoint", "s", ["1 GB", "2 GB", "4 GB"], works, [1.0, 2.0, 8.0])
    sizes = [{"kind": "full", "dim": 64, "kept": 8576, "read": 33792}]
    wholes["scaling"] = {
        "components": [part.report()],
        "bytes_a_class": sizes,
        "results": [],
        **outlook.everything(fitted),
    }
    wholes["growth"] = {
        "seconds": {"transport": {"64": {"10": 0.1, "100": 1.0, "1000": 12.0}}, "saving": {"64": {}}},
        "exponents": {"transport": {"64": 1.08}, "saving": {"64": None}},
        "peak_bytes": {"transport": {"64": {"100": 9e6, "1000": 5e7}, "512": {"100": 2e9}}, "saving": {"64": {}}},
    }
    wholes["commands"] = {
        "seconds": {"report": {"10": 0.1, "1000": 1.5}},
        "exponents": {"report": 0.91},
        "peak_bytes": {"report": {"10": 1e6, "1000": 5e7}},
    }
    wholes["demo"] = {"seconds": {"training": 15.0, "report": 5.0}, "calls": {"training": 5, "report": 1}}
    wholes["sharing"] = {
        "processor_seconds_per_image": {"one process": 0.004, "two processes": 0.005},
        "images_per_second": {"one process": 250.0, "two processes": 400.0},
    }
    accuracies = {"32-true": [90.0, 92.0], "bf16-mixed": [89.0, 88.0]}
    runs = {
        name: {str(seed): {"a_last": value, "a_inc": value} for seed, value in enumerate(values)}
        for name, values in accuracies.items()
    }
    wholes["precision"] = {"data": {"digits": {"runs": runs}}}
    wholes["serving"] = {"results": [comparison]}
    for name, whole in wholes.items():
        text = json.dumps({**whole, "quick": name == "memory", "environment": environment})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    return tmp_path


def test_every_table_has_its_rows(load: Load, results: Path) -> None:
    pages = load("performance").sections(results)
    expected = {
        "machine": "| from quick runs, not to be quoted | memory |",
        "comparisons": "| some (`startup`) | 2 s | 6 s | 3 | ratio ≥ 2 | yes |",
        "profile": "| `conv` | 51.2 | 40 |",
        "demo": "| report | 5 | 25.0 | 1 |",
        "errors": "| 100 | 20 | – |",
        "memory": "| resident, MB | 100.0 | 101.0 | 102.0 |",
        "compiling": "| earned after | 500 steps |",
        "covariances": "| digits, `full` | 2 | 90.0 ± 1.5 | 90.0 ± 1.5 | 8 576 |",
        "growth": "| transport, S = 64 | 100 ms | 1 s | 12 s | 1.1 |",
        "growth-memory": "| transport | 50 MB, C = 1 000 | 2 GB, C = 100 |",
        "sharing": "| two processes | 400 | 1.6 | 5 ms |",
        "precision": "| digits, A_last % | 2 | 91.0 ± 1.4 | 88.5 ± 0.7 | -2.5 ± 2.1 | **no** |",
        "growth-commands": "| report | 100 ms | 1.5 s | 0.91 | 50 MB |",
        "bytes": "| `full`, S = 64 | 8 576 | 33 792 |",
        "assumptions": "| float32 operations per second | 15 × 10¹² |",
        "imagenet": "| parameters trained | 11.7 M | 45.1 M |",
        "decoding": "A core of this machine decodes 2 JPEG photos per second",
        "traffic": "| each refresh: anchor moments | 231 kB | 14.7 MB |",
        "many-classes": "| `full`, S = 64 | 858 MB | 3.38 GB |",
        "walls": "| kept Gaussians take 1 GB, S = 64 | 120 000 | 390 000 | 2 000 000 | 3 900 000 |",
        "whole-run": "does not check",
        "model": "| 4 GB: 8 s | -50 |",
        "serving": "| some (`serving`) | 2 s | 6 s | 3 | ratio ≥ 2 | yes |",
    }
    found = {name: text for parts in pages.values() for name, text in parts.items()}
    assert found.keys() == expected.keys()
    for name, line in expected.items():
        assert line in found[name], found[name]


def test_the_pages_have_a_place_for_every_table(load: Load, results: Path) -> None:
    performance = load("performance")
    for name, parts in performance.sections(results).items():
        page = performance.filled((ROOT / "docs" / name).read_text(encoding="utf-8"), parts)
        assert all(content in page for content in parts.values())


def test_the_error_curve_is_drawn(load: Load, results: Path) -> None:
    performance = load("performance")
    performance.draw(performance.read("pushforward", results), results / "curve.svg")
    assert "mirrored" in (results / "curve.svg").read_text(encoding="utf-8")
    performance.draw_growth(performance.read("growth", results), results / "growth.svg")
    assert "transport" in (results / "growth.svg").read_text(encoding="utf-8")


def test_a_target_that_was_missed_is_shown(load: Load) -> None:
    performance = load("performance")
    result: dict[str, Any] = {"what": "x", "unit": "MB", "ours": 1234.5, "reference": None, "ratio": None}
    none: dict[str, Any] = {"results": []}
    wholes = dict.fromkeys(performance.COMPARED, none) | {
        "scoring": {"results": [{**result, "target": "ours ≤ 1 MB", "met": False}]}
    }
    assert performance.comparisons(wholes).splitlines()[2] == (
        "| x (`scoring`) | 1 234 MB | – | – | ours ≤ 1 MB | **no** |"
    )


def test_numbers_for_people(load: Load) -> None:
    performance = load("performance")
    assert [performance.duration(each) for each in (7200, 90, 0.25, 2e-6)] == ["2 h", "1.5 min", "250 ms", "2 µs"]
    assert [performance.size(each) for each in (12, 8_576, 3.3e9)] == ["12 B", "8.58 kB", "3.3 GB"]


# the cost model


def test_a_line_is_fitted_exactly_and_cannot_slope_down(load: Load) -> None:
    costs = load("costs")
    works = [{"once": 1, "operations": amount} for amount in (1e9, 2e9, 4e9)]
    coefficients = costs.fit(works, [3.0, 5.0, 9.0])
    assert coefficients == pytest.approx({"once": 1.0, "operations": 2e-9})
    assert costs.predict(coefficients, {"once": 1, "operations": 8e9}) == pytest.approx(17)
    assert costs.fit(works, [9.0, 5.0, 3.0])["operations"] == 0


def test_the_largest_is_predicted_from_the_others(load: Load) -> None:
    costs = load("costs")
    works = [{"once": 1, "bytes": amount} for amount in (1, 2, 10)]
    part = costs.Component("some", "s", ["a", "b", "c"], works, [1.0, 2.0, 20.0])
    assert part.held_out() == {
        "configuration": "c", "measured": 20.0, "predicted": pytest.approx(10.0), "error_percent": pytest.approx(-50.0),
    }  # fmt: skip


def test_operations_of_the_full_network(load: Load) -> None:
    """ResNet-18 at 224 pixels has 1.81 · 10⁹ products an image (He et al., 2016, Table 1: 1.8 · 10⁹)."""
    costs = load("costs")
    net = costs.Network(64, 224, "7x7", 512)
    once = costs.forward_work(net, images=1)["operations"]
    assert once / 2 == pytest.approx(1.814e9, rel=1e-3)
    both = costs.step_work(net, batch=2, new_classes=100)["operations"] / 2
    maps = 3 * 2 * 4 * 32 * 512**2  # forward and backward of two maps, 4·32·S² operations forward
    no_gradient_of_inputs = 2 * 3 * 49 * 64 * 112**2 + 2 * 32 * 512**2  # of the images, and of the residual's inputs
    head = 3 * 2 * 512 * 100
    assert both == pytest.approx(4 * once + maps + head - no_gradient_of_inputs, rel=1e-3)


def test_memory_of_backward_by_hand(load: Load) -> None:
    """The last layer keeps its inputs: a batch more adds what an image adds."""
    costs = load("costs")
    net = costs.Network(4)
    one, two = (costs.kept_for_backward(net, batch=batch) for batch in (8, 16))
    norms = 2 * 4 * sum(costs.channels(net))  # mean and deviation of every channel, whatever the batch
    assert two - one == pytest.approx(one - norms, rel=0.01)


def test_bytes_between_processes_by_hand(load: Load) -> None:
    """Of a sum over W = 8 processes each sends 2·7/8; S = 64, 20 batch-norm layers of 300 channels in all."""
    costs = load("costs")
    net = costs.Network(4)
    assert sum(costs.channels(net)) == 4 * 5 + 8 * 5 + 16 * 5 + 32 * 5
    sent = costs.traffic(net, processes=8, new_classes=10, seen_classes=100, test_images=1000)
    assert sent["step"]["gradients"] == 1.75 * 4 * costs.parameters(net, new_classes=10)
    assert sent["step"]["batch norm"] == 1.75 * 4 * 2 * (2 * 300 + 20)
    assert sent["step"]["anti-collapse"] == 1.75 * 4 * (1 + 2 * (64 + 64**2))
    assert sent["refresh"]["anchor moments"] == 1.75 * 8 * (1 + 128 + 128**2)
    assert sent["task"]["class moments"] == 1.75 * 8 * 10 * (1 + 64 + 64**2)
    assert sent["task"]["answers to test images"] == 7 / 8 * 1000 * 2 * 8
    alone = costs.traffic(net, processes=1, new_classes=10, seen_classes=100, test_images=1000)
    assert alone["step"] == dict.fromkeys(alone["step"], 0)


def test_parameters_are_those_a_task_trains(load: Load) -> None:
    from gatf.config import load_config
    from gatf.data.loader import TaskInfo
    from gatf.session import build_method

    costs = load("costs")
    method = build_method(load_config("cifar100-cpu", overrides={"backbone.width": 4}), (3, 32, 32))
    for task in range(2):
        info = TaskInfo(task, 10 * task, 10, 100)
        method.begin_task(info)
        trained = sum(p.numel() for module in method.phases(info)[0].modules.values() for p in module.parameters())
        assert costs.parameters(costs.Network(4), new_classes=10, first=task == 0) == trained


@pytest.mark.parametrize("kind", ["full", "lowrank", "diag", "shared"])
def test_bytes_a_class_are_those_of_the_tensors(load: Load, kind: str) -> None:
    outlook, scaling = load("outlook"), load("scaling")
    found = scaling.sizes_of(kind, 16)
    assert found["kept"] == outlook.bytes_kept(kind, dim=16)
    assert found["read"] == outlook.bytes_read(kind, dim=16)


def test_seconds_on_a_device(load: Load) -> None:
    device = load("outlook").Device(operations=10.0, doubles=2.0, written=5.0, sent=1.0)
    assert device.seconds({"once": 1, "operations": 30.0, "bytes": 10.0}) == 5
    assert device.seconds({"operations": 30.0}, double=True) == 15


def test_one_image_reaches_its_limit(load: Load) -> None:
    """Diagonals of S = 64: 8·(2·64 + 1) bytes per class and image, at 1 GB/s and 1 ms once."""
    outlook = load("outlook")
    fitted = {"scoring one image, diag": {"once": 1e-3, "bytes": 1e-9}}
    assert outlook._image_limit(fitted, "diag", 64) == pytest.approx((0.1 - 1e-3) / (8 * 129e-9))


def test_counting_makes_no_tensors(load: Load) -> None:
    assert {p.device for p in load("costs").build(load("costs").Network(64)).parameters()} == {torch.device("meta")}


def test_only_runs_that_are_missing_are_done_and_others_are_done_again_when_settings_change(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = load("precision")
    monkeypatch.setattr(precision, "CASES", {"digits": ("digits", 2, {}), "glyphs": ("glyphs", 1, {})})
    record: dict[str, Any] = {"data": {}}
    both = [("digits", 0, "32-true"), ("digits", 0, "bf16-mixed")]
    assert precision.missing(record, ["digits"])[:2] == both
    record["data"]["digits"]["runs"]["32-true"]["0"] = {"a_last": 90.0}
    assert precision.missing(record, ["digits"])[0] == both[1]
    assert precision.missing(record, ["glyphs"]) == [("glyphs", 0, "32-true"), ("glyphs", 0, "bf16-mixed")]
    monkeypatch.setattr(precision, "CASES", {"digits": ("digits", 2, {"seed": 1})})
    assert precision.missing(record, ["digits"])[:2] == both
