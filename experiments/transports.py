"""Which map transports old classes best, between the frozen networks of one trained run?

python experiments/transports.py RUN    a finished run of gatf with keep_networks=true

For every task after the first, each map is fitted to (old, new) features of the task's augmented training images and
evaluated on test images of older classes. Writes results/<bench>/transports.json; docs/results.md explains the columns.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import beside_bench, one_thread, rounded, save
from torch import Tensor, nn

from gatf.data.loader import shuffled
from gatf.errors import UserError
from gatf.evaluation.accuracy_gap import accuracy
from gatf.evaluation.diagnostics import SHRINK, mahalanobis_tail, score_margins
from gatf.evaluation.observer import DiagnosticsData
from gatf.experiment import Experiment, reopen
from gatf.geometry import spd
from gatf.geometry.anchor import Affine, AnchorKind, fit_anchor
from gatf.geometry.gaussians import Gaussians, push_forward, white_noise
from gatf.geometry.moments import Moments, PairedMoments, class_moments
from gatf.io.run_folder import RunFolder
from gatf.methods.gatf import GATF
from gatf.nets.mlp import feature_mlp, zero_residual
from gatf.seeding import generator, keyed_init

Map = Callable[[Tensor], Tensor]
VIEWS = 4
"""Augmented views of each training image that maps are fitted to."""
PASSES, BATCH, RATE = 10, 256, 1e-3
"""How MLPs are trained on them: Adam, its rate falling to zero along a cosine."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class Pairs:
    """Features of the same images in the old and in the new space, [N, S] each."""

    old: Tensor
    new: Tensor


def nothing(pairs: Pairs, seed: int, ridge: float) -> Map:
    return lambda old: old


def translation(pairs: Pairs, seed: int, ridge: float) -> Map:
    shift = pairs.new.mean(0) - pairs.old.mean(0)
    return lambda old: old + shift.to(old)


def anchor(kind: AnchorKind) -> Callable[[Pairs, int, float], Map]:
    return lambda pairs, seed, ridge: fit_anchor(PairedMoments.of(pairs.old, pairs.new), ridge, kind=kind)


def mlp(pairs: Pairs, seed: int, ridge: float) -> Map:
    with keyed_init(seed, "transports", "mlp"):
        net = feature_mlp(pairs.old.shape[1])
    return trained(net, pairs, seed)


def anchor_and_residual(pairs: Pairs, seed: int, ridge: float) -> Map:
    prior = fit_anchor(PairedMoments.of(pairs.old, pairs.new), ridge)
    return together(prior, residual_of(prior, pairs, seed))


def refreshed(pairs: Pairs, seed: int, ridge: float) -> Map:
    """The anchor solved once more, for what the residual leaves."""
    residual = residual_of(fit_anchor(PairedMoments.of(pairs.old, pairs.new), ridge), pairs, seed)
    with torch.no_grad():
        left = pairs.new - residual(pairs.old)
    return together(fit_anchor(PairedMoments.of(pairs.old, left), ridge), residual)


def together(prior: Affine, residual: nn.Module) -> Map:
    return lambda old: prior(old) + residual(old)


def residual_of(prior: Affine, pairs: Pairs, seed: int) -> nn.Module:
    with keyed_init(seed, "transports", "residual"):
        net = zero_residual(pairs.old.shape[1])
    return trained(net, Pairs(pairs.old, pairs.new - prior(pairs.old)), seed)


def trained(net: nn.Module, pairs: Pairs, seed: int) -> nn.Module:
    """Least squares from old to new features."""
    steps = PASSES * -(-len(pairs.old) // BATCH)
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    draws = generator(seed, "transports", "order")
    for _ in range(PASSES):
        for rows in torch.randperm(len(pairs.old), generator=draws).split(BATCH):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(pairs.old[rows]), pairs.new[rows]).backward()
            optimiser.step()
            schedule.step()
    return net.requires_grad_(False)


