"""Losses and accuracies for people's own dashboards: listeners for TensorBoard and Weights & Biases.

Both are extras and are imported when asked for; metrics.jsonl is written in any case.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from gatf.errors import UserError


class Sink(Protocol):
    """Where numbers go."""

    def write(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """A listener that turns a run's events into numbers over epochs, counted over all tasks and phases.

    A resumed run goes on counting where its checkpoint was, from the events the run has kept.
    """

    def __init__(self, sink: Sink, events: Path) -> None:
        self._sink, self._events, self._epochs = sink, events, 0

    def __call__(self, kind: str, /, **fields: Any) -> None:
        if kind == "run_start" and fields.get("resumed_at") is not None:
            lines = self._events.read_text(encoding="utf-8").splitlines()
            self._epochs = sum(json.loads(line)["event"] == "epoch" for line in lines)
        elif kind == "epoch":
            self._epochs += 1
            values = {f"{fields['phase']}/{name}": value for name, value in fields["losses"].items()}
            self._sink.write(values | {"task": fields["task"], "lr": fields["lr"]}, self._epochs)
        elif kind == "task":
            values = {f"accuracy/task {number + 1}": value for number, value in enumerate(fields["accuracies"])}
            self._sink.write(values | {"accuracy/all so far": fields["seen"]}, self._epochs)
        elif kind == "run":
            values = {f"summary/{name}": fields[name] for name in ("a_last", "a_inc", "forgetting")}
            self._sink.write({name: value for name, value in values.items() if value is not None}, self._epochs)

    def close(self) -> None:
        self._sink.close()


class TensorBoardSink:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise UserError("--track tensorboard needs the extra: pip install 'gatf[tensorboard]'") from None
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", "```\n" + json.dumps(config, indent=2) + "\n```")

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A run of the project `gatf`; online, offline or disabled as WANDB_MODE says, files in the run folder."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("--track wandb needs the extra: pip install 'gatf[wandb]'") from None
        self._run: Any = wandb.init(project="gatf", name=folder.name, dir=str(folder), config=config)

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "epoch": step})  # W&B's own step may not stand still, ours does after a task

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, dict[str, Any]], Sink]] = {"tensorboard": TensorBoardSink, "wandb": WandbSink}


def open_tracker(name: str, folder: Path, config: dict[str, Any]) -> Tracker:
    """The tracker of that name for the run in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return Tracker(SINKS[name](folder, config), folder / "metrics.jsonl")
