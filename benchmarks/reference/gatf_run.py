"""GATF trained as such methods usually are: what `training.py` and `whole_run.py` compare with.

A data set of uint8 arrays that makes a Pillow image of each, a DataLoader with worker processes, images and networks in
torch's default (contiguous) format, the teacher an ordinary copy under `no_grad`, torch's default optimiser, the loss
read every step, scipy's Sylvester solver, one class after the other for statistics and transport, and the broadcast
Mahalanobis for prediction. The equations are those of the paper (Xu & Krawczyk, ECCV 2026), as in `gatf.methods.gatf`.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from reference.mahalanobis import invert, score
from reference.pillow_pipeline import BINS, OPERATIONS, PADDING, apply_operation
from reference.pushforward import push_forward
from scipy.linalg import solve_sylvester
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset

from gatf.nets.mlp import feature_mlp, zero_residual
from gatf.nets.resnet import ResNet18

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class PillowDataset(Dataset[tuple[Tensor, int]]):
    """One image at a time, one transform after the other, as data sets and their transforms are usually put together:
    array → Pillow → pad, crop, flip, TrivialAugment → tensor in 0 … 1 → normalised, with torch's random numbers."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, *, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment  # uint8 [N, H, W, C], int [N]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[number])
        if self.augment:
            image = self._augmented(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return pixels.sub_(mean).div_(std), int(self.labels[number])

    @staticmethod
    def _augmented(image: Image.Image) -> Image.Image:
        width, height = image.size
        padded = ImageOps.expand(image, border=PADDING, fill=0)
        top, left = (int(torch.randint(2 * PADDING + 1, (1,))) for _ in range(2))
        image = padded.crop((left, top, left + width, top + height))
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        operation = OPERATIONS[int(torch.randint(len(OPERATIONS), (1,)))]
        strength = float(torch.linspace(0, 1, BINS)[int(torch.randint(BINS, (1,)))])
        return apply_operation(image, operation, strength, 1 if torch.rand(1) < 0.5 else -1)


class Reference:
    """The networks and their training; `width` and `dim` as of the backbone compared with."""

    def __init__(
        self, *, width: int, dim: int, batch: int, workers: int, samples: int = 10_000,
        topology: float = 5.0, ridge: float = 0.01,
    ) -> None:  # fmt: skip
        self.backbone = ResNet18(3, width=width, bottleneck=dim)
        self.dim, self.batch, self.workers = dim, batch, workers
        self.samples, self.topology, self.ridge = samples, topology, ridge
        self.means: list[Tensor] = []
        self.covs: list[Tensor] = []
        self.teacher: Any = None

    def loader(self, images: np.ndarray, labels: np.ndarray, *, augment: bool, batch: int | None = None) -> Any:
        dataset = PillowDataset(images, labels, augment=augment)
        return DataLoader(
            dataset, batch or self.batch, shuffle=augment, drop_last=augment, num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )  # fmt: skip

    def begin(self, classes: int, lr: float) -> None:
        """Head and, after the first task, teacher, residual and distiller."""
        first = not self.means
        self.head = nn.Linear(self.dim, 4 * classes if first else classes)
        modules: list[nn.Module] = [self.backbone, self.head]
        if not first:
            self.teacher = copy.deepcopy(self.backbone).eval()
            self.residual, self.distiller = zero_residual(self.dim), feature_mlp(self.dim)
            modules += [self.residual, self.distiller]
            self.weight, self.bias = torch.eye(self.dim), torch.zeros(self.dim)
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.optimiser = torch.optim.SGD(self.parameters, lr=lr, momentum=0.9, weight_decay=5e-4)

    def epoch(self, loader: Any, classes: int) -> float:
        """One pass; the mean loss."""
        self.backbone.train()
        losses = []
        for images, labels in loader:
            if self.teacher is None:
                images = torch.cat([torch.rot90(images, turn, (2, 3)) for turn in range(4)])
                labels = torch.cat([labels + turn * classes for turn in range(4)])
            loss = self.loss(images, labels)
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimiser.step()
            losses.append(loss.item())
        return float(np.mean(losses))

    def map(self, old: Tensor) -> Tensor:
        """Anchor and residual."""
        return old @ self.weight.T + self.bias + self.residual(old)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        new = self.backbone(images)
        loss = cross_entropy(self.head(new), labels)
        if self.teacher is not None:
            with torch.no_grad():
                old = self.teacher(images)
            loss = loss + self.topology * (mse_loss(self.map(old), new.detach()) + mse_loss(self.distiller(new), old))
        if len(new) > self.dim:
            lower = torch.linalg.cholesky(torch.cov(new.T) + 1e-4 * torch.eye(self.dim))
            loss = loss - lower.diagonal().clamp(max=1.0).mean()
        return loss

    @torch.no_grad()
    def refresh(self, loader: Any) -> None:
        """The anchor of one pass over the data."""
        self.backbone.eval()
        pairs = [(self.teacher(images), self.backbone(images)) for images, _ in loader]
        old, new = (torch.cat(part).double() for part in zip(*pairs, strict=True))
        joint = torch.cov(torch.cat([old, new], 1).T).numpy()
        cov_old, cov_new = joint[: self.dim, : self.dim], joint[self.dim :, self.dim :]
        solved = solve_sylvester(self.ridge * cov_new, cov_old, joint[self.dim :, : self.dim])
        self.weight = torch.from_numpy(solved).float()
        self.bias = new.mean(0).float() - self.weight @ old.mean(0).float()

    @torch.no_grad()
    def end(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Carry the old classes, one by one; then the statistics of the new ones, one by one."""
        self.backbone.eval()
        if self.teacher is not None:
            moved = push_forward(torch.stack(self.means), torch.stack(self.covs), self.map, self.samples)
            self.means, self.covs = list(moved[0]), list(moved[1])
        for number in np.unique(labels):
            chosen = images[labels == number]
            loader = self.loader(chosen, labels[labels == number], augment=False)
            features = torch.cat([self.backbone(view) for batch, _ in loader for view in (batch, batch.flip(3))])
            self.means.append(features.mean(0))
            self.covs.append(torch.cov(features.T) + 1e-4 * torch.eye(self.dim))
        self.teacher = None

    @torch.no_grad()
    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Of all test images given."""
        self.backbone.eval()
        means, inverses = torch.stack(self.means), invert(torch.stack(self.covs))
        right = 0
        for batch, wanted in self.loader(images, labels, augment=False, batch=256):
            right += int((score(self.backbone(batch), means, inverses).argmin(1) == wanted).sum())
        return 100 * right / len(labels)


def batches_of(task: int, per_task: int, labels: np.ndarray) -> np.ndarray:
    """Numbers of the images of a task of `per_task` classes."""
    return np.flatnonzero((labels >= task * per_task) & (labels < (task + 1) * per_task))


def run(
    reference: Reference, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], *, tasks: int,
    epochs: int, refresh: int, lr: tuple[float, float] = (0.1, 0.01),
) -> Iterator[float]:  # fmt: skip
    """Learn the classes task by task; yields the accuracy over all seen after each."""
    classes = len(np.unique(train[1]))
    per_task = classes // tasks
    for task in range(tasks):
        members = batches_of(task, per_task, train[1])
        images, labels = train[0][members], train[1][members]
        reference.begin(per_task, lr[0] if task == 0 else lr[1])
        local = labels - task * per_task
        loader = reference.loader(images, local, augment=True, batch=reference.batch // 4 if task == 0 else None)
        for epoch in range(epochs):
            if task > 0 and epoch % refresh == 0:
                reference.refresh(loader)
            reference.epoch(loader, per_task)
        reference.end(images, labels)
        seen = test[1] < (task + 1) * per_task
        yield reference.accuracy(test[0][seen], test[1][seen])
