"""One update: a model and new images give a model that knows more classes. The given model does not change."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gatf.config import RunConfig
from gatf.data.base import ImageSet
from gatf.data.inputs import ImageInput, Shape, check_shape
from gatf.data.listing import some
from gatf.data.loader import TaskData, TaskInfo
from gatf.data.preprocessing import Preprocessing
from gatf.errors import UserError
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import PooledMoments, class_moments
from gatf.incremental.gather import Gathered
from gatf.incremental.split import FEWEST_TO_SPLIT, Split, arranged, split_update
from gatf.incremental.statistics import (
    Forecast,
    OldSamples,
    accuracy_by_class,
    accuracy_of,
    decline,
    measured_after,
    merge,
    normalisation,
    taken_for,
)
from gatf.io.events import Event, RunStart, TaskEvent, TaskStart
from gatf.methods.parts.closed_form import ClosedForm
from gatf.methods.parts.extraction import extract
from gatf.methods.parts.gaussian import GaussianMethod, transports_gaussians
from gatf.methods.slda import SLDA
from gatf.model.calibration import (
    NO_CALIBRATION,
    calibration_sums,
    fitted_temperature,
    newest,
    temperature_at_even_odds,
)
from gatf.model.certificate import Metric, class_transport_errors, transport_error
from gatf.model.novelty import NO_NOVELTY, TAIL, NoveltyScorer, nearness
from gatf.model.record import FEWEST_TO_REPORT, UpdateRecord, remembered
from gatf.model.state import ForwardOutput, Model, leaves_out
from gatf.session import Session, build_method
from gatf.settings import INSIDE, PYTHON
from gatf.training import checkpoint
from gatf.training.context import RunContext
from gatf.training.divergence import all_finite
from gatf.training.loop import Position
from gatf.training.task import Resumed

KEPT_PER_CLASS = 50
"""Held-out images per class of an update whose novelty scores are stored, at most."""
TUNED_ON = 4096
"""Vectors of the sample that a method's own settings are chosen on, at most."""
MISTAKEN_FROM = 20
"""New images per revisited class that are compared with the model before the update; fewer are no evidence."""
CHECKPOINTS_PER_PHASE = 10
STATE = "state.safetensors"
"""The checkpoint's name in its folder."""


def new_model(config: RunConfig, given: ImageInput | None, shape: Shape, backbone: nn.Module | None = None) -> Model:
    """A model without classes. A pretrained network sets the preprocessing; else the given images set the
    normalisation. There are none for a model of vectors."""
    check_shape(shape)
    method = build_method(config, shape, backbone)
    preprocessing = Preprocessing(shape, (), ()).suited_to(method.backbone)
    if given is not None and not preprocessing.mean:
        mean, std = normalisation(preprocessing.images(given))
        preprocessing = replace(preprocessing, mean=mean, std=std)
    empty = torch.zeros(0, dtype=torch.int64)
    return Model(config, preprocessing, method, (), empty, 1.0, NO_CALIBRATION, empty.double(), NO_NOVELTY, ())


def update_model(
    model: Model, given: ImageInput, labels: np.ndarray, *, config: RunConfig, held_out: float, context: RunContext
) -> Model:
    """The model after learning these images; raises `Interrupted` if the context's `stop` returns True."""
    started = time.monotonic()
    if not model.labels and len(np.unique(labels)) < 2:
        raise UserError("a first fit needs images of at least two classes, and y has only one class")
    if leaves_out(model.method):
        held_out = 0.0
    preprocessing = model.preprocessing
    copies = given.first_copies(preprocessing.shape, preprocessing.central_share)
    split = split_update(model, labels, held_out, config.seed, copies)
    numbers = split.final_numbers if model.method.revisits else split.numbers + len(model.labels)
    images = preprocessing.images(given, numbers)
    update = _Update(model, config, split, images, context)
    update.train()
    measured = update.measure()
    seconds = time.monotonic() - started
    return update.finish(measured, seconds)


