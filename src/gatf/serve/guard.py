"""Access control: who may send requests (host, origin, token), how much and how slowly, and the headers of responses.

A page of another site that the user has open must not reach a server on the user's machine. Its requests carry an
`Origin` or `Sec-Fetch-Site`, and a foreign name in `Host` if that site's name was made to point to this machine.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gatf.serve.limits import MEGABYTE, Budget, Limits, Problem, too_large, too_slow
from gatf.serve.metrics import Metrics

LOG = logging.getLogger("gatf.serve")
OPEN = frozenset({"/healthz"})
"""Needs no token."""
SMALL_BODY = MEGABYTE
"""Bytes of a body that do not count against the memory of all bodies, so that small requests always get in."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self' blob: data:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
)  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def client_of(scope: Any) -> str:
    """A name for the client of a request, by its address: uvicorn replaces that of a proxy on this machine by the one
    that `X-Forwarded-For` names. A client with IPv6 has a network of 2**64 addresses."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        return str(ipaddress.ip_interface(f"{host}/64").network) if ":" in host else host
    except ValueError:
        return host


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: Any, *, limits: Limits, metrics: Metrics, token: str | None, origins: tuple[str, ...],
        public: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token
        self.held = Budget(limits.held_bytes, "too many large requests are in progress")
        self.origins = frozenset(origin.rstrip("/") for origin in origins)
        self.public = public
        """Whether a path belongs to the page, which needs no token: it asks the user for it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, answered = time.monotonic(), 500, False
        body = _Body(receive, *self._most(scope), limits=self.limits, held=self.held, client=client_of(scope))

        async def watched(message: Any) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                names = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in names)]
            await send(message)

        try:
            problem = self._refusal(scope)
            if problem is not None:
                await problem.response()(scope, receive, watched)
            else:
                await self.app(scope, body, watched)
        except Exception as error:
            where = _place(error)
            LOG.error("%s in %s", type(error).__name__, where)  # its message might hold what a client sent
            if not answered:
                problem = Problem(500, "Internal error", "an unexpected error occurred; the server's log names it")
                await problem.response()(scope, receive, watched)
        finally:
            body.close()
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            self.metrics.observe(route, scope["method"] if scope["method"] in METHODS else "other", status, seconds)
            LOG.info("%s %s %d %.0f ms", scope["method"][:10], route, status, 1000 * seconds)

    def _refusal(self, scope: Any) -> Problem | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.token is None and not is_loopback(_hostname(host)):
            return Problem(421, "Wrong host", "this server answers under the name of this machine only")
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and not self._same(origin, host):
            return _cross_site()
        free = scope["path"] in OPEN or self.public(scope["path"])
        if origin is None and site in ("cross-site", "same-site") and not (free and scope["method"] in ("GET", "HEAD")):
            return _cross_site()
        if self.token is not None and not free and scope["method"] != "OPTIONS":
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                return Problem(
                    401, "Token needed", "send the header 'Authorization: Bearer TOKEN' with this server's token",
                    WWW_Authenticate="Bearer",
                )  # fmt: skip
        length, most = headers.get(b"content-length", "0"), self._most(scope)[0]
        if length.isdigit() and int(length[:20]) > most:
            return too_large(f"a request of this kind has at most {most} bytes")
        return None

    def _same(self, origin: str, host: str) -> bool:
        try:
            return origin in self.origins or urlsplit(origin).netloc.lower() == host.lower() != ""
        except ValueError:  # not an address
            return False

    def _most(self, scope: Any) -> tuple[int, bool]:
        """The bytes that a body may have, and whether it is kept in memory."""
        kind = dict(scope["headers"]).get(b"content-type", b"").lower()
        if not kind.startswith((b"multipart/form-data", b"application/octet-stream")):
            return min(self.limits.json_bytes, self.limits.request_bytes), True
        if scope["path"] == "/v1/updates":
            return self.limits.update_bytes, False
        return self.limits.request_bytes, True


class _Body:
    """`receive`, with bounds on the size of the body, on the memory of all bodies and on the time to wait for it."""

    def __init__(self, receive: Any, most: int, in_memory: bool, *, limits: Limits, held: Budget, client: str) -> None:
        self._client = client
        self._receive, self._most, self._limits = receive, most, limits
        self._held = held if in_memory else None
        self._seen, self._taken, self._waited, self._more = 0, 0, 0.0, True

    async def __call__(self) -> Any:
        if not self._more:
            return await self._receive()
        started = time.monotonic()
        allowed = self._limits.header_seconds + self._seen / self._limits.slowest
        try:
            async with asyncio.timeout(allowed - self._waited):
                message = await self._receive()
        except TimeoutError:
            raise too_slow() from None
        self._waited += time.monotonic() - started
        if message["type"] == "http.request":
            self._more = message.get("more_body", False)
            self._count(len(message.get("body", b"")))
        return message

    def _count(self, size: int) -> None:
        self._seen += size
        if self._seen > self._most:
            raise too_large(f"a request of this kind has at most {self._most} bytes")
        beyond = max(0, self._seen - SMALL_BODY)
        if self._held is not None and beyond > self._taken:
            self._held.take(beyond - self._taken, self._client)
            self._taken = beyond

    def close(self) -> None:
        if self._held is not None:
            self._held.give_back(self._taken, self._client)


def _cross_site() -> Problem:
    return Problem(403, "Cross-site request", "requests from pages of other sites are refused")


METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def _hostname(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host[1:].split("]")[0]
    return host.rsplit(":", 1)[0] if ":" in host else host


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
