"""The memory of class Gaussians that GATF and AdaGauss keep: storage, transport and readout."""

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Annotated, Any, Literal, Self, cast

import torch
from pydantic import AfterValidator, Field, PositiveInt
from torch import Tensor, nn

from gatf import distributed, plugins
from gatf.errors import UserError, near_misses
from gatf.geometry import gaussians, moments, privacy, spd
from gatf.geometry.readout import BAYES_SHRINK, MAHALANOBIS_SHRINK, NearestMeanReadout, Readout, rda_readout
from gatf.methods.base import TaskData
from gatf.methods.parts.extraction import Growing, of_all_processes, own_features
from gatf.methods.parts.storage import Kept, Storage
from gatf.seeding import generator
from gatf.settings import AffectsReadoutOnly, Fraction, MethodConfig, Positive, Strict

RULES = ("bayes", "mahalanobis", "nmc", "rda")


def _known_rule(name: str) -> str:
    if name not in RULES and not plugins.is_outside("readout", name, RULES):
        raise ValueError(f"no readout is called so{near_misses(name, RULES)}")
    return name


Rule = Annotated[str, AfterValidator(_known_rule)]
"""A name of `RULES`, or a plugin: a function from `Gaussians` to a `Readout`."""
RDA_CHOICES = tuple(
    sorted(
        itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), (0.001, 0.01, 0.03, 0.1, 0.3, 0.6)),
        key=lambda choice: choice != (0.5, 0.03),
    )
)
"""Candidate mixtures and shrinkages of `rda`. On a tie the first one wins."""
HELD_OUT_EVERY = 5
"""One image in this many is held out to choose the mixture and shrinkage of `rda`."""
PLAIN_SAMPLES, SAMPLES_PER_DIMENSION = 10_000, 16
"""Samples per Gaussian that transport it: independent ones as published, or mirrored ones with exact moments."""
MANY_CLASSES, FEWER_PER_DIMENSION = 256, (4, 8)
"""Above this number of classes, fewer samples per feature dimension are tried in this order."""
TRIED_CLASSES, ENOUGH = 8, 0.02
"""Classes to try it on, and the accepted error: the root mean square difference between covariances from few and from
the usual number of samples, relative to their norm. The papers' 10 000 samples have twice that error
(docs/performance.md)."""
CHUNK_ELEMENTS = 2**21
"""Float64 elements of the matrices [classes, S, S] that are transported at once (16 MB)."""


class CovarianceConfig(Strict):
    """Stored class covariances."""

    kind: Literal["full", "lowrank"] = "full"
    """Store the whole matrix, or a few directions and the variances: with S = 64, 8 576 or 2 560 bytes per class."""
    rank: PositiveInt = 8
    """Directions per class that `lowrank` stores."""


class RDAConfig(Strict):
    """Regularised discriminant analysis, the readout `rda`."""

    mixture: Fraction | None = None
    """For `readout=rda`: weight of the mean covariance in each class covariance. Default: chosen on held-out images."""
    shrinkage: Fraction | None = None
    """Weight of the scaled identity in the mixed covariance. Default: chosen as above."""


