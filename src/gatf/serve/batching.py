"""Requests share forward passes: the images that wait when a batch ends form the next one."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.errors import UserError
from gatf.model.predict import predictions_from
from gatf.model.state import ForwardOutput
from gatf.serve.decoding import settle
from gatf.serve.limits import not_understood
from gatf.serve.live import Served, plain

LARGEST_BATCH = 32
"""Images; the others of a larger request follow in later batches, so that small requests need not wait for all."""
LARGEST_BATCH_PIXELS = 4 * 224 * 224
"""Pixels per batch, those of four photos: other clients wait while the network computes a batch."""
LARGEST_BATCH_VECTORS = 1024
UNKNOWN = "\ue000unknown"
"""Stands for "unknown" between here and the answer, where it becomes null: no class has this name."""
NEAREST = 3


def largest_batch(pixels: Tensor) -> int:
    """Images per batch for images of this shape, [N, C, H, W], or vectors [N, D]."""
    if pixels.ndim == 2:
        return LARGEST_BATCH_VECTORS
    height, width = pixels.shape[-2:]
    return max(1, min(LARGEST_BATCH, LARGEST_BATCH_PIXELS // (height * width)))


@dataclass(frozen=True)
class Question:
    """The images of a request, in the shape of one model, and its options."""

    served: Served
    pixels: Tensor
    client: str = ""
    top: int = 1
    certificate: bool = False
    unknown: float | None = None
    explain: bool = False


@dataclass(eq=False)
class _Waiting:
    question: Question
    future: "asyncio.Future[dict[str, Any]]"
    taken: int = 0
    """Images that are in a batch, or were."""
    outputs: list[ForwardOutput] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.question.pixels) - self.taken


class Batcher:
    """A thread that computes predictions, one batch after another."""

    def __init__(self) -> None:
        self.batches = self.images = self.waiting_images = 0
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gatf-batches", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer the requests that wait, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    async def ask(self, question: Question) -> dict[str, Any]:
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        with self._changed:
            self.waiting_images += len(question.pixels)
            self._waiting.append(waiting)
            self._changed.notify()
        try:
            return await waiting.future
        finally:
            del waiting  # as in `decoding.Lane.run`

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = self._next()
            self._answer(batch)
            del batch  # while this thread waits, it keeps no images

    def _next(self) -> list[tuple[_Waiting, slice]]:
        """The images of the next batch, all for one model. Clients take turns, and so do the requests of a client."""
        for waiting in [waiting for waiting in self._waiting if waiting.future.cancelled()]:
            self._waiting.remove(waiting)
            self.waiting_images -= waiting.left
        if not self._waiting:
            return []
        same = [each for each in self._waiting if each.question.served is self._waiting[0].question.served]
        most = largest_batch(same[0].question.pixels)
        turns: Counter[str] = Counter()
        order = []
        images = ((place, number) for number, each in enumerate(same) for place in range(min(each.left, most)))
        for place, number in sorted(images):
            client = same[number].question.client
            order.append((turns[client], place, number))
            turns[client] += 1
        counts = Counter(number for _, _, number in sorted(order)[:most])
        batch = []
        for number, count in sorted(counts.items()):
            waiting = same[number]
            batch.append((waiting, slice(waiting.taken, waiting.taken + count)))
            waiting.taken += count
            self.waiting_images -= count
            if not waiting.left:
                self._waiting.remove(waiting)
        return batch

    def _answer(self, batch: list[tuple[_Waiting, slice]]) -> None:
        if not batch:
            return
        try:
            pixels = torch.cat([waiting.question.pixels[part] for waiting, part in batch])
            model = batch[0][0].question.served.model
            outputs = model.forward(ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64)))
        except Exception as error:
            for waiting, _ in batch:
                self._give_up(waiting, error)
            return
        self.batches += 1
        self.images += len(pixels)
        start = 0
        for waiting, part in batch:
            end = start + part.stop - part.start
            features = None if outputs.features is None else outputs.features[start:end]
            waiting.outputs.append(ForwardOutput(outputs.scores[start:end], features))
            start = end
            if waiting.left:
                continue
            try:
                settle(waiting.future, answered(waiting.question, joined(waiting.outputs)))
            except UserError as error:
                settle(waiting.future, not_understood(str(error)))
            except Exception as error:
                settle(waiting.future, error)

    def _give_up(self, waiting: _Waiting, error: Exception) -> None:
        """Give up a request, and its images that are in no batch yet."""
        settle(waiting.future, error)
        with self._changed:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self.waiting_images -= waiting.left


def joined(parts: list[ForwardOutput]) -> ForwardOutput:
    features = [part.features for part in parts if part.features is not None]
    return ForwardOutput(torch.cat([part.scores for part in parts]), torch.cat(features) if features else None)


def answered(question: Question, outputs: ForwardOutput) -> dict[str, Any]:
    """The response to a request, from the outputs of the forward pass."""
    model = question.served.model
    answers = predictions_from(
        model, outputs, certificate=question.certificate, unknown=question.unknown, unknown_label=UNKNOWN
    )  # fmt: skip
    order = answers.probabilities.argsort(axis=1, kind="stable")[:, ::-1][:, : question.top]
    near = _nearest(question, outputs) if question.explain else None
    certifies = question.certificate and question.served.certifies
    rows = []
    for number, label in enumerate(answers.labels.tolist()):
        unknown = label == UNKNOWN
        best = [
            {"label": model.labels[place], "probability": round(float(answers.probabilities[number, place]), 6)}
            for place in order[number].tolist()
        ]
        rows.append(
            {
                "label": None if unknown else plain(label),
                "probability": best[0]["probability"],
                "unknown": unknown,
                "certified": bool(answers.certified[number]) if certifies else None,
                "top": best,
                "why": None if near is None else near[number],
            }
        )
    return {"model": question.served.digest, "answers": rows, "note": answers.warning}


def _nearest(question: Question, outputs: ForwardOutput) -> list[dict[str, Any]]:
    """The nearest classes of each image, and its position on the plane of `GET /v1/map`."""
    model = question.served.model
    if outputs.features is None:
        _ = model.stored  # raises an error that says what is missing
        raise UserError("this method keeps no Gaussians")
    distances = model.novelty_scorer.distances(outputs.features)
    points = question.served.plane(outputs.features).tolist()
    found = []
    for row, point in zip(distances, points, strict=True):
        nearest = row.argsort()[:NEAREST].tolist()
        found.append(
            {
                "nearest": [
                    {"label": model.labels[place], "distance": round(float(row[place].clamp_min(0).sqrt()), 4)}
                    for place in nearest
                ],
                "point": [round(value, 5) for value in point],
            }
        )
    return found