def with_own_weights(config: RunConfig) -> RunConfig:
    """The settings for building the network when its weights are available: pretrained weights are not read again."""
    if config.backbone.pretrained is None:
        return config
    return config.model_copy(update={"backbone": config.backbone.model_copy(update={"pretrained": INSIDE})})


def update_with_vectors(
    model: Model, gathered: Gathered, which: int, *, config: RunConfig, held_out: float, context: RunContext
) -> Model:
    """The model after learning vectors that one pass gathered; `which` of the gathered moments are this model's.

    The held-out vectors measure a model that did not learn them. Then it learns them too, so the result depends on the
    vectors alone, and not on how they were split, ordered or distributed.
    """
    assert gathered.sample is not None
    if not model.labels and len(gathered.labels) < 2:
        raise UserError("a first fit needs vectors of at least two classes, and y has only one class")
    sample, aside = gathered.sample, gathered.held_out(held_out, FEWEST_TO_SPLIT)
    classes, labels = arranged(model, np.array(list(gathered.labels)))
    hashes, times = np.unique(sample.hashes, return_counts=True)
    contradicting = np.isin(sample.hashes, hashes[times > 1])
    split = replace(
        classes,
        numbers=classes.numbers[sample.numbers],
        final_numbers=classes.final_numbers[sample.numbers],
        trained=torch.from_numpy(np.flatnonzero(~aside)),
        held_out=torch.from_numpy(np.flatnonzero(aside)),
        duplicates=int(sample.copies.sum()) - len(sample),
        contradictions=int((times > 1).sum()),
        mislabelled=tuple(labels[n] for n in classes.numbers[np.unique(sample.numbers[contradicting])].tolist()),
        learnt=torch.from_numpy(gathered.counts)[classes.numbers.argsort()],
    )
    images = model.preprocessing.images(sample.vectors, split.final_numbers)
    update = _Update(model, config, split, images, context)
    seen = len(model.labels) + len(split.added)
    parts = [*gathered.moments()[which : which + 1], gathered.moments_of(sample.take(~aside))[which]]
    update.absorb([part.reordered(classes.final_numbers, seen) for part in parts])
    measured = update.measure()
    if aside.any():
        update.absorb([gathered.moments_of(sample.take(aside))[which].reordered(classes.final_numbers, seen)])
    return update.finish(measured, time.monotonic() - gathered.started)


