"""What lasts long stays small: many tasks in one run, many updates of one model.

A few of each here; `make torture` has 200 tasks and 1 000 updates, and prints what it measures.
"""

import gc
import json
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gatf.config import RunConfig, load_config
from gatf.errors import UserError
from gatf.experiment import Experiment
from gatf.incremental.update_file import update_model_file
from gatf.io import container
from gatf.io.events import Event, Task
from gatf.io.run_folder import RunFolder
from gatf.model import file as model_file
from gatf.model import record
from gatf.training.task import train_task

pytestmark = pytest.mark.slow


def stream(path: Path, tasks: int) -> Path:
    """A class for each task: a picture of its own under noise."""
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (tasks, 8, 8))

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(tasks), count)
        noisy = pictures[labels] + 30 * draw.normal(size=(len(labels), 8, 8))
        return noisy.clip(0, 255).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = part(16), part(2)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def long_config(method: str, data: Path, tasks: int) -> RunConfig:
    settings: dict[str, Any] = {
        "data.name": "npz", "data.root": str(data), "scenario.order": "natural", "scenario.task_sizes": [1] * tasks,
        "backbone.name": "small", "backbone.width": 4, "device": "cpu",
    }  # fmt: skip
    settings |= {f"optimisation.{stage}.epochs": 2 for stage in ("first", "next")}
    settings |= {f"optimisation.{stage}.batch_size": 16 for stage in ("first", "next")}
    if method != "slda":
        settings |= {"backbone.bottleneck": 8, "method.samples": 64}
    return load_config({}, method=method, overrides=settings)


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def resident_mb() -> float | None:
    place = Path("/proc/self/statm")
    return int(place.read_text().split()[1]) * 4096 / 2**20 if place.exists() else None


