"""Bounds on connections: how many there are, turns in parsing, time for headers, clients that do not read, messages in
the log."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from gatf.serve.limits import Limits

RESERVED_DESCRIPTORS = 128
"""File descriptors for everything but connections."""
MESSAGES, MINUTE = 10, 60.0
PIECE, BODY_PIECE, TURN = 4096, 65536, 0.002
"""Bytes that are parsed at once, also of a body of known length, and seconds after which it is the turn of another
client: parsing chunks or headers of a few bytes takes a thousand times as long as receiving them."""


class Turns:
    """Steps in the event loop. Between two of them the loop does everything else, and clients take turns."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def add(self, client: str, step: Callable[[], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.setdefault(client, deque()).append(step)

    def _next(self) -> None:
        client = next(iter(self._waiting))
        steps = self._waiting.pop(client)
        step = steps.popleft()
        if steps:
            self._waiting[client] = steps  # behind all others
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        step()


class _Flow(FlowControl):
    """Receives nothing while something received waits to be parsed."""

    parsing = False

    def resume_reading(self) -> None:
        self.read_paused = False
        if not self.parsing:
            self._transport.resume_reading()


def protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol with these limits: it has a timeout for idle connections, but none for half-sent headers.

    A connection that waits for the headers of a request has `header_seconds`, and so has a client that does not read
    its response. When there are too many connections, one of the address with the most is closed: the one that has
    waited longest for a request, else the newest. Clients take turns in parsing what they have sent.
    """
    most, turns = most_connections(limits), Turns()

    class BoundedProtocol(H11Protocol):
        waiting_since = 0.0
        _timer: asyncio.TimerHandle | None = None

        @property
        def host(self) -> str:
            return self.client[0] if self.client else ""

        @property
        def waited(self) -> float:
            """Orders connections: the longest idle one is the largest, or the newest one with a request."""
            return -self.waiting_since if self.waits else self.waiting_since

        @property
        def waits(self) -> bool:
            """Whether no request is in progress."""
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow: _Flow = _Flow(transport)
            self._received = bytearray()
            self.waiting_since = time.monotonic()
            self._start_timer()
            if len(self.connections) > most:
                ours = [each for each in self.connections if isinstance(each, BoundedProtocol)]
                counts = Counter(each.host for each in ours)
                closed = max(ours, key=lambda each: (counts[each.host], each.waits, each.waited))
                self.connections.discard(closed)
                closed.transport.abort()

        def data_received(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            self._received += data
            if not self.flow.parsing:
                self.flow.parsing = True
                self.transport.pause_reading()
                turns.add(self.host, self._parse)

        def _parse(self) -> None:
            end = time.monotonic() + TURN
            while self._received and not self.transport.is_closing():
                size = max(PIECE, min(BODY_PIECE, getattr(self.conn._reader, "_remaining", 0)))
                piece = bytes(self._received[:size])
                del self._received[:size]
                super().data_received(piece)
                if self._received and time.monotonic() > end:
                    turns.add(self.host, self._parse)
                    break
            else:
                self.flow.parsing = False
                if not self.flow.read_paused:
                    self.flow.resume_reading()
            if not self.waits:
                self._stop_timer()

        def on_response_complete(self) -> None:
            self.waiting_since = time.monotonic()
            self._start_timer()
            super().on_response_complete()
            if not self.waits:  # the next request had arrived already
                self._stop_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._start_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.waits:
                self._stop_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _start_timer(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol


def most_connections(limits: Limits) -> int:
    """As many as the limits allow and the system has file descriptors for."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return limits.connections
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return limits.connections
    return max(1, min(limits.connections, descriptors - RESERVED_DESCRIPTORS))


class Seldom(logging.Filter):
    """Passes at most ten warnings or errors of one kind per minute, so that clients cannot fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[Any, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind = record.name, record.lineno, str(record.msg)[:80]
        since, count = self._seen.get(kind, (0.0, 0))
        if record.created - since > MINUTE:
            since, count = record.created, 0
            self._seen = {key: seen for key, seen in self._seen.items() if record.created - seen[0] <= MINUTE}
        self._seen[kind] = since, count + 1
        if count + 1 == MESSAGES:
            record.msg = f"{record.msg} (more of these are not logged for a minute)"
        return count < MESSAGES
