"""The diagnostics of GATF (Xu & Krawczyk, ECCV 2026, Sec. 4.2): pure functions from tensors to tidy tables. Where the
paper's supplement is not public, the docstring says that the definition is ours.

Diagnostics use old images, which methods cannot access (`observer.DiagnosticsData` is never passed to a method).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gatf.geometry import certificate, spd
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.readout import mahalanobis_readout, margins

Value = int | float | str
Table = list[dict[str, Value]]
SHRINK = 1e-3
"""Shrinkage of covariances before they are inverted; the true ones of small classes are singular."""
FLOOR = 1e-12
"""Lower bound of eigenvalues, relative to the largest."""


@dataclass(frozen=True)
class TrueMeans:
    """Class means in the current feature space, estimated from some images per class, and their precision."""

    means: Tensor
    """[C, S], float64."""
    spread: Tensor
    """√tr Σ_c, [C]: the root mean square distance of features from their class mean."""
    noise: Tensor
    """Expected squared distance between these means and those over all training images, [C]."""


def true_means(features: Tensor, labels: Tensor, images: Tensor, *, mirrored: bool = False) -> TrueMeans:
    """From features [N, S] of the first images of each class; the class has `images` [C] in total. With `mirrored` the
    features of the mirrored images follow, [2N, S].

    The expected squared error of a mean over n of N images is tr Σ·(1/n − 1/N); an image and its mirror image count as
    one.
    """
    classes, copies = len(images), 2 if mirrored else 1
    one_each = features.double().reshape(copies, -1, features.shape[1])  # [copies, N, S]
    of_class = labels[: one_each.shape[1]]
    counts = torch.bincount(of_class, minlength=classes).double()

    def by_class(values: Tensor) -> Tensor:
        return torch.zeros(classes, *values.shape[1:], dtype=torch.float64).index_add_(0, of_class, values)

    means = by_class(one_each.mean(0)) / counts[:, None]
    around = one_each - means[of_class]
    variance = by_class(around.square().sum(-1).mean(0)) * copies / (copies * counts - 1).clamp_min(1)
    between = by_class(around.mean(0).square().sum(-1)) / (counts - 1).clamp_min(1)
    return TrueMeans(means, variance.sqrt(), between * (1 / counts - 1 / images).clamp_min(0))


def drift(estimated: Tensor, true: TrueMeans) -> Tensor:
    """‖μ_c(true) − μ̂_c‖₂ (Sec. 4.2) of each class in units of its spread, minus the noise of the measurement, [C].

    The paper reports plain distances; in units of the spread they are comparable between networks. The noise is
    subtracted from the square, and negative values become zero.
    """
    squares = (true.means - estimated.double()).square().sum(1) - true.noise
    return squares.clamp_min(0).sqrt() / true.spread.clamp_min(torch.finfo(torch.float64).tiny)


def prototype_drift(estimated: Tensor, true: TrueMeans, task_of_class: Tensor) -> Table:
    """`drift` averaged over the classes of each past task, one row per task; `floor` is the subtracted noise, as a
    distance in spreads."""
    found = drift(estimated, true)
    floor = true.noise.sqrt() / true.spread.clamp_min(torch.finfo(torch.float64).tiny)
    return [
        {"past_task": task, "drift": float(found[own].mean()), "floor": float(floor[own].mean())}
        for task in task_of_class.unique().tolist()
        for own in (task_of_class == task,)
    ]


def mahalanobis_tail(transported: Tensor, new: Tensor) -> Table:
    """T(k) = Σ_{i≤k} E[(u_iᵀe)²]/λ_i for k = 1..S, e = A(z_old) − z_new (Sec. 4.2): both [N, S], of old-task images.

    λ_i and u_i, descending, are eigenvalues and eigenvectors of the covariance of `new` (our choice: the paper does not
    name the images). The curve of an exact map is zero. An error distributed like the features rises by the same
    amount at every k; an error in directions of small variance rises at the end.
    """
    new = new.double()
    error = transported.double() - new
    values, vectors = torch.linalg.eigh(spd.symmetrise(torch.cov(new.T).reshape(new.shape[1], new.shape[1])))
    values = values.flip(0).clamp_min(FLOOR * float(values.max().clamp_min(torch.finfo(torch.float64).tiny)))
    energy = (error @ vectors.flip(1)).square().mean(0)  # [S]
    tail = (energy / values).cumsum(0)
    return [{"k": k + 1, "tail": value} for k, value in enumerate(tail.tolist())]


def margin_forms(features: Tensor, stored: Gaussians, labels: Tensor) -> dict[str, Tensor]:
    """m(x) = min_{c≠y} d_c − d_y of rows [N, S]: in squared Mahalanobis distances (Eq. 3), and its log-likelihood form
    with d_c = ½(Mahalanobis + log det Σ_c)."""
    distances = mahalanobis_readout(stored, SHRINK).distances(features)
    logdet = torch.linalg.slogdet(spd.shrink(stored.covs, SHRINK)).logabsdet
    return {"mahalanobis": margins(distances, labels), "likelihood": margins((distances + logdet) / 2, labels)}


def score_margins(scores: Tensor, labels: Tensor) -> Tensor:
    """s_y − max_{c≠y} s_c of scores [N, C]: the margin of the method's own rule."""
    return margins(-scores, labels)


