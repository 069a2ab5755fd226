"""Start a server, print its address and shut it down gracefully."""

import asyncio
import logging
import socket
import sys
import webbrowser
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI
from PIL import Image

from gatf.data.decode import careful_pillow
from gatf.errors import UserError
from gatf.serve.app import build
from gatf.serve.connections import Seldom, most_connections, protocol
from gatf.serve.guard import is_loopback
from gatf.serve.limits import Limits
from gatf.serve.studio import Options

SHORTEST_TOKEN = 16
SECONDS_TO_FINISH = 30
SWITCH = 0.0005
"""Seconds after which a thread that computes lets another one run. A prediction asks for its turn hundreds of times,
and Python's default of 5 ms would let a client with many small chunks delay it by seconds."""
BACKLOG = 64
"""Connections that the event loop accepts at once; `connections.RESERVED_DESCRIPTORS` allows for them."""


class _Server(uvicorn.Server):
    """uvicorn's server; it closes event streams at once when it shuts down."""

    ending = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ending = True
        super().handle_exit(sig, frame)


def config(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """uvicorn's settings, with its limits and ours."""
    return uvicorn.Config(
        app, access_log=False, log_level="warning", log_config=None, server_header=False, lifespan="on", ws="none",
        http=protocol(limits), limit_concurrency=most_connections(limits) + 1, timeout_keep_alive=5, backlog=BACKLOG,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
    )  # fmt: skip


def run(options: Options, *, host: str, port: int, browser: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, which let requests and the current training step finish."""
    check_address(host, options.token)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Seldom())
    listening = _bind(host, port)
    app, studio = build(options)
    server = _Server(config(app, options.limits))
    studio.stopping = lambda: server.ending
    sys.setswitchinterval(SWITCH)
    Image.MAX_IMAGE_PIXELS = options.limits.pixels
    with careful_pillow():  # not thread-safe, so once for all threads
        studio.open()
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        print(f"gatf {'studio' if options.page else 'serve'}: {address}", flush=True)  # noqa: T201
        if browser:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # which uvicorn raises again when it has ended well
            asyncio.run(server.serve(sockets=[listening]))


def check_address(host: str, token: str | None) -> None:
    """An address that other machines can reach needs a token."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"the token is too easy to guess: it needs at least {SHORTEST_TOKEN} plain characters "
            '(python -c "import secrets; print(secrets.token_urlsafe())" makes one)'
        )
    if token is None and not is_loopback(host):
        raise UserError(
            f"other machines can reach {host}, so a token is needed: put one into GATF_TOKEN or a file for "
            "--token-file; clients send it in the header 'Authorization: Bearer TOKEN'"
        )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)  # early clients wait for the server instead of being refused
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port} ({error.strerror}); choose another --port") from None
    return listening
