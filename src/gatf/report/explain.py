"""`gatf explain anchor`: what Theorem 1 does, in two dimensions, drawn by the code that methods run."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from gatf.geometry.anchor import solve_ridge, solve_sylvester
from gatf.report.page import draw_groups, save_figures, write_page
from gatf.report.sections import FigureSpec
from gatf.report.style import GRID, INK, MUTED, SERIES, LineStyle, label_ends, new_figure, styled

RIDGE = 0.5
"""ρ of the pictures: far larger than the 0.01 of training, to be seen."""
STYLES = {
    "anchor": LineStyle(SERIES[0], "", "-", 2.6),
    "ridge": LineStyle(SERIES[1], "", "--"),
    "least squares": LineStyle(SERIES[2], "", "-."),
}


@dataclass(frozen=True)
class Toy:
    """A class in the old space, and the same class after the network has moved: wide one way, thin the other."""

    cov_old: Tensor
    cov_new: Tensor
    cross: Tensor
    """Cov(new, old)."""

    @classmethod
    def example(cls) -> "Toy":
        """new = M·old exactly, with variances 4 and 0.09 along axes turned by 30°."""
        turn = _rotation(math.pi / 6)
        cov_old = torch.diag(torch.tensor([1.0, 0.8], dtype=torch.float64))
        stretch = torch.diag(torch.tensor([4.0, 0.09], dtype=torch.float64)).sqrt()
        move = turn @ stretch @ torch.linalg.inv(cov_old.sqrt())
        return cls(cov_old, move @ cov_old @ move.T, move @ cov_old)

    def maps(self, ridge: float) -> dict[str, Tensor]:
        """P of each estimator; ridge regression with the penalty that an isotropic Σ_n of the same trace would give."""
        mean_variance = float(self.cov_new.diagonal().mean())
        return {
            "least squares": solve_ridge(self.cov_old, self.cross, ridge=0.0),
            "ridge": solve_ridge(self.cov_old, self.cross, ridge=ridge * mean_variance),
            "anchor": solve_sylvester(self.cov_old, self.cov_new, self.cross, ridge),
        }

    def image(self, weight: Tensor) -> Tensor:
        """Covariance of the old class after the map."""
        return weight @ self.cov_old @ weight.T

    def kept(self, weight: Tensor) -> tuple[float, float]:
        """Share of the standard deviation that is left along the wide and the thin axis of the new class."""
        values, axes = torch.linalg.eigh(self.cov_new)
        left = (axes.T @ self.image(weight) @ axes).diagonal() / values
        return math.sqrt(float(left[1])), math.sqrt(float(left[0]))


def _rotation(angle: float) -> Tensor:
    return torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )  # fmt: skip


@styled
def class_ellipses(toy: Toy, name: str) -> Figure:
    """The true new class, and the old one as carried by one estimator; two standard deviations."""
    figure, axes = new_figure(3.2)
    _ellipse(axes, toy.cov_new, INK, ":", 1.6)
    _ellipse(axes, toy.cov_old, MUTED, "-", 1.0)
    image = toy.image(toy.maps(RIDGE)[name])
    _ellipse(axes, image, STYLES[name].color, "-", 2.6)
    axes.set_xlim(-4.2, 4.2)
    axes.set_ylim(-3, 3)
    axes.set_aspect("equal")
    axes.tick_params(labelbottom=False, labelleft=False)
    for text, colour, height in (
        ("where it is ···", INK, 0.95),
        ("where it was", MUTED, 0.88),
        ("carried", STYLES[name].color, 0.81),
    ):
        axes.text(0.02, height, text, transform=axes.transAxes, color=colour, va="center", fontsize=9)
    return figure


def _ellipse(axes: Axes, cov: Tensor, color: str, dash: str, line: float) -> None:
    values, vectors = (part.numpy() for part in torch.linalg.eigh(cov))
    angle = math.degrees(math.atan2(vectors[1, 1], vectors[0, 1]))
    width, height = 4 * math.sqrt(max(values[1], 0)), 4 * math.sqrt(max(values[0], 0))
    look = {"facecolor": "none", "edgecolor": color, "linestyle": dash, "linewidth": line}
    axes.add_patch(Ellipse((0, 0), width, height, angle=angle, **look))


@styled
def kept_by_direction(toy: Toy) -> Figure:
    """Share of each axis that is left, against ρ."""
    figure, axes = new_figure(3.0)
    ridges = np.logspace(-3, 1, 41)
    ends = {}
    for name, axis in (("anchor", 0), ("anchor", 1), ("ridge", 0), ("ridge", 1)):
        left = [100 * toy.kept(toy.maps(float(ridge))[name])[axis] for ridge in ridges]
        label = f"{name}, {'wide' if axis == 0 else 'thin'}"
        style = LineStyle(STYLES[name].color, "", "-" if axis == 0 else "--", 2.4 if name == "anchor" else 1.6)
        axes.plot(ridges, left, color=style.color, linestyle=style.dash, linewidth=style.width)
        ends[label] = (left[-1], style)
    axes.axvline(RIDGE, color=GRID, linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(0, 104)
    axes.set_xlim(ridges[0], ridges[-1])
    axes.set_xlabel("ρ")
    axes.set_title("width left along each axis of the class, %", loc="left", color=MUTED)
    label_ends(
        axes, {row: height for row, (height, _) in ends.items()}, {row: style for row, (_, style) in ends.items()}
    )
    return figure


@dataclass(frozen=True)
class FewPairs:
    """Held-out Mahalanobis error of maps estimated from few pairs, against ρ."""

    ridges: np.ndarray
    errors: dict[str, np.ndarray]


def few_pairs(*, dim: int = 16, pairs: int = 24, draws: int = 30, seed: int = 0) -> FewPairs:
    """Old features with variances falling from 1 to 0.01, moved by a random map with some noise; E‖P x − y‖²_{Σ_n⁻¹}/S
    of fresh pairs, mean over draws of the `pairs` that the maps are estimated from."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -1, dim, dtype=torch.float64)
    ridges = np.logspace(-4, 1, 21)
    totals = {name: np.zeros(len(ridges)) for name in STYLES}
    for _ in range(draws):
        old = torch.randn(pairs, dim, generator=generator, dtype=torch.float64) * scales
        move = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
        noise = 0.1 * torch.randn(pairs, dim, generator=generator, dtype=torch.float64) * scales
        new = (old + noise) @ move.T
        seen = Toy(*_moments(old, new))
        true_old = torch.diag(scales.square())
        truth = Toy(true_old, 1.01 * move @ true_old @ move.T, move @ true_old)
        inverse = torch.linalg.inv(truth.cov_new)
        for number, ridge in enumerate(ridges):
            for name, weight in seen.maps(float(ridge)).items():
                error = truth.image(weight) - 2 * weight @ truth.cross.T + truth.cov_new
                totals[name][number] += float((inverse @ error).diagonal().sum()) / dim / draws
    return FewPairs(ridges, totals)


