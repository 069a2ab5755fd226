"""Whatever happened to a file: one sentence, or a right answer; in bounded time and memory, and nothing in it is run.

A few changed files for each reader here; `make fuzz` has 10 000 of them. Files that once did something else are kept in
`corpus`, in a folder for each reader, and are read every time.
"""

import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatf.errors import UserError
from gatf.experiment import start
from gatf.io.events import Epoch, Event

from .accidents import accident
from .readers import Reader, readers, small_run

NAMES = (
    "model", "old model", "checkpoint", "run", "report", "update", "config", "bench", "class order", "pictures", "npz",
    "cifar", "cub", "tiny", "parquet", "weights",
)  # fmt: skip
CORPUS = Path(__file__).parent / "corpus"
SECONDS, BYTES = 20, 2**30
"""What reading one small file may take; the memory is beyond what the process has already."""
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class")
PLAIN = ("_reconstruct", "ndarray", "dtype", "encode")
"""What NumPy's arrays are pickled with."""

pytestmark = pytest.mark.filterwarnings("ignore")
_watching: list[tuple[str, Any]] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event in FORBIDDEN and (event[0] != "p" or arguments[1] not in PLAIN):
        _watching.append((event, arguments))


sys.addaudithook(_audit)


@pytest.fixture(scope="module")
def every_reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    place = tmp_path_factory.mktemp("good")
    start(small_run(diagnostics=True), place / "run")

    def fail(event: Event) -> None:
        if isinstance(event, Epoch) and event.task == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        start(small_run(checkpoint_every=1), place / "interrupted", (fail,))
    found = readers(place / "run", place / "interrupted", Path(__file__).parents[1] / "old_models")
    assert tuple(reader.name for reader in found) == NAMES
    return {reader.name: reader for reader in found}


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory where there is one: writing the files would take longer than reading them."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        monkeypatch.setenv("GATF_CACHE", folder + "/cache")
        yield Path(folder)


@contextmanager
def limits() -> Iterator[None]:
    """Inside, memory beyond `BYTES` cannot be had, and what takes longer than `SECONDS` of the processor is ended."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"still reading after {SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, late)
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def read(reader: Reader, folder: Path) -> str | None:
    """What a reader did that it must not do, in a few words; None if it answered or refused as it should."""
    global _watching
    caught: list[tuple[str, Any]] = []
    try:
        with limits():
            _watching = caught
            try:
                reader.read(folder)
            finally:
                _watching = None
    except UserError as error:
        if "\n" in str(error).strip() or not str(error):
            return f"an error that is not one sentence: {error!r}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/gatf/" in frame.filename]
        place = ours[-1] if ours else where
        return f"{type(error).__name__} in {place.name} of {Path(place.filename).name}: {str(error)[:100]}"
    return f"it ran {caught[0]}" if caught else None


def restore(folder: Path, good: dict[Path, bytes]) -> None:
    """Put every file back as it was, and remove others."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder) not in good:
            path.unlink()
    for name, content in good.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


def prepared(reader: Reader, folder: Path) -> dict[Path, bytes]:
    folder.mkdir()
    reader.make(folder)
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_changed_files_are_refused_or_read_right(
    name: str, every_reader: dict[str, Reader], scratch: Path, pytestconfig: pytest.Config
) -> None:
    reader, folder = every_reader[name], scratch / "files"
    good = prepared(reader, folder)
    victims = [path.relative_to(folder) for path in sorted(folder.glob(reader.files)) if path.is_file()]
    assert read(reader, folder) is None
    draw = random.Random(f"fuzz {name}")
    failures: dict[str, str] = {}
    count = max(1, round(pytestconfig.getoption("--fuzz") * reader.share))
    for _ in range(count):
        restore(folder, good)
        victim = draw.choice(victims)
        content = accident(victim, good[victim], draw)
        (folder / victim).write_bytes(content)
        failure = read(reader, folder)
        kind = (failure or "").partition(":")[0]
        if failure is not None and kind not in failures:
            failures[kind] = failure
            keep(name, victim, content)
    print(f"\nfigure: {json.dumps({'fuzz': {'reader': name, 'files': count, 'failures': len(failures)}})}")  # noqa: T201
    assert not failures, f"kept in {CORPUS / name}: {failures}"


def keep(name: str, victim: Path, content: bytes) -> None:
    """Add a file to the corpus; its name says what it was a copy of."""
    place = CORPUS / name / hashlib.blake2b(content, digest_size=4).hexdigest()
    (place / victim).parent.mkdir(parents=True, exist_ok=True)
    (place / victim).write_bytes(content)


@pytest.mark.parametrize("name", NAMES)
def test_files_that_once_broke_a_reader_are_refused_or_read_right(
    name: str, every_reader: dict[str, Reader], scratch: Path
) -> None:
    reader, folder = every_reader[name], scratch / "files"
    good = prepared(reader, folder)
    for case in sorted((CORPUS / name).glob("*")):
        restore(folder, good)
        shutil.copytree(case, folder, dirs_exist_ok=True)
        assert read(reader, folder) is None, case.name
