"""Every reader of a file that may come from a stranger: good files for it, and what is done to read them.

A reader returns its answer, or raises a `UserError`; what it does with a file that was changed is what is tested.
"""

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gatf.bench.plan import load_plan
from gatf.bench.tables import aggregate
from gatf.config import RunConfig, load_config, parse_overrides
from gatf.data.base import ImageSet, Source
from gatf.data.encoded import Files, decode_all, natural_side, shorter_side
from gatf.data.inputs import read_images
from gatf.data.layouts.folder import read_class_list
from gatf.data.layouts.originals import read_cifar_pickles, read_cub, read_tiny
from gatf.data.layouts.parquet import read_parquet
from gatf.data.listing import Listing
from gatf.data.scenario import build_scenario, class_numbers, read_order
from gatf.data.sources import SOURCES
from gatf.experiment import Experiment, _Run, resume
from gatf.incremental.store import Store
from gatf.io.events import JsonLines
from gatf.io.run_folder import RunFolder
from gatf.model import file as model_file
from gatf.model.predict import forward, predictions_from
from gatf.nets.pretrained import load_pretrained
from gatf.nets.small import SmallNet
from gatf.report.load import load_runs
from gatf.report.page import write_report
from gatf.settings import DataConfig, ScenarioConfig

Make = Callable[[Path], None]
DRAW = np.random.default_rng(0)


@dataclass(frozen=True)
class Reader:
    """Something that reads files."""

    name: str
    make: Make
    """Writes good files into a folder."""
    read: Callable[[Path], Any]
    """Reads them there; raises what is wrong with the answer."""
    files: str = "**/*"
    """Which of them may be changed."""
    share: float = 1.0
    """How many of a run's files it gets, for those that take long."""


def pixels(count: int, side: int = 8) -> np.ndarray:
    return DRAW.integers(0, 256, (count, side, side), dtype=np.uint8)


# --- models and runs --------------------------------------------------------------------------------------------------


def small_run(method: str = "gatf", **more: Any) -> RunConfig:
    """Two tasks of two digits."""
    small = {
        "data.max_per_class": 8, "scenario.task_sizes": [2, 2], "scenario.order": "natural", "backbone.width": 2,
        "optimisation.first.epochs": 1, "optimisation.next.epochs": 1, "optimisation.first.batch_size": 8,
        "optimisation.next.batch_size": 8, "device": "cpu",
    }  # fmt: skip
    if method == "gatf":
        small |= {"backbone.bottleneck": 4, "method.samples": 16}
    return load_config("digits", method=method, overrides=small | more)


def read_model(folder: Path) -> None:
    """A model that is accepted answers every image with a class and finite probabilities."""
    images = np.concatenate([np.zeros((1, 8, 8), np.uint8), np.full((1, 8, 8), 255, np.uint8), pixels(2)])
    for path in sorted(folder.glob("model*")):
        model_file.describe(path)
        model = model_file.load(path)
        given = images if model.preprocessing.shape[0] == 1 else np.repeat(images[..., None], 3, 3)
        answers = predictions_from(model, forward(model, given))
        assert np.isfinite(answers.probabilities).all()
        assert set(answers.labels.tolist()) <= set(model.labels)


def read_checkpoint(folder: Path) -> None:
    """What `gatf run --resume` does before it trains."""
    place = RunFolder(folder)
    written = JsonLines(place.events)
    try:
        run = _Run(experiment(), place, written, (), lambda: True)
        run._restore(run._find(force_config=False))
    finally:
        written.close()


_experiments: list[Experiment] = []


def experiment() -> Experiment:
    """The one of `small_run`, built once: reading a checkpoint changes nothing of it but the method's numbers."""
    if not _experiments:
        _experiments.append(Experiment(small_run()))
    return _experiments[0]


def read_finished(folder: Path) -> None:
    resume(folder)
    for run in load_runs([folder]):
        aggregate([run.result])
        assert run.summary.tasks == len(run.summary.seconds)
    RunFolder(folder).read_events()


def read_report(folder: Path) -> None:
    write_report([folder], folder / "page.html")
    assert (folder / "page.html").stat().st_size > 1000


def make_store(folder: Path) -> None:
    store = Store(folder / "shop.gatf")
    store.workspace.mkdir(parents=True)
    plan = {"images": "folder", "model": "digest", "settings": {"epochs": 3}}
    (store.workspace / "plan.json").write_text(json.dumps(plan))
    (store.workspace / "done.json").write_text(json.dumps({"digest": "0" * 32, "plan": plan}))


