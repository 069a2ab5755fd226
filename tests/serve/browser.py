"""A headless Chromium, spoken to in the DevTools protocol over two pipes: no package is needed for that."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip

LAUNCH = """
import fcntl, os, sys
hears, speaks = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3])
os.dup2(hears, 3)
os.dup2(speaks, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium listens at descriptor 3 and speaks at 4."""


class Page:
    """One tab."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        hears, self._speak = os.pipe()
        self._listen, speaks = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(hears), str(speaks), BROWSER, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(hears, speaks), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(hears)
        os.close(speaks)
        self._number, self._buffer = 0, b""
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors and warnings on the console, exceptions nobody caught, requests that left this machine."""
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._speak, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                if "error" in said:
                    raise AssertionError(f"{method}: {said['error']}")
                found: dict[str, Any] = said["result"]
                return found
            self._hear(said)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._listen, 1 << 16)
            if not data:
                raise AssertionError("the browser is gone")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def _hear(self, said: dict[str, Any]) -> None:
        reported = said.get("params", {})
        match said.get("method"):
            case "Runtime.consoleAPICalled" if reported["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(reported["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(reported["exceptionDetails"]))
            case "Log.entryAdded" if reported["entry"]["level"] in ("error", "warning"):
                self.complaints.append(reported["entry"]["text"])
            case "Network.requestWillBeSent":
                url = reported["request"]["url"]
                if not url.startswith(("http://127.0.0.1:", "blob:", "data:", "about:")):
                    self.complaints.append(f"asked {url}")

    def run(self, script: str) -> Any:
        """The value of an expression; promises are waited for."""
        found = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > until:
                words = self.run("document.body.innerText")
                raise AssertionError(f"never: {condition}\n{words}\n{self.complaints}")
            time.sleep(0.1)

    def visit(self, address: str) -> None:
        self("Page.navigate", url=address)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self("Emulation.setEmulatedMedia", features=features)

    def choose(self, selector: str, files: list[Path]) -> None:
        """Put files into a file input, as a person does with its dialog."""
        root = self("DOM.getDocument")["root"]["nodeId"]
        node = self("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._speak)
        os.close(self._listen)
