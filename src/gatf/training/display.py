"""The live display of a run, from its events."""

from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gatf.io import events
from gatf.io.text import duration, harmless

SECONDS_BETWEEN_LINES = 10.0
"""Without a terminal, a new line is printed this often."""
ENOUGH_STEPS, ENOUGH_SECONDS = 5, 3.0
"""The display shows the remaining time after whichever comes first; one step with photos may take seconds."""


class LiveDisplay:
    """Task, phase, epoch, losses and remaining time: redrawn in place on a terminal, otherwise a line every ten
    seconds.

    With `lines` it also prints a permanent line after each task.
    """

    def __init__(self, console: Console, lines: bool = True) -> None:
        self.console, self._lines = console, lines
        self._live: Live | None = None
        self._tasks = self._task = self._steps_done = self._steps_of_task = 0
        self._expected: tuple[int, ...] = ()
        self._phase, self._losses = "", ""
        self._epoch, self._epochs = 0, 0
        self._started = self._training_seconds = self._first_step = 0.0
        self._all_steps = 0
        self._extracting: events.FeaturesExtracted | None = None
        self._extracting_since = 0.0
        self._last_line = 0.0
        """When the last line was written."""

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStart():
                self._tasks, self._last_line = event.tasks, monotonic()
                self._expected = event.steps
                if self.console.is_terminal:
                    self._live = Live(self._line(), console=self.console, refresh_per_second=8, transient=True)
                    self._live.start()
            case events.TaskStart():
                self._task, self._steps_of_task, self._steps_done = event.task, event.steps, 0
                self._started, self._losses = monotonic(), ""
            case events.Step():
                self._steps_done += 1
                self._all_steps += 1
                if self._all_steps == 1:
                    self._first_step = monotonic() - self._started
                self._phase, self._epoch, self._epochs = event.phase, event.epoch, event.epochs
                self._extracting = None
                self._write_now_and_then()
            case events.FeaturesExtracted():
                self._extracting_since = self._extracting_since if event.images else monotonic()
                self._extracting = event
                self._write_now_and_then()
            case events.Epoch():
                self._losses = "  ".join(f"{name} {value:.3f}" for name, value in event.losses.items())
            case events.Task():
                self._training_seconds += monotonic() - self._started
                start = f"task {event.task + 1}/{self._tasks}  seen {event.seen:5.1f} %   "
                self._print(start + by_task(event.accuracies, self.console.width - len(start)))
            case events.WarningEvent():
                self._print(f"note: {event.text}")
            case events.Notice(values={"jittered": jittered, "clipped": clipped}) if jittered or clipped:
                self._print(f"note: {jittered + clipped:.0f} singular covariances were repaired")
            case events.Notice(values={"epsilon": epsilon, "delta": delta, "clip": clip}):
                self._print(f"note: noise on stored moments: ε = {epsilon:g}, δ = {delta:g}, clipping norm {clip:g}")
        if self._live is not None:
            self._live.update(self._line())

    def _write_now_and_then(self) -> None:
        """Without a terminal, print a line if the last one is old enough."""
        if self._live is None and monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = monotonic()
            line = "  ".join(part for part in self._parts() if part)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        if self._lines:
            self.console.print(harmless(text), markup=False, highlight=False)

    def _line(self) -> Table:
        table = Table.grid(padding=(0, 2))
        task, *rest = self._parts()
        table.add_row(Text(task, style="bold"), *(Text(harmless(part)) for part in rest))
        return table

    def _parts(self) -> tuple[str, str, str, str]:
        task = f"task {self._task + 1}/{self._tasks}"
        if self._extracting is not None:
            seen, images = self._extracting.images, self._extracting.of
            spent = monotonic() - self._extracting_since
            left = f"≈ {duration((images - seen) * spent / seen)} left" if seen and spent >= ENOUGH_SECONDS else ""
            return task, f"extracting features {seen}/{images}", "", left
        return (
            task,
            f"{self._phase} epoch {self._epoch + 1}/{self._epochs}" if self._epochs else "",
            self._losses,
            self._left(),
        )

    def _left(self) -> str:
        """Remaining time at the speed of all steps but the first, which prepares the network. Later tasks take their
        expected steps, after the second task times the ratio of this task's steps to the expected ones: the first task
        is often trained differently."""
        spent = self._training_seconds + (monotonic() - self._started if self._started else 0.0) - self._first_step
        timed = self._all_steps - 1
        if timed < 1 or (timed < ENOUGH_STEPS and spent < ENOUGH_SECONDS):
            return ""
        expected = self._expected or (1,) * self._tasks
        later = sum(expected[self._task + 1 :])
        if self._task > 0 or not self._expected:
            later = later * self._steps_of_task // max(expected[self._task], 1)
        steps = max(self._steps_of_task - self._steps_done, 0) + later
        return f"≈ {duration(steps * spent / timed)} left"


def by_task(accuracies: list[float], width: int) -> str:
    """The accuracy on every task; on a narrow terminal without decimals, or only on the first and the newest task."""
    forms = [f"by task: {'  '.join(f'{accuracy:5.1f}' for accuracy in accuracies)}"]
    forms.append(f"by task: {' '.join(f'{accuracy:3.0f}' for accuracy in accuracies)}")
    first, newest = accuracies[0], accuracies[-1]
    return next((form for form in forms if len(form) <= width), f"task 1: {first:5.1f}   newest: {newest:5.1f}")
