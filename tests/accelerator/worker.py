"""Runs on the stand-in accelerator and on the CPU, in processes of their own: `python worker.py FOLDER` reads
FOLDER/work.json, a list of environments and cases, forks a process for each of its entries and writes the outcome of
each case as a JSON object on a line of FOLDER/outcomes0, FOLDER/outcomes1, …"""

import faulthandler
import hashlib
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning_fabric
import numpy as np
import torch
from lightning_fabric.accelerators import Accelerator
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.strategies import SingleDeviceStrategy
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
import exchange
import standin

from gatf import EmbeddingClassifier, IncrementalClassifier, devices, distributed
from gatf.cli import device_check
from gatf.config import RunConfig, load_config
from gatf.data.digits import load_digits
from gatf.experiment import Experiment
from gatf.io.events import Event, Step
from gatf.model import file as model_file
from gatf.training import checkpoint, processes
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

    def setup_device(self, device: torch.device) -> None:
        torch.get_device_module("standin").set_device(device.index)

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
        if accelerator == "standin" and "strategy" in options:
            ddp = exchange.strategy(StandInAccelerator(), options["plugins"][0], **options["strategy"]._ddp_kwargs)
            super().__init__(strategy=ddp, precision=options["precision"])
        elif accelerator == "standin":
            strategy = SingleDeviceStrategy(device=torch.device("standin", 0), accelerator=StandInAccelerator())
            super().__init__(strategy=strategy, **self._number_format(options["precision"]))
        else:
            super().__init__(accelerator=accelerator, **options)

    @staticmethod
    def _number_format(precision: Any) -> dict[str, Any]:
        """Autocast of this device; Fabric itself would choose CUDA's."""
        mixed = precision != "32-true"
        return {"plugins": [MixedPrecision(precision, "standin")]} if mixed else {"precision": precision}


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
        results[f"answers of task {task}"] = experiment.evaluate(task).predictions
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


