"""Ideas of GATF's outlook that are no option: other maps between networks, and several Gaussians per class.

python tools/tried.py glyphs RUN [RUN ...]   measure them on runs of one data set, a run for each seed
python tools/tried.py                        only write the table

RUN is a finished run of `gatf` with `--set keep_networks=true --set data.evaluate_on=validation` and a
`data.val_fraction`: ideas are judged on training images that were held out. Results go to
benchmarks/results/tried.json, and from there into docs/methods.md.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from orderings import PAGE, spread
from torch import Tensor
from transports import MAPS, Map, Networks, Pairs, class_errors
from update_docs import ROOT, replace_between

from gatf.evaluation.losses import accuracy
from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians, push_forward, white_noise
from gatf.geometry.moments import Moments
from gatf.geometry.readout import bayes_readout, rda_readout
from gatf.io.files import write_text
from gatf.seeding import generator

RECORD = ROOT / "benchmarks" / "results" / "tried.json"
FEATURES, RIDGES = 1024, tuple(10.0**-power for power in range(1, 8))
"""Random Fourier features of the kernel anchor, and among which its ridge is chosen on a fifth of the pairs."""
LOCAL, LOCAL_RIDGE = 4, 0.1
"""Local anchors, and how far each is drawn to the common one, as a share of the covariance of all features."""
COMPONENTS = (1, 2, 3, 4)
ANEW = "old classes measured anew (oracle)"
RDA = (0.5, 0.03)
"""Mixture and shrinkage of `rda`: where its own choice begins."""
ROUNDS, STARTS, LOAD = 30, 2, 1e-4
"""Of expectation maximisation: rounds, starts, and the share of the mean variance that covariances are loaded with."""


def towards_identity(pairs: Pairs) -> Map:
    return MAPS["towards identity"](pairs, 0, 0.01)


def residual(pairs: Pairs) -> Map:
    return MAPS["refreshed"](pairs, 0, 0.01)


def kernel(pairs: Pairs) -> Map:
    """What the anchor leaves, by ridge regression on random Fourier features of a Gaussian kernel (Rahimi & Recht,
    NeurIPS 2007) whose width is the root mean square distance of features from their mean."""
    base, x = towards_identity(pairs), pairs.old.double()
    centre, draws = x.mean(0), generator(0, "tried", "kernel")
    width = (x - centre).square().sum(1).mean().sqrt()
    frequencies = torch.randn(x.shape[1], FEATURES, generator=draws, dtype=torch.float64) / width
    phases = 2 * math.pi * torch.rand(FEATURES, generator=draws, dtype=torch.float64)

    def lifted(old: Tensor) -> Tensor:
        return (2 / FEATURES) ** 0.5 * ((old.double() - centre) @ frequencies + phases).cos()

    rows, left = lifted(x), pairs.new.double() - base(x)
    offset_in, offset_out = rows.mean(0), left.mean(0)
    rows, left = rows - offset_in, left - offset_out

    def solved(of: Tensor, ridge: float) -> Tensor:
        gram = rows[of].T @ rows[of] / len(of) + ridge * torch.eye(FEATURES, dtype=torch.float64)
        return torch.linalg.solve(gram, rows[of].T @ left[of] / len(of))

    held = torch.arange(len(x)) % 5 == 0
    used, judged = held.logical_not().nonzero()[:, 0], held.nonzero()[:, 0]
    errors = {ridge: float((rows[judged] @ solved(used, ridge) - left[judged]).square().mean()) for ridge in RIDGES}
    weight = solved(torch.arange(len(x)), min(errors, key=errors.__getitem__))
    return lambda old: (base(old).double() + offset_out + (lifted(old) - offset_in) @ weight).to(old)


def local(pairs: Pairs) -> Map:
    """What the anchor leaves, by an affine map for each of a few regions of the old space, mixed by responsibility."""
    base, x = towards_identity(pairs), pairs.old.double()
    regions = mixture(x, LOCAL, generator(0, "tried", "local"))
    left, shares, common = pairs.new.double() - base(x), regions.responsibilities(x), Moments.of(x).covariance()
    pieces = []
    for share in shares.T:
        weights = (share / share.sum())[:, None]
        centre_in, centre_out = (weights * x).sum(0), (weights * left).sum(0)
        inside = x - centre_in
        gram = (weights * inside).T @ inside + LOCAL_RIDGE * common
        slope = torch.linalg.solve(gram, (weights * inside).T @ (left - centre_out))  # [S_old, S_new]
        pieces.append((slope, centre_out - centre_in @ slope))

    def carry(old: Tensor) -> Tensor:
        z, out = old.double(), base(old).double()
        for share, (slope, offset) in zip(regions.responsibilities(z).T, pieces, strict=True):
            out = out + share[:, None] * (z @ slope + offset)
        return out.to(old)

    return carry


FITS: dict[str, Callable[[Pairs], Map]] = {
    "anchor towards identity": towards_identity,
    "anchor + residual": residual,
    "anchor + random Fourier features": kernel,
    f"{LOCAL} local anchors": local,
}


@dataclass(frozen=True)
class Mixture:
    """Gaussians with one covariance [S, S], means [K, S] and shares [K]."""

    shares: Tensor
    means: Tensor
    cov: Tensor
    loglikelihood: float

    def joint(self, x: Tensor) -> Tensor:
        """Log-densities of x and each component, [N, K]."""
        lower = spd.cholesky(self.cov).lower
        centre = self.means.mean(0)  # spares the digits that a common offset would cost
        rows, means = (torch.linalg.solve_triangular(lower, (z - centre).T, upper=False).T for z in (x, self.means))
        distances = torch.cdist(rows, means).square()
        constant = lower.diagonal().log().sum() + x.shape[1] / 2 * math.log(2 * math.pi)
        return self.shares.log() - distances / 2 - constant

    def responsibilities(self, x: Tensor) -> Tensor:
        return self.joint(x).softmax(1)


def mixture(x: Tensor, components: int, draws: torch.Generator) -> Mixture:
    """By expectation maximisation from random points, the best of a few starts; x [N, S]."""
    whole = Moments.of(x)
    total, load = whole.covariance(), LOAD * whole.covariance().diagonal().mean()
    total = total + load * torch.eye(len(total), dtype=total.dtype)
    best: Mixture | None = None
    for _ in range(1 if components == 1 else STARTS):
        start = x[torch.randperm(len(x), generator=draws)[:components]]
        members = torch.nn.functional.one_hot(torch.cdist(x, start).argmin(1), components).double()
        for _ in range(1 if components == 1 else ROUNDS):
            counts = members.sum(0).clamp_min(1e-9)
            shares, means = counts / len(x), members.T @ x / counts[:, None]
            away = means - whole.mean
            found = Mixture(shares, means, total - (shares * away.T) @ away, 0.0)
            joint = found.joint(x)
            members = joint.softmax(1)
        found = Mixture(found.shares, found.means, found.cov, float(joint.logsumexp(1).sum()))
        best = found if best is None or found.loglikelihood > best.loglikelihood else best
    assert best is not None
    return best


def by_bic(found: list[Mixture], rows: int) -> Mixture:
    """The mixture of the least Bayesian information criterion, all fitted to so many rows."""

    def criterion(each: Mixture) -> float:
        components, dim = each.means.shape
        return components * (dim + 1) * math.log(rows) - 2 * each.loglikelihood

    return min(found, key=criterion)


@dataclass(frozen=True)
class Stored:
    """Components of all classes: their Gaussians, which share a covariance within a class, shares and classes."""

    gaussians: Gaussians
    shares: Tensor
    owners: Tensor

    @classmethod
    def of(cls, found: list[Mixture], first: int) -> "Stored":
        means, shares = (torch.cat([getattr(each, name) for each in found]) for name in ("means", "shares"))
        counts = torch.tensor([len(each.means) for each in found])
        covs = torch.stack([each.cov for each in found]).repeat_interleave(counts, 0)
        return cls(Gaussians(means, covs), shares, (first + torch.arange(len(found))).repeat_interleave(counts))

    def moved(self, mapping: Map, noise: Tensor) -> "Stored":
        """Each component is carried; of a class's covariances their mean is kept."""
        pushed = push_forward(self.gaussians, mapping, noise=noise)
        covs = pushed.covs.new_zeros(int(self.owners.max()) + 1, *pushed.covs.shape[1:])
        covs.index_add_(0, self.owners, self.shares[:, None, None] * pushed.covs)
        return Stored(Gaussians(pushed.means, covs[self.owners]), self.shares, self.owners)

    def concat(self, more: "Stored") -> "Stored":
        shares, owners = torch.cat([self.shares, more.shares]), torch.cat([self.owners, more.owners])
        return Stored(self.gaussians.concat(more.gaussians), shares, owners)

    def scores(self, features: Tensor, rule: str) -> Tensor:
        """The nearest component by `bayes`, or log-densities of mixtures by `rda`; [N, classes]."""
        classes = int(self.owners.max()) + 1
        out = torch.full((len(features), classes), -math.inf, dtype=torch.float64)
        owners = self.owners.expand(len(features), -1)
        if rule == "bayes":
            return out.scatter_reduce(1, owners, bayes_readout(self.gaussians).scores(features), "amax")
        joint = rda_readout(self.gaussians, *RDA).scores(features) / 2 + self.shares.log()
        top = out.scatter_reduce(1, owners, joint, "amax")
        inside = (joint - top.gather(1, owners)).exp()
        return top + torch.zeros_like(top).scatter_add(1, owners, inside).log()


