"""The model in use. When its file is replaced, the new model is loaded beside the old one and swapped in."""

import logging
import threading
import time
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
from gatf.serve.limits import Problem, not_understood

LOG = logging.getLogger("gatf.serve")
SECONDS_BETWEEN_CHECKS = 0.25
LONGEST_WAIT = 30.0
"""Seconds between two attempts to load a file that cannot be loaded."""


@dataclass(frozen=True)
class Served:
    """A model as it was read."""

    model: Model
    digest: str
    bytes: int
    beside: int = 0
    """Bytes of the frozen classifier that the file keeps beside an adapted one."""

    @property
    def keeps_gaussians(self) -> bool:
        return keeps_gaussians_only(self.model.method)

    @property
    def certifies(self) -> bool:
        """Whether the last update transported statistics, so that a prediction can be unaffected by its error."""
        return self.keeps_gaussians and self.model.transported

    def check_takes_vectors(self) -> None:
        """A `Problem` if the model classifies images."""
        if not self.model.preprocessing.takes_vectors:
            raise not_understood("this model classifies images, not vectors")

    @cached_property
    def plane(self) -> Plane:
        """On which classes are drawn."""
        return Plane.of(self.model.stored)

    @cached_property
    def similar(self) -> list[Any]:
        """The nearest other class of every class, by its mean; None where the method keeps no Gaussians."""
        labels = self.model.labels
        if not self.keeps_gaussians or len(labels) < 2:
            return [None] * len(labels)
        distances = self.model.novelty_scorer.distances(self.model.stored.means)
        distances.fill_diagonal_(torch.inf)
        return [labels[number] for number in distances.argmin(1).tolist()]


Stamp = tuple[int, int, int]
"""Inode, size and time of change: another stamp is another file."""


class Live:
    """Holds the model that answers. A thread checks whether the file was replaced, loads the new one beside the old one
    and swaps them."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = model_file.model_path(path), device
        self.current: Served | None = None
        self.reloads = 0
        self._loaded: Stamp | None = None
        self._failed: Stamp | None = None
        self._wait, self._next_attempt = SECONDS_BETWEEN_CHECKS, 0.0
        self._loading = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Load the model if it exists. A file that cannot be loaded is an error here, and a line in the log later."""
        if self.path.exists():
            self._loaded, self.current = self._load()
        self._thread = threading.Thread(target=self._watch, name="gatf-model", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def served(self) -> Served:
        if self.current is None:
            raise Problem(409, "No model yet", "the model has no classes yet; POST /v1/updates teaches the first ones")
        return self.current

    def refresh(self) -> None:
        """Load the file if it was replaced. Predictions use the old model until the new one is ready. A file that
        cannot be loaded is tried again, at growing intervals, until it can or is replaced."""
        with self._loading:
            stamp = self._stamp()
            if stamp is None or stamp == self._loaded:
                return
            if stamp == self._failed and time.monotonic() < self._next_attempt:
                return
            try:
                self._loaded, loaded = self._load()
            except (UserError, OSError) as error:
                self._wait = min(2 * self._wait, LONGEST_WAIT) if stamp == self._failed else SECONDS_BETWEEN_CHECKS
                if stamp != self._failed:
                    LOG.error("the new model cannot be loaded, the old one stays in use: %s", harmless(error))
                self._failed, self._next_attempt = stamp, time.monotonic() + self._wait
                return
            self._failed = None
            if self.current is not None:
                self.reloads += 1
            self.current = loaded
            LOG.info("model %s: %d classes", loaded.digest[:12], len(loaded.model.labels))

    def _stamp(self) -> Stamp | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _load(self) -> tuple[Stamp | None, Served]:
        """The model and the stamp of the file that it was read from."""
        before = self._stamp()
        if not self.path.is_file():  # to open a pipe would wait for its writer
            raise UserError(f"{self.path} is not a regular file")
        model = model_file.load(self.path, device=self.device, answering=True)
        header = container.inspect(self.path)
        beside = sum(place.end - place.start for name, place in header.places.items() if name.startswith("frozen."))
        served = Served(model, header.digest, self.path.stat().st_size, beside)
        if self._stamp() != before:
            raise UserError(f"{self.path} was replaced while it was read")
        kind = torch.float32 if model.preprocessing.takes_vectors else torch.uint8
        blank = torch.zeros(1, *model.preprocessing.shape, dtype=kind)
        outputs = model.forward(ImageSet(blank, torch.zeros(1, dtype=torch.int64)))  # folds the network, fills caches
        model.novelty_of(outputs)
        if outputs.features is not None and served.certifies:
            model.certifier.certificates(outputs.features, outputs.scores.argmax(1))
        return before, served

    def _watch(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_CHECKS):
            try:
                self.refresh()
            except Exception as error:  # without this thread the server would miss every new model
                LOG.error("checking for a new model failed (%s)", type(error).__name__)


def plain(value: Any) -> Any:
    """A NumPy value as Python's own."""
    return value.item() if hasattr(value, "item") else value
