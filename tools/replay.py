"""What would a finished run of `gatf` or `adagauss` have given with other settings of what follows training?

python tools/replay.py RUNFOLDER "" "method.anchor=identity" "method.anchor=identity method.readout=rda"

Each argument after the folder is a row: settings that are laid on the run's own. Nothing is trained but what a method
fits on frozen networks (AdaGauss's adapter, `method.refine`). The run must have kept the network of every task (as
`task001-phase0-epoch0000-step00000.safetensors` and so on among its checkpoints). GATF's anchor is solved for the
networks of two consecutive tasks, as `method.final_refresh` does; its residual is gone and stays zero.
A row without settings is therefore not the run itself. `data.evaluate_on=validation` needs a run that held images out.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from gatf.config import load_config, parse_overrides, read_recipe
from gatf.evaluation.metrics import forgetting, incremental_accuracy
from gatf.experiment import Experiment
from gatf.io.run_folder import RunFolder
from gatf.session import METHOD
from gatf.training import checkpoint
from gatf.training.loop import Position, train_phase

BACKBONE = f"{METHOD}backbone."
Weights = dict[str, Tensor]
Features = dict[tuple[int, bytes], Tensor]


def networks(folder: RunFolder) -> list[Weights]:
    """The backbone's state after every task of a run."""
    states = []
    for task in range(folder.read_summary().tasks):
        tensors, _ = checkpoint.load(folder.after_task(task))
        states.append({k.removeprefix(BACKBONE): v for k, v in tensors.items() if k.startswith(BACKBONE)})
    return states


class Remembering(nn.Module):
    """A network at rest that computes the features of the same images once, in however many rows they are asked for."""

    def __init__(self, net: nn.Module, task: int, known: Features) -> None:
        super().__init__()
        self.like = next(net.parameters())  # whoever asks for device and dtype finds the network's
        self.feature_dim = net.feature_dim
        self._net, self._task, self._known = [net], task, known  # in a list: no part of the state, not copied

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)(self._net[0], self._task, self._known)

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() and images.requires_grad:
            return self._net[0](images)
        pixels = images.contiguous().numpy().tobytes()
        key = self._task, hashlib.blake2b(pixels, digest_size=16).digest()
        if key not in self._known:
            with torch.no_grad():
                self._known[key] = self._net[0](images)
        return self._known[key]


def replay(values: dict[str, Any], states: list[Weights], known: Features) -> dict[str, Any]:
    """The ends of the tasks again, with the networks as they were; rows of one run share what is `known`."""
    forced = {"device": "cpu"} | ({"method.final_refresh": True} if values["method"]["name"] == "gatf" else {})
    experiment = Experiment(load_config(values, overrides=forced))
    method, seen, matrix = experiment.method, list[float](), list[list[float]]()
    trainable = method.backbone
    for task, state in enumerate(states):
        data = experiment.task_data(task)
        method.begin_task(data.info)
        trainable.load_state_dict(state)
        method.backbone = Remembering(method.frozen_copy(trainable), task, known)
        for phase in method.phases(data.info):
            if "backbone" not in phase.modules:
                train_phase(
                    phase, data, experiment.session.fabric, listener=lambda event: None, position=Position(),
                    save=lambda *where: None, restore=None, stop=lambda: False, save_every=None,
                )  # fmt: skip
        method.eval()
        with torch.no_grad():
            method.end_task(data)
        result = experiment.evaluate(task)
        seen.append(result.seen)
        matrix.append(result.by_task)
    rounded = [round(value, 3) for value in seen]
    metrics = {"a_last": rounded[-1], "a_inc": round(incremental_accuracy(seen), 3), "forgetting": forgetting(matrix)}
    return metrics | {"accuracy_seen": rounded}


def main(folder: Path, rows: list[str]) -> None:
    torch.set_num_threads(1)
    place, known = RunFolder(folder), Features()
    states = networks(place)
    for row in rows:
        config = load_config(read_recipe(str(place.config)), overrides=parse_overrides(row.split()))
        result = replay(config.model_dump(mode="json"), states, known)
        sys.stdout.write(json.dumps({"settings": row} | result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [""])
