"""Small images are decoded once: the cache is keyed by content and settings, and can be lost or damaged at any time."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gatf.data import cache, pictures
from gatf.data.sources import cache_folder, open_source
from gatf.io.files import new_file
from gatf.settings import DataConfig


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that were decoded."""
    names: list[str] = []
    original = pictures.decode

    def count(data: bytes, name: str, *rest: object) -> object:
        names.append(name)
        return original(data, name, *rest)

    monkeypatch.setattr(pictures, "decode", count)
    return names


@pytest.fixture
def config(tmp_path: Path, image_folder: Callable[..., Path]) -> DataConfig:
    image_folder(tmp_path, {"train/a": 3, "test/a": 1})
    return DataConfig(name="folder", root=str(tmp_path))


def test_decoded_once(config: DataConfig, decoded: list[str], own_cache: Path) -> None:
    first = open_source(config)
    assert len(decoded) == 4
    again = open_source(config)
    assert len(decoded) == 4
    assert torch.equal(first.train.images, again.train.images)
    assert cache_folder() == own_cache
    assert sorted(path.suffix for path in own_cache.iterdir()) == [".safetensors"] * 2  # nothing half-written remains


def test_a_changed_image_of_the_same_size_and_time_is_noticed(config: DataConfig, decoded: list[str]) -> None:
    before = open_source(config).train.images.clone()
    first, second = (Path(config.root or "") / "train" / "a" / f"00{n}.png" for n in range(2))
    first.write_bytes(second.read_bytes())
    after = open_source(config).train.images
    assert not torch.equal(before[0], after[0])
    assert torch.equal(after[0], after[1])


def test_size_and_version_are_part_of_the_key(
    config: DataConfig, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_source(config)
    open_source(config.model_copy(update={"image_size": 16}))
    assert len(decoded) == 8
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    open_source(config)
    assert len(decoded) == 12


def test_a_damaged_cache_is_made_again(config: DataConfig, own_cache: Path) -> None:
    expected = open_source(config).train.images.clone()
    for path in own_cache.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(open_source(config).train.images, expected)


def test_a_cache_that_cannot_be_written_is_no_error(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = open_source(config).train.images.clone()
    monkeypatch.setenv("GATF_CACHE", "/proc/nowhere")
    assert torch.equal(open_source(config).train.images, expected)


def test_writing_to_the_images_does_not_reach_the_file(config: DataConfig) -> None:
    images = open_source(config).train.images
    expected = images.clone()
    images.fill_(7)
    assert torch.equal(open_source(config).train.images, expected)


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with new_file(tmp_path / "x") as partial:
            partial.write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_cached_files_have_the_mode_of_other_files(own_cache: Path) -> None:
    cache.cached_tensors("x", "y", lambda: {"a": torch.zeros(1)})
    (own_cache / "other").touch()
    (file,) = own_cache.glob("x-*")
    assert file.stat().st_mode == (own_cache / "other").stat().st_mode