def half(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """A run in half precision: what waits, in which formats convolutions compute and state is kept. Autocast of the CPU
    has other operations, so results are not compared."""
    steps, computed = StepCounts(device), set[str]()

    def note(module: nn.Module, arguments: Any, result: Any) -> None:
        if isinstance(module, nn.Conv2d):
            computed.add(str(result.dtype))

    experiment = Experiment(config_of(case, "standin"))
    with device.recording(), nn.modules.module.register_module_forward_hook(note):
        state = trained(experiment, RunContext(steps))
    kept = {str(value.dtype) for value in state.values()}
    return {"waits": sorted(set(steps.waits)), "computed": sorted(computed), "kept": sorted(kept)}


def resume(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """Stopped within task 2 on one device, continued from the checkpoint on the other."""
    expected = trained(Experiment(config_of(case, "cpu")), RunContext())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        first = Experiment(config_of(case, case["from"]))
        first.session.learn_task(first.task_data(0), RunContext())
        answers = {"answers of task 0": first.evaluate(0).predictions}
        steps = iter(range(100))

        def save(phase: int, position: Position, optimiser: torch.optim.Optimizer) -> None:
            first.session.save(path, {}, phase=phase, position=position, optimiser=optimiser)

        with suppress(Interrupted):
            first.session.learn_task(first.task_data(1), RunContext(stop=lambda: next(steps) == 3, save=save))
        second = Experiment(config_of(case, case["to"]))
        tensors, meta = checkpoint.load(path)
        resumed = second.session.restore(tensors, meta, second.task_info(1))
        second.session.learn_task(second.task_data(1), RunContext(), resumed=resumed)
        answers["answers of task 1"] = second.evaluate(1).predictions
    return {"differs": same(expected, {**second.method.state_dict(), **answers})}


def without_float64(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """What a user reads on a device that has no float64."""
    with device.without_float64():
        try:
            trained(Experiment(config_of(case, "standin")), RunContext())
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


@contextmanager
def chosen_by_auto(name: str) -> Iterator[None]:
    """Inside, `device=auto` is this device: users' classifiers accept only names of real ones."""
    before = devices.available_device
    users = [module for module in sys.modules.values() if getattr(module, "available_device", None) is before]
    for module in users:
        module.available_device = lambda wanted: name if wanted == "auto" else before(wanted)
    try:
        yield
    finally:
        for module in users:
            module.available_device = before


def update(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """A user's classifier on both devices: two updates, the model file, predictions of the file on either device."""
    source = load_digits(load_config("digits").data).train
    images, labels = (tensor[:400].numpy() for tensor in (source.images, source.labels))
    found, differs = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for where in ("cpu", "standin"):
            learner = IncrementalClassifier(
                epochs=1, width=8, feature_dim=8, adapt="always", settings={"method.samples": 100}
            )
            with chosen_by_auto(where):
                for part in ((labels < 2), (labels >= 2) & (labels < 4)):
                    learner.partial_fit(images[part], labels[part])
                found[where] = learner.predict_proba(images)
            kind = learner.model_.method.device.type
            differs += [] if kind == where else [f"trained on {kind}"]
            learner.save(f"{folder}/{where}.gatf")
        for made in ("cpu", "standin"):
            for where in ("cpu", "standin"):
                again = IncrementalClassifier.load(f"{folder}/{made}.gatf", device=where).predict_proba(images)
                differs += [] if np.array_equal(again, found["cpu"]) else [f"file of {made} on {where}"]
    return {"differs": differs if np.array_equal(found["cpu"], found["standin"]) else [*differs, "updates"]}


def vectors(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """A classifier of embeddings, which learns on the CPU, predicts with the same bits on the device."""
    draws = np.random.default_rng(0)
    rows, labels = draws.standard_normal((120, 12)).astype(np.float32), np.repeat(np.arange(4), 30)
    with tempfile.TemporaryDirectory() as folder:
        EmbeddingClassifier().fit(rows + labels[:, None], labels).save(f"{folder}/vectors.gatf")
        loaded = [model_file.load(Path(f"{folder}/vectors.gatf"), device=where) for where in ("cpu", "standin")]
        kinds = {value.device.type for value in loaded[1].method.state_dict().values()}
        answers = [EmbeddingClassifier.from_model(model).predict_proba(rows) for model in loaded]
    return {"differs": [] if np.array_equal(*answers) else ["probabilities"], "elsewhere": sorted(kinds - {"standin"})}


def doctor(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """What `gatf doctor` says of the device."""
    problem, lines = device_check.small_problem("cpu"), list[str]()
    device_check.small_problem = lambda name: problem.model_copy(update={"device": name})
    device_check.BATCH = 16
    return {"sound": device_check.check("standin", lines.append), "lines": lines}


def share(case: dict[str, Any], device: standin.StandIn) -> dict[str, Any]:
    """A run in the processes that a launcher started: digests of what it ends with, in each process."""
    experiment = Experiment(config_of(case, case["device"]))
    found = trained(experiment, RunContext())
    elsewhere = [name for name, value in experiment.method.state_dict().items() if value.device.type != case["device"]]
    own = {
        name: hashlib.sha256(value.cpu().contiguous().numpy().tobytes()).hexdigest() for name, value in found.items()
    }
    return {"digests": distributed.gather_list([own]), "elsewhere": elsewhere}


KINDS = {
    "compare": compare, "count": count, "resume": resume, "without_float64": without_float64, "share": share,
    "update": update, "vectors": vectors, "doctor": doctor, "half": half,
}  # fmt: skip


def run(cases: list[dict[str, Any]], outcomes: Path) -> None:
    device = standin.load()
    lightning_fabric.Fabric = StandInFabric
    with outcomes.open("w", encoding="utf-8") as file:
        for case in cases:
            try:
                outcome = KINDS[case.get("kind", "compare")](case, device)
            except Exception:
                outcome = {"failed": traceback.format_exc()[-2500:]}
            file.write(json.dumps({"name": case["name"], **outcome}) + "\n")
            file.flush()
    processes.leave()


def start(part: dict[str, Any], outcomes: Path, errors: Path) -> int:
    """Fork, because importing torch takes longer than most cases; the process has its own file for errors."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
            faulthandler.enable()
            os.environ.update(part["environment"])
            # the first call after a fork makes a new thread pool; autograd's two device threads must not both make it
            torch.set_num_threads(1)
            run(part["cases"], outcomes)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def ending(status: int, errors: Path) -> str:
    """How a process ended, and its last errors."""
    code = os.waitstatus_to_exitcode(status)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    text = errors.read_text(encoding="utf-8").partition("\nExtension modules:")[0]  # of faulthandler, a page long
    return f"the process ended with {how}\n{text[-3000:]}"


def main(folder: Path) -> None:
    """Cases of a process that ended early get its end as their outcome."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "An output with one or more elements was resized")  # torch's own mse_loss
    started = []
    for number, part in enumerate(json.loads((folder / "work.json").read_text(encoding="utf-8"))):
        outcomes, errors = folder / f"outcomes{number}", folder / f"errors{number}"
        started.append((start(part, outcomes, errors), part["cases"], outcomes, errors))
    for child, cases, outcomes, errors in started:
        status = os.waitpid(child, 0)[1]
        if status == 0:
            continue
        done = len(outcomes.read_text(encoding="utf-8").splitlines()) if outcomes.exists() else 0
        failed = {"failed": ending(status, errors)}
        if done == len(cases):  # while it left the process group: its cases have their outcomes all the same
            sys.stderr.write(f"after the last case of {outcomes.name}: {failed['failed']}\n")
        with outcomes.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"name": case["name"], **failed}) + "\n" for case in cases[done:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
