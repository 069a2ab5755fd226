"""The door: who may ask (host, origin, token), how much may be sent, and what every answer carries.

A page of another site that a person has open must not reach a server on their own machine: such requests carry an
`Origin`, and a name in `Host` that is not this machine's if the site's name was made to point here.
"""

import hmac
import ipaddress
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gatf.serve.limits import Limits, Problem, too_large
from gatf.serve.metrics import Metrics

LOG = logging.getLogger("gatf.serve")
OPEN = frozenset({"/healthz"})
"""Asked without a token: it tells nothing."""
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
    """Whether an address is one that only this machine reaches."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: Any, *, limits: Limits, metrics: Metrics, token: str | None, origins: tuple[str, ...],
        public: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token
        self.origins = frozenset(origin.rstrip("/") for origin in origins)
        self.public = public
        """Whether a path needs no token: the page, which asks for it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500
        told = False

        async def watched(message: Any) -> None:
            nonlocal status, told
            if message["type"] == "http.response.start":
                status, told = message["status"], True
                names = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in names)]
            await send(message)

        try:
            problem = self._refusal(scope)
            if problem is not None:
                await problem.response()(scope, receive, watched)
            else:
                await self.app(scope, self._bounded(scope, receive), watched)
        except Exception as error:
            where = _place(error)
            LOG.error("%s in %s", type(error).__name__, where)  # its message might hold what a client sent
            if not told:
                problem = Problem(500, "Internal error", "something unforeseen happened; the server's log has a line")
                await problem.response()(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - started
            self.metrics.observe(route, scope["method"] if scope["method"] in METHODS else "other", status, seconds)
            LOG.info("%s %s %d %.0f ms", scope["method"][:10], route, status, 1000 * seconds)

    def _refusal(self, scope: Any) -> Problem | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.token is None and not is_loopback(_hostname(host)):
            return Problem(421, "Wrong host", "this server answers under the name of this machine only")
        origin = headers.get(b"origin")
        if origin is not None and not self._same(origin, host):
            return Problem(403, "Cross-site request", "requests from pages of other sites are refused")
        if origin is None and headers.get(b"sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
            return Problem(403, "Cross-site request", "requests from pages of other sites are refused")
        path = scope["path"]
        if self.token is not None and path not in OPEN and not self.public(path) and scope["method"] != "OPTIONS":
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                return Problem(
                    401, "Token needed", "send the header 'Authorization: Bearer TOKEN' with this server's token",
                    WWW_Authenticate="Bearer",
                )  # fmt: skip
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > self._most(scope):
            return too_large(f"at most {self._most(scope)} bytes are taken")
        return None

    def _same(self, origin: str, host: str) -> bool:
        return origin in self.origins or urlsplit(origin).netloc.lower() == host.lower() != ""

    def _most(self, scope: Any) -> int:
        headers = dict(scope["headers"])
        streamed = headers.get(b"content-type", b"").startswith(b"multipart/form-data")
        return self.limits.update_bytes if streamed and scope["path"] == "/v1/updates" else self.limits.request_bytes

    def _bounded(self, scope: Any, receive: Any) -> Any:
        """`receive`, until too much has come."""
        seen, most = 0, self._most(scope)

        async def bounded() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > most:
                    raise too_large(f"at most {most} bytes are taken")
            return message

        return bounded


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
