"""What `gatf run` on the digits spends its processor time on.

    python benchmarks/demo.py [--quick] [--out benchmarks/results/demo.json]

The command runs in a fresh process as it is typed, report included, with a clock around its parts. What one part does
inside another counts for the inner one alone: training is the steps without clipping, a refresh without the folding of
networks.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

PARTS = {
    "training": ("gatf.training.loop.train_phase",),
    "clipping gradients": ("gatf.training.loop._clip",),
    "finite or not": ("gatf.training.loop.check_finite", "gatf.training.divergence.all_finite"),
    "anchor refreshes": ("gatf.methods.gatf.GATF._refresh",),
    "folding networks": ("gatf.nets.folding.folded",),
    "class statistics and transport": ("gatf.methods.gatf.GATF.end_task",),
    "evaluation": ("gatf.experiment.Experiment.evaluate",),
    "reading the data": ("gatf.data.sources.open_source",),
    "files": (
        "gatf.io.files.write_bytes", "gatf.io.files.write_text", "gatf.io.events.JsonLines.__call__",
        "gatf.model.file.save", "gatf.training.checkpoint.save",
    ),
    "display": ("gatf.training.display.LiveDisplay.__call__",),
    "report": ("gatf.report.page.write_report",),
}  # fmt: skip
IMPORTS, REST = "starting Python, imports", "the rest"
TRAINING = "training"


class Clock:
    """Processor seconds of this process by part, each second in the innermost one."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self.seconds: Counter[str] = Counter({IMPORTS: now()})
        self.calls: Counter[str] = Counter()
        self._now, self._since, self._parts = now, now(), [REST]

    def _take(self) -> None:
        now = self._now()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is the part's."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._take()
            self._parts.append(part)
            self.calls[part] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._take()
                self._parts.pop()

        return timed

    def put_around(self, path: str, part: str) -> None:
        """Replace what a dotted path names, wherever it was imported to."""
        owner, name = _owner(path)
        plain = vars(owner)[name]
        timed = self.around(part, plain)
        setattr(owner, name, timed)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("gatf") and vars(module).get(name) is plain:
                setattr(module, name, timed)

    def finish(self) -> dict[str, float]:
        self._take()
        return dict(self.seconds)


def _owner(path: str) -> tuple[Any, str]:
    """The module or class that a dotted path's last part belongs to."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:-1]:
            owner = getattr(owner, name)
        return owner, parts[-1]
    raise ValueError(f"nothing is called {path}")


def run_here(folder: Path, *options: str) -> dict[str, Any]:
    """`gatf run` in this process; seconds and calls of its parts."""
    clock = Clock()
    loading: Any = importlib._bootstrap  # type: ignore[attr-defined]
    loading._find_and_load = clock.around(IMPORTS, loading._find_and_load)
    from gatf.cli import main as gatf

    for part, paths in PARTS.items():
        for path in paths:
            clock.put_around(path, part)
    sys.argv = ["gatf", "run", "--out", str(folder), *options]
    try:
        gatf()
    except SystemExit as end:
        if end.code:
            raise
    return {"seconds": clock.finish(), "calls": dict(clock.calls)}


def measure(options: tuple[str, ...]) -> dict[str, Any]:
    """The same in a fresh process, with the number of threads that a run chooses."""
    from harness import LIBRARIES  # not above: the process that is measured imports this file

    environment = {name: value for name, value in os.environ.items() if name not in LIBRARIES}
    with tempfile.TemporaryDirectory() as place:
        told = Path(place) / "told.json"
        command = [sys.executable, __file__, "--tell", str(told), str(Path(place) / "run"), *options]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        return found


def main() -> None:
    from harness import Report
    from harness import options as parsed

    arguments = parsed("demo", __doc__, threads=1)
    found = measure(("--epochs", "2") if arguments.quick else ())
    seconds = found["seconds"]
    order = [TRAINING, *sorted(set(seconds) - {TRAINING, REST}, key=lambda part: -seconds[part]), REST]
    report = Report(arguments, {
        "clock": "processor", "seconds": {part: seconds[part] for part in order}, "calls": found["calls"],
    })  # fmt: skip
    whole = sum(seconds.values())
    for part in order:
        print(f"{part:32s} {seconds[part]:8.3f} s {100 * seconds[part] / whole:5.1f} %", flush=True)
    print(f"{'in all':32s} {whole:8.3f} s", flush=True)
    report.write()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tell"]:
        written = Path(sys.argv[2])
        written.write_text(json.dumps(run_here(Path(sys.argv[3]), *sys.argv[4:])), encoding="utf-8")
    else:
        main()
