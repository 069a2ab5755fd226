"""One contract for every method: ours, or with `--method package.module:Class` anyone's."""

import contextlib
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gatf.errors import UserError
from gatf.experiment import Experiment, resume, start
from gatf.io import container
from gatf.io.events import Event, Step
from gatf.io.run_folder import MODEL
from gatf.methods import is_outside
from gatf.model.file import METHOD
from gatf.training.loop import Interrupted

from .conftest import BRIEF, Finished, assert_same_run, run, run_and_die, run_elsewhere, small_config, write_images

Runs = Callable[..., Finished]


@pytest.mark.slow
def test_learns_and_remembers(method: str, finished: Runs) -> None:
    """Clearly above chance after every task, and above fine-tuning after two tasks and after three."""
    summary = finished(method).summary
    for task, accuracy in enumerate(summary.accuracy_seen):
        assert accuracy > 1.5 * 100 / (3 * (task + 1))
    floor = finished("finetune").summary
    if method != "finetune":
        assert summary.accuracy_seen[1] > floor.accuracy_seen[1]
        assert summary.a_last > floor.a_last


def test_scores_have_one_finite_column_for_each_class_seen(method: str, finished: Runs) -> None:
    scores, labels = finished(method).experiment.test_scores(2)
    assert scores.shape == (len(labels), 9)
    assert scores.isfinite().all()


def test_columns_follow_the_order_of_the_scenario(method: str, images: Path, tmp_path: Path) -> None:
    """With the classes learnt backwards, column k belongs to class order[k]."""
    order = {"scenario.order": [8, 7, 6, 5, 4, 3, 2, 1, 0], "scenario.stop_after": 1, "optimisation.first.epochs": 4}
    done = run(small_config(method, images, **order), tmp_path / "run")
    assert done.summary.class_names == ["8", "7", "6"]
    scores, labels = done.experiment.test_scores(0)
    assert scores.shape[1] == 3
    assert (scores.argmax(1) == labels).double().mean() > 0.8


