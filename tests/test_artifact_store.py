"""A model on disk: one writer, versions, rollback."""

import os
import stat
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load as load_safetensors

from gatf.errors import CannotWrite, UserError
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.store import Store
from gatf.incremental.update_file import Outcome, update_model_file
from gatf.io.container import inspect
from gatf.model import file as model_file
from gatf.model.exported import beside
from gatf.nets.resnet import ResNet18

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


def test_changes_since_an_interruption_are_reported(store: Store) -> None:
    """Of somebody who repeats the command after a rollback it is not the options that differ."""
    begun = {"images": "january", "stamp": "1", "model": "a", "parameters": {"epochs": "3"}}
    with store.writing():
        store.plan(begun, restart=False)
        with pytest.raises(UserError, match=r"to finish it \(what differs now: the model\), or add --restart"):
            store.plan({**begun, "model": "b"}, restart=False)
        with pytest.raises(UserError, match=r"\(what differs now: the images, the options\)"):
            store.plan({**begun, "stamp": "2", "parameters": {}}, restart=False)


def test_a_command_that_is_refused_at_once_leaves_nothing(store: Store, digit_images: Any) -> None:
    """So that the same command with another method is not reported of an update that was interrupted."""
    images, labels = digit_images
    for name in ("d0", "d1"):
        (store.path.parent / "images" / name).mkdir(parents=True)
        for number, pixels in enumerate(images[labels == name][:4]):
            Image.fromarray(pixels).save(store.path.parent / "images" / name / f"{number}.png")
    for parameters in ({"method": "joint"}, {"method": "nobody"}, {"image_size": 1}, {"epochs": -1}):
        with pytest.raises(UserError):
            update_model_file(store.path, store.path.parent / "images", parameters={"device": "cpu", **parameters})
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

    def forward(event: object = None) -> None:
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
    update_model_file(
        model, tmp_path / "first", parameters={**parameters, "feature_dim": 6, "width": 4}, listener=forward
    )
    update_model_file(model, tmp_path / "more", parameters=parameters, keep=1, listener=forward)
    forward()
    assert {"shop.gatf", "shop.gatf.v0", "plan.json", "state.safetensors"} <= looked_at


def test_only_the_update_that_was_done_counts_as_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"images": "a", "model": "before", "parameters": {}}
    store.workspace.mkdir()
    store._write(store.workspace / "done.json", {"digest": "after", "plan": plan})
    monkeypatch.setattr(store, "_digest", lambda: "after")
    assert store.committed({**plan, "model": "after"})
    assert not store.committed({**plan, "images": "b"})