MAPS: dict[str, Callable[[Pairs, int, float], Map]] = {
    "none": nothing,
    "translation": translation,
    "ridge": anchor("ridge"),
    "Sylvester": anchor("sylvester"),
    "towards identity": anchor("identity"),
    "MLP alone": mlp,
    "anchor + residual": anchor_and_residual,
    "refreshed": refreshed,
}
"""By the name that tables and figures have for it."""


class Networks:
    """The frozen networks of all tasks of a run, and what they make of images."""

    def __init__(self, folder: Path) -> None:
        self.experiment: Experiment = reopen(folder, {"device": "cpu"})
        self.tasks = len(self.experiment.scenario)
        missing = [task + 1 for task in range(self.tasks) if not RunFolder(folder).after_task(task).is_file()]
        if missing:
            raise UserError(f"{folder} lacks the networks of tasks {missing}: run it with --set keep_networks=true")
        method = self.experiment.method
        if not isinstance(method, GATF):
            raise UserError(f"{folder} is no run of gatf")
        self.method, self.nets = method, []
        for task in range(self.tasks):
            self.experiment.go_to(folder, task)
            self.nets.append(method.frozen_copy(method.backbone))
        session = self.experiment.session
        self.door = DiagnosticsData(self.experiment.scenario, session.pipeline, session.device)

    @torch.no_grad()
    def pairs(self, task: int) -> Pairs:
        """Of the task's augmented training images, by the network before it and the one after it."""
        data, found = self.experiment.task_data(task), []
        for view in range(VIEWS):
            for batch in data.batches("train", purpose="transports", epoch=view, order=shuffled):
                found.append((self.nets[task - 1](batch.images), self.nets[task](batch.images)))
        data.close()
        old, new = (torch.cat(part) for part in zip(*found, strict=True))
        return Pairs(old, new)

    @torch.no_grad()
    def own_features(self, task: int) -> tuple[Tensor, Tensor]:
        """Of the task's images and their mirror images, by its own network; labels from 0 within the task."""
        info, data, found = self.experiment.task_info(task), self.experiment.task_data(task), []
        for batch in data.batches("test"):
            for images in (batch.images, batch.images.flip(-1)):
                found.append((self.nets[task](images), batch.labels - info.old))
        data.close()
        features, labels = (torch.cat(part) for part in zip(*found, strict=True))
        return features, labels

    def stored_by_task(self, task: int) -> Gaussians:
        """The task's own classes, measured with its own network as the method measures them."""
        measured = class_moments(*self.own_features(task), classes=self.experiment.task_info(task).new)
        return Gaussians(measured.mean, measured.covariance())

    def oracle_statistics(self) -> Gaussians:
        """All classes, by the last network."""
        features, labels = self.door.train(self.nets[-1], self.tasks - 1, sys.maxsize, mirror=True)
        measured = class_moments(features, labels, classes=len(self.door.task_of_class(self.tasks - 1)))
        return Gaussians(measured.mean, measured.covariance())


def within_class(features: Tensor, labels: Tensor) -> Tensor:
    """The whitener [S, S] of the covariance of features around their class means, a little shrunk."""
    means = class_moments(features, labels, classes=int(labels.max()) + 1).mean
    lower = spd.cholesky(spd.shrink(Moments.of(features.double() - means[labels]).covariance(), SHRINK)).lower
    return torch.linalg.solve_triangular(lower, torch.eye(len(lower), dtype=lower.dtype), upper=False)


def class_errors(transported: Tensor, new: Tensor, labels: Tensor) -> float:
    """Distance between the means of the transported and the new features of each class, whitened by the covariance
    within classes; mean over classes. Both means are over the same images."""
    error = (transported.double() - new.double()) @ within_class(new, labels).T
    by_class = class_moments(error, labels, classes=int(labels.max()) + 1)
    return float(by_class.mean[by_class.count > 0].norm(dim=1).mean())


