"""Whatever file operation a process dies in, the same command ends with the same files and bits, and another command
does what it reports.

Some points of each command here; all of them with `pytest --crash-points 0`, which `make torture` runs.
"""

import csv
import errno
import io
import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from gatf.bench.plan import Plan, PlannedRun
from gatf.bench.suite import run_plan
from gatf.config import RunConfig
from gatf.errors import Busy, UserError
from gatf.experiment import resume, start
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.store import DONE, PLAN, ROLLBACK, Store
from gatf.incremental.update_file import update_model_file
from gatf.io import container
from gatf.io.events import Event, Trained
from gatf.io.run_folder import RunFolder
from gatf.model import file as model_file

from .faults import FULL, HALF, KILL, NO_SPACE, SENTENCE, killed_after, operations, with_fault

pytestmark = pytest.mark.slow

Tiny = Callable[..., RunConfig]
VOLATILE = {
    "seconds",
    "total_seconds",
    "seconds_of_task",
    "processor_seconds",
    "processor_seconds_of_task",
    "peak_memory_mb",
    "date",
    "events",
    "machine",
    "job",
}
FAULTS = (KILL, HALF, FULL, NO_SPACE)


class Command:
    """Something a person types, in a folder of its own."""

    name: str

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        self.root.mkdir()

    def act(self) -> None:
        raise NotImplementedError

    def done(self) -> bool:
        """Whether nothing is left to do: a person who repeats it then asks for it once more."""
        return False


class Run(Command):
    name = "run"
    config: RunConfig

    def act(self) -> None:
        place = RunFolder(self.root / "run")
        resume(place.path) if place.begun else start(self.config, place.path)


class Bench(Command):
    name = "bench"
    config: RunConfig

    def act(self) -> None:
        runs = tuple(
            PlannedRun(f"finetune-seed{seed}", "digits", "finetune", self.config.model_copy(update={"seed": seed}))
            for seed in (0, 1)
        )
        failures = run_plan(Plan("b", "b", runs), self.root / "bench", Console(file=io.StringIO()))
        if failures:
            raise UserError(str(failures))