def _moments(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, y = old - old.mean(0), new - new.mean(0)
    count = len(old) - 1
    return x.T @ x / count, y.T @ y / count, y.T @ x / count


@styled
def error_over_ridge(found: FewPairs) -> Figure:
    """The error of each estimator against ρ; both axes logarithmic."""
    figure, axes = new_figure(3.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, errors in found.errors.items():
        style = STYLES[name]
        axes.plot(found.ridges, errors, color=style.color, linestyle=style.dash, linewidth=style.width)
    axes.axvline(0.01, color=GRID, linewidth=1)
    axes.set_xlim(found.ridges[0], found.ridges[-1])
    axes.set_xlabel("ρ (0.01 in training)")
    axes.set_title("Mahalanobis error of fresh pairs, a direction", loc="left", color=MUTED)
    label_ends(axes, {name: float(errors[-1]) for name, errors in found.errors.items()}, STYLES)
    return figure


def anchor_figures() -> list[FigureSpec]:
    """The pictures, with what to see in them."""
    toy, found = Toy.example(), few_pairs()
    said = {}
    for name, weight in toy.maps(RIDGE).items():
        wide, thin = toy.kept(weight)
        said[name] = f"{100 * wide:.0f} % of the wide axis and {100 * thin:.0f} % of the thin one"
    ellipses = [
        _ellipses(
            toy, "least squares", f"Without a penalty nothing holds the map back: it keeps {said['least squares']}."
        ),
        _ellipses(toy, "ridge", f"Plain ridge shrinks without looking at the new class: it keeps {said['ridge']}."),
        _ellipses(toy, "anchor", f"The anchor shrinks where there is width to spare: it keeps {said['anchor']}."),
    ]
    best = {name: float(errors.min()) for name, errors in found.errors.items()}
    at = float(found.ridges[found.errors["anchor"].argmin()])
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in best.items())
    shrinkage = (
        "The anchor's thin axis stays whole long after its wide one is gone; ridge spends its penalty on the old space."
    )
    return [
        *ellipses,
        FigureSpec(
            "anchor-shrinkage", "What is left, by direction", shrinkage, f"Line chart over the penalty ρ. {shrinkage}",
            lambda: kept_by_direction(toy), group="How much, and what for",
        ),
        FigureSpec(
            "anchor-error", "Error of a map from few pairs",
            f"From 24 pairs in 16 dimensions, the least error of each: {numbers} (the anchor's at ρ = {at:.2g}).",
            f"Line chart of the Mahalanobis error on fresh pairs over ρ. Least errors: {numbers}.",
            lambda: error_over_ridge(found), group="How much, and what for",
        ),
    ]  # fmt: skip


def _ellipses(toy: Toy, name: str, sentence: str) -> FigureSpec:
    return FigureSpec(
        f"anchor-{name.replace(' ', '-')}", name.capitalize(), sentence,
        f"Ellipses of a class before and after the network moved, and as carried by {name}. {sentence}",
        lambda: class_ellipses(toy, name), group="One class, three maps",
    )  # fmt: skip


def write_anchor_page(out: Path, *, figures: Path | None = None) -> None:
    """The pictures as one HTML file, and each as PDF and PNG."""
    specs = anchor_figures()
    write_page(out, "explain.html.j2", title="What the anchor does", groups=draw_groups(specs, "e"), ridge=RIDGE)
    if figures is not None:
        save_figures(specs, figures)
