"""What each process of a test does: the runs it finds in a folder, one after the other, in float64.

Training amplifies rounding; in float64 there is too little of it to be seen, so that what differs is a mistake.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gatf import distributed
from gatf.config import validated
from gatf.data.augment import Pipeline
from gatf.experiment import Experiment
from gatf.io.run_folder import CHECKPOINTS


class Float64Pipeline(Pipeline):
    def __call__(self, *args: Any) -> Tensor:
        return super().__call__(*args).double()


def watch_anchors(method: Any) -> dict[str, Tensor]:
    """Every anchor the method estimates from now on, by number."""
    found: dict[str, Tensor] = {}
    estimate = method.estimate_anchor

    def watched(*args: Any, **options: Any) -> Any:
        affine = estimate(*args, **options)
        found[f"weight {len(found)}"] = affine.weight
        return affine

    method.estimate_anchor = watched
    return found


def run(folder: Path, *, double: bool = True) -> None:
    """The run that `folder`/wanted.json describes."""
    config = validated(json.loads((folder / "wanted.json").read_text()))
    experiment = Experiment(config)
    if double:
        plain = experiment.session.pipeline
        experiment.session.pipeline = Float64Pipeline(plain.steps, plain.mean, plain.std)
        experiment.method.double()
    anchors = watch_anchors(experiment.method) if config.method.name == "gatf" else {}
    if distributed.is_first():
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
    experiment.run(folder, ())
    digest = torch.stack([value.double().sum() for value in experiment.method.state_dict().values()])[None]
    everywhere = distributed.gather_rows(digest)
    if distributed.is_first():
        state = {f"method.{name}": value.contiguous() for name, value in experiment.method.state_dict().items()}
        save_file(state, folder / "state.safetensors")  # a model file is of float32
        save_file(anchors, folder / "anchors.safetensors")
        save_file({"digests": everywhere}, folder / "digests.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for place in sorted(Path(sys.argv[1]).iterdir()):
        run(place, double=not place.name.startswith("float32"))
