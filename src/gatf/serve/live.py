"""The model that answers now. One that takes its place on disk takes its place here, between two batches."""

import logging
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gatf.data.base import ImageSet
from gatf.errors import UserError
from gatf.io import container
from gatf.io.text import harmless
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.model import file as model_file
from gatf.model.state import Model
from gatf.serve.atlas import Plane
from gatf.serve.limits import Problem

LOG = logging.getLogger("gatf.serve")
SECONDS_BETWEEN_LOOKS = 0.25
NETWORKS = threading.Lock()
"""Held by whoever reads a model or looks through one: a network is made quick by tracing it, and while torch traces in
one thread no other thread can call a module."""


@dataclass(frozen=True)
class Served:
    """A model as it was read."""

    model: Model
    digest: str
    bytes: int

    @property
    def keeps_gaussians(self) -> bool:
        return keeps_gaussians_only(self.model.method)

    @property
    def certifies(self) -> bool:
        return self.keeps_gaussians and len(self.model.errors) > 0

    @cached_property
    def plane(self) -> Plane:
        """On which classes are drawn."""
        return Plane.of(self.model.judge.stored)


class Live:
    """Holds the present model and looks, in a thread of its own, whether the file has been replaced."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = model_file.model_path(path), device
        self.current: Served | None = None
        self.reloads = 0
        self._stamp: tuple[int, int, int] | None = None
        self._loading = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Read the model, if there is one yet; one that cannot be read is an error now, and a note in the log later."""
        self._stamp = self._seen()
        if self._stamp is not None:
            self.current = self._load()
        self._thread = threading.Thread(target=self._watch, name="gatf-model", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def served(self) -> Served:
        if self.current is None:
            raise Problem(409, "No model yet", "no class has been learnt yet; POST /v1/updates teaches the first ones")
        return self.current

    def refresh(self) -> None:
        """Read the file again if it is another one than before. Requests go on with the old model meanwhile."""
        with self._loading:
            stamp = self._seen()
            if stamp == self._stamp or stamp is None:
                return
            self._stamp = stamp
            try:
                loaded = self._load()
            except (UserError, OSError) as error:
                LOG.error("the model on disk cannot be read, the old one goes on answering: %s", harmless(error))
                return
            if self.current is not None:
                self.reloads += 1
            self.current = loaded
            LOG.info("model %s: %d classes", loaded.digest[:12], len(loaded.model.labels))

    def _seen(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _load(self) -> Served:
        with NETWORKS:
            model = model_file.load(self.path, device=self.device, answering=True)
            blank = torch.zeros(1, *model.preprocessing.shape, dtype=torch.uint8)
            outputs = model.forward(
                ImageSet(blank, torch.zeros(1, dtype=torch.int64))
            )  # prepares what first looks prepare
        served = Served(model, container.inspect(self.path).digest, self.path.stat().st_size)
        model.novelty_of(outputs)
        if outputs.features is not None and served.certifies:
            model.judge.certificates(outputs.features, outputs.scores.argmax(1))
        return served

    def _watch(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_LOOKS):
            try:
                self.refresh()
            except Exception as error:  # the thread must live: without it no new model would ever be seen
                LOG.error("looking for a new model failed (%s)", type(error).__name__)


def plain(value: Any) -> Any:
    """A NumPy value as Python's own."""
    return value.item() if hasattr(value, "item") else value