class _Update:
    """An update in progress: a copy of the model's method, and the task's images."""

    def __init__(self, model: Model, config: RunConfig, split: Split, images: ImageSet, context: RunContext) -> None:
        self.model, self.config, self.split, self.images, self.context = model, config, split, images, context
        self.old = len(model.labels)
        backbone = model.method.backbone if config.backbone.name.startswith(PYTHON) else None
        self.session = Session(with_own_weights(config), model.preprocessing, backbone=backbone, alone=True)
        self.method = self.session.method
        self.method.load_state_dict(model.method.state_dict())  # a copy: nothing done here reaches the model's
        self.warnings: list[str] = []
        self.trains = True
        """Whether the update has steps of training."""
        new = len(split.added) if self.method.revisits else split.classes
        self.counts = split.counts
        info = TaskInfo(model.updates, self.old, new, int(self.counts.sum()))
        self.data = self.session.task_data(info, images, (split.trained, images.labels[split.trained]))
        self.noun = model.preprocessing.noun
        self.errors = torch.zeros(self.old + len(split.added), dtype=torch.float64)
        self.class_errors: tuple[float, float] | None = None
        self.drift: float | None = None
        self.rejection: Literal["promised", "estimated", "withdrawn"] | None = None
        self.widening: Tensor | float | None = None
        """Factor by which the update raises the novelty of old classes' images; None: not known."""
        self.features: tuple[Tensor, Tensor] | None = None
        """Features [N, S] and class numbers [N] of the learnt images, where each is left out in turn."""
        self.predicted: Tensor | None = None
        """Predicted classes of the images that measure the update, and their class numbers."""
        self.truth = torch.zeros(0, dtype=torch.int64)
        self.moved: Gaussians | None = None
        """The task's classes in the old feature space, transported into the new one."""

    # --- training

    def train(self) -> None:
        """Train, transport the statistics of old classes into the new feature space, and store the new classes."""
        end: Callable[[TaskData], None] | None = None
        if self.old and transports_gaussians(self.method):
            end = partial(self._end_with_stand_ins, self.method, self.method.stored(), self._class_gaussians())
        elif leaves_out(self.method):
            end = partial(self._end_with_features, self.method)
        resumed = self._resume()
        self.context.listener(RunStart(tasks=1, method=self.config.method.name, resumed_at=None))
        stage = self.config.optimisation.stage(self.data.info.index)
        every = max(1, stage.epochs // CHECKPOINTS_PER_PHASE) if self.context.checkpoints else None
        context = replace(self.context, listener=self._report, save=self._save, save_every=every)
        self.session.learn_task(self.data, context, resumed=resumed, end=end)
        self._note_repairs()

    def absorb(self, parts: list[PooledMoments]) -> None:
        """Learn from moments instead of images."""
        assert isinstance(self.method, ClosedForm)
        if self.trains:
            self.trains = False
            some = self.split.trained[:TUNED_ON]
            if len(some):
                features = self.method.backbone(self.images.images[some])  # type: ignore[index]
                self.method.tune(features, self.split.final_numbers[some], self.data.info.index)
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        self.method.absorb(total)
        self._note_repairs()

    def _report(self, event: Event) -> None:
        """Report an event as one of a run with a single task."""
        if isinstance(event, TaskStart):
            self.trains = event.steps > 0
        self.context.listener(replace(event, task=0) if isinstance(event, TaskEvent) else event)

    def _class_gaussians(self) -> Gaussians:
        """Gaussians of the task's classes in the current feature space, with mirror images, as methods store them."""
        features, labels = extract(self.method.backbone, self.data, mirror=True)
        found = class_moments(features, labels - self.old, classes=self.split.classes)
        return Gaussians(found.mean, found.covariance())

    def _end_with_features(self, method: SLDA, data: TaskData) -> None:
        features, numbers = method.learn_task(data)
        chosen = method.memory.counts[numbers] > 1
        if self.split.unique is not None:
            chosen &= self.split.unique.to(chosen.device)
        if bool(chosen.any()):
            self.features = features[chosen], numbers[chosen]

    def _end_with_stand_ins(
        self, method: GaussianMethod, before: Gaussians, stand_ins: Gaussians, data: TaskData
    ) -> None:
        """End the task and measure the transport's error.

        The images of old classes are deleted, so the error of their transport cannot be measured. Instead, Gaussians of
        the new classes in the old feature space are transported too, and compared with the true ones in the new space.
        """
        old, classes = self.old, self.split.classes
        method.keep(before.concat(stand_ins.to(before.means.device)))
        method.end_task(data)
        after = method.stored()
        transported, self.moved, new = after[:old], after[old : old + classes], after[old + classes :]
        spread = before.covs.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt().clamp_min(1e-12)  # [old]
        self.drift = float(((transported.means - before.means).norm(dim=1) / spread).mean())
        method.keep(self._merged(transported, new))
        self.errors[:old] = transport_error(self.moved, new, Metric.of(method.stored()))
        if not self.split.revisited:  # a Gaussian merged with new images is not the transported one
            self.class_errors = class_transport_errors(self.moved, new)

    def _merged(self, transported: Gaussians, new: Gaussians) -> Gaussians:
        """Old classes, the revisited ones merged with their new statistics, then the added ones."""
        again = len(self.split.revisited)
        if again == 0:
            return transported.concat(new)
        places = torch.tensor(self.split.revisited, device=new.means.device)
        merged = merge(
            transported[places], self.model.counts[list(self.split.revisited)], new[:again], self.counts[:again]
        )
        means, covs = transported.means.clone(), transported.covs.clone()
        means[places], covs[places] = merged.means, merged.covs
        return Gaussians(means, covs).concat(new[again:])

    def _note_repairs(self) -> None:
        for notice in self.method.notices:
            repaired = notice.values.get("jittered", 0) + notice.values.get("clipped", 0)
            if repaired:
                self.warnings.append(f"{repaired:.0f} stored covariances were singular and were repaired")
        self.method.notices.clear()

    # --- checkpoints

    def _save(self, phase: int, position: Position, optimiser: torch.optim.Optimizer) -> None:
        if self.context.checkpoints is not None:
            self.session.save(self.context.checkpoints / STATE, {}, phase=phase, position=position, optimiser=optimiser)

    def _resume(self) -> Resumed | None:
        if self.context.checkpoints is None or not (self.context.checkpoints / STATE).is_file():
            return None
        tensors, meta = checkpoint.load(self.context.checkpoints / STATE)
        if changes := self.session.changes(meta):
            raise UserError(
                f"the interrupted update had other settings: {'; '.join(changes)}; discard it with --restart"
            )
        return self.session.restore(tensors, meta, self.data.info)

    # --- measuring

    def measure(self) -> Model:
        """The updated model, calibrated on the held-out images, without its new record."""
        split, model, again = self.split, self.model, len(self.split.revisited)
        counts = torch.cat([model.counts, self.counts[again:]])
        counts[list(split.revisited)] += self.counts[:again]
        updated = replace(
            model, config=self.config, method=self.method.eval(), labels=(*model.labels, *split.added), counts=counts,
            errors=self.errors,
        )  # fmt: skip
        if self.features is not None and leaves_out(self.method):
            return self._left_out(updated, self.method, *self.features)
        if len(split.held_out) == 0:
            needed = "two" if leaves_out(self.method) else "five"
            self.warnings.append(
                f"no class has the {needed} {self.noun} needed to leave one out, so probabilities are not calibrated"
            )
            self._withdraw()
            if model.calibration[0] > 0:  # the best estimate is that of earlier images
                return updated
            outputs, numbers = self._forward(updated, split.trained)
            return replace(updated, temperature=temperature_at_even_odds(outputs.scores, numbers))
        outputs, numbers = self._forward(updated, split.held_out)
        samples = self._old_samples(outputs.scores, numbers)
        updated = self._calibrated(updated, outputs.scores, numbers, samples)
        novelty = model.novelty
        fresh = updated.novelty_of(outputs).float()
        most = KEPT_PER_CLASS * split.classes
        fresh = fresh[:: -(-len(fresh) // most)]
        self._compare_with_transported(outputs, numbers)
        declines = decline if samples is None else samples.decline
        measured = measured_after(self._measured_before(), outputs.scores, numbers, declines)
        if self.old == 0 or len(numbers.unique()) == len(updated.labels):
            self.rejection, novelty = "promised", fresh
        elif self.widening is None or model.rejection == "withdrawn":
            self._withdraw()
        else:
            self.rejection, novelty = (
                "estimated",
                torch.cat([novelty.view(-1, fresh.shape[1]) * self.widening, fresh]),
            )
            novelty = novelty[:: -(-len(novelty) // (KEPT_PER_CLASS * len(updated.labels)))]
        return replace(updated, novelty=novelty, measured=measured)

    def _left_out(self, updated: Model, method: SLDA, features: Tensor, numbers: Tensor) -> Model:
        """The updated model, measured on all images of the update, each of them left out in turn."""
        scores, distances = method.leave_one_out().scores(features, numbers)
        scores, distances, numbers = scores.cpu(), distances.cpu(), numbers.cpu()
        updated = self._calibrated(updated, scores, numbers)
        measured = measured_after(self._measured_before(), scores, numbers)
        everyone = len(numbers.unique()) == len(updated.labels)
        self.rejection = "promised" if everyone else "estimated"
        known, fresh = self.model.novelty, nearness(distances).float()
        if not everyone and len(known) and known.shape[1] == 1:
            fresh = torch.cat([known, fresh])
        fresh = fresh[:: -(-len(fresh) // (KEPT_PER_CLASS * len(updated.labels)))]
        return replace(updated, novelty=fresh, measured=measured)

    def _old_samples(self, scores: Tensor, numbers: Tensor) -> OldSamples | None:
        """Samples of old classes, where a trained network has images of new classes to compare them with."""
        fresh = numbers >= self.old
        if self.old == 0 or not bool(fresh.any()) or not transports_gaussians(self.method):
            return None
        stored, rule = self.method.stored(), self.method.feature_scores
        return OldSamples(stored, rule, scores[fresh], numbers[fresh], self.old, seed=self.config.seed)

    def _calibrated(self, updated: Model, scores: Tensor, numbers: Tensor, samples: OldSamples | None = None) -> Model:
        self.predicted, self.truth = scores.argmax(1), numbers
        sums = calibration_sums(scores, numbers)
        if samples is not None:  # old and new classes by their numbers
            fresh = numbers[numbers >= self.old]
            sums = sums + samples.calibration(round(len(fresh) * self.old / len(fresh.unique())))
        elif self.method.revisits:  # features did not move: earlier images still count
            sums = newest(sums, self.model.calibration)
        return replace(updated, temperature=fitted_temperature(sums), calibration=sums)

    def _measured_before(self) -> Tensor:
        """Accuracies of old classes; rows of zeros where no update measured them."""
        known = self.model.measured
        return known if len(known) == self.old else torch.zeros(self.old, 3, dtype=torch.float64)

    def _forward(self, updated: Model, places: Tensor) -> tuple[ForwardOutput, Tensor]:
        """The updated model's output for images of the update, and their class numbers in it."""
        outputs = updated.forward(self.images.take(places))
        if not all_finite([outputs.scores]):
            raise self.session.diverged(self.data.info.index, "evaluation", "scores not finite")
        return outputs, self.split.final_numbers[places]

    def _withdraw(self) -> None:
        """Stop rejecting unknown images: for some classes the novelty of their own images is no longer known."""
        if self.old == 0:
            return
        self.rejection = "withdrawn"
        self.warnings.append(
            f"unknown {self.noun} are no longer rejected, because no held-out one shows how far this update moved "
            f"older classes; an update with at least five {self.noun} of every class restores rejection"
        )

    def _compare_with_transported(self, outputs: ForwardOutput, numbers: Tensor) -> None:
        """Estimate how the transport raises novelty scores: from held-out images of added classes and their transported
        Gaussians.

        Older classes have no images to measure it with. An update without added classes shows too little, because it
        trains on images of some old classes and on none of the others. Without transport nothing moved.
        """
        if not self.old:
            return
        if not transports_gaussians(self.method):
            self.widening = 1.0 if self.method.revisits else None
            return
        added = numbers >= self.old
        if self.moved is None or outputs.features is None or not bool(added.any()):
            return
        features, classes = outputs.features[added], numbers[added]
        stored = self.method.stored().to("cpu")
        transported = stored[: self.old].concat(self.moved[len(self.split.revisited) :].to("cpu"))
        moved, own = (NoveltyScorer(each).scores(features) for each in (transported, stored))
        ratios = [
            moved[chosen].quantile(TAIL, dim=0) / own[chosen].quantile(TAIL, dim=0).clamp_min(1e-12)
            for chosen in (classes == number for number in classes.unique())
        ]
        self.widening = torch.stack(ratios).amax(0).clamp_min(1.0).float()

    def finish(self, updated: Model, seconds: float) -> Model:
        """The updated model with the record of this update."""
        split = self.split
        accuracy = by_class = evenly = taken = None
        predicted, truth = self.predicted, self.truth
        if predicted is not None:
            accuracy = 100 * float((predicted == truth).double().mean())
            by_class, evenly = accuracy_by_class(predicted, truth)
            if self.old:
                taken = 100 * float(((predicted < self.old) & (truth >= self.old)).double().mean())
        old = accuracy_of(updated.measured[: self.old]) if len(updated.measured) and self.old else None
        everything = accuracy_of(updated.measured) if len(updated.measured) else None
        self._warn()
        record = UpdateRecord(
            number=self.model.updates,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            added=split.added,
            revisited=tuple(self.model.labels[number] for number in split.revisited),
            images=int(self.counts.sum()),
            kind=self.noun,
            held_out=len(truth),
            left_out=self.features is not None,
            duplicates=split.duplicates,
            epochs=self.config.optimisation.stage(self.data.info.index).epochs,
            seconds=round(seconds, 2),
            accuracy_new=accuracy,
            accuracy_by_class=by_class,
            held_out_evenly=evenly,
            **_forecast("expected_old", old),
            **_forecast("expected_all", everything),
            measured_images=0 if everything is None else everything.images,
            taken_for_old=taken,
            drift=self.drift,
            transport_error=None if self.moved is None else float(self.errors.max()),
            rejection=self.rejection,
            class_mean_error=None if self.class_errors is None else self.class_errors[0],
            class_covariance_error=None if self.class_errors is None else self.class_errors[1],
            temperature=updated.temperature,
            bytes_per_class=self.method.bytes_per_class(),
            warnings=tuple(self.warnings),
        )
        return replace(updated, history=remembered((*self.model.history, record)))

    def _mistaken(self) -> list[str]:
        """Revisited classes most of whose new images had been predicted as one other class."""
        known, numbers = torch.tensor(self.split.revisited, dtype=torch.int64), self.split.final_numbers
        places = [torch.nonzero(numbers == number).squeeze(1)[:MISTAKEN_FROM] for number in known]
        enough = [each for each in places if len(each) == MISTAKEN_FROM]
        if not enough:
            return []
        predicted = self.model.forward(self.images.take(torch.cat(enough))).scores.argmax(1).view(-1, MISTAKEN_FROM)
        other, labels = predicted.mode(1).values, self.model.labels
        shares, truth = (predicted == other[:, None]).double().mean(1), numbers[torch.stack(enough)[:, 0]]
        chosen = torch.nonzero((other != truth) & (shares > 0.5)).squeeze(1).tolist()
        return [f"{labels[truth[n]]}: {100 * shares[n]:.0f} % as {labels[other[n]]}" for n in chosen]

    def _warn(self) -> None:
        split, warn = self.split, self.warnings.append
        labels = (*self.model.labels, *split.added)
        if split.duplicates:
            total = len(split.numbers) + (split.duplicates if split.learnt is not None else 0)
            copies = f"{split.duplicates} of {total} {self.noun} are exact copies of others"
            apart = "they measure nothing" if self.features is not None else ""
            warn(f"{copies}; {apart or f'no copy of a held-out {self.noun[:-1]} is trained on'}")
        if split.contradictions:
            warn(
                f"{split.contradictions} {self.noun} have more than one label ({some(split.mislabelled)}): check the "
                "labels"
            )
        names = [*(self.model.labels[number] for number in split.revisited), *split.added]
        few = [name for name, count in zip(names, self.counts.tolist(), strict=True) if count < 20]
        if few:
            warn(f"fewer than 20 training {self.noun} for {some(few)}: add more")
        if mistaken := self._mistaken():
            before = f"before this update most new {self.noun} of known classes were predicted as another class"
            loss = "which has probably lost accuracy that the expected one does not show"
            warn(f"{before} ({some(mistaken)}), {loss}: check the labels, or undo this update with gatf rollback")
        if self.predicted is None:
            return
        for number, other, percent, images in taken_for(self.predicted, self.truth, range(self.old, len(labels))):
            warn(
                f"{percent:.0f} % of the {images} {self.noun} of {labels[number]} are predicted as {labels[other]}: "
                "check that they are different classes"
            )
        right = float((self.predicted == self.truth).double().mean())
        if len(self.truth) >= FEWEST_TO_REPORT and right < 0.5:
            advice = (
                "train for more epochs"
                if self.trains
                else f"add {self.noun}{', or choose a method that trains the network' * (self.noun == 'images')}"
            )
            if split.revisited:
                advice = "check the labels, or undo this update with gatf rollback"
            warn(f"fewer than half of the {len(self.truth)} {self.noun} are classified correctly: {advice}")


def _forecast(name: str, found: Forecast | None) -> dict[str, Any]:
    low, high = (None, None) if found is None else found.range
    return {name: None if found is None else found.percent, f"{name}_low": low, f"{name}_high": high}
