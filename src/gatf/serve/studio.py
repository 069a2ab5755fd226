"""The parts of a running server."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from gatf.errors import UserError
from gatf.model import file as model_file
from gatf.model.state import Model
from gatf.serve.atlas import last_update
from gatf.serve.batching import Batcher, Question
from gatf.serve.decoding import Decoders
from gatf.serve.exports import Exports
from gatf.serve.limits import Limits, Problem, busy, not_understood
from gatf.serve.live import Live
from gatf.serve.metrics import Metrics
from gatf.serve.updates import Updates


@dataclass
class Options:
    """How a server is run."""

    path: Path
    page: bool = False
    device: str = "cpu"
    parameters: dict[str, Any] = field(default_factory=dict)
    """IncrementalClassifier's, for updates."""
    keep: int = 3
    token: str | None = None
    origins: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class Studio:
    """The parts of a running server."""

    def __init__(self, options: Options) -> None:
        self.options, self.limits = options, options.limits
        self.metrics = Metrics()
        self.live = Live(options.path, options.device)
        self.batcher = Batcher(self.limits.queue)
        self.updates = Updates(
            self.live.path, parameters=options.parameters, keep=options.keep, limits=self.limits,
            refresh=self.live.refresh,
        )  # fmt: skip
        self.exports = Exports()
        self.decoders = Decoders(self.limits)
        self.streams = 0
        """Event streams that are open."""
        self.under_way = 0
        """Predictions whose images have arrived."""
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the server has been asked to end: streams close then."""
        self._before = lru_cache(maxsize=1)(self._load_before)

    def open(self) -> None:
        self.live.open()
        self.batcher.open()
        self.updates.open()

    def close(self) -> None:
        self.updates.close()
        self.batcher.close()
        self.live.close()
        self.exports.close()
        self.decoders.close()

    # --- prediction

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Counts a prediction whose images have arrived; a `Problem` if there are too many already."""
        if self.under_way >= self.limits.queue:
            raise busy("too many predictions are in progress")
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def predict(self, images: list[bytes], **asked: Any) -> dict[str, Any]:
        if not images:
            raise not_understood("there is no image in the request")
        served = self.live.served()
        try:
            async with asyncio.timeout(self.limits.seconds):
                pixels = await self.decoders.pixels(images, served.model.preprocessing)
                return await self.batcher.ask(Question(served, pixels, **asked))
        except TimeoutError:
            raise Problem(
                503, "Too slow", f"no answer within {self.limits.seconds:g} seconds; try again later", Retry_After="5"
            ) from None

    # --- updates

    def labels_for(self, names: list[str]) -> list[Any]:
        """The names as labels of the model's type: numbers if its classes are numbers."""
        served = self.live.current
        if served is None or isinstance(served.model.labels[0], str):
            if served is None and len(set(names)) < 2:
                raise not_understood("the first update needs images of at least two classes")
            return list(names)
        try:
            if isinstance(served.model.labels[0], bool):
                raise ValueError
            return [int(name) for name in names]
        except ValueError:
            raise not_understood("the classes of this model are numbers; name new ones by numbers") from None

    def load_before(self) -> Model | None:
        """The model before the last update, where it was kept."""
        versions = self.updates.store.versions()
        served = self.live.current
        if not versions or served is None or versions[-1] != last_update(served.model) - 1:
            return None
        return self._before(served.digest, versions[-1])

    def _load_before(self, digest: str, number: int) -> Model | None:
        try:
            return model_file.load(self.live.path.with_name(f"{self.live.path.name}.v{number}"), answering=True)
        except (UserError, OSError):
            return None
