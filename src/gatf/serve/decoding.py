"""Work in threads, one step at a time: clients take turns, and the request with the least work goes first. Large images
have a thread of their own, and so have parsing and descriptions of the model. Nothing is decoded that its header shows
to be too expensive."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image
from torch import Tensor

from gatf.data.preprocessing import Preprocessing
from gatf.serve.limits import Budget, Limits, too_large
from gatf.serve.pictures import check_image, decoding

SMALL_IMAGE, SMALL_REQUEST = 4_000_000, 16_000_000
"""Work, in pixels of a PNG file; a JPEG photo of twelve million pixels counts as three."""
T = TypeVar("T")


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
    client: str
    work: float
    step: float
    """The work of one step, on average."""
    steps: Generator[None, None, Any]
    future: "asyncio.Future[Any]"


class Lane:
    """Threads that do one step of a task at a time, such as decoding an image. The client for whom the least work was
    done is next, and of its tasks the one with the least work."""

    def __init__(self, name: str, *, threads: int = 1, most: float = float("inf")) -> None:
        self.budget = Budget(most, "too many images wait to be decoded")
        self._tasks: list[_Task] = []
        self._now = 0.0
        self._spent: dict[str, float] = {}
        """Work done for the clients that had more than the one whose turn it is, who has `_now`."""
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=f"gatf-{name}", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def run(self, client: str, work: float, count: int, steps: Generator[None, None, T]) -> T:
        """The result of `count` steps. When the caller gives up, no further step begins."""
        with self.budget.taken(work, client):
            task = _Task(client, work, work / count, steps, asyncio.get_running_loop().create_future())
            self._add(task)
            try:
                result: T = await task.future
                return result
            finally:
                self._drop(task)
                del task  # an error's traceback has this frame: a cycle of references, which would keep the images

    async def once(self, client: str, work: float, make: Callable[[], T]) -> T:
        """The result of a function, which is one step."""

        def step() -> Generator[None, None, T]:
            return make()
            yield  # makes this a generator

        return await self.run(client, work, 1, step())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _add(self, task: _Task) -> None:
        with self._changed:
            if not task.future.done():
                self._tasks.append(task)
                self._changed.notify()

    def _drop(self, task: _Task) -> None:
        with self._changed:
            if task in self._tasks:
                self._tasks.remove(task)

    def _next(self) -> _Task:
        task = min(self._tasks, key=lambda task: (self._spent.get(task.client, self._now), task.work))
        self._tasks.remove(task)
        self._now = self._spent.get(task.client, self._now)
        self._spent = {client: spent for client, spent in self._spent.items() if spent > self._now}
        self._spent[task.client] = self._now + task.step
        return task

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                task = self._next()
            self._do(task)
            del task  # while this thread waits, it keeps no images

    def _do(self, task: _Task) -> None:
        """One step, unless the caller has given up."""
        if task.future.done():
            return
        try:
            next(task.steps)
        except StopIteration as end:
            settle(task.future, end.value)
        except Exception as error:
            settle(task.future, error)
        else:
            self._add(task)


class Decoders:
    """Three lanes: one for everything but decoding, one for large images and for requests with many, one for all
    others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        Image.init()  # loading Pillow's readers is no part of the first image's time
        self.requests = Lane("requests")
        self.small = Lane("decode", threads=max(2, os.cpu_count() or 1), most=4 * SMALL_REQUEST)
        self.large = Lane("decode-large", most=limits.request_pixels)

    async def pixels(self, images: list[bytes], wanted: Preprocessing, client: str = "") -> Tensor:
        """The images of one request, in the model's shape, uint8 [N, C, H, W]."""
        work = await self.requests.run(client, sum(map(len, images)), len(images), self._measuring(images))
        lane = self.small if max(work) <= SMALL_IMAGE and sum(work) <= SMALL_REQUEST else self.large
        return await lane.run(client, sum(work), len(images), decoding(images, work, wanted))

    def _measuring(self, images: list[bytes]) -> Generator[None, None, list[float]]:
        """The work for each image; a `Problem` if it is too much."""
        work = []
        for number, data in enumerate(images):
            work.append(check_image(data, f"image {number}", self.limits).work)
            yield
        if sum(work) > self.limits.request_pixels:
            raise too_large(f"the images of a prediction have at most {self.limits.request_pixels} pixels together")
        return work

    def close(self) -> None:
        for lane in (self.requests, self.small, self.large):
            lane.close()
