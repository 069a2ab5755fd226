"""Batches: the same bits however they are made, and none after closing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gatf import distributed
from gatf.data.augment import Pipeline, parse_augmentation
from gatf.data.base import ImageSet, LazyImages
from gatf.data.decode import RandomWindows
from gatf.data.encoded import Files, ParquetRows
from gatf.data.loader import TaskData, TaskInfo, shuffled
from gatf.data.workers import in_order
from gatf.errors import UserError


@pytest.fixture
def files(tmp_path: Path, image_folder: Callable[..., Path]) -> Files:
    """70 photos of 90 × 70: three pieces of work."""
    image_folder(tmp_path, {"a": 70}, size=(90, 70), kind="JPEG")
    return Files(tuple(sorted(str(path) for path in (tmp_path / "a").iterdir())))


def task_data(images: Tensor | LazyImages, augment: list[str], *, seed: int = 0, count: int | None = None) -> TaskData:
    count = count or len(images)
    labels = torch.arange(len(images)) % 3
    pipeline = Pipeline(parse_augmentation(augment), (0.5,), (0.5,))
    members = (torch.arange(count), labels[:count])
    return TaskData(
        TaskInfo(0, 0, 3, count), ImageSet(images, labels), members,
        pipeline=pipeline, seed=seed, device=torch.device("cpu"),
    )  # fmt: skip


def epoch(data: TaskData, view: str = "train", **options: object) -> list[Tensor]:
    return [batch.images for batch in data.batches(view, batch_size=20, order=shuffled, purpose="p", **options)]  # type: ignore[arg-type]


def test_the_number_of_workers_changes_nothing(files: Files) -> None:
    augment = ["resized_crop:48", "flip"]
    epochs = [epoch(task_data(LazyImages(files, 48, workers), augment), epoch=3) for workers in (0, 1, 3)]
    for other in epochs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(epochs[0], other, strict=True))
    assert epochs[0][0].shape == (20, 3, 48, 48)


def test_draws_depend_on_seed_and_epoch(files: Files) -> None:
    images = LazyImages(files, 32)
    first = task_data(images, ["resized_crop:32"])

    def pixels_of_image_0(data: TaskData, number: int) -> Tensor:
        return next(data.batches("train", batch_size=1, purpose="p", epoch=number)).images

    assert torch.equal(pixels_of_image_0(first, 0), pixels_of_image_0(first, 0))
    assert not torch.equal(pixels_of_image_0(first, 0), pixels_of_image_0(first, 1))
    other = task_data(images, ["resized_crop:32"], seed=1)
    assert not torch.equal(pixels_of_image_0(first, 0), pixels_of_image_0(other, 0))


def test_an_epoch_can_be_entered_anywhere(files: Files) -> None:
    data = task_data(LazyImages(files, 32, workers=2), ["resized_crop:32", "flip"])
    whole, rest = epoch(data), epoch(data, start=2)
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_the_test_view_has_no_randomness(files: Files) -> None:
    data = task_data(LazyImages(files, 32), ["resized_crop:32", "flip"])
    for a, b in zip(epoch(data, "test", epoch=0), epoch(data, "test", epoch=0), strict=True):
        assert torch.equal(a, b)
    plain = task_data(LazyImages(files, 32), [])
    assert torch.equal(next(data.batches("test")).images, next(plain.batches("train")).images)


def test_streaming_leaves_the_global_generator_alone(files: Files) -> None:
    before = torch.get_rng_state()
    epoch(task_data(LazyImages(files, 32, workers=1), []))
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_tasks_own_images_are_held(files: Files) -> None:
    data = task_data(LazyImages(files, 32), [], count=5)
    images = data._open().images
    assert isinstance(images, LazyImages)
    assert images.encoded == Files(files.paths[:5])


@pytest.mark.parametrize("lazy", [False, True])
def test_nothing_comes_out_after_closing(files: Files, lazy: bool) -> None:
    images = LazyImages(files, 32, workers=1) if lazy else torch.zeros(70, 3, 32, 32, dtype=torch.uint8)
    data = task_data(images, ["flip"])
    under_way = data.batches("train", batch_size=20)
    next(under_way)
    data.close()
    with pytest.raises(RuntimeError, match="the images of task 0 are deleted"):
        next(under_way)
    with pytest.raises(RuntimeError, match="are deleted"):
        next(data.batches("test"))
    assert data._images is None


def test_a_resized_crop_must_come_first(files: Files) -> None:
    for augment in (["flip", "resized_crop:32"], ["resized_crop:48"], ["resized_crop:32", "resized_crop:32"]):
        with pytest.raises(UserError, match=r"data.augment must begin with resized_crop:32, or have no resized_crop"):
            task_data(LazyImages(files, 32), augment)


def test_images_in_memory_are_cropped_by_the_pipeline() -> None:
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    assert next(task_data(images, ["resized_crop:16"]).batches("train")).images.shape == (4, 3, 16, 16)
    with pytest.raises(ValueError, match="already decoded"):
        ImageSet(images, torch.zeros(4)).stream([torch.tensor([0])], RandomWindows((1.0, 1.0), ()))


def test_a_bad_image_in_a_worker_is_one_sentence(files: Files) -> None:
    Path(files.paths[40]).write_bytes(b"\xff\xd8 no")
    Path(files.paths[60]).unlink()
    with pytest.raises(UserError, match=r"^image .*040\.jpeg cannot be decoded") as caught:
        list(LazyImages(files, 32, workers=2).stream([torch.arange(50)]))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(UserError, match=r"^image .*060\.jpeg cannot be read \(No such file"):
        list(LazyImages(files, 32, workers=2).stream([torch.arange(50, 70)]))


def test_parquet_rows_in_any_order(
    tmp_path: Path, hub_copy: Callable[..., Path], encoded: Callable[..., bytes]
) -> None:
    hub_copy(tmp_path, {"train": [0] * 300}, size=(8, 8))
    rows = ParquetRows.whole([tmp_path / "train.parquet"], "image")
    rows.prepare()
    assert [rows.read(n) for n in (299, 0, 256)] == [encoded(n, 8, 8) for n in (299, 0, 256)]
    some = rows.take([5, 280])
    assert list(some.in_order()) == [encoded(5, 8, 8), encoded(280, 8, 8)]
    assert some.name(1).startswith("in row 280 of ")
    assert list(rows.in_order()) == [encoded(n, 8, 8) for n in range(300)]


def square(number: int) -> int:
    return number * number


def test_work_is_handed_over_in_order() -> None:
    assert list(in_order(square, range(50), workers=3)) == [n * n for n in range(50)]


@pytest.mark.parametrize("lazy", [False, True])
def test_processes_divide_every_batch_without_rest(files: Files, monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    """70 images in batches of 23 leave one, fewer than the two processes: one has it in a pass over all images, both
    have it in a step of training."""
    images = LazyImages(files, 16) if lazy else torch.arange(70 * 192).remainder(251).byte().reshape(70, 3, 8, 8)
    data = task_data(images, [])
    whole = [batch.images for batch in data.batches("test", batch_size=23)]
    monkeypatch.setattr(distributed, "world", lambda: 2)
    passes, steps = [], []
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        passes.append([batch.images for batch in data.batches("test", batch_size=23, part=distributed.part)])
        steps.append(list(data.batches("test", batch_size=23, part=distributed.part_of_step)))
    for both, expected in zip(zip(*passes, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(both), expected)
    assert [len(batch.images) for batch in steps[0]] == [11, 11, 11, 1]
    assert [len(batch.images) for batch in steps[1]] == [12, 12, 12, 1]
    assert [batch.weight for batch in steps[0]] == [22 / 23, 22 / 23, 22 / 23, 1.0]
