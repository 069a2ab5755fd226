"""The process that learns: `python -m gatf.serve.worker JOB`. It tells what it does as JSON lines and may be ended at
any moment; the same job goes on where it was. The job is removed as soon as the new model is in place.

It ends itself, after the step in hand, when the server that started it is gone: then its standard input ends.
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
"""Steps that come more quickly are not all told."""
PATIENCE = 60.0
"""Seconds to wait for another process that updates the model."""
T = TypeVar("T")


class Teller:
    """Says where an update is, from the events of its training."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self._steps = self._done = 0
        self._started = self._told = 0.0
        self._loss: float | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.TaskStart():
                self._steps, self._done, self._started = event.steps, 0, time.monotonic()
            case events.Step():
                self._done += 1
                if time.monotonic() - self._told >= SECONDS_BETWEEN_STEPS:
                    self._told = time.monotonic()
                    self.say("progress", **self._where(event))
            case events.Epoch():
                self._loss = round(sum(event.losses.values()), 5)
            case events.Trained():
                self.say("progress", phase="statistics", epoch=None, epochs=None, loss=self._loss, share=1.0, left=None)

    def say(self, kind: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens when the server is gone, which is noticed elsewhere
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
    """Learn what the job says; returns the exit code."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever else prints does not disturb the lines
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(5)  # whoever asks does not wait for whoever learns
    teller = Teller(out)
    if not job.exists():  # the process of a server that was killed has just done it
        return ExitCode.DONE
    told = json.loads(job.read_text(encoding="utf-8"))
    Image.MAX_IMAGE_PIXELS = told["pixels"]
    folder = job.parent / "pictures"
    files = tuple(str(folder / f"{number:06d}") for number in range(len(told["labels"])))
    from gatf.incremental.learn import Outcome, learn_given
    from gatf.training.loop import Interrupted

    def learn() -> Outcome:
        return learn_given(
            Path(told["model"]), ImageInput(Files(files)), np.array(told["labels"]), folder,
            parameters=told["parameters"], keep=told["keep"], skip_bad=True, listener=teller,
            announce=lambda text: teller.say("chosen", text=text), request=job, job=job.parent.name,
        )  # fmt: skip

    try:
        outcome = _patiently(learn, teller)
    except Interrupted:
        return ExitCode.INTERRUPTED
    except UserError as error:
        teller.say("mistake", text=str(error))
        return ExitCode.MISTAKE
    teller.say("done", left_out=len(outcome.left_out))
    return ExitCode.DONE


def _patiently(learn: Callable[[], T], teller: Teller) -> T:
    """Wait for whoever has the model in hand: perhaps the process of a server that was killed finishes its step."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return learn()
        except Busy:
            if time.monotonic() > until:
                raise
            teller.say("progress", phase="waiting")
            time.sleep(0.2)


def _end_with_the_server() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
