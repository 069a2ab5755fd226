"""The process that learns: `python -m gatf.serve.worker JOB`. It reports its progress as JSON lines and may be killed
at any moment; the same job then continues. The job is removed as soon as the new model is in place.

It ends itself, after the current step, when its standard input ends, because then the server has ended.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
from PIL import Image

from gatf.data.encoded import Files
from gatf.data.inputs import ImageInput
from gatf.errors import Busy, ExitCode, UserError
from gatf.io import events

SECONDS_BETWEEN_STEPS = 0.2
"""Progress is not reported more often."""
PATIENCE = 60.0
"""Seconds to wait for another process that updates the model."""
T = TypeVar("T")


class ProgressReporter:
    """Reports the progress of an update from the events of its training."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._steps = self._done = 0
        self._started = self._reported = 0.0
        self._loss: float | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.TaskStart():
                self._steps, self._done, self._started = event.steps, 0, time.monotonic()
            case events.Step():
                self._done += 1
                if time.monotonic() - self._reported >= SECONDS_BETWEEN_STEPS:
                    self._reported = time.monotonic()
                    self.report("progress", **self._where(event))
            case events.FeaturesExtracted():
                share = event.images / max(event.of, 1)
                spent = time.monotonic() - self._started
                left = round(spent / share * (1 - share), 1) if share else None
                self.report(
                    "progress", phase="features", epoch=None, epochs=None, loss=None, share=round(share, 4), left=left
                )
            case events.Epoch():
                self._loss = round(sum(event.losses.values()), 5)
            case events.Trained():
                self.report(
                    "progress", phase="statistics", epoch=None, epochs=None, loss=self._loss, share=1.0, left=None
                )

    def report(self, kind: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server has ended, which `_end_with_the_server` handles
            self.out.write(json.dumps({"kind": kind, **values}) + "\n")
            self.out.flush()

    def _where(self, event: events.Step) -> dict[str, Any]:
        share = min(self._done / max(self._steps, 1), 1.0)
        spent = time.monotonic() - self._started
        left = round(spent / self._done * (self._steps - self._done), 1) if self._done >= 5 else None
        return {
            "phase": event.phase, "epoch": event.epoch + 1, "epochs": event.epochs, "loss": self._loss,
            "share": round(share, 4), "left": left,
        }  # fmt: skip


def main(job: Path) -> int:
    """Run the job; returns the exit code."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with the lines
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(5)  # predictions have priority over training
    reporter = ProgressReporter(out)
    if not job.exists():  # the process of a server that was killed has just done it
        return ExitCode.DONE
    spec = json.loads(job.read_text(encoding="utf-8"))
    Image.MAX_IMAGE_PIXELS = spec["pixels"]
    folder = job.parent / "pictures"
    files = tuple(str(folder / f"{number:06d}") for number in range(len(spec["labels"])))
    from gatf.incremental.update_file import Outcome, update_model_file
    from gatf.training.loop import Interrupted
    from gatf.training.memory import keep_freed_memory

    keep_freed_memory()

    def learn() -> Outcome:
        return update_model_file(
            Path(spec["model"]), folder, images=(ImageInput(Files(files)), np.array(spec["labels"])),
            parameters=spec["parameters"], keep=spec["keep"], skip_bad=True, listener=reporter,
            announce=lambda text: reporter.report("chosen", text=text), request=job, job=job.parent.name,
        )  # fmt: skip

    try:
        outcome = _patiently(learn, reporter)
    except Interrupted:
        return ExitCode.INTERRUPTED
    except UserError as error:
        reporter.report("mistake", text=str(error))
        return ExitCode.MISTAKE
    reporter.report("done", left_out=len(outcome.left_out))
    return ExitCode.DONE


def _patiently(learn: Callable[[], T], reporter: ProgressReporter) -> T:
    """Wait while another process updates the model: it may belong to a server that was killed."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return learn()
        except Busy:
            if time.monotonic() > until:
                raise
            reporter.report("progress", phase="waiting")
            time.sleep(0.2)


def _end_with_the_server() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
