"""Decoding in threads, one image at a time: the request with the least work goes first, and large ones have a thread of
their own, so that they do not hold up small ones. Nothing is decoded that its header shows to be too expensive."""

import asyncio
import os
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatf.data.preprocessing import Preprocessing
from gatf.serve.limits import Budget, Limits, too_large
from gatf.serve.pictures import check_image, decoding

SMALL_IMAGE, SMALL_REQUEST = 4_000_000, 16_000_000
"""Work, in pixels of a PNG file; a JPEG photo of twelve million pixels counts as three."""


def settle(future: "asyncio.Future[Any]", result: Any) -> None:
    """Give a future its result, or its exception, from another thread."""

    def put() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    future.get_loop().call_soon_threadsafe(put)


@dataclass(eq=False)
class _Task:
    work: float
    steps: Generator[None, None, Tensor]
    future: "asyncio.Future[Tensor]"


class Lane:
    """Threads that work on the tasks with the least work first, and change between tasks after each image."""

    def __init__(self, name: str, *, threads: int, most: float) -> None:
        self.budget = Budget(most, "too many images wait to be decoded")
        self._tasks: list[_Task] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=f"gatf-{name}", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def run(self, work: float, steps: Generator[None, None, Tensor]) -> Tensor:
        """The result of the steps. When the caller gives up, no further step begins."""
        self.budget.take(work)
        task = _Task(work, steps, asyncio.get_running_loop().create_future())
        try:
            self._add(task)
            return await task.future
        finally:
            self.budget.give_back(work)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _add(self, task: _Task) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                task = min(self._tasks, key=lambda task: task.work)
                self._tasks.remove(task)
            if task.future.done():
                continue
            try:
                next(task.steps)
            except StopIteration as end:
                settle(task.future, end.value)
            except Exception as error:
                settle(task.future, error)
            else:
                self._add(task)


class Decoders:
    """Two lanes: one for large images and for requests with many, one for all others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.small = Lane("decode", threads=max(2, os.cpu_count() or 1), most=4 * SMALL_REQUEST)
        self.large = Lane("decode-large", threads=1, most=limits.request_pixels)

    async def pixels(self, images: list[bytes], wanted: Preprocessing) -> Tensor:
        """The images of one request, in the model's shape, uint8 [N, C, H, W]."""
        largest, work = await asyncio.to_thread(self._measure, images)
        lane = self.small if largest <= SMALL_IMAGE and work <= SMALL_REQUEST else self.large
        return await lane.run(work, decoding(images, wanted))

    def _measure(self, images: list[bytes]) -> tuple[float, float]:
        """The work for the largest image and for all; a `Problem` if it is too much."""
        work = [check_image(data, f"image {number}", self.limits).work for number, data in enumerate(images)]
        if sum(work) > self.limits.request_pixels:
            raise too_large(f"the images of a prediction have at most {self.limits.request_pixels} pixels together")
        return max(work), sum(work)

    def close(self) -> None:
        self.small.close()
        self.large.close()
