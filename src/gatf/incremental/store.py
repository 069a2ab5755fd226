"""A model on disk as something that is updated: one writer at a time, old versions kept, nothing lost on the way.

Beside `shop.gatf` there may be `shop.gatf.v2` (the model as it was after 2 updates), `shop.gatf.undone` (what the last
rollback undid), `shop.gatf.onnx` (the same model for quick answers) and, while it is being updated,
`shop.gatf.learning/` with a lock, the plan and the training's state.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gatf.errors import UserError
from gatf.incremental.update import STATE
from gatf.io import container
from gatf.io.files import copy, remove, remove_leftovers, sync_folder, telling, write_bytes
from gatf.io.lock import exclusive
from gatf.io.parsing import parse_json
from gatf.model import file as model_file
from gatf.model.exported import own_export
from gatf.model.state import Model

PLAN, DONE, ROLLBACK, LOCK = "plan.json", "done.json", "rollback.json", "lock"
PLANNED = {
    "images": "the folder", "stamp": "the pictures", "skip_bad": "--skip-bad", "model": "the model",
    "parameters": "the options", "gatf": "gatf's version",
}  # fmt: skip
"""What a plan holds, in the words for people."""


class Store:
    """The files of one model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workspace = path.with_name(path.name + ".learning")
        self.undone = path.with_name(path.name + ".undone")

    # --- one writer at a time

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, no other process updates this model, and what killed ones left half-written is gone. The lock goes
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
        if self.path.exists() and keep > 0:
            before = model_file.describe(self.path)[2][-1].number
            copy(self.path, self._version(before))
        model_file.save(model, self.path, before=self._note_commit)
        self.prune(keep)

    def _note_commit(self, digest: str) -> None:
        """Write down, just before the new model takes its place, that with this digest the plan is done."""
        if (self.workspace / PLAN).is_file():
            self._write(self.workspace / DONE, {"digest": digest, "plan": self._read(self.workspace / PLAN)})

    def prune(self, keep: int) -> None:
        """Remove all versions but the newest ones."""
        for number in self.versions()[: -keep or None]:
            remove(self._version(number))

    def versions(self) -> list[int]:
        """Numbers of the kept versions, oldest first: k is the model as it was after k updates."""
        pattern = re.compile(re.escape(self.path.name) + r"\.v(\d{1,9})$")
        found = (pattern.match(file.name) for file in self.path.parent.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def rollback(self) -> tuple[int, Path]:
        """Put the newest kept version back; returns its number and where the undone model is now."""
        versions = self.versions() if self.path.parent.is_dir() else []
        begun = self._read(self.workspace / ROLLBACK)
        if begun is not None and begun.get("version") not in versions and self._digest() == begun.get("digest"):
            self.renew_export()
            remove(self.workspace / ROLLBACK)  # of a process that was killed when all was done but that
            return int(begun["version"]), self.undone
        if not versions:
            raise UserError(f"no older version of {self.path} was kept (gatf learn --keep N keeps them)")
        newest = self._version(versions[-1])
        model_file.load(newest)  # a version that cannot be read must not replace one that can
        if self.path.exists():
            copy(self.path, self.undone)
        if self.workspace.is_dir():
            digest = container.inspect(newest).digest
            self._write(self.workspace / ROLLBACK, {"version": versions[-1], "digest": digest})
        with telling(self.path):
            newest.replace(self.path)
        sync_folder(self.path.parent)
        self.renew_export()
        remove(self.workspace / ROLLBACK)
        return versions[-1], self.undone

    # --- quick answers

    def renew_export(self) -> Path | None:
        """Write the model as ONNX beside it, from which one photo is answered without importing torch; returns where.

        Only with a pretrained network, as photos have, and where onnx and onnxruntime are installed. It is a
        convenience: where it cannot be written there is none, and one of another version is never asked.
        """
        target = own_export(self.path)
        if target is None:
            return None
        with suppress(UserError):
            pretrained = model_file.describe(self.path)[1].backbone.pretrained is not None
            if pretrained and all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
                from gatf.model.onnx import export_onnx

                model = model_file.load(self.path, answering=True)
                export_onnx(model, target, digest=self._digest(), patient=False)
                return target
        with suppress(UserError):
            if target.exists():
                remove(target)
        return None

    def _digest(self) -> str | None:
        return container.inspect(self.path).digest if self.path.is_file() else None

    def _version(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.v{number}")
