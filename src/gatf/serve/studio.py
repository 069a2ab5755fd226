"""The parts of a running server."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from gatf.data.vectors import as_vectors, checked
from gatf.errors import UserError
from gatf.model import file as model_file
from gatf.model.predict import check_vectors
from gatf.model.state import Model
from gatf.serve import schemas
from gatf.serve.atlas import last_update
from gatf.serve.batching import Batcher, Question
from gatf.serve.decoding import Decoders
from gatf.serve.exports import Exports
from gatf.serve.limits import Budget, Limits, Problem, not_understood, too_large
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
        self.batcher = Batcher()
        self.updates = Updates(
            self.live.path, parameters=options.parameters, keep=options.keep, limits=self.limits,
            refresh=self.live.refresh,
        )  # fmt: skip
        self.exports = Exports(lambda: self.updates.folder if self.updates.closed is None else None)
        self.decoders = Decoders(self.limits)
        self.streams = 0
        """Event streams that are open."""
        self.under_way = Budget(self.limits.queue, "too many predictions are in progress")
        """Predictions whose images have arrived."""
        self.images = Budget(self.limits.images, "too many predictions with several images are in progress")
        """Their images, of those that have several: a single image is always accepted."""
        self.downloads = Budget(self.limits.downloads, "too many downloads are in progress")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the server has been asked to end: streams close then."""
        self._before = lru_cache(maxsize=1)(self._load_before)

    def open(self) -> None:
        self.live.open()
        self.batcher.open()
        self.updates.open()

    def close(self) -> None:
        self.exports.close()
        self.updates.close()
        self.batcher.close()
        self.live.close()
        self.decoders.close()

    # --- prediction

    def turn(self, client: str) -> asyncio.Lock:
        """For the work of a client in the event loop, one piece at a time."""
        return self._turns.setdefault(client, asyncio.Lock())

    async def predict(
        self, images: "list[bytes] | schemas.PredictBody", client: str, *, top: int, **asked: Any
    ) -> dict[str, Any]:
        """Predictions of encoded images, or of the vectors in a body."""
        served, vectors = self.live.served(), None
        if isinstance(images, schemas.PredictBody):
            served.check_takes_vectors()
            body, images = images, []
            vectors = await self.decoders.requests.once(
                client, 10.0 * sum(map(len, body.vectors)), lambda: self.vectors(served.model, body)
            )
        elif served.model.preprocessing.takes_vectors:
            raise not_understood('this model classifies vectors: send JSON, {"vectors": [[...], ...]}')
        elif not images:
            raise not_understood("there is no image in the request")
        count = len(images) if vectors is None else 1
        if (count if vectors is None else len(vectors)) * min(top, len(served.model.labels)) > self.limits.answers:
            raise too_large(f"images or vectors times 'top' may be {self.limits.answers} at most")
        several = self.images.taken(count, client) if count > 1 else nullcontext()
        try:
            with self.under_way.taken(1, client), several:
                async with asyncio.timeout(self.limits.seconds):
                    pixels = vectors
                    if pixels is None:
                        pixels = await self.decoders.pixels(images, served.model.preprocessing, client)
                    return await self.batcher.ask(Question(served, pixels, client, top, **asked))
        except TimeoutError:
            raise Problem(
                503, "Too slow", f"no prediction within {self.limits.seconds:g} s; try again later", Retry_After="5"
            ) from None

    @staticmethod
    def vectors(model: Model, body: "schemas.PredictBody") -> Tensor:
        """The vectors of a prediction, [N, D]."""
        try:
            found = checked(as_vectors(body.vectors))
            check_vectors(model, found.shape[1], body.encoder)
        except UserError as error:
            raise not_understood(str(error)) from None
        return found

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
