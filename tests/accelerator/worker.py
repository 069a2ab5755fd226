"""Runs on the stand-in accelerator and on the CPU, in a process of its own: `python worker.py CASES` prints a JSON
object with the outcome of each case in the JSON list CASES."""

import json
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning_fabric
import torch
from lightning_fabric.accelerators import Accelerator
from lightning_fabric.strategies import SingleDeviceStrategy
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import standin

from gatf.config import RunConfig, load_config
from gatf.experiment import Experiment
from gatf.io.events import Event, Step
from gatf.training import checkpoint
from gatf.training.context import RunContext
from gatf.training.loop import Interrupted, Position

TINY = {
    "data.max_per_class": 40,
    "scenario.stop_after": 2,
    "backbone.name": "small",
    "backbone.width": 8,
    "optimisation.first.epochs": 2,
    "optimisation.next.epochs": 2,
    "optimisation.first.batch_size": 24,
    "optimisation.next.batch_size": 24,
}
ON_HOST = ("step",)
"""What Adam keeps on the CPU on purpose, so that nothing waits for it."""


class StandInAccelerator(Accelerator):
    """What Fabric wants to know of a device."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("standin", 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "standin"


class StandInFabric(lightning_fabric.Fabric):
    """Fabric, which knows only its own devices, with the stand-in where it is asked for."""

    def __init__(self, accelerator: str, **options: Any) -> None:
        if accelerator == "standin":
            strategy = SingleDeviceStrategy(device=torch.device("standin", 0), accelerator=StandInAccelerator())
            super().__init__(strategy=strategy, precision=options["precision"])
        else:
            super().__init__(accelerator=accelerator, **options)


class StepCounts:
    """Hears of every step; what was counted between two steps of one epoch belongs to the later one."""

    def __init__(self, device: standin.StandIn) -> None:
        self.device = device
        self.operations: dict[str, int] = {}
        self.waits: list[str] = []
        self._last: tuple[int, str, int] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            here = (event.task, event.phase, event.epoch)
            if here == self._last:
                self.operations[f"{event.task} {event.phase}"] = self.device.counts()["operations"]
                self.waits += [f"task {event.task + 1}, {event.phase}: {place}" for place in self.device.places]
            self._last = here
            self.device.reset()


def config_of(case: dict[str, Any], device: str) -> RunConfig:
    settings = TINY | case.get("settings", {})
    config = load_config(case.get("recipe", "digits"), method=case["method"], overrides=settings | {"device": "cpu"})
    return config.model_copy(update={"device": device})


def trained(experiment: Experiment, context: RunContext) -> dict[str, Tensor]:
    """All tasks; the method's state and the scores of the test images, on the CPU."""
    results = {}
    for task in range(len(experiment.scenario)):
        experiment.session.learn_task(experiment.task_data(task), context)
        results[f"answers of task {task}"] = experiment.evaluate(task).answered
    return {**experiment.method.state_dict(), **results}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """Names of tensors that differ in any bit."""
    if first.keys() != second.keys():
        return sorted(first.keys() ^ second.keys())
    return [name for name in first if not torch.equal(first[name].cpu(), second[name].cpu())]


def compare(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """The same run on both devices: what differs, what waited, what is not on the device."""
    expected = trained(Experiment(config_of(case, "cpu")), RunContext())
    steps, elsewhere = StepCounts(device), set()

    def check_optimiser(phase: int, position: Position, optimiser: torch.optim.Optimizer) -> None:
        for state in optimiser.state_dict()["state"].values():
            elsewhere.update(
                f"optimiser {name}"
                for name, value in state.items()
                if isinstance(value, Tensor) and name not in ON_HOST and value.device.type != "standin"
            )

    experiment = Experiment(config_of(case, "standin"))
    with device.recording():
        found = trained(experiment, RunContext(steps, save=check_optimiser, save_every=1))
    state = experiment.method.state_dict()
    elsewhere.update(name for name, value in state.items() if value.device.type != "standin")
    return {
        "differs": same(expected, found),
        "waits": sorted(set(steps.waits)),
        "elsewhere": sorted(elsewhere),
        "operations": steps.operations,
    }


def count(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """Operations of a training step, the most of all phases; one per launch that a GPU would get."""
    steps = StepCounts(device)
    trained(Experiment(config_of(case, "standin")), RunContext(steps))
    return {"operations": max(steps.operations.values(), default=0)}


def resume(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """Stopped within task 2 on one device, continued from the checkpoint on the other."""
    expected = trained(Experiment(config_of(case, "cpu")), RunContext())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        first = Experiment(config_of(case, case["from"]))
        first.session.learn_task(first.task_data(0), RunContext())
        answers = {"answers of task 0": first.evaluate(0).answered}
        steps = iter(range(100))

        def save(phase: int, position: Position, optimiser: torch.optim.Optimizer) -> None:
            first.session.save(path, {}, phase=phase, position=position, optimiser=optimiser)

        with suppress(Interrupted):
            first.session.learn_task(first.task_data(1), RunContext(stop=lambda: next(steps) == 3, save=save))
        second = Experiment(config_of(case, case["to"]))
        tensors, meta = checkpoint.load(path)
        resumed = second.session.restore(tensors, meta, second.task_info(1))
        second.session.learn_task(second.task_data(1), RunContext(), resumed=resumed)
        answers["answers of task 1"] = second.evaluate(1).answered
    return {"differs": same(expected, {**second.method.state_dict(), **answers})}


def without_float64(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """What a user reads on a device that has no float64."""
    with device.without_float64():
        try:
            trained(Experiment(config_of(case, "standin")), RunContext())
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


KINDS = {"compare": compare, "count": count, "resume": resume, "without_float64": without_float64}


def main(cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "An output with one or more elements was resized")  # torch's own mse_loss
    device = standin.load()
    lightning_fabric.Fabric = StandInFabric
    for case in cases:
        try:
            outcome = KINDS[case.get("kind", "compare")](case, device)
        except Exception:
            outcome = {"failed": traceback.format_exc()[-2500:]}
        sys.stdout.write(json.dumps({"name": case["name"], **outcome}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
