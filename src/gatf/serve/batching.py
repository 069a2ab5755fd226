"""Many requests, one look: what waits when a batch ends forms the next."""

import asyncio
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gatf.data.base import ImageSet
from gatf.errors import UserError
from gatf.model.answers import answer
from gatf.model.state import ForwardOutput
from gatf.serve.limits import busy, not_understood
from gatf.serve.live import Served, plain

LARGEST_BATCH = 64
"""Images; a request with more is a batch of its own."""
UNKNOWN = "\ue000unknown"
"""Stands for "unknown" between here and the answer, where it becomes null: no class has this name."""
NEAREST = 3


@dataclass(frozen=True)
class Question:
    """What is asked of some images, and by which model, for pixels are in its shape."""

    served: Served
    pixels: Tensor
    top: int = 1
    certificate: bool = False
    unknown: float | None = None
    explain: bool = False


@dataclass
class _Waiting:
    question: Question
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[dict[str, Any]]" = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def settle(self, result: dict[str, Any] | Exception) -> None:
        def put() -> None:
            if self.future.done():
                return
            if isinstance(result, Exception):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)

        self.loop.call_soon_threadsafe(put)


class Batcher:
    """One thread that answers all there is to answer, again and again."""

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
        """Answer what waits, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    async def ask(self, question: Question) -> dict[str, Any]:
        """The answer; a `Problem` if too many images wait already."""
        waiting = _Waiting(question, asyncio.get_running_loop())
        count = len(question.pixels)
        with self._changed:
            if self.waiting_images and self.waiting_images + count > self.queue:
                raise busy("too many images wait for an answer")
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

    def _next(self) -> list[_Waiting]:
        """From the front of the queue, as many as fit that ask the same model."""
        batch: list[_Waiting] = []
        count = 0
        while self._waiting:
            question = self._waiting[0].question
            if batch and (question.served is not batch[0].question.served):
                break
            if batch and count + len(question.pixels) > LARGEST_BATCH:
                break
            batch.append(self._waiting.popleft())
            count += len(question.pixels)
        self.waiting_images -= count
        return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        wanted = [waiting for waiting in batch if not waiting.future.cancelled()]
        if not wanted:
            return
        try:
            pixels = torch.cat([waiting.question.pixels for waiting in wanted])
            model = wanted[0].question.served.model
            outputs = model.forward(ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64)))
        except Exception as error:
            for waiting in wanted:
                waiting.settle(error)
            return
        self.batches += 1
        self.images += len(pixels)
        start = 0
        for waiting in wanted:
            end = start + len(waiting.question.pixels)
            features = None if outputs.features is None else outputs.features[start:end]
            try:
                waiting.settle(answered(waiting.question, ForwardOutput(outputs.scores[start:end], features)))
            except UserError as error:
                waiting.settle(not_understood(str(error)))
            except Exception as error:
                waiting.settle(error)
            start = end


def answered(question: Question, outputs: ForwardOutput) -> dict[str, Any]:
    """What is said of a question's images, from one look at them."""
    model = question.served.model
    answers = answer(
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
    """Where the images lie among the classes: the nearest ones, and the place on the plane that `GET /v1/map` draws."""
    model = question.served.model
    if outputs.features is None:
        _ = model.judge  # says what is missing
        raise UserError("this method keeps no Gaussians")
    distances = model.judge.distances(outputs.features)
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
