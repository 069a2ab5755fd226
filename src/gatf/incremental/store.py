"""A model on disk as something that is updated: one writer at a time, old versions kept, nothing lost on the way.

Beside `shop.gatf` there may be `shop.gatf.v2` (the model as it was after 2 updates), `shop.gatf.undone` (what the last
rollback undid), `shop.gatf.onnx` (the same model for quick answers) and, while it is being updated,
`shop.gatf.learning/` with a lock, the plan and the training's state.
"""

import glob
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gatf.data.class_names import appearance
from gatf.errors import UserError, near_misses
from gatf.incremental.update import STATE
from gatf.io import container
from gatf.io.files import copy, remove, remove_leftovers, resolved, sync_folder, write_bytes, write_errors
from gatf.io.lock import exclusive
from gatf.io.parsing import parse_json
from gatf.io.text import harmless
from gatf.model import file as model_file
from gatf.model.exported import own_export
from gatf.model.state import Label, Model
from gatf.settings import VECTORS

PLAN, DONE, ROLLBACK, LOCK = "plan.json", "done.json", "rollback.json", "lock"
PLANNED = {
    "images": "the folder", "stamp": "the images", "skip_bad": "--skip-bad", "model": "the model",
    "parameters": "the options", "gatf": "gatf's version",
}  # fmt: skip
"""What a plan holds, in words for users."""


@dataclass(frozen=True)
class Identity:
    """What identifies a model file."""

    digest: str
    lineage: str
    dates: dict[int, str]
    """Of the updates in its history, by number."""

    @property
    def number(self) -> int:
        """Of its last update."""
        return max(self.dates)

    def is_before(self, other: "Identity") -> bool:
        """Whether the other one was made from this one by updates."""
        known = other.dates.get(self.number, self.dates[self.number])
        return self.lineage == other.lineage and self.number < other.number and self.dates[self.number] == known