def margin_density(values: Tensor, bins: int = 40) -> Table:
    """Histogram of margins [N] between their 1st and 99th percentile; `unit` is their median size, which makes methods
    with different scores comparable, `wrong` the share at or below zero."""
    values = values.double()
    values = values[values.isfinite()]
    if len(values) == 0:
        return []
    low, high = (float(bound) for bound in torch.quantile(values, torch.tensor([0.01, 0.99], dtype=values.dtype)))
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(values, bins, low, high)
    width = (high - low) / bins
    density = (counts / (counts.sum() * width)).tolist()
    common = {"unit": float(values.abs().median()), "wrong": float((values <= 0).double().mean())}
    return [
        {"low": low + number * width, "high": low + (number + 1) * width, "density": value, **common}
        for number, value in enumerate(density)
    ]


def old_to_new(predicted: Tensor, labels: Tensor, task_of_class: Tensor) -> Table:
    """ρ by past task: share of its test images predicted as a class of the newest task, and their accuracy."""
    tasks, newest = task_of_class[labels], int(task_of_class.max())
    rows: Table = []
    for task in range(newest):
        own = tasks == task
        to_new = (task_of_class[predicted[own]] == newest).double().mean()
        right = (predicted[own] == labels[own]).double().mean()
        rows.append({"past_task": task, "to_new": float(to_new), "right": float(right)})
    return rows


def accuracy_by_task(predicted: Tensor, labels: Tensor, task_of_class: Tensor) -> Table:
    """A row of the accuracy matrix: accuracy on each task's test images [N], predicting among all seen classes."""
    right, tasks = (predicted == labels).double(), task_of_class[labels]
    return [
        {"past_task": task, "accuracy": float(right[tasks == task].mean())} for task in task_of_class.unique().tolist()
    ]


def accuracy_by_class(predicted: Tensor, labels: Tensor, task_of_class: Tensor) -> Table:
    """Accuracy on each class's test images [N]."""
    right = (predicted == labels).double()
    return [
        {"class": number, "past_task": task, "accuracy": float(right[labels == number].mean())}
        for number, task in enumerate(task_of_class.tolist())
    ]


def transport_plane(old: Tensor, new: Tensor, transported: Tensor | None, labels: Tensor) -> Table:
    """Class means of z_old, z_new and, where there is a map, A(z_old), in the plane of the two principal axes fitted
    once on both spaces together. Arrows old → new show the drift; a good map has `transported` near new."""
    both = torch.cat([old, new]).double()
    origin = both.mean(0)
    _, _, axes = torch.linalg.svd(both - origin, full_matrices=False)
    plane = axes[:2]  # [2, S]
    plane = plane * plane.gather(1, plane.abs().argmax(1, keepdim=True)).sign()  # the SVD leaves the sign open
    kinds = {"old": old, "new": new} | ({} if transported is None else {"transported": transported})
    rows: Table = []
    for kind, features in kinds.items():
        flat = (features.double() - origin) @ plane.T  # [N, ≤2]
        for number in labels.unique().tolist():
            place = flat[labels == number].mean(0).tolist()
            rows.append({"class": number, "kind": kind, "x": place[0], "y": place[1] if len(place) > 1 else 0.0})
    return rows


def spectra(covs: Tensor, task_of_class: Tensor) -> Table:
    """Eigenvalues of class covariances [C, S, S], descending: their geometric mean over the classes of each task."""
    values = torch.linalg.eigvalsh(spd.symmetrise(covs.double())).flip(-1)  # [C, S]
    values = values.clamp_min(FLOOR * values.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny))
    rows: Table = []
    for task in task_of_class.unique().tolist():
        typical = values[task_of_class == task].log().mean(0).exp()
        rows += [
            {"past_task": task, "rank": rank + 1, "eigenvalue": value} for rank, value in enumerate(typical.tolist())
        ]
    return rows