@torch.no_grad()
def study(networks: Networks) -> list[dict[str, Any]]:
    """A row for every map with one Gaussian per class, for every number of Gaussians with the first map, and for a map
    that is perfect."""
    test = [networks.door.test(net, task) for task, net in enumerate(networks.nets)]
    offsets, dim = networks.experiment.scenario.offsets, test[0][0].shape[1]
    noise = white_noise(16 * dim, dim, generator=generator(0, "tried", "noise"), matched=True, mirrored=True)
    draws, first = generator(0, "tried", "mixtures"), next(iter(FITS))
    several = {f"{count} Gaussians per class": count for count in COMPONENTS[1:]}
    chosen = "1 to 4 Gaussians per class, by BIC"
    carriers = {name: name for name in FITS} | dict.fromkeys([*several, chosen], first)
    stored: dict[str, Stored] = {}
    errors: dict[str, list[float]] = {name: [] for name in FITS}
    for task in range(networks.tasks):
        sys.stdout.write(f"task {task + 1} of {networks.tasks}\n")
        sys.stdout.flush()
        maps: dict[str, Map] = {}
        if task:
            pairs, (features, labels) = networks.pairs(task), test[task]
            for name, fit in FITS.items():
                with torch.enable_grad():
                    maps[name] = fit(pairs)
                old, of = test[task - 1]
                errors[name].append(class_errors(maps[name](old), features[labels < offsets[task]], of))
        features, labels = networks.own_features(task)
        of_class = [features[labels == label].double() for label in range(int(labels.max()) + 1)]
        found = [[mixture(x, count, draws) for count in COMPONENTS] for x in of_class]
        for name, carrier in carriers.items():
            own = [
                by_bic(each, len(x)) if name == chosen else each[several.get(name, 1) - 1]
                for x, each in zip(of_class, found, strict=True)
            ]
            new = Stored.of(own, offsets[task])
            stored[name] = stored[name].moved(maps[carrier], noise).concat(new) if task else new
    stored[ANEW] = measured_anew(networks)
    return [
        {"what": name, "step_error": statistics.mean(errors[name]) if name in FITS else None} | answers(each, *test[-1])
        for name, each in stored.items()
    ]


