"""Files and rounding that the experiments share."""

import json
from pathlib import Path
from typing import Any

import torch

from gatf.io.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RECORDS, RESULTS = ROOT / "experiments" / "results", ROOT / "results"


def load(name: str, empty: Any) -> Any:
    """The record of an experiment, or `empty` if there is none yet."""
    path = RECORDS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty


def save(name: str | Path, value: Any) -> None:
    """Write a record: by name into `experiments/results`, or to a path. Records that are lists get a line per entry."""
    path = name if isinstance(name, Path) else RECORDS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, list):
        text = "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]\n"
    else:
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_text(path, text)


def beside_bench(run: Path, name: str) -> Path:
    """Where the result of a run in a bench folder is committed: `results/<bench>/<name>.json`."""
    return RESULTS / run.resolve().parent.name.removeprefix("bench-") / f"{name}.json"


def rounded(value: Any, digits: int = 5) -> Any:
    """Floating-point numbers with this many significant digits, in nested lists and dictionaries."""
    if isinstance(value, dict):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def one_thread() -> None:
    """Results depend on the number of threads, so every experiment uses one."""
    torch.set_num_threads(1)
