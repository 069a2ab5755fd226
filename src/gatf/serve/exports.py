"""Files to download: opened once, so that a file that is replaced meanwhile does not mix with the old one, and exported
once per version of the model, one at a time."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.responses import Response

from gatf.errors import UserError
from gatf.serve.limits import busy, not_possible

CHUNK = 2**20


class OpenFile(Response):
    """The contents of a file as it was when the response was made."""

    media_type = "application/octet-stream"

    def __init__(self, path: Path, name: str) -> None:
        self.release: Callable[[], None] = lambda: None
        if not path.is_file():  # to open a pipe would wait for its writer
            raise not_possible(f"{path.name} is missing or no regular file")
        self.file = path.open("rb")
        length = os.fstat(self.file.fileno()).st_size
        plain = f'filename="{name}"' if quote(name) == name else f"filename*=utf-8''{quote(name)}"
        super().__init__(headers={"content-disposition": f"attachment; {plain}"})
        self.headers["content-length"] = str(length)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while chunk := await asyncio.to_thread(self.file.read, CHUNK):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.file.close()
            self.release()


class Exports:
    """Exports of the present model, in a temporary folder. An older model's export is replaced."""

    def __init__(self, parent: Callable[[], Path | None]) -> None:
        self.parent = parent
        """Where the folder is made; None stands for the system's place."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._keys: dict[str, str] = {}
        self._writing = threading.Lock()

    def get(self, name: str, key: str, write: Callable[[Path], Any]) -> OpenFile:
        """The file `name`, written by `write` unless it was written for the same `key` before."""
        if not self._writing.acquire(blocking=False):
            raise busy("another export is in progress")
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="gatf-", dir=self.parent())
            path = Path(self._folder.name) / name
            if self._keys.get(name) != key:
                self._keys.pop(name, None)
                path.unlink(missing_ok=True)  # who downloads it has it open
                write(path)
                self._keys[name] = key
            return OpenFile(path, name)
        except UserError as error:
            raise not_possible(str(error)) from None
        finally:
            self._writing.release()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
