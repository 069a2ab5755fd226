"""Small images are decoded once: the cache is keyed by content and settings, and can be lost or damaged at any time."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatf import cli
from gatf.data import cache, encoded
from gatf.data.sources import open_source
from gatf.io.files import new_file
from gatf.settings import DataConfig


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that were decoded."""
    names: list[str] = []
    original = encoded.decode

    def count(data: bytes, name: str, *rest: object) -> object:
        names.append(name)
        return original(data, name, *rest)

    monkeypatch.setattr(encoded, "decode", count)
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
    assert cache.cache_folder() == own_cache
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


def test_cached_files_are_for_their_owner_only(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATF_CACHE", str(own_cache / "new"))
    for old_mode in (None, 0o644):
        cache.cached_tensors("x", "y", lambda: {"a": torch.zeros(1)})
        (file,) = (own_cache / "new").glob("x-*")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        file.write_bytes(b"damaged")
        file.chmod(old_mode or 0o644)


def test_an_entry_with_other_pixels_is_made_again(config: DataConfig, own_cache: Path) -> None:
    """Whether its bytes have rotted or somebody has written whole, other pixels."""
    expected = open_source(config).train.images.clone()
    for path in own_cache.iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert torch.equal(open_source(config).train.images, expected)
    for path in own_cache.iterdir():
        tensors = load_file(path)
        save_file({name: tensor.flip(0) for name, tensor in tensors.items()}, path)
    assert torch.equal(open_source(config).train.images, expected)


def test_an_entry_under_the_name_of_another_is_made_again(own_cache: Path) -> None:
    keys = ("a" * 24, "b" * 24)
    one, other = (cache.cached_tensors("x", key, lambda value=value: {"a": value}) for value, key in
                  zip((torch.zeros(2), torch.ones(2)), keys, strict=True))  # fmt: skip
    (own_cache / f"x-{keys[0]}.safetensors").replace(own_cache / f"x-{keys[1]}.safetensors")
    assert torch.equal(cache.cached_tensors("x", keys[1], lambda: {"a": torch.ones(2)})["a"], other["a"])
    assert not torch.equal(one["a"], other["a"])


def test_an_entry_of_another_user_is_made_again(config: DataConfig, decoded: list[str], own_cache: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    open_source(config)
    for path in own_cache.iterdir():
        os.chown(path, 12345, 12345)
    open_source(config)
    assert len(decoded) == 8
    assert {path.stat().st_uid for path in own_cache.iterdir()} == {0}


def test_a_rotten_copy_of_a_parquet_file_is_noticed(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "some.arrow"
    file.write_bytes(bytes(10_000_000))
    assert not cache.is_intact(file)
    cache.note_digest(file)
    assert cache.is_intact(file)
    file.write_bytes(bytes(9_999_999) + b"1")
    assert not cache.is_intact(file)


def test_the_cache_can_be_looked_at_and_cleared(
    config: DataConfig, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_source(config)
    (own_cache / f".x-{'0' * 24}.safetensors.0123abcd.partial").write_bytes(b"half")
    (own_cache / "mine.txt").write_text("not gatf's", encoding="utf-8")
    (own_cache / "data").mkdir()
    (own_cache / "data" / "fetched.parquet").write_bytes(b"kept")
    for options, words in (([], "3 files"), (["--clear"], "3 files removed"), ([], "0 files")):
        monkeypatch.setattr("sys.argv", ["gatf", "data", "cache", *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        assert words in capsys.readouterr().out
    assert {path.name for path in own_cache.rglob("*")} == {"data", "fetched.parquet", "mine.txt"}
