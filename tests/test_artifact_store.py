"""A model on disk: one writer, versions, rollback."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load as load_safetensors

from gatf.errors import UserError
from gatf.incremental.learn import learn_folder
from gatf.incremental.store import Store
from gatf.model import file as model_file

HOLD = """
import sys, time
from pathlib import Path
from gatf.incremental.store import Store
with Store(Path(sys.argv[1])).writing():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "shop.gatf")


def names(store: Store) -> set[str]:
    return {file.name for file in store.path.parent.iterdir()}


def after(grown: Any, updates: int) -> Any:
    """The grown model, as if it had so many updates behind it."""
    from dataclasses import replace

    later = [grown.history_[-1].model_copy(update={"number": number + 1}) for number in range(updates)]
    return replace(grown.model_, history=(*grown.history_[:1], *later))


def test_a_second_writer_is_refused(store: Store) -> None:
    refused = pytest.raises(UserError, match="is being updated by another process")
    with store.writing(), refused, Store(store.path).writing():
        pass
    with store.writing():
        pass
    assert names(store) == set(), "nothing is left behind"


def test_the_lock_goes_with_a_killed_process(store: Store) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(store.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(UserError, match="another process"), store.writing():
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with store.writing():
        pass


def test_versions_are_kept_and_pruned(store: Store, grown: Any) -> None:
    for updates in range(4):
        store.commit(after(grown, updates), keep=2)
    assert store.versions() == [1, 2]
    assert len(model_file.load(store.path).history) == 4
    store.commit(after(grown, 4), keep=0)
    assert names(store) == {"shop.gatf"}


def test_rollback_puts_the_version_before_back(store: Store, grown: Any) -> None:
    for updates in range(3):
        store.commit(after(grown, updates), keep=2)
    number, undone = store.rollback()
    assert number == 1
    assert len(model_file.load(store.path).history) == 2
    assert len(model_file.load(undone).history) == 3
    store.rollback()
    with pytest.raises(UserError, match="no older version"):
        store.rollback()
    assert len(model_file.load(store.path).history) == 1


def test_a_damaged_version_does_not_replace_the_model(store: Store, grown: Any) -> None:
    store.commit(after(grown, 0), keep=1)
    store.commit(after(grown, 1), keep=1)
    kept = store.path.with_name("shop.gatf.v0")
    kept.write_bytes(kept.read_bytes()[:-5])
    before = store.path.read_bytes()
    with pytest.raises(UserError, match="damaged"):
        store.rollback()
    assert store.path.read_bytes() == before


def test_an_interrupted_plan_is_taken_up_or_named(store: Store) -> None:
    with store.writing():
        assert store.plan({"images": "january"}, restart=False) is False
        assert store.plan({"images": "january"}, restart=False) is True
        with pytest.raises(UserError, match=r"learns january was interrupted.*--restart"):
            store.plan({"images": "february"}, restart=False)
        assert store.plan({"images": "february"}, restart=True) is False
        store.forget_plan()
    assert names(store) == set()


def test_what_changed_since_an_interruption_is_told(store: Store) -> None:
    """Of somebody who repeats the command after a rollback it is not the options that differ."""
    begun = {"images": "january", "stamp": "1", "model": "a", "parameters": {"epochs": "3"}}
    with store.writing():
        store.plan(begun, restart=False)
        with pytest.raises(UserError, match=r"to finish it \(what differs now: the model\), or add --restart"):
            store.plan({**begun, "model": "b"}, restart=False)
        with pytest.raises(UserError, match=r"\(what differs now: the pictures, the options\)"):
            store.plan({**begun, "stamp": "2", "parameters": {}}, restart=False)


def test_a_command_that_is_refused_at_once_leaves_nothing(store: Store, digit_images: Any) -> None:
    """So that the same command with another method is not told of an update that was interrupted."""
    images, labels = digit_images
    for name in ("d0", "d1"):
        (store.path.parent / "images" / name).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == name][:4]):
            Image.fromarray(pixels).save(store.path.parent / "images" / name / f"{number}.png")
    for parameters in ({"method": "joint"}, {"method": "nobody"}, {"image_size": 1}, {"epochs": -1}):
        with pytest.raises(UserError):
            learn_folder(store.path, store.path.parent / "images", parameters={"device": "cpu", **parameters})
        assert names(store) == {"images"}, parameters


def test_no_file_of_a_model_holds_an_image(tmp_path: Path, digit_images: tuple[np.ndarray, np.ndarray]) -> None:
    """Beside the model while it learns and after: its state, its plan, its versions. Pixels are looked for as bytes;
    any tensor that has the shape of images is taken for them."""
    images, labels = digit_images
    for folder, names in (("first", ("d0", "d1")), ("more", ("d2", "d3"))):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            for number, pixels in enumerate(images[labels == name][:10]):
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{number}.png")
    model, looked_at = tmp_path / "model" / "shop.gatf", set()
    model.parent.mkdir()
    stored = {pixels.tobytes() for pixels in images}

    def look(event: object = None) -> None:
        for path in model.parent.rglob("*"):
            if not path.is_file():
                continue
            content = path.read_bytes()
            looked_at.add(path.name)
            assert not any(pixels in content for pixels in stored), path.name
            if content[8:9] == b"{" and b"__metadata__" in content[:40]:
                for name, tensor in load_safetensors(content).items():
                    assert tuple(tensor.shape[-2:]) != (8, 8), (path.name, name)

    parameters = {"device": "cpu", "batch_size": 8, "epochs": 6}
    learn_folder(model, tmp_path / "first", parameters={**parameters, "feature_dim": 6, "width": 4}, listener=look)
    learn_folder(model, tmp_path / "more", parameters=parameters, keep=1, listener=look)
    look()
    assert {"shop.gatf", "shop.gatf.v0", "plan.json", "state.safetensors"} <= looked_at


def test_only_the_update_that_was_done_counts_as_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"images": "a", "model": "before", "parameters": {}}
    store.workspace.mkdir()
    store._write(store.workspace / "done.json", {"digest": "after", "plan": plan})
    monkeypatch.setattr(store, "_digest", lambda: "after")
    assert store.committed({**plan, "model": "after"})
    assert not store.committed({**plan, "images": "b"})
