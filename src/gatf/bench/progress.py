"""The live table of a bench: its running jobs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gatf.bench.plan import PlannedRun
from gatf.bench.tables import Result
from gatf.io import events
from gatf.io.events import Event, Listener, read_events
from gatf.io.run_folder import RunFolder, Summary
from gatf.io.text import harmless


class LiveTable:
    """Redrawn in place on a terminal; otherwise one line per finished run."""

    def __init__(self, runs: Sequence[PlannedRun], folder: Path, console: Console) -> None:
        self.runs, self.folder, self.console = runs, folder, console
        self.failures: dict[str, str] = {}
        self._summaries: dict[str, Summary] = {}
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
        """Results of the finished runs, in the plan's order."""
        return [
            Result(run.setting, run.row, self._summaries[run.name]) for run in self.runs if run.name in self._summaries
        ]

    def known(self, run: PlannedRun) -> bool:
        """Load the summary of a finished run; False if the run is not finished."""
        folder = RunFolder(self.folder / run.name)
        if not folder.finished:
            return False
        self._summaries[run.name] = folder.read_summary()
        return True

    def started(self, run: PlannedRun) -> None:
        self._state[run.name] = "starting"

    def finished(self, run: PlannedRun) -> None:
        self._state.pop(run.name, None)
        self.known(run)
        summary = self._summaries[run.name]
        self._print(
            f"{len(self._summaries)}/{len(self.runs)} {run.name}: A_last {summary.a_last:.1f} %, "
            f"A_inc {summary.a_inc:.1f} %, {summary.total_seconds:.0f} s"
        )

    def failed(self, run: PlannedRun, why: str) -> None:
        self._state.pop(run.name, None)
        self.failures[run.name] = why
        self._print(f"{run.name} failed: {why}", anyway=True)

    def listener(self, run: PlannedRun) -> Listener:
        """For a run in this process."""
        return partial(self._on_event, run.name)

    def tick(self) -> None:
        """Read new events of runs in other processes."""
        if self._live is None:
            return
        for name in self._state:
            path = RunFolder(self.folder / name).events
            if path.is_file():
                cut_back = path.stat().st_size < self._read.get(name, 0)  # by a run that continues from a checkpoint
                new, self._read[name] = read_events(path, 0 if cut_back else self._read.get(name, 0))
                for event in new:
                    self._on_event(name, event)

    def _on_event(self, name: str, event: Event) -> None:
        if isinstance(event, events.RunStart):
            self._tasks[name] = event.tasks
        elif isinstance(event, events.TaskEvent):
            epoch = f", epoch {event.epoch + 1}" if isinstance(event, events.Step | events.Epoch) else ""
            self._state[name] = f"task {event.task + 1}/{self._tasks.get(name, '?')}{epoch}"

    def _print(self, text: str, anyway: bool = False) -> None:
        if self._live is None or anyway:
            self.console.print(harmless(text), markup=False, highlight=False)

    def _table(self) -> Table:
        """The running jobs."""
        table = Table(
            header_style="bold", title=f"{len(self._summaries)} of {len(self.runs)} runs", title_justify="left"
        )
        for heading in ("run", "now"):
            table.add_column(heading)
        for name, state in self._state.items():
            table.add_row(Text(harmless(name)), Text(state))
        return table