class Learn(Command):
    name = "learn"
    images: Path
    first: Path
    """The model after its first fit."""
    model: Path
    """After a further update."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.store = Store(root / "shop.gatf")

    def prepare(self) -> None:
        super().prepare()
        shutil.copyfile(self.model, self.store.path)
        shutil.copyfile(self.first, self.store.path.with_name("shop.gatf.v0"))  # to be pruned

    def act(self) -> None:
        update_model_file(
            self.store.path, self.images, parameters={"device": "cpu", "epochs": 12, "batch_size": 8}, keep=1
        )

    def done(self) -> bool:
        changed = self.store.path.read_bytes() != self.model.read_bytes()
        return changed and not (self.store.workspace / DONE).exists()


class FirstLearn(Learn):
    name = "first learn"

    def prepare(self) -> None:
        self.root.mkdir()

    def act(self) -> None:
        parameters = {"device": "cpu", "epochs": 12, "batch_size": 8, "method": "finetune", "width": 4}
        update_model_file(self.store.path, self.images, parameters=parameters)

    def done(self) -> bool:
        return self.store.path.exists() and not (self.store.workspace / DONE).exists()


class Rollback(Learn):
    name = "rollback"
    updated: Path

    def prepare(self) -> None:
        super().prepare()
        shutil.copyfile(self.updated, self.store.path)
        shutil.copyfile(self.model, self.store.path.with_name("shop.gatf.v1"))

    def act(self) -> None:
        with self.store.writing():
            self.store.rollback()

    def done(self) -> bool:
        rolled = self.store.path.read_bytes() == self.model.read_bytes()
        return rolled and not (self.store.workspace / ROLLBACK).exists()


class Serve(Learn):
    """A server that is sent pictures; one that is started again goes on by itself, or is sent them again if it knows
    nothing of them. What is killed is the server; the process that learns for it notices, and ends."""

    name = "serve"

    def prepare(self) -> None:
        self.root.mkdir()
        shutil.copyfile(self.model, self.store.path)

    def act(self) -> None:
        from gatf.serve.studio import Options

        from .serve.server import serving

        parameters = {"device": "cpu", "epochs": 12, "batch_size": 8}
        with serving(Options(self.store.path, parameters=parameters)) as (client, _):
            begun = client.get("/v1/updates").json["updates"]
            if not begun and len(client.get("/v1/classes").json["classes"]) == 3:
                sent: list[tuple[str, bytes]] = []
                for file in sorted(self.images.glob("*/*")):
                    sent += [("label", file.parent.name.encode()), ("image", file.read_bytes())]
                begun = [client.send("/v1/updates", sent).json]
            for update in begun:
                ended = client.ended(update["id"])
                assert ended["state"] == "done", ended
        self._settle()

    def done(self) -> bool:
        self._settle()
        left = self.store.workspace.exists() or self.root.joinpath("shop.gatf.updates").exists()
        return self.store.path.read_bytes() != self.model.read_bytes() and not left

    def _settle(self) -> None:
        """Wait for the process of a server that was killed."""
        for _ in range(600):
            try:
                with self.store.writing():
                    return
            except Busy:
                time.sleep(0.1)
        raise AssertionError("a process goes on although its server was killed")


COMMANDS: list[type[Command]] = [Run, Bench, Learn, FirstLearn, Rollback]
KILLED: list[type[Command]] = [Run, Bench, Learn, Serve]


def snapshot(root: Path) -> dict[str, Any]:
    """The files below a folder, without what time does to them."""
    return {str(path.relative_to(root)): _content(path) for path in sorted(root.rglob("*")) if path.is_file()}


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors" and path.parent.name == "diagnostics":
        return path.read_bytes()
    if path.suffix == ".safetensors" or ".gatf" in path.suffixes:
        kind = container.CHECKPOINT if path.parent.name == "checkpoints" else container.MODEL
        tensors, header = container.read(path, kind)
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, _lasting(header.model)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _lasting(json.loads(text))
    if path.suffix == ".jsonl":
        kept = [_lasting(json.loads(line)) for line in text.splitlines()]
        return [event for event in kept if event["event"] in ("epoch", "trained", "task", "run")]
    if path.name == "results.csv":
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(io.StringIO(text))]
    return None if path.name.startswith("results") else text


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", autouse=True)
def scene(tmp_path_factory: pytest.TempPathFactory, tiny_config: Tiny, digit_images: Any) -> None:
    """What the commands work on."""
    small = {"data.max_per_class": 10, "scenario.stop_after": 2, "backbone.width": 4}
    short = {"optimisation.first.epochs": 2, "optimisation.next.epochs": 2}
    Run.config = tiny_config("finetune", **small, **short, diagnostics=True)
    Bench.config = tiny_config("finetune", **small, **short, checkpoint_every=None)
    place = tmp_path_factory.mktemp("scene")
    images, labels = digit_images
    for folder, names in (("first", ("d0", "d1")), ("second", ("d4",)), ("more", ("d2", "d3")), ("other", ("d5",))):
        for name in names:
            (place / folder / name).mkdir(parents=True)
            for number, pixels in enumerate(images[labels == name][:12]):
                Image.fromarray(pixels).save(place / folder / name / f"{number}.png")
    FirstLearn.images, Learn.images = place / "first", place / "more"
    first = FirstLearn(place / "made")
    first.prepare()
    first.act()
    Learn.first = shutil.copyfile(first.store.path, place / "first.gatf")
    update_model_file(first.store.path, place / "second", parameters={"device": "cpu", "epochs": 1})
    Learn.model = shutil.copyfile(first.store.path, place / "model.gatf")
    update = Learn(place / "updated")
    update.prepare()
    update.act()
    Rollback.updated = update.store.path


@dataclass(frozen=True)
class Whole:
    """A command that nothing disturbed."""

    operations: int
    files: dict[str, Any]
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[Command]], Whole]:
    """What a command does and leaves, done once."""
    known: dict[type[Command], Whole] = {}

    def get(command: type[Command]) -> Whole:
        if command not in known:
            whole = command(tmp_path_factory.mktemp("undisturbed") / "whole")
            whole.prepare()
            begun = time.monotonic()
            count = operations(whole.act, whole.root)
            known[command] = Whole(count, snapshot(whole.root), time.monotonic() - begun)
        return known[command]

    return get


def finish(hurt: Command, expected: dict[str, Any], what: object) -> None:
    """Repeat the command if there is something left to do; then its files must be the expected ones."""
    if not hurt.done():
        hurt.act()
    found = {name: content for name, content in snapshot(hurt.root).items() if not name.endswith("lock")}
    assert set(found) == set(expected), what
    for name, content in expected.items():
        assert found[name] == content, (what, name)
    shutil.rmtree(hurt.root)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_repeated_command_ends_with_the_same_files(
    command: type[Command], tmp_path: Path, pytestconfig: pytest.Config,
    undisturbed: Callable[[type[Command]], Whole],
) -> None:  # fmt: skip
    whole = undisturbed(command)
    count, expected = whole.operations, whole.files
    assert count > 5
    points = pytestconfig.getoption("--crash-points") or count
    stride, died, tried = -(-count // points), 0, 0
    for number, fault in enumerate(FAULTS):
        for at in range(number % stride, count, stride):
            hurt = command(tmp_path / f"{fault} {at}")
            hurt.prepare()
            code = with_fault(hurt.act, hurt.root, at, fault)
            assert code in ((0, SENTENCE) if fault in (FULL, NO_SPACE) else (0, -9, -25)), (fault, at, code)
            died, tried = died + (code != 0), tried + 1
            finish(hurt, expected, (fault, at))
    assert died > 0
    figures = {"command": command.name, "operations": count, "tried": tried, "died": died}
    print(f"\nfigure: {json.dumps({'crashes': figures})}")  # noqa: T201


@pytest.mark.parametrize("then", ["rollback", "another update", "a new model"])
@pytest.mark.parametrize("command", [Learn, Rollback], ids=lambda command: command.name)
def test_another_command_does_what_it_reports(
    command: type[Learn], then: str, tmp_path: Path, pytestconfig: pytest.Config,
    undisturbed: Callable[[type[Command]], Whole],
) -> None:  # fmt: skip
    """Nobody repeats what died: the next command is a rollback, an update with other images, or the first fit of a new
    model under the same name."""
    whole = undisturbed(command)
    points = pytestconfig.getoption("--crash-points") or whole.operations
    died = tried = 0
    for number, fault in enumerate(FAULTS):
        stride = -(-whole.operations // points)
        for at in range(number % stride, whole.operations, stride):
            hurt = command(tmp_path / f"{fault} {at}")
            hurt.prepare()
            died, tried = died + (with_fault(hurt.act, hurt.root, at, fault) != 0), tried + 1
            DOES[then](hurt.store, (fault, at))
            shutil.rmtree(hurt.root)
    figures = {"command": command.name, "then": then, "tried": tried, "died": died}
    print(f"\nfigure: {json.dumps({'aftermath': figures})}")  # noqa: T201


def rolls_back(store: Store, what: object) -> None:
    """Every rollback goes to an older model of the same line, whose digest is on disk, until there is none."""
    known = {container.inspect(path).digest: number for number, path in enumerate((Learn.first, Learn.model))}
    begun = (store.workspace / ROLLBACK).exists()
    before = IncrementalClassifier.load(store.path).model_.updates - 1
    for _ in range(3):
        try:
            with store.writing():
                number, _ = store.rollback()
        except UserError as error:
            refusal = str(error)
            break
        assert number < before or (begun and number == before), what
        assert known[container.inspect(store.path).digest] == number, what
        before, begun = number, False
    else:
        raise AssertionError(what)
    assert "no older version" in refusal, what
    IncrementalClassifier.load(store.path).predict(np.zeros((1, 8, 8, 3), np.uint8))


def learns_other_images(store: Store, what: object) -> None:
    """The update is done, or refused because another one was interrupted and has state; then a rollback undoes it."""
    other, parameters = Learn.images.with_name("other"), {"device": "cpu", "epochs": 1}
    if (store.workspace / PLAN).exists() and store.path.read_bytes() == Learn.model.read_bytes():
        with pytest.raises(UserError, match="was interrupted: repeat that command"):
            update_model_file(store.path, other, parameters=parameters, keep=1)
        update_model_file(store.path, other, parameters=parameters, keep=1, restart=True)
    else:
        update_model_file(store.path, other, parameters=parameters, keep=1)
    learnt = model_file.load(store.path)
    assert learnt.labels[-1] == "d5", what
    assert not store.workspace.exists(), what
    with store.writing():
        number, _ = store.rollback()
    assert number == learnt.updates - 2, what
    assert model_file.load(store.path).labels == learnt.labels[:-1], what


def starts_again(store: Store, what: object) -> None:
    """After the model was deleted, a rollback of a new one never brings the deleted one back."""
    old = {container.inspect(file).digest for file in store.path.parent.glob("shop.gatf.v*")}
    store.path.unlink()
    images, parameters = Learn.images, {"device": "cpu", "epochs": 1}
    update_model_file(store.path, images, parameters={**parameters, "method": "finetune", "width": 4}, restart=True)
    first = container.inspect(store.path).digest
    update_model_file(store.path, images.with_name("other"), parameters=parameters)
    with store.writing():
        store.rollback()
    assert container.inspect(store.path).digest == first, what
    assert old == {container.inspect(file).digest for file in store.path.parent.glob("shop.gatf.v*")}, what


DOES = {"rollback": rolls_back, "another update": learns_other_images, "a new model": starts_again}


def test_a_killed_update_leaves_no_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Callable[[type[Command]], Whole]
) -> None:
    """Not in the cache, the folder for temporary files, shared memory, or beside the model."""
    for name in ("GATF_CACHE", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", None)
    pixels = [np.asarray(Image.open(file)).tobytes() for file in Learn.images.glob("*/*")]
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    draw, seconds = random.Random(3), undisturbed(Learn).seconds
    for number in range(6):
        hurt = Learn(tmp_path / str(number))
        hurt.prepare()
        killed_after(hurt.act, draw.random() * seconds if number else 60)
        for file in tmp_path.rglob("*"):
            content = file.read_bytes() if file.is_file() else b""
            assert not any(each in content for each in pixels), file
    assert not any((tmp_path / "GATF_CACHE").iterdir())
    mine = [path for path in set(shared.iterdir()) - before if path.name.startswith("torch_")] if before else []
    assert not mine


def test_a_command_that_is_killed_at_any_moment_ends_with_the_same_files(
    tmp_path: Path, pytestconfig: pytest.Config, undisturbed: Callable[[type[Command]], Whole]
) -> None:
    """Moments are drawn from a seed, over the time that the command takes undisturbed; a run may be killed twice."""
    draw, kills = random.Random(16), pytestconfig.getoption("--kills")
    died: dict[str, int] = {command.name: 0 for command in KILLED}
    for number in range(kills):
        command = KILLED[number % len(KILLED)]
        whole = undisturbed(command)
        hurt = command(tmp_path / f"{number}")
        hurt.prepare()
        for _ in range(1 + (draw.random() < 0.3)):
            if not hurt.done():
                code = killed_after(hurt.act, draw.random() * whole.seconds)
                assert code in (0, -9), (number, code)
                died[command.name] += code != 0
        finish(hurt, whole.files, number)
    print(f"\nfigure: {json.dumps({'kills': {'commands': kills, 'died': died}})}")  # noqa: T201


def test_a_folder_that_is_removed_on_the_way_is_one_sentence(tmp_path: Path) -> None:
    def remove(event: Event) -> None:
        if isinstance(event, Trained):
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)"):
        start(Bench.config, tmp_path / "run", (remove,))


def test_a_full_disk_ends_a_command_with_one_sentence_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nobody thought of it: a command that is not one of those above."""
    from gatf import cli

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "shop.onnx")

    monkeypatch.setattr("gatf.model.onnx.export_onnx", full)
    monkeypatch.setattr("sys.argv", ["gatf", "export", str(Learn.model), str(tmp_path / "shop.onnx")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == SENTENCE
    assert capsys.readouterr().err == "gatf: shop.onnx cannot be written (No space left on device)\n"
