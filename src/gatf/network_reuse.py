"""Reuse of a finished run's networks by a run that would train the same ones.

`sdc`, `adc`, `ldc` and `dpcr` train the same networks and differ in what follows, and so do runs of `gatf` or
`adagauss` with other readouts. Reuse gives the same bits in a fraction of the time and compares transports on identical
networks. Runs that differ in how they protect old classes can still share the first task, often the longest.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from gatf.config import ELSEWHERE, RunConfig, read_recipe, validated
from gatf.errors import UserError
from gatf.io.run_folder import RunFolder
from gatf.methods import is_outside
from gatf.session import TRAINED, under
from gatf.settings import flat
from gatf.training import checkpoint

LATER, BY_ALL_TASKS = "optimisation.next.", frozenset({"optimisation.next.batch_size"})
"""Prefix of the settings of later tasks, and those of them that also affect the first task."""


class NetworkSource:
    """A finished run that kept the networks of all tasks and trained them, or at least the first one, as `config`
    would."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        place = RunFolder(folder)
        if not place.finished:
            raise UserError(f"{folder} contains no finished run whose networks could be reused")
        summary, theirs = place.read_summary(), validated(read_recipe(str(place.config)))
        self.tasks = summary.tasks
        """The number of tasks, from the first, whose networks can be reused."""
        self.why_first_alone: str | None = None
        differing = _differences(_training(theirs), _training(config)) or summary.config_changes
        if differing:
            differences = "; ".join(differing)
            if summary.config_changes or _differences(first_training(theirs), first_training(config)):
                raise UserError(f"{folder} trained other networks than this run would: {differences}")
            self.tasks, self.why_first_alone = 1, differences
        missing = [str(task + 1) for task in range(self.tasks) if not place.after_task(task).is_file()]
        if missing:
            tasks = f"task{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise UserError(
                f"{folder} did not keep the networks of {tasks}: run it again with --set keep_networks=true"
            )
        self.place = place
        if not self.trained(0):
            raise UserError(f"{folder} trained nothing that could be reused, or its version of gatf did not keep it")

    @property
    def name(self) -> str:
        return self.place.path.resolve().name

    def trained(self, task: int) -> dict[str, Tensor]:
        """The tensors trained in a task, by their name in the method."""
        return under(checkpoint.load(self.place.after_task(task))[0], TRAINED)


def network_source_beside(folder: Path) -> Path | None:
    """A run beside the one in `folder` whose networks it can reuse: the first by name with all networks, else the first
    with the network of the first task; None if there is none."""
    config = validated(read_recipe(str(RunFolder(folder).config)))
    first_alone = None
    for place in map(RunFolder, sorted(folder.resolve().parent.iterdir())):
        if place.finished and place.after_task(0).is_file():
            try:
                network_source = NetworkSource(place.path, config)
            except UserError:
                continue
            if network_source.why_first_alone is None:
                return place.path
            first_alone = first_alone or place.path
    return first_alone


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """The settings in which the two differ, as text."""
    paths = [path for path in {**there, **here} if there.get(path) != here.get(path)]
    return [f"{path} is {there.get(path)} there and {here.get(path)} here" for path in paths]


def _training(config: RunConfig) -> dict[str, Any]:
    """The settings that all networks of a run depend on, by dotted path."""
    return _settings(config, config.method.training())


def first_training(config: RunConfig) -> dict[str, Any]:
    """The settings that the first task's network depends on. They include the later batch size: the larger batch
    determines the number of threads and the precision of all tasks."""
    found = _settings(config, config.method.first_training())
    return {path: value for path, value in found.items() if not path.startswith(LATER) or path in BY_ALL_TASKS}


def _settings(config: RunConfig, method: dict[str, Any]) -> dict[str, Any]:
    own = {"name": config.method.name} if is_outside(config.method.name) else {}  # its code may train otherwise
    found = flat(config.model_dump(mode="json") | {"method": method | own})
    return {path: value for path, value in found.items() if path not in ELSEWHERE}
