"""Is one Gaussian per class enough when classes return or images shift, or do mixtures classify better?

python experiments/mixtures.py RUN …    finished runs of ncm by cifar100-16px-returning and cifar100-16px-domains

On the frozen network of a run, tasks are learnt in order and images are deleted after their task. *One*: a Gaussian per
class, moments of all its images. *Mixture*: each task adds one to three Gaussians per class (diagonal mixtures of the
first principal components of task 0, their number by BIC); a pair is merged where BIC prefers one Gaussian to two, and
the closest pair while a class has more than three. The score of a class is that of its best Gaussian.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from common import load, one_thread, rounded, save
from sklearn.mixture import GaussianMixture
from torch import Tensor

from gatf.data.loader import views
from gatf.experiment import Experiment, reopen
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import Moments
from gatf.geometry.readout import bayes_readout, rda_readout
from gatf.methods.parts.extraction import extract
from gatf.nets.folding import folded

MOST, COMPONENTS, FEWEST = 3, 16, 12
"""Gaussians per class; principal components that BIC looks at; images that a Gaussian needs."""
READOUTS = {
    "bayes": lambda found: bayes_readout(found, 3.0),
    "rda": lambda found: rda_readout(found, 0.5, 0.03),
    "linear": lambda found: rda_readout(found, 1.0, 0.03),
}


def split(features: Tensor, axes: Tensor, seed: int) -> list[Moments]:
    """Moments of one to three groups of a class's images in a task."""
    seen, best = (features @ axes).numpy(), None
    for count in range(1, MOST + 1):
        fitted = GaussianMixture(count, covariance_type="diag", random_state=seed, reg_covar=1e-4).fit(seen)
        groups = torch.from_numpy(fitted.predict(seen))
        enough = min((groups == number).sum() for number in range(count)) >= FEWEST
        if count == 1 or (enough and fitted.bic(seen) < best[0]):
            best = (fitted.bic(seen), groups)
    return [Moments.of(features[best[1] == number]) for number in best[1].unique()]


def cost(part: Moments, axes: Tensor) -> float:
    """n·Σ log variance along the axes."""
    variances = (axes.T @ part.covariance() @ axes).diagonal().clamp_min(1e-4)
    return float(part.count * variances.log().sum())


def merged(parts: list[Moments], axes: Tensor) -> list[Moments]:
    """Merge the pair that is best as one Gaussian, as long as BIC prefers that or there are too many."""
    while len(parts) > 1:
        total = sum(float(part.count) for part in parts)
        price = (2 * COMPONENTS + 1) * float(torch.tensor(total).log())
        pairs = [(a, b) for a in range(len(parts)) for b in range(a)]
        lost = {
            (a, b): cost(parts[a].merge(parts[b]), axes) - cost(parts[a], axes) - cost(parts[b], axes) for a, b in pairs
        }
        a, b = min(lost, key=lambda pair: lost[pair])
        if lost[a, b] > price and len(parts) <= MOST:
            break
        parts = [part for number, part in enumerate(parts) if number not in (a, b)] + [parts[a].merge(parts[b])]
    return parts


@torch.no_grad()
def learnt(experiment: Experiment) -> dict[str, list[list[Moments]]]:
    """What is kept of each class after all tasks."""
    found: dict[str, list[list[Moments]]] = {"one": [], "mixture": []}
    axes = torch.empty(0)
    for task in range(len(experiment.scenario.task_sizes)):
        features, labels = extract(experiment.method.backbone, experiment.task_data(task))
        features = features.double()
        if task == 0:
            axes = torch.linalg.eigh(features.T.cov())[1][:, -COMPONENTS:]
        for number in labels.unique().tolist():
            own = features[labels == number]
            for name, new in (("one", [Moments.of(own)]), ("mixture", split(own, axes, number))):
                while len(found[name]) <= number:
                    found[name].append([])
                parts = found[name][number] + new
                if name == "one":
                    parts = [parts[0].merge(parts[1])] if len(parts) > 1 else parts
                found[name][number] = parts if name == "one" else merged(parts, axes)
        print(f"task {task + 1}", flush=True)
    return found


@torch.no_grad()
def study(folder: Path) -> list[dict[str, Any]]:
    experiment = reopen(folder)
    tasks = len(experiment.scenario.task_sizes)
    experiment.go_to(folder, 0)  # the network is frozen from here on
    kept = learnt(experiment)
    members, labels = experiment.scenario.members(experiment.scenario.source.test, 0, tasks - 1)
    net = folded(experiment.method.backbone.eval())
    session = experiment.session
    pixels = views(experiment.scenario.source.test, members, session.pipeline, session.device)
    test = torch.cat([net(images) for images in pixels])
    again = sorted({number for task in range(1, tasks) for number in experiment.scenario.returning(task)})
    records = []
    for name, classes in kept.items():
        parts = [part for each in classes for part in each]
        owner = torch.repeat_interleave(torch.arange(len(classes)), torch.tensor([len(each) for each in classes]))
        means, covs = (
            torch.stack(each) for each in zip(*((part.mean, part.covariance()) for part in parts), strict=True)
        )
        for readout, build in READOUTS.items():
            scores = build(Gaussians(means, covs)).scores(test)
            best = torch.full((len(scores), len(classes)), -torch.inf, dtype=scores.dtype)
            best = best.scatter_reduce(1, owner.expand(len(scores), -1), scores, "amax")
            right = best.argmax(1) == labels
            of_returning = torch.isin(labels, torch.tensor(again, dtype=labels.dtype))
            records.append(rounded({
                "setting": folder.resolve().parent.name, "kept": name, "readout": readout, "gaussians": len(parts),
                "accuracy": 100 * float(right.double().mean()),
                "returning": 100 * float(right[of_returning].double().mean()),
            }))  # fmt: skip
    return records


def main(folders: list[str]) -> None:
    one_thread()
    for folder in folders:
        new = study(Path(folder))
        settings = {each["setting"] for each in new}
        save("mixtures", [each for each in load("mixtures", []) if each["setting"] not in settings] + new)
        print(*new, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
