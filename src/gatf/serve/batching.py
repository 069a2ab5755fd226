"""Requests share forward passes: the images that wait when a batch ends form the next one."""

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.errors import UserError
from gatf.model.predict import predictions_from
from gatf.model.state import ForwardOutput
from gatf.serve.decoding import settle
from gatf.serve.limits import busy, not_understood
from gatf.serve.live import Served, plain

LARGEST_BATCH = 32
"""Images; the others of a larger request follow in later batches, so that small requests need not wait for all."""
UNKNOWN = "\ue000unknown"
"""Stands for "unknown" between here and the answer, where it becomes null: no class has this name."""
NEAREST = 3


@dataclass(frozen=True)
class Question:
    """The images of a request, in the shape of one model, and its options."""

    served: Served
    pixels: Tensor
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

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.batches = self.images = self.waiting_images = 0
        self._waiting: deque[_Waiting] = deque()
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
        """The answer; a `Problem` if too many images wait already. A single image is always accepted: the number of
        predictions in progress bounds those, and requests with many images cannot keep them out."""
        waiting = _Waiting(question, asyncio.get_running_loop().create_future())
        count = len(question.pixels)
        with self._changed:
            if count > 1 and self.waiting_images and self.waiting_images + count > self.queue:
                raise busy("too many images wait for the network")
            self.waiting_images += count
            self._waiting.append(waiting)
            self._changed.notify()
        return await waiting.future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = self._next()
            self._answer(batch)

    def _next(self) -> list[tuple[_Waiting, slice]]:
        """The images of the next batch, all for one model. A quarter is for the oldest request; the requests with the
        fewest images come first in the rest."""
        for waiting in [waiting for waiting in self._waiting if waiting.future.cancelled()]:
            self._waiting.remove(waiting)
            self.waiting_images -= waiting.left
        if not self._waiting:
            return []
        oldest = self._waiting[0]
        same = [each for each in self._waiting if each.question.served is oldest.question.served]
        reserved = min(oldest.left, LARGEST_BATCH // 4)
        counts, room = {}, LARGEST_BATCH - reserved
        for number, waiting in sorted(enumerate(same[1:], 1), key=lambda item: item[1].left):
            counts[number] = min(waiting.left, room)
            room -= counts[number]
        counts[0] = min(oldest.left, reserved + room)
        batch = []
        for number, count in sorted(counts.items()):
            waiting = same[number]
            if count:
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
                "certified": bool(answers.certified[number]) if question.certificate else None,
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
