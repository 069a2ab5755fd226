"""docs/formats.md and docs/model-file.md list every file, every event with its fields, every column."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.datasets import load_digits

from gatf import IncrementalClassifier
from gatf.bench.tables import Result, aggregate, to_csv
from gatf.config import load_config
from gatf.experiment import start
from gatf.io.events import KINDS, Notice
from gatf.io.run_folder import EXPLAINED, REPORT, SUMMARY, RunFolder
from gatf.methods import METHODS
from gatf.methods.parts.compensation import DriftCompensated

ROOT = Path(__file__).parent.parent
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("formats.md", "model-file.md"))
QUICK = {"device": "cpu", "scenario.stop_after": 2, "optimisation.first.epochs": 1, "optimisation.next.epochs": 1}


def section(heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, f"no page has a section '{heading}'"
    return found[1]


def lists(text: str) -> list[list[tuple[str, str]]]:
    """Every list: what stands before and after the first colon of its entries."""
    blocks = re.findall(r"(?:^- .*\n)+", text, flags=re.MULTILINE)
    entries = [[line.removeprefix("- ").partition(": ") for line in block.splitlines()] for block in blocks]
    return [[(head, body) for head, _, body in block] for block in entries]


def names(text: str) -> list[str]:
    """What a text has as code, but for remarks in brackets."""
    return re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", text))


def listed(entries: list[tuple[str, str]]) -> list[str]:
    return [name for head, _ in entries for name in names(head)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats") / "run"
    start(load_config("digits", method="gatf", overrides=QUICK | {"diagnostics": True}), folder)
    return folder


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return dict(file.metadata())


def test_the_run_folder(run: Path) -> None:
    found = {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()}
    made_by_others = {REPORT, f"{EXPLAINED}.csv", f"{EXPLAINED}.json", "tensorboard/", "wandb/"}
    assert set(listed(lists(section("The run folder"))[0])) == found | made_by_others


def test_events(run: Path) -> None:
    """A run gives every kind but a warning; the fields of the kinds are generated from the classes that write them."""
    documented = {names(head)[0]: body for head, body in lists(section("Events"))[0]}
    assert list(documented) == list(KINDS)
    reported = RunFolder(run).read_events()
    assert {event.kind for event in reported} == set(KINDS) - {"warning", "step", "features_extracted"}
    by_name = {names(head)[0]: names(body) for head, body in lists(section("Notices"))[0]}
    for event in reported:
        if isinstance(event, Notice):
            assert set(event.values) <= set(by_name[event.name])
        else:
            own = event.record().keys() - {"event", "task"}  # the text describes these
            assert all(f"`{field}`:" in documented[event.kind] for field in own)


def test_every_notice_of_a_method_is_listed() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/gatf/methods").rglob("*.py"))
    named = set(re.findall(r'\.note\(\s*"(\w+)"', code))
    compensated = {
        name for name, method in METHODS.items() if issubclass(method, DriftCompensated)
    }  # by their own name
    assert named | compensated == set(listed(lists(section("Notices"))[0]))


def test_the_summary(run: Path) -> None:
    """Its list is generated from the class that writes it."""
    assert listed(lists(section("Summary"))[0]) == list(json.loads((run / SUMMARY).read_text(encoding="utf-8")))


def test_the_table_of_a_bench(run: Path) -> None:
    results = [Result("digits", "gatf", RunFolder(run).read_summary())]
    header = next(csv.reader(io.StringIO(to_csv(aggregate(results)))))
    documented = listed(lists(section("The bench folder"))[1])
    place = documented.index("_std")  # "the same names with `_std`", after the means
    documented[place : place + 1] = [f"{name}_std" for name in documented[documented.index("seeds") + 1 : place]]
    assert sorted(documented) == sorted(header)


def test_checkpoints(run: Path) -> None:
    (tensors,) = lists(section("Checkpoints"))
    newest = max(RunFolder(run).checkpoints.iterdir())
    header = metadata(newest)
    assert f"`{header['kind']}`" in section("Checkpoints")
    assert all(f"`{field}`" in section("Checkpoints") for field in json.loads(header["model"]))
    prefixes = {name.split(".")[0] for name in listed(tensors)}
    with safe_open(newest, framework="np") as file:
        assert {name.split(".")[0] for name in file.keys()} <= prefixes  # noqa: SIM118


def test_diagnostics(run: Path) -> None:
    documented = {names(head)[0]: names(body) for head, body in lists(section("Diagnostics"))[0]}
    found = {}
    for path in RunFolder(run).diagnostics.glob("*.csv"):
        found[path.name] = path.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert documented == found


def test_the_model_file(tmp_path: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    few = np.flatnonzero(labels < 2)[:40]
    classifier = IncrementalClassifier(epochs=1, device="cpu").fit(
        (images[few].reshape(-1, 8, 8) * 15.9375).astype(np.uint8), labels[few]
    )
    classifier.save(tmp_path / "some.gatf")
    header = metadata(tmp_path / "some.gatf")
    described = json.loads(header["model"])
    keys, fields, history, tensors = lists(section("The model file"))
    assert sorted(listed(keys)) == sorted(header)
    assert sorted(listed(fields)) == sorted([*described, "adapt", "central_share"])  # of some pretrained networks only
    assert set(described["history"][0]) <= set(listed(history))  # some fields belong to some records
    with safe_open(tmp_path / "some.gatf", framework="np") as file:
        found = {name if "." not in name else "method.…" for name in file.keys()}  # noqa: SIM118
    assert set(listed(tensors)) == found
