"""The networks of a finished run, for another one that would train the same.

`sdc`, `adc`, `ldc` and `dpcr` train their network alike and differ in what follows; so do runs of `gatf` or `adagauss`
with other read-outs. What one of them has trained, the others can take: the same bits in a fraction of the time, and
transports compared on the very same networks.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from gatf.config import ELSEWHERE, RunConfig, read_recipe, validated
from gatf.errors import UserError
from gatf.io.run_folder import RunFolder
from gatf.session import TRAINED, under
from gatf.settings import flat
from gatf.training import checkpoint


class Lender:
    """A finished run that has kept the network of every task, and trained it as `config` would."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        place = RunFolder(folder)
        if not place.finished:
            raise UserError(f"{folder} holds no finished run whose networks could be taken")
        summary = place.read_summary()
        differing = _differences(validated(read_recipe(str(place.config))), config)
        if differing or summary.config_changes:
            told = "; ".join(differing or summary.config_changes)
            raise UserError(f"{folder} has trained other networks than this run would: {told}")
        missing = [str(task + 1) for task in range(summary.tasks) if not place.after_task(task).is_file()]
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


def lender_beside(folder: Path) -> Path | None:
    """A run beside that in a folder whose networks it can take, the first by name; None where there is none."""
    config = validated(read_recipe(str(RunFolder(folder).config)))
    for place in map(RunFolder, sorted(folder.resolve().parent.iterdir())):
        if place.finished and place.after_task(0).is_file():
            try:
                return Lender(place.path, config).place.path
            except UserError:
                continue
    return None


def _differences(theirs: RunConfig, ours: RunConfig) -> list[str]:
    """Settings by which the two train other networks, each as a half sentence."""
    there, here = (_training(config) for config in (theirs, ours))
    paths = [path for path in {**there, **here} if path not in ELSEWHERE and there.get(path) != here.get(path)]
    return [f"{path} is {there.get(path)} there and {here.get(path)} here" for path in paths]


def _training(config: RunConfig) -> dict[str, Any]:
    """What the networks of a run depend on, by dotted path."""
    return flat(config.model_dump(mode="json") | {"method": config.method.training()})
