"""The class means and covariances, projected to the two principal axes of the means."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.model.state import Model

POWERS = 50
"""Iterations that find the widest direction of a covariance."""


@dataclass(frozen=True)
class Plane:
    """Two orthonormal directions of feature space, through the mean of the class means."""

    centre: Tensor
    """[S]."""
    axes: Tensor
    """[S, 2]."""
    share: float
    """Of the variance of the class means that the plane shows."""

    @classmethod
    def of(cls, stored: Gaussians) -> "Plane":
        """The first two principal axes of the means. Where means leave a direction open (two classes lie on a line),
        the direction in which classes spread most takes its place."""
        centre = stored.means.mean(0)
        spread = stored.means - centre  # [C, S]
        _, values, rows = torch.linalg.svd(spread, full_matrices=False)
        total = float(values.square().sum())
        axes = rows[:2][values[:2] > 1e-9 * max(float(values[0]), 1e-300)].mT  # [S, 0 to 2]
        while axes.shape[1] < min(2, spread.shape[1]):
            axes = torch.cat([axes, _widest(stored.mean_cov(), axes)[:, None]], dim=1)
        axes = axes * torch.where(axes.gather(0, axes.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
        shown = float((spread @ axes).square().sum())
        return cls(centre, axes, shown / total if total > 0 else 1.0)

    def __call__(self, vectors: Tensor) -> Tensor:
        """[N, S] → [N, 2]."""
        return (vectors.to(self.centre) - self.centre) @ self.axes


def _widest(cov: Tensor, axes: Tensor) -> Tensor:
    """A direction [S], orthogonal to the axes [S, k], in which a covariance is nearly largest; by power iterations,
    because factorising matrices of low rank may not converge."""
    found = torch.ones_like(cov[0])
    for _ in range(POWERS):
        found = found - axes @ (axes.mT @ found)
        found = found / found.norm().clamp_min(1e-300)
        wider = cov @ found
        if not bool(wider.any()):
            break
        found = wider
    found = found - axes @ (axes.mT @ found)
    return found / found.norm().clamp_min(1e-300)


def last_update(model: Model) -> int:
    """The number of the model's last update, 0 after the first fit. The history does not keep every record."""
    return model.history[-1].number


def chart(model: Model, plane: Plane, before: Model | None = None) -> dict[str, Any]:
    """Place and spread of every class on the plane; `before` is the model before the last update, for their earlier
    positions."""
    stored = model.stored
    places = plane(stored.means)
    common = stored.common
    if common is not None:
        shadows = (plane.axes.mT @ common @ plane.axes).expand(len(stored), -1, -1)
    else:
        shadows = plane.axes.mT @ stored.covs @ plane.axes  # [C, 2, 2]
    origins = _origins(model, before, plane)
    classes = [
        {
            "label": label,
            "place": _rounded(places[number]),
            "spread": [_rounded(row) for row in shadows[number]],
            "from": origins.get(label),
        }
        for number, label in enumerate(model.labels)
    ]
    return {"classes": classes, "share": round(plane.share, 4), "moved": bool(origins)}


def _origins(model: Model, before: Model | None, plane: Plane) -> dict[Any, list[float]]:
    """Class means before the last update; empty if they are unknown or belong to another feature space."""
    if before is None or last_update(before) != last_update(model) - 1:
        return {}
    if before.config.method.name != model.config.method.name:
        return {}  # a frozen network was adapted, or the other way round: its features are others
    try:
        means = before.stored.means
    except UserError:
        return {}
    if means.shape[1] != len(plane.centre):
        return {}
    return {label: _rounded(place) for label, place in zip(before.labels, plane(means), strict=True)}


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