class Store:
    """The files of one model. A symbolic link stands for its file: that one is updated, locked and has versions."""

    def __init__(self, path: Path) -> None:
        path = self.path = resolved(path)
        self.workspace = path.with_name(path.name + ".learning")
        self.undone = path.with_name(path.name + ".undone")

    # --- one writer at a time

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, no other process updates this model, and half-written files of killed ones are deleted. The lock goes
        with the process, however it ends."""
        busy = f"{self.path} is being updated by another process; wait until that has ended"
        try:
            with exclusive(self.workspace / LOCK, busy=busy, blocked=f"{self.path} cannot be written"):
                remove_leftovers(self.path.parent, rf"{re.escape(self.path.name)}(\.v\d+|\.undone|\.onnx)?")
                remove_leftovers(self.workspace)
                yield
        finally:
            with suppress(OSError):
                self.workspace.rmdir()  # stays if something in it is worth resuming, or another process holds it

    # --- an update that can be taken up again

    def plan(self, plan: dict[str, Any], *, restart: bool) -> bool:
        """Write down what is about to be learnt; True if just that was begun before and can be taken up again."""
        file = self.workspace / PLAN
        if restart:
            self.forget_plan()
        done = self._read(self.workspace / DONE)
        if done is not None and done.get("digest") == self._digest():
            self.forget_plan()  # of a process that was killed when all was done but that
        if file.is_file():
            begun = self._read(file)
            if begun == plan:
                return True
            begun = begun or {}
            differs = [word for name, word in PLANNED.items() if begun.get(name) != plan.get(name)]
            raise UserError(
                f"an update of {self.path} that learns {begun.get('images', 'other images')} was interrupted: repeat "
                f"that command as it was to finish it (what differs now: {', '.join(differs) or 'its notes'}), or add "
                "--restart to forget it"
            )
        self._write(file, plan)
        return False

    def learns(self, folder: Path) -> bool:
        """Whether the update that was begun, or is done but for its notes, learns the images in this folder."""
        done = self._read(self.workspace / DONE) or {}
        plan = self._read(self.workspace / PLAN) or done.get("plan") or {}
        return bool(plan.get("images") == str(folder.resolve()))

    def committed(self, plan: dict[str, Any]) -> bool:
        """Whether just this was learnt by a process that was killed after the model was in place."""
        done = self._read(self.workspace / DONE)
        if done is None or self._digest() != done.get("digest"):
            return False
        same = [name for name in plan if name != "model"]  # which has changed
        begun = done.get("plan") or {}
        return all(begun.get(name) == plan[name] for name in same)

    def _write(self, file: Path, content: dict[str, Any]) -> None:
        write_bytes(file, [json.dumps(content, indent=2).encode()])

    def _read(self, file: Path) -> dict[str, Any] | None:
        """The object in a file of the workspace; None if there is none."""
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def has_state(self) -> bool:
        """Whether training got as far as a checkpoint."""
        return (self.workspace / STATE).is_file()

    def forget_plan(self) -> None:
        """Remove the plan and the training's state; last what says that the update is done, so that a process that is
        killed in between leaves no doubt about it."""
        for file in sorted(self.workspace.glob("*"), key=lambda file: file.name == DONE):
            if file.name != LOCK:
                remove(file)

    # --- versions

    def commit(self, model: Model, keep: int) -> None:
        """Make this the model; the one that was stays as a version. At every moment the path holds a whole model."""
        version = self._keep_version() if self.path.exists() and keep > 0 else None
        try:
            model_file.save(model, self.path, before=self._note_commit)
        except BaseException:
            if version is not None:
                with suppress(UserError):
                    remove(version)  # it is no older version, but the model itself
            raise
        self.prune(keep)

    def _keep_version(self) -> Path:
        """Make the present model a version. A version of another model that has its name gets a longer one."""
        current = _identity(self.path)
        if current is None:
            raise UserError(f"{self.path} is damaged and cannot be updated: put an older version back (gatf rollback)")
        version = self._version(current.number)
        there = _identity(version)
        if there is not None and there.digest != current.digest:
            with write_errors(version):
                version.replace(version.with_name(f"{version.name}.{there.digest[:8]}"))
        copy(self.path, version)
        return version

    def _note_commit(self, digest: str) -> None:
        """Write down, just before the new model takes its place, that with this digest the plan is done."""
        if (self.workspace / PLAN).is_file():
            self._write(self.workspace / DONE, {"digest": digest, "plan": self._read(self.workspace / PLAN)})

    def prune(self, keep: int) -> None:
        """Remove all versions but the newest ones; those of another model stay."""
        for number in self.versions()[: -keep or None]:
            remove(self._version(number))

    def versions(self) -> list[int]:
        """Numbers of the kept versions, oldest first: k is the model as it was after k updates. A file that the model
        was not made from is none of them; where there is no model or a damaged one, all files count."""
        current = _identity(self.path)
        found = {number: _identity(self._version(number)) for number in self._numbers()}
        if current is None:
            return sorted(found)
        return sorted(
            number
            for number, each in found.items()
            if (number < current.number if each is None else each.number == number and each.is_before(current))
        )

    def _numbers(self) -> list[int]:
        pattern = re.compile(re.escape(self.path.name) + r"\.v(\d{1,9})$")
        found = (pattern.match(file.name) for file in self.path.parent.iterdir())
        return [int(match[1]) for match in found if match]

    def _foreign(self) -> list[str]:
        """Names of versions that belong to another model."""
        own = {self._version(number).name for number in self.versions()}
        current = _identity(self.path)
        return sorted(
            file.name
            for file in self.path.parent.glob(f"{glob.escape(self.path.name)}.v*")
            if file.name not in own and (found := _identity(file)) and current and found.digest != current.digest
        )

    def rollback(self) -> tuple[int, Path | None]:
        """Put the newest kept version back; returns its number and where the undone model is now, if there was one."""
        versions = self.versions() if self.path.parent.is_dir() else []
        begun = self._read(self.workspace / ROLLBACK)
        if begun is not None and begun.get("version") not in versions and self._digest() == begun.get("digest"):
            self.drop_export()
            remove(self.workspace / ROLLBACK)  # of a process that was killed when all was done but that
            return int(begun["version"]), self.undone if begun.get("undone", True) else None
        if not versions:
            foreign = self._foreign() if self.path.parent.is_dir() else []
            other = f"; {', '.join(foreign)}: of another model that had this name" if foreign else ""
            raise UserError(f"no older version of {self.path} was kept (gatf learn --keep N keeps them){other}")
        if len({found.lineage for number in versions if (found := _identity(self._version(number)))}) > 1:
            raise UserError(
                f"{self.path} cannot be read, and its versions belong to different models: copy the one that you want "
                f"to {self.path.name}"
            )
        newest = self._version(versions[-1])
        model_file.load(newest)  # a version that cannot be read must not replace one that can
        undone = self.undone if self.path.exists() else None
        if undone is not None:
            copy(self.path, undone)
        digest = container.inspect(newest).digest
        done = self._read(self.workspace / DONE)
        if done is not None and done.get("digest") == self._digest():
            self.forget_plan()  # what it did is undone, and nothing is left to finish
        if self.workspace.is_dir():
            self._write(
                self.workspace / ROLLBACK, {"version": versions[-1], "digest": digest, "undone": undone is not None}
            )
        with write_errors(self.path):
            newest.replace(self.path)
        sync_folder(self.path.parent)
        if self._digest() != digest:
            raise UserError(f"{self.path} could not be rolled back: it is not the model that {newest.name} was")
        self.drop_export()
        remove(self.workspace / ROLLBACK)
        return versions[-1], undone

    def rename(self, old: str, new: str) -> None:
        """Give a class another name, in the history too. No version is kept: renaming it back undoes it."""
        model = model_file.load(self.path)
        if not all(isinstance(label, str) for label in model.labels):
            raise UserError(f"the classes of {self.path} are numbers, which have no names to change")
        names = [str(label) for label in model.labels]
        if old not in names:
            raise UserError(f"{self.path} has no class '{harmless(old)}'{near_misses(old, names)}")
        if not appearance(new) or appearance(new) in {appearance(name) for name in names if name != old}:
            raise UserError(
                f"'{harmless(new)}' is no name for a class: it is empty, or another class of {self.path} has it"
            )
        model_file.save(renamed(model, old, new), self.path)
        self.drop_export()

    # --- quick answers

    def drop_export(self) -> None:
        """Remove the export of another version; `gatf predict` writes a new one."""
        target = own_export(self.path)
        with suppress(UserError):
            if target is not None and target.exists():
                remove(target)

    def renew_export(self) -> Path | None:
        """Write the model as ONNX beside it, from which one photo is answered without importing torch; returns where.

        Only with a pretrained network, as photos have, and where onnx and onnxruntime are installed. It is a
        convenience: where it cannot be written there is none, and one of another version is never asked.
        """
        target = own_export(self.path)
        if target is None:
            return None
        with suppress(UserError):
            backbone = model_file.describe(self.path)[1].backbone
            if (
                backbone.pretrained is not None
                and backbone.name != VECTORS
                and all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
            ):
                from gatf.model.onnx import export_onnx

                model = model_file.load(self.path, answering=True)
                export_onnx(model, target, digest=self._digest(), patient=False, like=self.path)
                return target
        self.drop_export()
        return None

    def _digest(self) -> str | None:
        return container.inspect(self.path).digest if self.path.is_file() else None

    def _version(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.v{number}")


def renamed(model: Model, old: str, new: str) -> Model:
    """The model with another name for a class."""

    def names(labels: tuple[Label, ...]) -> tuple[Label, ...]:
        return tuple(new if label == old else label for label in labels)

    history = tuple(
        record.model_copy(update={"added": names(record.added), "revisited": names(record.revisited)})
        for record in model.history
    )
    frozen = model.frozen and renamed(model.frozen, old, new)
    return replace(model, labels=names(model.labels), history=history, frozen=frozen)


def _identity(path: Path) -> Identity | None:
    """Of a model file; None where there is none or it is damaged."""
    try:
        status = path.stat()
        return _read_identity(path, (status.st_ino, status.st_size, status.st_mtime_ns))
    except (OSError, UserError):
        return None


@lru_cache(maxsize=64)
def _read_identity(path: Path, stamp: tuple[int, int, int]) -> Identity:
    """Read once while the file's inode, size and time stay the same."""
    description, _, history, header = model_file.describe(path)
    return Identity(header.digest, description.lineage, {record.number: record.date for record in history})