def symmetric_kl(one: Gaussians, other: Gaussians) -> Tensor:
    """KL(p‖q) + KL(q‖p) of each pair of classes, [C]: ½(tr(Σ_q⁻¹Σ_p) + tr(Σ_p⁻¹Σ_q) − 2S + Δᵀ(Σ_p⁻¹ + Σ_q⁻¹)Δ)."""
    offset = (one.means - other.means)[..., None]  # [C, S, 1]
    total = torch.full((len(one),), -2.0 * one.means.shape[1], dtype=torch.float64, device=one.means.device)
    for p, q in ((one.covs, other.covs), (other.covs, one.covs)):
        lower = spd.cholesky(q).lower
        total += torch.cholesky_solve(p, lower).diagonal(dim1=-2, dim2=-1).sum(-1)
        total += (offset.mT @ torch.cholesky_solve(offset, lower)).flatten()
    return total / 2


def mean_errors(stored: Tensor, true: TrueMeans, task_of_class: Tensor) -> Table:
    """Error of each class's stored mean [C, S]: in the features' own units, and as `drift`."""
    plain, relative = (stored.double() - true.means).norm(dim=1).tolist(), drift(stored, true).tolist()
    tasks = task_of_class.tolist()
    return [
        {"class": number, "past_task": tasks[number], "mean_l2": plain[number], "drift": relative[number]}
        for number in range(len(tasks))
    ]


def transport_errors(stored: Gaussians, true: Gaussians) -> Table:
    """Errors of each class's stored Gaussian in the current space: Frobenius norm of the covariance error (also
    relative to the true norm), and symmetric KL after the same small shrinkage."""
    covs = torch.linalg.matrix_norm(stored.covs - true.covs)
    relative = covs / torch.linalg.matrix_norm(true.covs).clamp_min(torch.finfo(torch.float64).tiny)
    divergence = symmetric_kl(_shrunk(stored, SHRINK), _shrunk(true, SHRINK))
    return [
        {
            "cov_frobenius": float(covs[number]),
            "cov_relative": float(relative[number]),
            "symmetric_kl": float(divergence[number]),
        }
        for number in range(len(stored))
    ]


CERTIFYING_SHRINK = 1.0
"""Shrinkage of the readout that `range_shrunk` certifies."""


def certified_share(features: Tensor, stored: Gaussians, true: Gaussians) -> Table:
    """Share of rows [N, S] whose Mahalanobis prediction (Eq. 3, small shrinkage) is certified against the true errors
    of the stored Gaussians. Only diagnostics know these errors. One row, four shares:

    - `certified`: Theorem 2 as printed; `valid` is the share of classes with η_Σ < λ_min/2, which it requires;
    - `whitened`: the same theorem in coordinates that whiten each class; `valid_whitened` with η_Σ < 1/2;
    - `range`: from the range of each distance in those coordinates, which requires only η_Σ < 1;
    - `range_shrunk`: the same for a readout with covariances shrunk by 1.
    """
    known, truth = _shrunk(stored, SHRINK), _shrunk(true, SHRINK)
    eta_mean = (stored.means - true.means).norm(dim=1)
    eta_cov = (1 + SHRINK) * torch.linalg.matrix_norm(stored.covs - true.covs, ord=2)
    smallest = torch.linalg.eigvalsh(known.covs).amin(1)
    reach = torch.cdist(features.double(), stored.means)  # [N, C]
    bounds = certificate.score_bound(reach, eta_mean, eta_cov=eta_cov, lambda_min=smallest)
    distances = mahalanobis_readout(stored, SHRINK).distances(features)
    errors = certificate.whitened_errors(known, truth)
    return [
        {
            "certified": _share(certificate.certified(distances, bounds)),
            "valid": _share(eta_cov < smallest / 2),
            "eta_mean": float(eta_mean.mean()),
            "eta_cov": float(eta_cov.mean()),
            "lambda_min": float(smallest.mean()),
            "whitened": _share(certificate.certified(distances, certificate.whitened_bound(distances, *errors))),
            "valid_whitened": _share(errors[1] < 0.5),
            "eta_mean_whitened": float(errors[0].mean()),
            "eta_cov_whitened": float(errors[1].mean()),
            "range": _share(_certified_by_range(distances, errors)),
            "range_shrunk": _share(
                _certified_by_range(
                    mahalanobis_readout(stored, CERTIFYING_SHRINK).distances(features),
                    certificate.whitened_errors(_shrunk(stored, CERTIFYING_SHRINK), _shrunk(true, CERTIFYING_SHRINK)),
                )
            ),
        }
    ]


def _shrunk(gaussians: Gaussians, amount: float) -> Gaussians:
    return Gaussians(gaussians.means, spd.shrink(gaussians.covs, amount))


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _certified_by_range(distances: Tensor, errors: tuple[Tensor, Tensor]) -> Tensor:
    low, high = certificate.distance_range(distances, *errors)
    return certificate.certified_range(low, high, distances.argmin(1))
