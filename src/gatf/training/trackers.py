"""Losses and accuracies for dashboards: listeners for TensorBoard, Weights & Biases, MLflow and trackio.

Each is an extra and is imported on demand; metrics.jsonl is always written.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gatf.errors import UserError, near_misses
from gatf.io import events
from gatf.io.run_folder import RunFolder
from gatf.settings import flat


class TrackerBackend(Protocol):
    """A dashboard that numbers are logged to."""

    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """A listener that logs a run's events by epoch, counted over all tasks and phases.

    The backend is opened at the first number, so that a run that cannot begin creates nothing. A resumed run continues
    the count of its checkpoint, from the stored events.
    """

    def __init__(self, open_backend: Callable[[], TrackerBackend], folder: RunFolder) -> None:
        self._open, self._folder, self._epochs = open_backend, folder, 0
        self._opened: TrackerBackend | None = None

    @property
    def _backend(self) -> TrackerBackend:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStart() if event.resumed_at is not None:
                self._epochs = sum(isinstance(kept, events.Epoch) for kept in self._folder.read_events())
            case events.Epoch():
                self._epochs += 1
                values = {f"{event.phase}/{name}": value for name, value in event.losses.items()}
                self._backend.write(values | {"task": event.task, "lr": event.lr}, self._epochs)
            case events.Task():
                values = {f"accuracy/task {number + 1}": value for number, value in enumerate(event.accuracies)}
                self._backend.write(values | {"accuracy/seen classes": event.seen}, self._epochs)
            case events.Run():
                values = {"summary/a_last": event.a_last, "summary/a_inc": event.a_inc}
                values |= {} if event.forgetting is None else {"summary/forgetting": event.forgetting}
                self._backend.write(values, self._epochs)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class TensorBoardBackend:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", "```\n" + json.dumps(config, indent=2) + "\n```")

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)

    def close(self) -> None:
        self._writer.close()


class WandbBackend:
    """A run of the project `gatf`; online, offline or disabled by WANDB_MODE, with files in the run folder."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(project="gatf", name=folder.name, dir=str(folder), config=config)

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "epoch": step})  # W&B's own step must increase, ours does not after a task

    def close(self) -> None:
        self._run.finish()


class MlflowBackend:
    """A run of the experiment `gatf`, in the store of MLFLOW_TRACKING_URI or MLflow's default in this folder."""

    LONGEST = 500
    """Characters of a setting's value that every version of MLflow accepts."""
    AT_ONCE = 100
    """Settings that MLflow accepts in one call."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        known = self._client.get_experiment_by_name("gatf")
        experiment = self._client.create_experiment("gatf") if known is None else known.experiment_id
        self._run: str = self._client.create_run(experiment, run_name=folder.name).info.run_id
        settings = [Param(path, str(value)[: self.LONGEST]) for path, value in flat(config).items()]
        for start in range(0, len(settings), self.AT_ONCE):
            self._client.log_batch(self._run, params=settings[start : start + self.AT_ONCE])

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class TrackioBackend:
    """A run of the project `gatf` in trackio's own folder (TRACKIO_DIR) or Space (TRACKIO_SPACE_ID). A resumed run
    continues it."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import trackio

        self._run: Any = trackio.init(project="gatf", name=folder.name, config=config, resume="allow", embed=False)

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


BACKENDS: dict[str, Callable[[Path, dict[str, Any]], TrackerBackend]] = {
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
    "mlflow": MlflowBackend,
    "trackio": TrackioBackend,
}


def open_tracker(name: str, folder: Path, config: dict[str, Any]) -> Tracker:
    """The tracker of that name for the run in a folder."""
    if name not in BACKENDS:
        raise UserError(f"--track knows no '{name}'{near_misses(name, BACKENDS)}")
    if find_spec(name) is None:
        raise UserError(f"--track {name} needs the extra: pip install 'gatf-cil[{name}]'")
    return Tracker(lambda: BACKENDS[name](folder, config), RunFolder(folder))
