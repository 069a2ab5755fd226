"""Updates of the model: one at a time, in a process of its own, while the server uses the old model.

Images are in `shop.gatf.updates/ID/pictures`, numbered, in folders that only this user can read, and are removed when
the update ends in any way. An update that the server's own end interrupted has not ended: the next start continues
with it. What was still arriving when a server was killed is removed at the next start.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from gatf.errors import ExitCode, UserError
from gatf.incremental.store import Store
from gatf.io.files import remove_leftovers, write_bytes
from gatf.io.lock import exclusive
from gatf.model import file as model_file
from gatf.model.record import UpdateRecord
from gatf.serve.commands import run_gatf, without_folders
from gatf.serve.limits import Limits, Problem, not_possible, not_understood, too_large
from gatf.serve.pictures import check_image

LOG = logging.getLogger("gatf.serve")
State = Literal["receiving", "running", "done", "failed", "cancelled", "interrupted"]
REMEMBERED = 100
"""Updates that can still be asked about when they have ended."""
PATIENCE = 20.0
"""Seconds that a process has to finish its step when it is asked to end."""
KILLED = (-9, -signal.SIGSEGV, -signal.SIGABRT)
"""Exit codes of a process that was killed; Windows has no name for signal 9."""
ATTEMPTS = 3
"""How often the process of an update is started if something kills it."""


@dataclass
class UpdateProgress:
    """The progress of the training."""

    phase: str | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    share: float = 0.0
    """Of all steps."""
    left: float | None = None
    """Seconds."""


@dataclass
class Update:
    """One update, as the API shows it."""

    id: str
    state: State = "receiving"
    images: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    """Images by class."""
    progress: UpdateProgress = field(default_factory=UpdateProgress)
    message: str | None = None
    """The record as text, or the reason of a failure."""
    left_out: int = 0
    """Images that could not be decoded."""
    resumed: bool = False
    pictures_deleted: bool = False
    version: int = 0
    """Counts changes, for streams that wait for one."""
    stop_receiving: Callable[[], None] = lambda: None
    """Ends the request whose images arrive."""

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled", "interrupted")

    def description(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name not in ("version", "stop_receiving")}
        found["progress"] = asdict(self.progress)
        found["classes"] = [{"label": label, "images": count} for label, count in self.classes.items()]
        return found


class Arriving:
    """Writes the images of an update to the disk, by number."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.labels: list[str] = []
        self._label: str | None = None
        self._named = 0
        self._file: BinaryIO | None = None

    def label(self, text: str) -> None:
        self._named += 1
        if self._named > self.limits.update_images:
            raise too_large(f"an update has at most {self.limits.update_images} labels")
        self._label = text

    def start(self) -> None:
        if self._label is None:
            raise not_understood("the name of a class ('label') comes before its images")
        if len(self.labels) >= self.limits.update_images:
            raise too_large(f"an update takes at most {self.limits.update_images} images")
        descriptor = os.open(self._path(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)

    def end(self) -> None:
        assert self._file is not None
        assert self._label is not None
        self._file.close()
        number = len(self.labels)
        check_image(self._path(), f"image {number} ('{self._label}')", self.limits)
        self.labels.append(self._label)
        if len(set(self.labels)) > self.limits.classes:
            raise too_large(f"an update takes at most {self.limits.classes} classes")

    def put(self, data: bytes) -> None:
        """Write a whole image."""
        self.start()
        self.write(data)
        self.end()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _path(self) -> Path:
        return self.folder / f"{len(self.labels):06d}"


class Updates:
    """The updates of one model file."""

    def __init__(
        self, path: Path, *, parameters: dict[str, Any], keep: int, limits: Limits, refresh: Callable[[], None]
    ) -> None:  # fmt: skip
        self.path, self.parameters, self.keep, self.limits = path, parameters, keep, limits
        self.folder = path.with_name(path.name + ".updates").absolute()
        self.store = Store(path)
        self.refresh = refresh
        self.closed: str | None = None
        """Why this server cannot update the model; None if it can."""
        self.counts = {"done": 0, "failed": 0, "cancelled": 0, "interrupted": 0}
        self._all: dict[str, Update] = {}
        self._changing = threading.RLock()
        self._active: Update | None = None
        self._rolling_back = False
        self._process: subprocess.Popen[str] | None = None
        self._asked: Literal["cancel", "interrupt"] | None = None
        self._thread: threading.Thread | None = None
        self._held = contextlib.ExitStack()

    # --- beginning and end of the server

    def open(self) -> None:
        """Lock the model's updates, continue one that was interrupted, and clean up after a killed server."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            busy, blocked = "another server updates this model", "nothing can be written beside the model"
            self._held.enter_context(exclusive(self.folder / "lock", busy=busy, blocked=blocked))
        except OSError as error:
            self.closed = f"nothing can be written beside the model ({error.strerror})"
        except UserError as error:
            self.closed = str(error)
        if self.closed is not None:
            LOG.warning("no updates here: %s", self.closed)
            return
        for place in sorted(self.folder.iterdir()):
            if place.is_dir() and (self._active is not None or not self._resume(place)):
                self._forget(Update(place.name))

    def close(self) -> None:
        """Interrupt an update after the current step; the next start continues it."""
        self._ask("interrupt")
        if self._thread is not None:
            self._thread.join()
        if self.closed is None:
            self._held.close()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self.closed = "the server is ending"

    def _resume(self, place: Path) -> bool:
        try:
            job = json.loads((place / "job.json").read_text(encoding="utf-8"))
            labels = job["labels"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        remove_leftovers(place)
        update = Update(place.name, "running", len(labels), _counted(labels), resumed=True)
        with self._changing:
            self._remember(update)
            self._active = update
        LOG.info("update %s: continues after an interruption", update.id)
        self._start(update)
        return True

    # --- requests

    def __iter__(self) -> Iterator[Update]:
        return iter(list(self._all.values()))

    def get(self, name: str) -> Update:
        update = self._all.get(name)
        if update is None:
            raise Problem(404, "Not found", "this server has no such update")
        return update

    @property
    def active(self) -> Update | None:
        return self._active

    def reserve(self) -> tuple[Update, Arriving]:
        """Begin an update whose images are about to arrive; a `Problem` if there is one in progress."""
        with self._changing:
            if self.closed is not None:
                raise not_possible(f"this server cannot update the model: {self.closed}")
            self._check_no_rollback()
            if self._active is not None:
                raise not_possible(
                    f"update {self._active.id} is in progress, and there is one at a time; GET or DELETE "
                    f"/v1/updates/{self._active.id} shows or cancels it"
                )
            update = Update(secrets.token_hex(8))
            self._remember(update)
            self._active = update
        try:
            pictures = self._place(update) / "pictures"
            pictures.mkdir(mode=0o700, parents=True)
            self._place(update).chmod(0o700)
        except OSError as error:
            self.discard(update)
            raise Problem(507, "No room", f"images cannot be stored ({error.strerror})") from None
        return update, Arriving(pictures, self.limits)

    def discard(self, update: Update) -> None:
        """Forget an update whose images did not all arrive."""
        shutil.rmtree(self._place(update), ignore_errors=True)
        with self._changing:
            if self._active is update:
                self._active = None
            if update.state == "receiving":
                del self._all[update.id]
            update.pictures_deleted = True
            update.version += 1

    def begin(self, update: Update, arriving: Arriving, labels: list[Any], adapt: str | None = None) -> None:
        """Start learning what has arrived; `adapt` is IncrementalClassifier's, None for the server's."""
        parameters = self.parameters if adapt is None else {**self.parameters, "adapt": adapt}
        job = {
            "model": str(self.path.absolute()), "labels": labels, "parameters": parameters, "keep": self.keep,
            "pixels": self.limits.pixels,
        }  # fmt: skip
        update.images, update.classes = len(labels), _counted(arriving.labels)
        write_bytes(self._place(update) / "job.json", [json.dumps(job).encode()])
        with self._changing:
            update.state = "running"
        LOG.info("update %s: %d images of %d classes", update.id, update.images, len(update.classes))
        self._start(update)

    def cancel(self, update: Update) -> None:
        """Ask for the end of an update. The model stays as it was, unless the update has just been committed."""
        with self._changing:
            if update is not self._active:
                return
            if update.state == "receiving":
                update.state, update.message = "cancelled", "cancelled while its images arrived"
                self.counts["cancelled"] += 1
                with contextlib.suppress(RuntimeError):  # its time is over already
                    update.stop_receiving()
            elif update.state == "running":
                self._ask("cancel")

    def rollback(self) -> int:
        """Undo the last update, in a process of its own, because it may export the model; returns the number of the
        update that is the last one now."""
        with self._changing:
            if self.closed is not None:
                raise not_possible(f"this server cannot change the model: {self.closed}")
            if self._active is not None:
                raise not_possible(f"update {self._active.id} is in progress; wait for it or cancel it")
            self._check_no_rollback()
            self._rolling_back = True  # the lock is free meanwhile: requests for updates need it
        try:
            run_gatf("rollback", self.path, failed="the rollback failed", seconds=self.limits.export_seconds)
            self.refresh()
            return model_file.describe(self.path)[2][-1].number
        finally:
            self._rolling_back = False

    def _check_no_rollback(self) -> None:
        if self._rolling_back:
            raise not_possible("a rollback is in progress; wait for it")

    def change(
        self, command: str, *options: str, content: bytes | None = None, name: str = "", words: Sequence[str] = ()
    ) -> Update:
        """Run `gatf COMMAND OPTIONS MODEL [FILE] [WORDS]` in a process of its own, as an update; FILE has the content.
        Returns when it has ended."""
        update, arriving = self.reserve()
        file = arriving.folder / name
        try:
            if content is not None:
                write_bytes(file, [content])
            update.state = "running"
            given = [self.path] if content is None else [self.path, file]
            text = run_gatf(
                command, *given, options=options, words=words, failed=f"gatf {command} failed",
                seconds=self.limits.change_seconds,
            )  # fmt: skip
        except BaseException as error:
            self._finish(update, "failed", error.detail if isinstance(error, Problem) else f"gatf {command} failed")
            raise
        self._finish(update, "done", text)
        return update

    # --- the process

    def _start(self, update: Update) -> None:
        self._asked = None
        self._thread = threading.Thread(target=self._follow, args=(update,), name="gatf-update", daemon=True)
        self._thread.start()

    def _ask(self, what: Literal["cancel", "interrupt"]) -> None:
        with self._changing:
            if self._active is None or self._active.state != "running":
                return
            first = self._asked is None
            self._asked = what if first or what == "cancel" else self._asked
            process = self._process
        if first and process is not None:
            _end(process)

    def _follow(self, update: Update) -> None:
        """Run the process, as often as it takes, until the update has ended in one way or another."""
        try:
            for attempt in range(ATTEMPTS):
                code, report = self._run(update)
                if self._asked is not None or code not in KILLED:
                    break
                LOG.warning("update %s: its process was killed and starts again (attempt %d)", update.id, attempt + 2)
                update.resumed = True
            record = self._own_record(update)
            if record is not None:
                left_out = report.get("left_out")
                more = f"\n{left_out} images could not be decoded and were left out." if left_out else ""
                self._finish(update, "done", f"{record}{more}")
            elif code == ExitCode.DONE:
                self._finish(
                    update, "failed", "the model on disk does not have this update: another process has replaced it; "
                    "the images stay on the server until its next start", forget=False,
                )  # fmt: skip
            elif code == ExitCode.MISTAKE and report.get("kind") == "mistake":
                self._finish(update, "failed", without_folders(report["text"], self.path, self._place(update)))
            elif self._asked == "interrupt":
                self._finish(update, "interrupted", "the server stopped; its next start continues this update")
            elif self._asked == "cancel":
                self._finish(update, "cancelled", "cancelled; the update did not change the model")
            else:
                self._finish(
                    update, "failed", "the process that learns ended unexpectedly; it did not change the model"
                )
        except Exception as error:
            LOG.error("update %s failed (%s)", update.id, type(error).__name__)
            self._finish(update, "failed", "an unexpected error occurred; the server's log names it", forget=False)

    def _run(self, update: Update) -> tuple[int, dict[str, Any]]:
        """One process, from start to end: its exit code and its last report."""
        job = self._place(update) / "job.json"
        with self._changing:
            if self._asked is not None:
                return -signal.SIGTERM, {}
            process = subprocess.Popen(
                [sys.executable, "-m", "gatf.serve.worker", str(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
            self._process = process
        report: dict[str, Any] = {}
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError, TypeError):
                message = json.loads(line)
                kind = message.pop("kind", None)
                if kind == "progress":
                    update.progress = UpdateProgress(**message)
                    update.version += 1
                elif kind == "done":
                    update.left_out = message["left_out"]
                if kind in ("done", "mistake"):
                    report = {"kind": kind, **message}
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        with self._changing:
            self._process = None
        return code, report

    def _finish(self, update: Update, state: State, message: str, *, forget: bool = True) -> None:
        if forget and state != "interrupted":
            self._forget(update)
        if state == "done":
            self.refresh()  # a client that sees "done" gets predictions of the new model
        with self._changing:
            update.state, update.message = state, message
            update.pictures_deleted = not self._place(update).exists()
            update.version += 1
            self.counts[state] += 1
            self._active = None
        LOG.info("update %s: %s", update.id, state)

    def _forget(self, update: Update) -> None:
        """Remove the images and the training state."""
        pictures = self._place(update) / "pictures"
        with contextlib.suppress(UserError, OSError):
            if self.store.learns(pictures):
                with self.store.writing():
                    self.store.forget_plan()
        shutil.rmtree(self._place(update), ignore_errors=True)

    def _own_record(self, update: Update) -> UpdateRecord | None:
        """The record that this update wrote into the model on disk; None if the model does not have the update."""
        if not self.path.exists():
            return None
        history = model_file.describe(self.path)[2]
        return next((record for record in reversed(history) if record.job == update.id), None)

    def _place(self, update: Update) -> Path:
        return self.folder / update.id

    def _remember(self, update: Update) -> None:
        self._all[update.id] = update
        for old in list(self._all)[:-REMEMBERED]:
            del self._all[old]


def _counted(labels: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for label in labels:
        found[str(label)] = found.get(str(label), 0) + 1
    return found


def _end(process: "subprocess.Popen[str]") -> None:
    """Ask a process to end after the current step, and kill it if it does not."""
    with contextlib.suppress(OSError):
        process.terminate()

    def insist() -> None:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if process.poll() is None:
            process.kill()

    threading.Thread(target=insist, daemon=True).start()