class NoiseConfig(Strict):
    """The Gaussian mechanism on stored class moments (docs/privacy.md)."""

    epsilon: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """ε of the Gaussian noise on stored moments; null: no noise. It protects the moments, not the network."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """δ of the noise."""
    clip: Positive = 1.0
    """Clipping norm: longer features are scaled to it before their moments are computed."""


class GaussiansConfig(MethodConfig):
    """Class Gaussians: how they are stored, transported and protected."""

    covariance: AffectsReadoutOnly[CovarianceConfig] = CovarianceConfig()
    """How class covariances are stored."""
    samples: AffectsReadoutOnly[PositiveInt | None] = None
    """Samples per Gaussian that transport it. Default: 10 000; with `matched_noise` 16 per feature dimension, or 4 or 8
    with more than 256 classes if that changes covariances by less than 2 %."""
    matched_noise: AffectsReadoutOnly[bool] = True
    """Draw samples in mirrored pairs with exact mean and covariance: an affine map adds no sampling error."""
    rda: AffectsReadoutOnly[RDAConfig] = RDAConfig()
    """Regularised discriminant analysis, for `readout=rda`."""
    noise: AffectsReadoutOnly[NoiseConfig] = NoiseConfig()
    """Noise on stored moments."""

    def draws(self, dim: int) -> int:
        """Points drawn from each Gaussian of S = `dim` dimensions."""
        if self.samples is None:
            return SAMPLES_PER_DIMENSION * dim if self.matched_noise else PLAIN_SAMPLES
        if self.matched_noise and self.samples < 2 * dim:
            raise UserError(
                f"method.samples is {self.samples}, but points with exact moments must be at least twice as many as "
                f"the features have dimensions ({dim}): raise it, leave it out, or set method.matched_noise=false"
            )
        return self.samples

    def storage(self, dim: int) -> Storage:
        """What keeps covariances of S = `dim` dimensions that way."""
        return Storage(dim, self.covariance.rank if self.covariance.kind == "lowrank" else None)


class GaussianMemory(Growing):
    """One Gaussian per class: its mean, and what the storage keeps of its covariance; float32."""

    means: Tensor
    evidence: Tensor
    """For `rda`: number of correctly classified held-out images of all tasks, for each of `RDA_CHOICES`."""

    def __init__(
        self, dim: int, *, rule: Rule, seed: int, readout_shrink: float | None = None,
        storage: Callable[[int], Storage] = Storage, rda: tuple[float | None, float | None] = (None, None),
    ) -> None:  # fmt: skip
        super().__init__()
        self.rda = rda
        """Mixture and shrinkage of `rda`; None: chosen."""
        self.dim, self.rule, self.seed, self.readout_shrink = dim, rule, seed, readout_shrink
        self.storage = storage(dim)
        for name, shape in self.shapes(0).items():
            self.register_buffer(name, torch.zeros(shape))
        self._readout: Readout | None = None

    @classmethod
    def of(cls, config: GaussiansConfig, dim: int, *, rule: Rule, seed: int) -> Self:
        """An empty memory with the storage and the discriminant analysis of a config."""
        rda = (config.rda.mixture, config.rda.shrinkage)
        return cls(dim, rule=rule, seed=seed, storage=config.storage, rda=rda)

    def __len__(self) -> int:
        return len(self.means)

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the buffers for a number of classes."""
        evidence = {"evidence": (len(RDA_CHOICES),)} if self.rule == "rda" else {}
        return {"means": (classes, self.dim), **self.storage.shapes(classes), **evidence}

    def get(self) -> gaussians.Gaussians:
        """The Gaussians in float64, covariances as matrices."""
        return self._some(range(len(self)))

    def set(self, stored: gaussians.Gaussians) -> None:
        """Replace all classes."""
        parts = (stored[chunk.start : chunk.stop] for chunk in self._chunks(slice(0, len(stored))))
        self._join([(part.means, self.storage.encode(part.covs)) for part in parts])

    def _chunks(self, classes: slice) -> Iterator[range]:
        """Consecutive classes; one empty chunk where there is no class."""
        size = max(1, CHUNK_ELEMENTS // self.dim**2)
        for start in range(classes.start, max(classes.stop, classes.start + 1), size):
            yield range(start, min(start + size, classes.stop))

    def _some(self, classes: range) -> gaussians.Gaussians:
        means = self.means[classes.start : classes.stop].double()
        return gaussians.Gaussians(means, self.storage.decode(self._kept(), classes))

    def _kept(self) -> Kept:
        return {name: self.get_buffer(name) for name in self.storage.shapes(0)}

    def _join(self, parts: list[tuple[Tensor, Kept]]) -> None:
        """Keep these classes and no others: means, and what the storage made of their covariances."""
        rows = [{"means": means, **kept} for means, kept in parts]
        for name in rows[0]:
            setattr(self, name, torch.cat([each[name] for each in rows]).float().to(self.means.device))
        self._readout = None

    def learn(self, net: nn.Module, data: TaskData, *, noise: tuple[float, float, float] | None = None) -> None:
        """Append the new classes: moments of the features of every image and of its mirror image (AdaGauss); with
        `noise` (ε, δ, clipping norm) by the Gaussian mechanism."""
        features, labels = own_features(net, data, mirror=True)
        if noise is not None:
            if self.rule == "rda":
                raise UserError(
                    "method.readout=rda uses single images, so it cannot be combined with method.noise.epsilon"
                )
            features = privacy.clipped(features, noise[2])

        def gaussians_of(rows: Tensor | slice) -> gaussians.Gaussians:
            own = moments.class_moments(features[rows], labels[rows] - data.info.old, classes=data.info.new)
            new = of_all_processes(own)
            if noise is not None:
                hidden = privacy.noisy(new, *noise, rows=2)
                return gaussians.Gaussians(hidden.means, hidden.covs)
            return gaussians.Gaussians(new.mean, new.covariance())

        if self.rule == "rda":
            image = torch.arange(len(features), device=features.device) % (len(features) // 2)  # plain, then mirrored
            held = image % HELD_OUT_EVERY == 0
            self.evidence += _evidence(gaussians_of(~held), features[held], labels[held] - data.info.old)
        new = gaussians_of(slice(None))
        self._join([(self.means, self._kept()), (new.means, self.storage.encode(new.covs))])

    def reestimated(self, features: Tensor, labels: Tensor) -> "GaussianMemory":
        """A copy in which the classes of these features [N, S], [N] are what `learn` would have made of them."""
        found = moments.class_moments(features.to(self.means.device), labels, classes=len(self))
        classes, stored = labels.unique().to(self.means.device), self.get()
        covs = found.covariance()[classes]
        copy = deepcopy(self)
        copy.set(gaussians.Gaussians(
            stored.means.index_copy(0, classes, found.mean[classes]), stored.covs.index_copy(0, classes, covs)
        ))  # fmt: skip
        return copy

    @torch.no_grad()
    def transport(
        self, mapping: Callable[[Tensor], Tensor], *, samples: int, matched: bool, task: int,
        dtype: torch.dtype = torch.float32, fewer: bool = False,
    ) -> dict[str, float]:  # fmt: skip
        """Push every stored Gaussian through a map: draw, map, re-estimate mean and covariance (AdaGauss Alg. 1).

        With `fewer`, many classes are moved by fewer samples than these where that is as good. Each process of a run
        moves its part of the classes. Returns how many covariances had to be repaired before they could be factorised,
        and the number of samples where it was chosen.
        """
        samples += samples % 2 if matched else 0  # pairs
        report: dict[str, float] = {}
        if fewer and matched and len(self) > MANY_CLASSES:
            samples = self._enough(mapping, samples, task, dtype)
            report["samples"] = samples
        noise = self._noise(samples, matched, "transport", task)
        moved, repaired = [], torch.zeros(2)
        for chunk in self._chunks(distributed.part(len(self))):
            stored = self._some(chunk)
            factor = spd.cholesky(stored.covs)
            repaired += torch.stack([(factor.jitter > 0).sum(), factor.clipped.sum()]).cpu()
            pushed = gaussians.push_forward(stored, mapping, noise=noise, factor=factor, dtype=dtype)
            moved.append((pushed.means, self.storage.encode(pushed.covs)))
        if distributed.world() > 1:
            moved = distributed.gather_list([(means.cpu(), _on(kept, "cpu")) for means, kept in moved])
            repaired = distributed.total(repaired.to(self.means.device)).cpu()
        self._join(moved)
        return {"jittered": float(repaired[0]), "clipped": float(repaired[1]), **report}

    def _noise(self, samples: int, matched: bool, *purpose: str | int) -> Tensor:
        draws = generator(self.seed, *purpose)
        return gaussians.white_noise(
            samples, self.dim, generator=draws, matched=matched, mirrored=matched, device=self.means.device
        )

    def _enough(self, mapping: Callable[[Tensor], Tensor], usual: int, task: int, dtype: torch.dtype) -> int:
        """The least number of samples that moves some of the classes nearly as the usual number does: what of the map
        is not affine alone needs samples, and beside the anchor it is often small."""
        places = torch.linspace(0, len(self) - 1, TRIED_CLASSES).long().tolist()
        parts = [self._some(range(place, place + 1)) for place in places]
        some = gaussians.Gaussians(torch.cat([part.means for part in parts]), torch.cat([part.covs for part in parts]))
        factor = spd.cholesky(some.covs)

        def moved(samples: int) -> Tensor:
            noise = self._noise(samples, True, "transport", task, samples)
            return gaussians.push_forward(some, mapping, noise=noise, factor=factor, dtype=dtype).covs

        truth = moved(usual)
        for count in (each * self.dim for each in FEWER_PER_DIMENSION):
            off = (moved(count) - truth).square().sum((1, 2)) / truth.square().sum((1, 2))
            if count < usual and bool(off.mean().sqrt() <= ENOUGH):
                return int(distributed.from_first(count))
        return int(distributed.from_first(usual))

    def scores(self, features: Tensor) -> Tensor:
        """[B, classes]: minus the distance of the chosen rule."""
        return self.readout().scores(features)

    def readout(self) -> Readout:
        """The readout, computed on first use."""
        if self._readout is None:
            self._readout = self._build()
        return self._readout

    def release_readout(self) -> None:
        """Drop what `scores` prepared, several times the size of what is kept, until it is asked for again."""
        self._readout = None

    def _build(self) -> Readout:
        if self.rule not in RULES:
            made = plugins.call("readout", self.rule, plugins.find("readout", self.rule, {}), self.get())
            return cast(Readout, made)
        if self.rule == "nmc":
            return NearestMeanReadout(self.means)
        means, kept = self.means.double(), self._kept()
        if self.rule == "rda":
            chosen = RDA_CHOICES[int(self.evidence.argmax())]
            mixture, shrinkage = (own if given is None else given for given, own in zip(self.rda, chosen, strict=True))
            return rda_readout(self.get(), mixture, shrinkage)
        bayes = self.rule == "bayes"
        usual = BAYES_SHRINK if bayes else MAHALANOBIS_SHRINK
        shrink = usual if self.readout_shrink is None else self.readout_shrink
        return self.storage.readout(means, kept, shrink, normalise=bayes)

    def bytes_per_class(self) -> int:
        """What one class takes."""
        return self.means.element_size() * (self.dim + self.storage.numbers_per_class())

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._readout = None  # it does not move with the buffers
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        self._readout = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def _evidence(fitted: gaussians.Gaussians, features: Tensor, labels: Tensor) -> Tensor:
    """Number of correctly classified features [B, S] among the classes of the task, labels [B], for each of
    `RDA_CHOICES`. The network has seen these images; the Gaussians have not. The likelihood of the labels would not do:
    it is best where a rule is least sure of itself, whatever it gets right."""
    answers = [rda_readout(fitted, *choice).scores(features).argmax(1) for choice in RDA_CHOICES]
    return distributed.total(torch.stack([(answer == labels).sum() for answer in answers]).float())


def _on(kept: Kept, device: str) -> Kept:
    return {name: tensor.to(device) for name, tensor in kept.items()}