def measured_anew(networks: Networks) -> Stored:
    """One Gaussian per class, of all images by the last network: a perfect transport."""
    found = networks.measured_anew()
    return Stored(found, torch.ones(len(found), dtype=torch.float64), torch.arange(len(found)))


def answers(stored: Stored, features: Tensor, labels: Tensor) -> dict[str, float]:
    rules = {rule: accuracy(stored.scores(features, rule), labels) for rule in ("bayes", "rda")}
    return rules | {"components": len(stored.shares) / (int(stored.owners.max()) + 1)}


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| data | what | seeds | error of class means | `bayes`: A_last % | `rda`: A_last % | Gaussians per class |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for dataset, what in dict.fromkeys((record["data"], record["what"]) for record in records):
        own = [record for record in records if (record["data"], record["what"]) == (dataset, what)]
        error = [record["step_error"] for record in own if record["step_error"] is not None]
        cells = [
            f"{statistics.mean(error):.2f}" if error else "",
            *(spread([r[rule] for r in own]) for rule in ("bayes", "rda")),
        ]
        cells.append(f"{statistics.mean(record['components'] for record in own):.2f}")
        lines.append("| " + " | ".join([dataset, what, str(len(own)), *cells]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="what the table calls the data set")
    parser.add_argument("runs", nargs="*", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
    for folder in options.runs:
        networks = Networks(folder.resolve())
        config = networks.experiment.config
        if config.data.evaluate_on != "validation":
            parser.error(f"{folder} judged on test images: run it with data.evaluate_on=validation")
        name = {"data": options.data, "seed": config.seed}
        records = [record for record in records if not name.items() <= record.items()]
        for row in study(networks):
            rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
            records.append(name | rounded)
            sys.stdout.write(f"{records[-1]}\n")
        write_text(RECORD, "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replace_between(page, "tried", table(records)), encoding="utf-8")


if __name__ == "__main__":
    main()