def read_store(folder: Path) -> None:
    store = Store(folder / "shop.gatf")
    plan = {"images": "folder", "model": "digest", "settings": {"epochs": 3}}
    store.committed(plan)
    store.plan(plan, restart=False)


# --- settings ---------------------------------------------------------------------------------------------------------


def make_config(folder: Path) -> None:
    (folder / "run.yaml").write_text(small_run().to_yaml())
    recipe = (
        "data:\n  name: digits\nscenario: {tasks: 5}\nper_method:\n  lwf:\n    method: {temperature: 3}\n    presets:\n"
    )
    (folder / "recipe.yaml").write_text(
        recipe + "      pycil: {seed: 3}\noptimisation:\n  first: &a {epochs: 3}\n  next: *a\n"
    )


def read_config(folder: Path) -> None:
    for path in sorted(folder.glob("*.yaml")):
        config = load_config(str(path))
        assert load_config(str(path), overrides=parse_overrides(["seed=1"])).seed == 1
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def make_bench(folder: Path) -> None:
    lines = "title: two\nrecipe: digits\nmethods: [finetune, {row: mine, method: lwf, set: {method.temperature: 3}}]\n"
    (folder / "bench.yaml").write_text(lines + "seeds: [0, 1]\nset: {scenario.tasks: 2}\n")


def read_bench(folder: Path) -> None:
    plan = load_plan(str(folder / "bench.yaml"))
    json.dumps(plan.index())


def make_orders(folder: Path) -> None:
    (folder / "lines.txt").write_text("d1\nd0\n# d2\nd3\n")
    (folder / "numbers.txt").write_text("1, 0, 3\n")
    (folder / "list.yaml").write_text("[1, d0, 3]\n")
    (folder / "continuum.yaml").write_text("class_order: [1, 0, 3]\n")


def read_orders(folder: Path) -> None:
    names = tuple(f"d{number}" for number in range(4))
    part = ImageSet(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4))
    source = Source("four", names, part, part, (0.0,), (1.0,))
    for path in sorted(folder.glob("*.*")):
        order = class_numbers(read_order(str(path)), source, str(path))
        assert set(order) <= set(range(4))
        build_scenario(source, ScenarioConfig(order=str(path), tasks=1), 0)
        read_class_list(str(path))


# --- images -----------------------------------------------------------------------------------------------------------

KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


def make_pictures(folder: Path) -> None:
    for name, kinds in (("a", KINDS), ("b", KINDS[:1])):
        (folder / name).mkdir()
        for number, kind in enumerate(kinds):
            whole = np.stack([pixels(1, 12)[0]] * 3, -1)
            Image.fromarray(whole).save(folder / name / f"{number}.{kind.lower()}", kind)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels(1, 12)[0]).save(folder / "a" / "turned.jpg", exif=exif)
    Image.fromarray(pixels(1, 12)[0]).convert("P").save(folder / "a" / "palette.png", transparency=3)
    Image.fromarray(pixels(1, 12)[0].astype(np.uint16) * 257).save(folder / "a" / "deep.png")


def read_pictures(folder: Path) -> None:
    """Both by name, as `predict` does, and skipping what cannot be decoded, as a source may."""
    paths = sorted(str(path) for path in folder.glob("*/*"))
    images = Files(tuple(paths))
    assert natural_side(images) >= 1
    assert shorter_side(images) >= 1
    found, kept = decode_all(images, 8, skip=True)
    assert len(found) == len(kept) >= len(paths) - 1
    seen = read_images(folder).images((3, 8, 8))
    assert isinstance(seen, Tensor)
    assert seen.shape == (len(paths), 3, 8, 8)


def as_listed(found: Listing) -> None:
    """A part has a label for each image, of a class that has a name."""
    for part in (found.train, found.test):
        assert len(part.images) == len(part.labels)
        assert not len(part) or 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(found.class_names)
    assert all(isinstance(name, str) for name in found.class_names)


def make_npz(folder: Path) -> None:
    labels = np.arange(8) % 2
    np.savez(folder / "images.npz", x_train=pixels(8), y_train=labels, x_test=pixels(4), y_test=labels[:4])


def read_npz(folder: Path) -> None:
    as_listed(SOURCES["npz"].listing(DataConfig(name="npz", root=str(folder / "images.npz"))))


