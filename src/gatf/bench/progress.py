"""The live table of a bench: what is done, what is running and how far, numbers as they come in."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gatf import experiment
from gatf.bench.plan import PlannedRun
from gatf.bench.tables import Result, aggregate, spread
from gatf.training.events import Listener


class LiveTable:
    """Redrawn in place on a terminal; elsewhere a line for every finished run."""

    def __init__(self, runs: Sequence[PlannedRun], folder: Path, console: Console) -> None:
        self.runs, self.folder, self.console = runs, folder, console
        self.failures: dict[str, str] = {}
        self._summaries: dict[str, dict[str, Any]] = {}
        self._state: dict[str, str] = {}
        self._read: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._live: Live | None = None

    def __enter__(self) -> "LiveTable":
        if self.console.is_terminal:
            self._live = Live(console=self.console, get_renderable=self._table, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def results(self) -> list[Result]:
        """Of the finished runs, in the plan's order."""
        return [
            Result(run.setting, run.row, self._summaries[run.name]) for run in self.runs if run.name in self._summaries
        ]

    def known(self, run: PlannedRun) -> bool:
        """Take the summary of a run that was finished before; False if it was not."""
        path = self.folder / run.name / experiment.SUMMARY
        if not path.is_file():
            return False
        self._summaries[run.name] = json.loads(path.read_text(encoding="utf-8"))
        return True

    def started(self, run: PlannedRun) -> None:
        self._state[run.name] = "starting"

    def finished(self, run: PlannedRun) -> None:
        self._state.pop(run.name, None)
        self.known(run)
        summary = self._summaries[run.name]
        self._say(
            f"{len(self._summaries)}/{len(self.runs)} {run.name}: A_last {summary['a_last']:.1f} %, "
            f"A_inc {summary['a_inc']:.1f} %, {summary['total_seconds']:.0f} s"
        )

    def failed(self, run: PlannedRun, why: str) -> None:
        self._state.pop(run.name, None)
        self.failures[run.name] = why
        self._say(f"{run.name} failed: {why}", anyway=True)

    def listener(self, run: PlannedRun) -> Listener:
        """For a run in this process."""

        def hear(kind: str, /, **fields: Any) -> None:
            self._hear(run.name, kind, fields)

        return hear

    def tick(self) -> None:
        """For runs in other processes: read on in the events they write."""
        if self._live is None:
            return
        for name in self._state:
            path = self.folder / name / experiment.EVENTS
            if not path.is_file() or path.stat().st_size <= self._read.get(name, 0):
                continue
            with path.open(encoding="utf-8") as file:
                file.seek(self._read.get(name, 0))
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self._read[name] = file.tell()
                    event = json.loads(line)
                    self._hear(name, event.pop("event"), event)

    def _hear(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        if kind == "run_start":
            self._tasks[name] = fields["tasks"]
        elif "task" in fields:
            epoch = f", epoch {fields['epoch'] + 1}" if "epoch" in fields else ""
            self._state[name] = f"task {fields['task'] + 1}/{self._tasks.get(name, '?')}{epoch}"

    def _say(self, text: str, anyway: bool = False) -> None:
        if self._live is None or anyway:
            self.console.print(text, highlight=False)

    def _table(self) -> Table:
        done = aggregate(self.results)
        numbers = {(row["setting"], row["row"]): row for row in done}
        table = Table(
            header_style="bold", title=f"{len(self._summaries)} of {len(self.runs)} runs", title_justify="left"
        )
        for name in ("setting", "method", "done", "A_last %", "A_inc %", "now"):
            table.add_column(name, justify="left" if name in ("setting", "method", "now") else "right")
        for setting, name in dict.fromkeys((run.setting, run.row) for run in self.runs):
            members = [run for run in self.runs if (run.setting, run.row) == (setting, name)]
            row = numbers.get((setting, name))
            shown = [spread(row[key], row[f"{key}_std"]) if row else "" for key in ("a_last", "a_inc")]
            now = [f"seed {run.config.seed}: {self._state[run.name]}" for run in members if run.name in self._state]
            count = f"{sum(run.name in self._summaries for run in members)}/{len(members)}"
            table.add_row(setting, name, count, *shown, "; ".join(now))
        return table