def image_errors(transported: Tensor, new: Tensor, labels: Tensor) -> dict[str, float]:
    """Quantiles over images of the same error for single images, divided by √S. A map to a random image of the same
    class would have about √2."""
    error = (transported.double() - new.double()) @ within_class(new, labels).T
    sizes = error.norm(dim=1) / error.shape[1] ** 0.5
    return {f"{share:g}": float(sizes.quantile(share)) for share in QUANTILES}


def answers(networks: Networks, stored: Gaussians, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """What the method's rule makes of the last network's test features with these Gaussians."""
    networks.method.keep(stored)
    tasks = networks.door.task_of_class(networks.tasks - 1)
    scores = networks.method.feature_scores(test)
    old = tasks[labels] < networks.tasks - 1
    margins = score_margins(scores, labels)[old].double()
    return {
        "a_last": accuracy(scores, labels),
        "old_to_new": 100 * float((tasks[scores.argmax(1)[old]] == networks.tasks - 1).double().mean()),
        "margins": {f"{share:g}": float(margins.quantile(share)) for share in QUANTILES},
    }


@torch.no_grad()
def study(networks: Networks) -> list[dict[str, Any]]:
    """A row for every map: its errors over single tasks and over the chain from the task of a class to the last, and
    the accuracy at the end. Two more rows use the Gaussians of the run itself and oracle statistics."""
    last, seed, ridge = networks.tasks - 1, networks.experiment.config.seed, networks.method.config.ridge
    stored = networks.method.stored()
    test = [networks.door.test(net, task) for task, net in enumerate(networks.nets)]
    stored_by_task = [networks.stored_by_task(task) for task in range(networks.tasks)]
    dim = stored.means.shape[1]
    noise = white_noise(
        16 * dim, dim, generator=generator(seed, "transports", "noise"), matched=True, mirrored=True
    )  # as many as the method draws
    transported = dict.fromkeys(MAPS, stored_by_task[0])
    chained = dict.fromkeys(MAPS, test[0][0])
    steps: dict[str, list[float]] = {name: [] for name in MAPS}
    for task in range(1, networks.tasks):
        print(f"task {task + 1} of {networks.tasks}", flush=True)
        pairs = networks.pairs(task)
        old, labels = test[task - 1]
        features, of = test[task]
        is_old = of < networks.experiment.scenario.offsets[task]
        new = features[is_old]
        for name, fit in MAPS.items():
            with torch.enable_grad():
                mapping = fit(pairs, seed, ridge)
            steps[name].append(class_errors(mapping(old), new, labels))
            transported[name] = push_forward(transported[name], mapping, noise=noise).concat(stored_by_task[task])
            moved = features.clone()  # the task's own images need no transport yet
            moved[is_old] = mapping(chained[name])
            chained[name] = moved
    features, labels = test[last]
    is_old = networks.door.task_of_class(last)[labels] < last
    new, own = features[is_old], labels[is_old]
    rows = []
    for name in MAPS:
        there = chained[name][is_old]
        rows.append({
            "map": name,
            "step_error": sum(steps[name]) / len(steps[name]),
            "chain_error": class_errors(there, new, own),
            "image_errors": image_errors(there, new, own),
            "tail": [row["tail"] for row in mahalanobis_tail(there, new)],
            **answers(networks, transported[name], features, labels),
        })  # fmt: skip
    rows.append({"map": "the run's own map", **answers(networks, stored, features, labels)})
    rows.append({"map": "oracle statistics", **answers(networks, networks.oracle_statistics(), features, labels)})
    return rows


def main(folder: Path) -> None:
    one_thread()
    networks = Networks(folder)
    config, rows = networks.experiment.config, study(networks)
    record = {
        "run": folder.name, "seed": config.seed, "ridge": config.method.anchor.ridge, "views": VIEWS, "passes": PASSES,
        "test_images": len(networks.experiment.scenario.source.test), "rows": rounded(rows),
    }  # fmt: skip
    save(beside_bench(folder, "transports"), record)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