def make_cifar(folder: Path) -> None:
    for name in ("train", "test"):
        content = {"data": DRAW.integers(0, 256, (2, 3072), dtype=np.uint8), "fine_labels": [0, 1]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["a", "b"]}, protocol=2))


def make_cub(folder: Path) -> None:
    (folder / "images.txt").write_text("1 a/x.jpg\n2 b/y.jpg\n3 a/z.jpg\n4 b/u.jpg\n")
    (folder / "image_class_labels.txt").write_text("1 1\n2 2\n3 1\n4 2\n")
    (folder / "train_test_split.txt").write_text("1 1\n2 1\n3 0\n4 0\n")
    (folder / "classes.txt").write_text("1 001.a\n2 002.b\n")


def make_tiny(folder: Path) -> None:
    for name in ("n1", "n2"):
        (folder / "train" / name / "images").mkdir(parents=True)
        Image.fromarray(pixels(1)[0]).save(folder / "train" / name / "images" / "0.png")
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "val" / "val_annotations.txt").write_text("v0.png\tn1\t0\t0\t9\t9\nv1.png\tn2\t0\t0\t9\t9\n")


def make_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for name in ("train", "test"):
        buffers = [io.BytesIO() for _ in range(4)]
        for buffer in buffers:
            Image.fromarray(pixels(1)[0]).save(buffer, "PNG")
        images = [{"bytes": buffer.getvalue(), "path": "x"} for buffer in buffers]
        table = pa.table({"image": images, "label": [0, 1, 0, 1]})
        features = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        parquet.write_table(table, folder / f"{name}.parquet")


def read_rows(folder: Path) -> None:
    found = read_parquet(folder, DataConfig(name="parquet"))
    as_listed(found)
    assert not isinstance(found.train.images, Tensor)
    decode_all(found.train.images, 8)


def make_weights(folder: Path) -> None:
    from safetensors.torch import save_file

    state = SmallNet(width=2, bottleneck=None).state_dict()
    torch.save(state, folder / "net.pth")
    save_file(state, folder / "net.safetensors")


def read_weights(folder: Path) -> None:
    for path in sorted(folder.glob("net.*")):
        load_pretrained(SmallNet(width=2, bottleneck=None), str(path))


def plain(read: Callable[[Path, DataConfig], Listing], name: str) -> Callable[[Path], None]:
    return lambda folder: as_listed(read(folder, DataConfig(name=name)))


def readers(run: Path, interrupted: Path, old: Path) -> list[Reader]:
    """All of them; `run` is the folder of a finished run with diagnostics, `interrupted` of one that stopped within a
    task, `old` holds models of the first format."""

    def copies(*pairs: tuple[Path, str]) -> Make:
        def make(folder: Path) -> None:
            for source, name in pairs:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(source.read_bytes())

        return make

    def whole(place: Path, *names: str) -> Make:
        files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.name != ".lock"]
        chosen = [path for path in files if not names or path.name in names or path.parent.name in names]
        return copies(*((path, str(path.relative_to(place))) for path in chosen))

    newest = RunFolder(interrupted).saved_checkpoints()[-1]
    reported = ("config.yaml", "metrics.jsonl", "summary.json", "explain.csv", "confusion.csv")
    return [
        Reader("model", copies((run / "model.safetensors", "model.gatf")), read_model),
        Reader("old model", copies((old / "v1-lwf.gatf", "model.gatf")), read_model, share=0.5),
        Reader(
            "checkpoint",
            copies((newest, f"checkpoints/{newest.name}"), (interrupted / "metrics.jsonl", "metrics.jsonl")),
            read_checkpoint, "checkpoints/*",
        ),
        Reader("run", whole(run, *reported), read_finished),
        Reader("report", whole(run, *reported, "diagnostics"), read_report, share=0.02),
        Reader("update", make_store, read_store, "*.learning/*.json"),
        Reader("config", make_config, read_config),
        Reader("bench", make_bench, read_bench),
        Reader("class order", make_orders, read_orders),
        Reader("pictures", make_pictures, read_pictures),
        Reader("npz", make_npz, read_npz),
        Reader("cifar", make_cifar, plain(read_cifar_pickles, "cifar100")),
        Reader("cub", make_cub, plain(read_cub, "cub200")),
        Reader("tiny", make_tiny, plain(read_tiny, "tinyimagenet"), "val/*.txt"),
        Reader("parquet", make_parquet, read_rows),
        Reader("weights", make_weights, read_weights),
    ]  # fmt: skip