def test_the_backbone_does_not_learn_while_the_stage_warms_up(method: str, images: Path, tmp_path: Path) -> None:
    """All of task 0 is warm-up: every weight stays where it began, while batch-norm sees the images."""
    warm = {"optimisation.first.warmup": 1.0, "optimisation.first.epochs": 2, "scenario.stop_after": 1}
    config = small_config(method, images, **warm)
    trained = run(config, tmp_path / "run").experiment.method.backbone
    fresh = Experiment(config).method.backbone
    for (name, weight), began in zip(trained.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(weight, began), name
    assert any(not torch.equal(one, other) for one, other in zip(trained.buffers(), fresh.buffers(), strict=True))


def test_loading_gives_identical_scores(method: str, finished: Runs) -> None:
    done = finished(method)
    before, _ = done.experiment.test_scores(2)
    fresh = Experiment(done.config)
    tensors, _ = container.read(done.folder / MODEL)
    kept = {name.removeprefix(METHOD): value for name, value in tensors.items() if name.startswith(METHOD)}
    fresh.method.load_state_dict(kept)
    after, _ = fresh.test_scores(2)
    assert torch.equal(before, after)


@pytest.mark.slow
def test_one_seed_gives_identical_runs(methods: list[str], brief: Runs, tmp_path: Path) -> None:
    """Every method here, where other runs came before it, and in a new interpreter with another hash seed: the same
    results and the same tensors, so that neither what is left of a run nor the order of a set can matter."""
    run_elsewhere({tmp_path / method: brief(method).config for method in methods})
    for method in methods:
        assert_same_run(resume(tmp_path / method), tmp_path / method, brief(method))


def test_another_seed_gives_another_run(method: str, images: Path, tmp_path: Path) -> None:
    """Other scores, and no matrix the network has learnt is the same."""
    short = {"data.max_per_class": 12, "scenario.stop_after": 1, "optimisation.first.epochs": 1}
    one, other = (run(small_config(method, images, seed=seed, **short), tmp_path / str(seed)) for seed in (0, 1))
    assert not torch.equal(one.experiment.test_scores(0)[0], other.experiment.test_scores(0)[0])
    for ours, theirs in zip(one.backbone_matrices(), other.backbone_matrices(), strict=True):
        assert not torch.equal(ours, theirs)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(method: str, brief: Runs, tmp_path: Path) -> None:
    """A process of its own, killed in the last epoch of task 1 by SIGKILL, then resumed."""
    done = brief(method)
    folder = tmp_path / "killed"
    assert run_and_die(done.config, folder, task=1, epoch=1) == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    assert_same_run(resume(folder), folder, done)


def tensors_within(thing: Any, seen: set[int] | None = None) -> list[Tensor]:
    """Every tensor reachable through the attributes of an object, however deep."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, bool, type(None), type)):
        return []
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return [thing]
    parts = list(thing.values()) if isinstance(thing, dict) else list(thing) if isinstance(thing, (list, tuple)) else []
    parts += list(getattr(thing, "__dict__", {}).values())
    return [tensor for part in parts for tensor in tensors_within(part, seen)]


def test_no_image_is_kept(method: str, finished: Runs) -> None:
    """Nothing reachable from the method has the shape of images, as such or flattened."""
    pixels = 3 * 10 * 10
    for tensor in tensors_within(finished(method).experiment.method):
        assert tuple(tensor.shape[-3:]) != (3, 10, 10)
        assert tensor.ndim == 0 or tensor.shape[-1] != pixels


def test_no_image_of_a_task_can_be_had_after_it(method: str, finished: Runs) -> None:
    handed = finished(method).handed
    assert [data.info.index for data in handed] == [0, 1, 2]
    for data in handed:
        for view in ("train", "test"):
            with pytest.raises(RuntimeError, match="are deleted"):
                next(data.batches(view))


GREY = [22, 9, 2, 33, 9, 9, 9, 6]
"""Images of each class: one with 2; every task has 33, which leaves a last batch of size 1."""


def test_uneven_tasks_tiny_classes_and_grey_images(method: str, tmp_path: Path) -> None:
    """Tasks of 3, 1 and 4 classes, a class with 2 images, grey pixels, batches of 32 with one image left over."""
    data = write_images(tmp_path / "grey.npz", classes=8, train=GREY, test=4, channels=1, noise=15)
    few = {f"optimisation.{stage}.epochs": 2 for stage in ("first", "next")}
    few |= {f"optimisation.{stage}.drop_last": False for stage in ("first", "next")}
    config = small_config(method, data, **few, **{"scenario.task_sizes": [3, 1, 4]})
    done = run(config, tmp_path / "run")
    assert all(data.info.images % 32 == 1 for data in done.handed[: 3 if done.experiment.method.exemplar_free else 1])
    scores, _ = done.experiment.test_scores(2)
    assert scores.shape[1] == 8
    assert scores.isfinite().all()
    assert all(parameter.isfinite().all() for parameter in done.experiment.method.parameters())
    assert done.summary.a_last > 100 / 8 / 2  # sensible: not worse than half of chance


def test_more_than_a_hundred_classes(method: str, tmp_path: Path) -> None:
    data = write_images(tmp_path / "many.npz", classes=104, train=4, test=1, size=5)
    once = {f"optimisation.{stage}.epochs": 1 for stage in ("first", "next")}
    config = small_config(method, data, **once, **{"scenario.task_sizes": [60, 44]})
    scores, _ = run(config, tmp_path / "run").experiment.test_scores(1)
    assert scores.shape == (104, 104)
    assert scores.isfinite().all()


S, D, RANDOM = 12, 32, 100
"""Features with and without the bottleneck in `small_config`, and random features made of them."""
TRIANGLE_S, TRIANGLE_D = S * (S + 1) // 2, D * (D + 1) // 2
STATISTICS = {
    "gatf": S + TRIANGLE_S,  # mean and covariance
    "gatf-lda": 2 * (D + 1),  # mean and count, in float64
    "gatf-release": S + TRIANGLE_S,
    "adagauss": S + TRIANGLE_S,
    "bicyc": S + TRIANGLE_S,
    "finetune": D + 1,  # a row of the linear head
    "joint": D + 1,
    "ewc": D + 1,
    "lwf": D + 1,
    "sdc": D,  # prototype
    "adc": D,
    "ldc": D,
    "pass": D + 4 * (D + 1),  # prototype, and four rows of the head
    "fetril": D,  # mean
    "fecam": D + TRIANGLE_D,  # mean and covariance
    "efc": D + TRIANGLE_D,
    "dpcr": D + TRIANGLE_D + 1,  # mean, Gram matrix, count
    "apr": D + TRIANGLE_D,
    "ncm": 2 * (D + 1),  # mean and count, in float64
    "aper": 2 * (2 * D + 1),
    "slda": 2 * (D + 1),
    "ranpac": 2 * (RANDOM + 1),
    "klda": 2 * (RANDOM + 1),
    "acil": 2 * (RANDOM + 1),
    "ds-al": 2 * (2 * RANDOM + 1),  # mean, count and the products with the errors
}
"""Numbers (4 bytes each) that a method keeps of each class for later tasks, by its specification."""
BESIDE = {
    "sdc": D,  # a row of the cosine head
    "adc": D,
    "ldc": D,
    "fetril": D + 1,  # the classifier fitted last, made anew after each task
    "efc": D,  # a row of the head without bias
    "dpcr": D + D,  # a row of the cosine head, and of the classifier made anew after each task
    "apr": D,  # a row of the cosine head
    "gatf-lda": 2 * (D + 1),
    "slda": 2 * (D + 1),  # the classifier made anew after each task, in float64
    "ranpac": 2 * (RANDOM + 1),
    "klda": 2 * (RANDOM + 1),
    "acil": 2 * (RANDOM + 1),
    "ds-al": 4 * (RANDOM + 1),  # the classifiers of both streams
}
"""Numbers a class that the state grows by beside those: heads that count as part of the network."""


def test_what_is_kept_for_each_class(method: str, finished: Runs) -> None:
    """What the method says it keeps, and what its state really grows by. Of a method from outside the specification is
    not known here: it keeps something, and no less than it says."""
    done = finished(method)
    grown = (done.state_bytes[2] - done.state_bytes[1]) / 3
    if is_outside(method):
        assert 0 < done.summary.bytes_per_class <= grown
        return
    if method not in STATISTICS:
        pytest.fail(f"say in STATISTICS what {method} keeps")
    images = 0 if done.experiment.method.exemplar_free else 60 * math.prod(done.experiment.scenario.source.image_shape)
    assert done.summary.bytes_per_class == 4 * STATISTICS[method] + images
    assert grown == 4 * (STATISTICS[method] + BESIDE.get(method, 0))


def test_no_file_holds_a_training_image(method: str, images: Path, tmp_path: Path) -> None:
    """At any moment: checkpoints within tasks, the state of an interrupted run, the model, the logs.

    Without augmentation an image's pixels take at most 256 values per channel. A tensor as large as an image whose
    values are mostly these is pixels, in whatever layout.
    """
    config = small_config(method, images, **BRIEF, **{"data.augment": []})
    with np.load(images) as file:
        raw = torch.from_numpy(file["x_train"])  # [N, C, H, W]
    stored = {pixels.numpy().tobytes() for pixels in raw}
    source = Experiment(config).session.preprocessing
    levels = torch.arange(256)[:, None] / 255
    known = ((levels - torch.tensor(source.mean)) / torch.tensor(source.std)).flatten().double().sort().values
    size, looked_at, taken = raw[0].numel(), set(), 0

    def forward(folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_dir() or (path, path.stat().st_mtime_ns) in looked_at:
                continue
            looked_at.add((path, path.stat().st_mtime_ns))
            if path.suffix != ".safetensors":
                content = path.read_bytes()
                assert not any(pixels in content for pixels in stored), path.name
                continue
            for name, tensor in load_file(path).items():
                values = tensor.flatten().double()
                assert tensor.dtype != torch.uint8 or len(values) < size, (path.name, name)
                if len(values) >= size:
                    some = values[: 20 * size]
                    above = torch.searchsorted(known, some).clamp(1, len(known) - 1)
                    near = torch.minimum((known[above] - some).abs(), (known[above - 1] - some).abs()) < 1e-6
                    assert near.double().mean() < 0.5, (path.name, name)

    def listen(event: Event) -> None:
        nonlocal taken
        taken += isinstance(event, Step) and event.task == 1
        forward(tmp_path)
        if isinstance(event, Step) and taken == 4:
            signal.raise_signal(signal.SIGTERM)

    with contextlib.suppress(Interrupted):  # what trains nothing after task 0 is not interrupted
        start(config, tmp_path / "run", (listen,))
    forward(tmp_path)
    resume(tmp_path / "run")
    forward(tmp_path)
    assert any(path.parent.name == "checkpoints" for path, _ in looked_at)
    assert tmp_path / "run" / MODEL in {path for path, _ in looked_at}


def write_extremes(path: Path) -> Path:
    """Eight classes of grey images: constant, all the same image, a single image, black and white noise, one that is
    another's negative, one whose images differ in one pixel, and two ordinary ones."""
    draw = np.random.default_rng(1)
    ordinary = [draw.integers(0, 256, (6, 10, 10), dtype=np.uint8) for _ in range(2)]
    one_pixel = np.repeat(ordinary[0][:1], 6, axis=0)
    one_pixel[:, 5, 5] = np.arange(6)
    classes = [
        np.full((6, 10, 10), 128, np.uint8), np.repeat(ordinary[1][:1], 6, axis=0), ordinary[0][1:2],
        255 * draw.integers(0, 2, (6, 10, 10), dtype=np.uint8), 255 - ordinary[0], one_pixel, *ordinary,
    ]  # fmt: skip
    labels = np.concatenate([np.full(len(images), number) for number, images in enumerate(classes)])
    images = np.concatenate(classes)
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


def test_extreme_images_end_with_finite_scores_or_one_sentence(method: str, tmp_path: Path) -> None:
    """Classes without variance or of one image, more features than images, a dead feature, and others whose scales make
    covariances of a condition number of 1e12."""
    config = small_config(
        method, write_extremes(tmp_path / "extremes.npz"),
        **{"scenario.task_sizes": [4, 2, 2], "data.augment": []},
        **{f"optimisation.{stage}.epochs": 2 for stage in ("first", "next")},
        **({"method.projector_updates": 10} if method == "ldc" else {}),
    )  # fmt: skip
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    experiment = Experiment(config)
    with torch.no_grad():
        features = experiment.method.backbone(torch.zeros(1, 1, 10, 10)).shape[1]
    scales = torch.logspace(0, -6, features)
    scales[1] = 0.0
    experiment.method.backbone.register_forward_hook(lambda net, images, seen: seen * scales)
    summary, refused = None, ""
    try:
        summary = experiment.run(tmp_path / "run", ())
    except UserError as error:
        refused = str(error)
    assert "\n" not in refused
    if summary is not None:
        scores, _ = experiment.test_scores(2)
        assert scores.shape == (43, 8)
        assert scores.isfinite().all()
        assert len(summary.repaired) == 3
        assert method not in ("gatf", "adagauss") or sum(summary.repaired) > 0  # they factorise what they store
