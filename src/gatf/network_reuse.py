"""The networks of a finished run, for another one that would train the same.

`sdc`, `adc`, `ldc` and `dpcr` train their network alike and differ in what follows; so do runs of `gatf` or `adagauss`
with other read-outs. What one of them has trained, the others can take: the same bits in a fraction of the time, and
transports compared on the very same networks. Runs that differ in how they hold on to old classes have at least their
first task in common, which is where many protocols spend most of their time.
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
"""Settings of later tasks, and those of them that act in the first one too."""


class NetworkSource:
    """A finished run that has kept the network of every task, and trained it as `config` would, or that of the first
    task at least."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        place = RunFolder(folder)
        if not place.finished:
            raise UserError(f"{folder} holds no finished run whose networks could be taken")
        summary, theirs = place.read_summary(), validated(read_recipe(str(place.config)))
        self.tasks = summary.tasks
        """Of which it lends the networks, from the first on."""
        self.why_first_alone: str | None = None
        differing = _differences(_training(theirs), _training(config)) or summary.config_changes
        if differing:
            told = "; ".join(differing)
            if summary.config_changes or _differences(_first_training(theirs), _first_training(config)):
                raise UserError(f"{folder} has trained other networks than this run would: {told}")
            self.tasks, self.why_first_alone = 1, told
        missing = [str(task + 1) for task in range(self.tasks) if not place.after_task(task).is_file()]
        if missing:
            tasks = f"task{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise UserError(
                f"{folder} has not kept the networks of {tasks}: run it again with --set keep_networks=true"
            )
        self.place = place
        if not self.trained(0):
            raise UserError(f"{folder} has trained nothing that could be taken, or with a version that did not keep it")

    @property
    def name(self) -> str:
        return self.place.path.resolve().name

    def trained(self, task: int) -> dict[str, Tensor]:
        """What it has trained in a task, by place in its method."""
        return under(checkpoint.load(self.place.after_task(task))[0], TRAINED)


def network_source_beside(folder: Path) -> Path | None:
    """A run beside that in a folder whose networks it can take, the first by name that has them all, or else that has
    the first task's; None where there is none."""
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
    """Settings in which the two differ, each as a half sentence."""
    paths = [path for path in {**there, **here} if there.get(path) != here.get(path)]
    return [f"{path} is {there.get(path)} there and {here.get(path)} here" for path in paths]


def _training(config: RunConfig) -> dict[str, Any]:
    """What the networks of a run depend on, by dotted path."""
    return _settings(config, config.method.training())


def _first_training(config: RunConfig) -> dict[str, Any]:
    """What that of the first task depends on. The size of later batches is part of it: the number of threads and the
    precision are chosen by the larger one, once for all tasks."""
    found = _settings(config, config.method.first_training())
    return {path: value for path, value in found.items() if not path.startswith(LATER) or path in BY_ALL_TASKS}


def _settings(config: RunConfig, method: dict[str, Any]) -> dict[str, Any]:
    own = {"name": config.method.name} if is_outside(config.method.name) else {}  # its code may train otherwise
    found = flat(config.model_dump(mode="json") | {"method": method | own})
    return {path: value for path, value in found.items() if path not in ELSEWHERE}
