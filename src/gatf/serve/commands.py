"""Commands of gatf that the server runs as processes: torch cannot export a model while other threads use one."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gatf.io.text import harmless
from gatf.serve.limits import Problem, not_possible


def run_gatf(
    command: str, *paths: Path, failed: str, seconds: float, options: Sequence[str] = (), words: Sequence[str] = ()
) -> str:
    """Run `gatf COMMAND OPTIONS PATHS WORDS` and return its output; its error becomes a `Problem` without folder names,
    and so does a timeout."""
    given = [sys.executable, "-m", "gatf", command, *options, *map(str, paths), *(["--", *words] if words else [])]
    try:
        done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Problem(503, "Too slow", f"{failed}: it took more than {seconds:g} seconds", Retry_After="60") from None
    if done.returncode:
        lines = [line.removeprefix("gatf: ") for line in done.stderr.splitlines() if line.startswith("gatf: ")]
        raise not_possible(without_folders(lines[-1], *paths) if lines else failed)
    return without_folders(done.stdout.strip(), *paths)


def without_folders(text: str, *paths: Path) -> str:
    """A message for clients: it names files, but not the folders that they are in."""
    folders = {f"{found.parent}/" for path in paths for found in (path, path.absolute())} - {"./"}
    for folder in sorted(folders, key=len, reverse=True):  # the images of an update are in a folder beside the model
        text = text.replace(folder, "")
    return harmless(text)