# --- quick answers


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `first` and `more` of two classes each, and weights.pth for their network."""
    place = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for folder, classes in (("first", ("sky", "sand")), ("more", ("sea", "snow"))):
        for name in classes:
            (place / folder / name).mkdir(parents=True)
            colour = draws.integers(40, 216, 3)
            for number in range(6):
                pixels = np.clip(colour + draws.normal(0, 20, (20, 20, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / folder / name / f"{number}.png")
    torch.manual_seed(0)
    torch.save(ResNet18(3, width=4, stem="3x3", bottleneck=None).state_dict(), place / "weights.pth")
    return place


@pytest.fixture
def learn_photos(store: Store, photos: Path) -> Any:
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

    def learn(folder: str) -> Outcome:
        parameters: dict[str, Any] = {"device": "cpu"}
        if not store.path.exists():
            settings = {"backbone.pretrained": str(photos / "weights.pth"), "backbone.stem": "3x3"}
            parameters |= {"backbone": "resnet18", "width": 4, "adapt": "never", "settings": settings}
        return update_model_file(store.path, photos / folder, parameters=parameters)

    return learn


def says(store: Store, photos: Path) -> tuple[list[Any], list[Any]]:
    """What the export beside the model and the model itself say of all photos."""
    exported, note = beside(store.path)
    assert note is None
    assert exported is not None
    files = sorted(map(str, photos.glob("*/*/*.png")))
    pixels, _, _ = exported.read(files, skip_bad=False)
    return exported.predict(pixels).labels.tolist(), IncrementalClassifier.load(store.path).predict(files).tolist()


def test_photos_can_be_asked_about_without_torch_after_the_first_prediction(
    store: Store, photos: Path, learn_photos: Any, call: Any
) -> None:
    """An update and a rollback remove the export of the version before; `gatf predict` writes a new one."""
    files = sorted(map(str, photos.glob("*/*/*.png")))
    before = b""
    for folder in ("first", "more", None):
        if folder is not None:
            learn_photos(folder)
        else:
            of_update = store.path.with_name("shop.gatf.onnx").read_bytes()
            with store.writing():
                store.rollback()
        before = before or store.path.read_bytes()
        assert beside(store.path) == (None, None)
        assert not store.path.with_name("shop.gatf.onnx").exists()
        assert call("predict", store.path, files[0])[0] == 0
        by_export, by_model = says(store, photos)
        assert by_export == by_model
        assert ("sea" in by_model) == (folder == "more")
    assert store.path.read_bytes() == before
    store.path.with_name("shop.gatf.onnx").write_bytes(of_update)
    assert beside(store.path) == (None, None), "that of another version is not asked, and nobody need be reported"


def test_a_prediction_does_not_fail_for_want_of_an_export(
    store: Store, photos: Path, learn_photos: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_photos("first")

    def full(*args: Any, **kwargs: Any) -> None:
        raise CannotWrite("no space left")

    monkeypatch.setattr("gatf.model.onnx.write_bytes", full)
    assert call("predict", store.path, next(photos.glob("first/*/*.png")))[0] == 0
    assert names(store) == {"shop.gatf"}


def test_a_class_gets_another_name(store: Store, photos: Path, learn_photos: Any) -> None:
    learn_photos("first")
    learn_photos("more")
    before = model_file.load(store.path)
    with store.writing():
        store.rename("sea", "ocean")
    after = model_file.load(store.path)
    assert after.labels == tuple("ocean" if label == "sea" else label for label in before.labels)
    assert "ocean" in after.history[1].added
    assert "sea" not in after.history[1].added
    assert (after.lineage, store.versions()) == (before.lineage, [0])
    files = sorted(map(str, photos.glob("more/sea/*.png")))
    assert set(IncrementalClassifier.load(store.path).predict(files)) <= set(after.labels)
    content = store.path.read_bytes()
    with store.writing():
        with pytest.raises(UserError, match="has no class 'lake'"):
            store.rename("lake", "pond")
        with pytest.raises(UserError, match="is no name for a class"):
            store.rename("ocean", str(after.labels[0]) + " ")
    assert store.path.read_bytes() == content


def test_what_has_no_pretrained_network_or_no_ending_has_no_export_of_its_own(
    tmp_path: Path, store: Store, grown: Any
) -> None:
    grown.save(store.path)
    assert store.renew_export() is None
    grown.save(tmp_path / "shop")
    assert Store(tmp_path / "shop").renew_export() is None
    assert names(store) == {"shop.gatf", "shop"}


# --- a failed update, another model of the same name, links, modes


def teach(store: Store, grown: Any, updates: int, keep: int = 1) -> str:
    """Commit the model as if it had so many updates; returns its digest."""
    with store.writing():
        store.commit(after(grown, updates), keep=keep)
    return inspect(store.path).digest


def test_rollback_after_a_failed_update_goes_back_to_the_version_before(
    store: Store, grown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = teach(store, grown, 0), teach(store, grown, 1)

    def full(*args: Any, **options: Any) -> None:
        raise CannotWrite("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("gatf.io.container.write_bytes", full)
        with pytest.raises(CannotWrite):
            teach(store, grown, 2)
    assert names(store) == {"shop.gatf", "shop.gatf.v0"}, "no version that is the model itself"
    with store.writing():
        assert store.rollback()[0] == 0
    assert inspect(store.path).digest == first


def test_a_version_that_is_the_model_itself_is_no_version(store: Store, grown: Any) -> None:
    """As a process leaves it that is killed between keeping the version and writing the model."""
    first, second = teach(store, grown, 0), teach(store, grown, 1)
    os.link(store.path, store.path.with_name("shop.gatf.v1"))
    assert store.versions() == [0]
    with store.writing():
        assert store.rollback()[0] == 0
    assert inspect(store.path).digest == first
    assert inspect(store.undone).digest == second
    with pytest.raises(UserError, match="no older version"), store.writing():
        store.rollback()
    assert inspect(store.path).digest == first


def test_a_version_of_a_deleted_model_is_neither_restored_nor_pruned(store: Store, grown: Any) -> None:
    for updates in range(3):
        teach(store, grown, updates)
    old = inspect(store.path.with_name("shop.gatf.v1")).digest
    store.path.unlink()
    other = deepcopy(grown)
    next(other.model_.method.parameters()).data.add_(0.01)
    other.model_ = replace(other.model_, lineage="")
    first = teach(store, other, 0)
    with pytest.raises(UserError, match=r"no older version .*; shop\.gatf\.v1: of another model that had this name"):
        store.rollback()
    teach(store, other, 1)
    with store.writing():
        assert store.rollback()[0] == 0
    assert inspect(store.path).digest == first
    for updates in (1, 2):
        teach(store, other, updates)
    assert store.versions() == [1]
    assert old in {inspect(file).digest for file in store.path.parent.glob("shop.gatf.v1.*")}, "it got another name"


def test_a_deleted_model_comes_back_unless_its_versions_are_of_two(store: Store, grown: Any) -> None:
    first, _ = teach(store, grown, 0), teach(store, grown, 1)
    store.path.unlink()
    with store.writing():
        assert store.rollback() == (0, None)  # nothing was undone
    assert inspect(store.path).digest == first
    store.path.replace(store.path.with_name("shop.gatf.v0"))
    model_file.save(replace(after(grown, 1), lineage="0" * 16), store.path.with_name("shop.gatf.v1"))
    with pytest.raises(UserError, match="belong to different models"), store.writing():
        store.rollback()


def test_all_models_that_go_back_to_one_fit_have_its_lineage(grown: Any, tmp_path: Path) -> None:
    def lineage(model: Any) -> str:
        model_file.save(model, tmp_path / "some.gatf")
        return model_file.load(tmp_path / "some.gatf").lineage

    assert lineage(grown.model_) == lineage(after(grown, 5)) == grown.model_.lineage != ""
    again = deepcopy(grown.model_)
    assert lineage(replace(again, lineage="")) == lineage(replace(again, lineage="")), "it is reproducible"


def test_mode_and_owner_stay_and_new_files_beside_the_model_are_as_private(store: Store, grown: Any) -> None:
    for mode in (0o600, 0o400, 0o664):
        teach(store, grown, 0)
        store.path.chmod(mode)
        teach(store, grown, 1)
        with store.writing():
            assert stat.S_IMODE(store.workspace.stat().st_mode) == 0o700
        assert stat.S_IMODE(store.path.stat().st_mode) == mode
        assert stat.S_IMODE(store.path.with_name("shop.gatf.v0").stat().st_mode) == mode
        with store.writing():
            store.rollback()
        assert stat.S_IMODE(store.path.stat().st_mode) == stat.S_IMODE(store.undone.stat().st_mode) == mode
        store.path.unlink()


def test_a_linked_model_is_updated_in_place_under_one_lock(store: Store, grown: Any, tmp_path: Path) -> None:
    teach(store, grown, 0)
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.gatf"
    link.symlink_to(store.path)
    linked = Store(link)
    with linked.writing(), pytest.raises(UserError, match="another process"), store.writing():
        pass
    teach(linked, grown, 1)
    assert link.is_symlink()
    assert store.versions() == [0]
    assert not store.path.with_name("shop.gatf.v0").is_symlink()
    with linked.writing():
        linked.rollback()
    assert link.is_symlink()
    assert {file.name for file in link.parent.iterdir()} == {"link.gatf"}


def test_a_hard_link_is_a_second_model(store: Store, grown: Any, tmp_path: Path) -> None:
    """An update replaces one of the two names, so the other needs no lock and keeps its model."""
    teach(store, grown, 0)
    other = Store(tmp_path / "other.gatf")
    other.path.hardlink_to(store.path)
    before = other.path.read_bytes()
    with other.writing():
        teach(store, grown, 1)
    assert other.path.read_bytes() == before != store.path.read_bytes()
    assert (store.versions(), other.versions()) == ([0], [])
    with store.writing():
        store.rollback()
    assert store.path.read_bytes() == other.path.read_bytes() == before


def test_a_link_that_leads_to_itself_is_one_sentence(tmp_path: Path) -> None:
    for name, target in (("a", "b"), ("b", "a"), ("c", "c")):
        (tmp_path / name).symlink_to(target)
    for name in "abc":
        with pytest.raises(UserError, match="leads to itself"):
            Store(tmp_path / name)


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    from gatf.data.inputs import read_images

    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero"), tmp_path):
        with pytest.raises(UserError, match=r"is a (pipe|folder)"):
            IncrementalClassifier.load(path)
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(UserError, match="is a pipe, a device or a socket, not an image"):
            read_images([path])
    for name in ("a", "b"):
        (tmp_path / "more" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "more" / name / "1.png")
    with pytest.raises(UserError, match="is a pipe, a device or a socket"):
        update_model_file(tmp_path / "shop.gatf", tmp_path / "more", parameters={"device": "cpu"})


def test_a_finished_plan_does_not_block_the_next(store: Store, grown: Any) -> None:
    """As a process leaves it that is killed between writing the model and removing its plan."""
    with store.writing():
        store.plan({"images": "january"}, restart=False)
        store.commit(after(grown, 0), keep=1)
    with store.writing():
        assert store.plan({"images": "february"}, restart=False) is False
        store.commit(after(grown, 1), keep=1)
        store.rollback()
    with store.writing():
        assert store.plan({"images": "march"}, restart=False) is False