@pytest.mark.parametrize("method", ["gatf", "adagauss", "slda"])
def test_a_run_of_many_tasks_holds_no_more_than_its_gaussians(
    method: str, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = pytestconfig.getoption("--tasks")
    training: list[float] = []

    def timed(*args: Any, **options: Any) -> None:
        begun = time.process_time()
        train_task(*args, **options)
        training.append(time.process_time() - begun)

    monkeypatch.setattr("gatf.session.train_task", timed)
    experiment = Experiment(long_config(method, stream(tmp_path / "stream.npz", tasks), tasks))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    states, beside, each, resident, clock = [], [], [], [], time.process_time()

    def listen(event: Event) -> None:
        nonlocal clock
        if isinstance(event, Task):
            each.append(time.process_time() - clock)
            resident.append(resident_mb())
            states.append(bytes_of(experiment.method.state_dict().values()))
            if event.task in (2, tasks - 1):
                gc.collect()
                alive = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
                beside.append(bytes_of(alive) - states[-1])
            clock = time.process_time()

    summary = experiment.run(tmp_path / "run", (listen,))
    grown = {after - before for before, after in pairwise(states[1:])}
    assert len(grown) == 1  # every class takes the same
    # beside it there is the readout, which is made of what is stored; a task's images would take 4 096 bytes more
    assert beside[-1] - beside[0] < 1000 * (tasks - 3)
    each, training, quarter = each[1:], training[1:], max(1, tasks // 4)
    figures = {
        "method": method, "tasks": tasks, "accuracy": summary.a_last,
        "first": fmean(each[:quarter]), "last": fmean(each[-quarter:]), "resident": [resident[quarter], resident[-1]],
        "training": [fmean(training[:quarter] or [0]), fmean(training[-quarter:] or [0])],
        "class_bytes": grown.pop(),
    }  # fmt: skip
    print(f"\nfigure: {json.dumps({'tasks': figures})}")  # noqa: T201


@pytest.fixture
def folders(tmp_path: Path, digit_images: tuple[np.ndarray, np.ndarray]) -> Callable[[int], Path]:
    """`folders(k)`: images of d0 and d1, other ones for every k."""
    images, labels = digit_images

    def write(number: int) -> Path:
        place = tmp_path / f"images{number}"
        for name in ("d0", "d1"):
            (place / name).mkdir(parents=True)
            chosen = images[labels == name]
            for count in range(6):
                Image.fromarray(chosen[(6 * number + count) % len(chosen)]).save(place / name / f"{count}.png")
        return place

    return write


def test_a_model_that_is_updated_often_grows_with_its_classes_only(
    tmp_path: Path, folders: Callable[[int], Path], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a model that learns more of the same classes, once its history is as long as it gets: its numbers
    take the same bytes, and its description differs by digits."""
    updates = pytestconfig.getoption("--updates")
    kept = min(record.RECORDS_KEPT, updates // 2)
    monkeypatch.setattr(record, "RECORDS_KEPT", kept)
    path, sizes, numbers, seconds = tmp_path / "shop.gatf", [], [], []
    settings = {"device": "cpu", "epochs": 1, "batch_size": 8, "method": "slda", "width": 4}
    for number in range(updates):
        place = folders(number % 10) if number < 10 else tmp_path / f"images{number % 10}"
        begun = time.process_time()
        update_model_file(path, place, parameters=settings if number == 0 else {"device": "cpu"}, keep=1, restart=True)
        seconds.append(time.process_time() - begun)
        header = container.inspect(path)
        numbers.append(sum(place.end - place.start for place in header.places.values()))
        sizes.append(path.stat().st_size)
    assert model_file.load(path).updates == updates
    assert len(set(numbers[kept:])) == 1
    assert max(sizes[kept:]) - min(sizes[kept:]) < 30 * kept
    assert len(list(tmp_path.glob("shop.gatf*"))) == 2  # the model and one version
    quarter = max(1, updates // 4)
    figures = {
        "updates": updates, "first": fmean(seconds[1 : quarter + 1]), "last": fmean(seconds[-quarter:]),
        "bytes": [sizes[0], sizes[kept], sizes[-1]],
    }  # fmt: skip
    print(f"\nfigure: {json.dumps({'updates': figures})}")  # noqa: T201


def test_the_description_of_updates_is_bounded(grown: Any) -> None:
    """The first and the newest records stay, and the number of updates is still known."""
    model = grown.model_
    last = model.history[-1]
    many = record.remembered(tuple(last.model_copy(update={"number": number}) for number in range(1000)))
    assert [each.number for each in many[:3]] == [0, 901, 902]
    assert len(many) == record.RECORDS_KEPT == 100
    assert many[-1].number == 999


def test_a_run_of_many_tasks_has_room_for_its_checkpoints(tmp_path: Path) -> None:
    """What 1 000 tasks of one class would put into a checkpoint's description fits its limits."""
    rows = [[50.123] * task for task in range(1, 1001)]
    meta = {"progress": {"accuracy_matrix": rows, "task_aware": rows, "by_class": rows}}
    place = RunFolder(tmp_path).checkpoint(1000, 0, 0, 0)
    place.parent.mkdir()
    container.write(place, {"x": torch.zeros(1)}, meta, container.CHECKPOINT)
    assert container.read(place, container.CHECKPOINT)[1].model == meta


def test_the_number_of_updates_is_written_and_old_files_have_it_from_their_history(grown: Any, tmp_path: Path) -> None:
    from gatf.model.card import card

    first, last = grown.model_.history[0], grown.model_.history[-1]
    many = tuple(last.model_copy(update={"number": number}) for number in range(1, 250))
    model = replace(grown.model_, history=record.remembered((first, *many)))
    assert model.updates == 250
    model_file.save(model, tmp_path / "new.gatf")
    assert container.inspect(tmp_path / "new.gatf").model["updates"] == 250
    assert model_file.load(tmp_path / "new.gatf").updates == 250
    assert "250 updates" in card(tmp_path / "new.gatf", "shop")
    old = Path(__file__).parent / "old_models" / "v1-gatf.gatf"
    assert model_file.describe(old)[0].updates == model_file.load(old).updates == 2


def test_a_model_whose_classes_are_taught_again_and_again_can_always_be_written(grown: Any, tmp_path: Path) -> None:
    """200 classes in each of 150 updates, with names that a header could not hold so often."""
    path, model = tmp_path / "shop.gatf", grown.model_
    again = tuple(f"{number}, {'a long name' * 20}" for number in range(200))
    for number in range(model.updates, 150):
        last = model.history[-1].model_copy(update={"number": number, "added": (), "revisited": again})
        model = replace(model, history=record.remembered((*model.history, last)))
        if number % 25 == 0:
            model_file.check_room(model, path, [*model.labels, *again[:20]])
            model_file.save(model, path)
    loaded = model_file.load(path)
    assert loaded.updates == 126
    newest, old = loaded.history[-1], loaded.history[5]
    assert newest.revisited == again
    assert (old.revisited, old.classes_revisited, old.classes_added) == ((), 200, 0)
    assert "added images of 200 classes, from" in str(old)
    assert loaded.history[0].classes_added == len(grown.history_[0].added)


def test_an_update_that_could_not_be_written_is_refused_before_it_trains(
    grown: Any, tmp_path: Path, folders: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.gatf"
    grown.save(path)
    heard: list[Event] = []
    with monkeypatch.context() as patch:
        patch.setattr("gatf.io.container.MODEL", replace(container.MODEL, spare_items=10))
        patch.setattr("gatf.io.container.Kind.most_items", lambda kind, size: kind.spare_items)
        with pytest.raises(UserError, match="have become too long for a model"):
            model_file.check_room(grown.model_, path, ["new"])
    full = namedtuple("usage", "free")(1000)
    monkeypatch.setattr("shutil.disk_usage", lambda place: full)
    with pytest.raises(UserError, match=r"takes about 0\.\d MB, and its disk has 0\.0 MB left; make room first"):
        update_model_file(path, folders(0), parameters={"device": "cpu"}, listener=heard.append)
    assert heard == []
    assert {file.name for file in tmp_path.iterdir()} == {"shop.gatf", "images0"}
