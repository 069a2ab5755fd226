"""One update: a model and new images give a model that knows more classes. The given model does not change."""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

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
from gatf.geometry.moments import class_moments
from gatf.incremental.split import Split, split_update
from gatf.incremental.statistics import (
    SPREADS,
    Draws,
    Seen,
    accuracy_by_class,
    fitted_spreads,
    forecast_old,
    lost_classes,
    merge,
    normalisation,
)
from gatf.io.events import Event, RunStart, TaskEvent, TaskStart
from gatf.methods.parts.extraction import extract
from gatf.methods.parts.gaussian import GaussianMethod, carries_gaussians, keeps_gaussians_only
from gatf.model.calibration import NO_CALIBRATION, calibration_sums, fitted_temperature, temperature_at_even_odds
from gatf.model.certificate import Metric, class_transport_errors, transport_error
from gatf.model.novelty import NO_NOVELTY, TAIL, NoveltyScorer
from gatf.model.record import UpdateRecord, remembered
from gatf.model.state import ForwardOutput, Model
from gatf.session import Session, build_method
from gatf.settings import INSIDE, PYTHON
from gatf.training import checkpoint
from gatf.training.context import RunContext
from gatf.training.divergence import all_finite
from gatf.training.loop import Position
from gatf.training.task import Resumed

KEPT_PER_CLASS = 50
"""Held-out images per class of an update whose novelty scores are stored, at most."""
CHECKPOINTS_PER_PHASE = 10
STATE = "state.safetensors"
"""The checkpoint's name in its folder."""


def new_model(config: RunConfig, given: ImageInput, shape: Shape, backbone: nn.Module | None = None) -> Model:
    """A model without classes. A pretrained network sets the preprocessing; else the given images set the
    normalisation."""
    check_shape(shape)
    method = build_method(config, shape, backbone)
    preprocessing = Preprocessing(shape, (), ()).suited_to(method.backbone)
    if not preprocessing.mean:
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
        raise UserError("a first fit needs images of at least two classes, but there is only one class in y")
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
        info = TaskInfo(model.updates, self.old, new, len(split.trained))
        self.data = self.session.task_data(info, images, (split.trained, images.labels[split.trained]))
        self.counts = torch.bincount(split.numbers[split.trained], minlength=split.classes)  # [classes of the task]
        self.errors = torch.zeros(self.old + len(split.added), dtype=torch.float64)
        self.class_errors: tuple[float, float] | None = None
        self.drift: float | None = None
        self.rejection: Literal["promised", "estimated", "withdrawn"] | None = None
        self.widening: Tensor | float | None = None
        """Factor by which the update raises the novelty of old classes' images; None: not known."""
        self.kept_by_transport: float = 1.0
        """Share of the correctly classified held-out images of added classes that would stay correct if the statistics
        of these classes had been transported."""
        self.predicted: Tensor | None = None
        """Predicted classes of the held-out images."""
        self.transported: Gaussians | None = None
        """The old classes in the new feature space, before they are merged with new images."""
        self.lost: list[tuple[int, float, float, int]] = []
        """`lost_classes` of this update."""
        self.moved: Gaussians | None = None
        """The task's classes in the old feature space, transported into the new one."""

    # --- training

    def train(self) -> None:
        """Train, transport the statistics of old classes into the new feature space, and store the new classes."""
        end: Callable[[TaskData], None] | None = None
        if self.old and carries_gaussians(self.method):
            end = partial(self._end_with_stand_ins, self.method, self.method.stored(), self._class_gaussians())
        resumed = self._resume()
        self.context.listener(RunStart(tasks=1, method=self.config.method.name, resumed_at=None))
        stage = self.config.optimisation.stage(self.data.info.index)
        every = max(1, stage.epochs // CHECKPOINTS_PER_PHASE) if self.context.checkpoints else None
        context = replace(self.context, listener=self._report, save=self._save, save_every=every)
        self.session.learn_task(self.data, context, resumed=resumed, end=end)
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
        self.transported = transported
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
        if len(split.held_out) == 0:
            self.warnings.append(
                "no class has the five images needed to hold one out, so probabilities are not calibrated"
            )
            self._withdraw()
            if model.calibration[0] > 0:  # the best estimate is that of earlier images
                return updated
            outputs, numbers = self._forward(updated, split.trained)
            return replace(updated, temperature=temperature_at_even_odds(outputs.scores, numbers))
        outputs, numbers = self._forward(updated, split.held_out)
        self.predicted = outputs.scores.argmax(1)
        sums = calibration_sums(outputs.scores, numbers)
        if self.method.revisits:  # features did not move: earlier held-out images still count
            sums = sums + model.calibration
        updated = replace(updated, temperature=fitted_temperature(sums), calibration=sums)
        novelty = model.novelty
        fresh = updated.novelty_of(outputs).float()
        most = KEPT_PER_CLASS * split.classes
        fresh = fresh[:: -(-len(fresh) // most)]
        self._compare_with_transported(outputs, numbers)
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
        return replace(updated, novelty=novelty)

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
            "unknown images are no longer rejected, because no held-out image shows how far this update moved older "
            "classes; an update with at least five images of every class restores rejection"
        )

    def _compare_with_transported(self, outputs: ForwardOutput, numbers: Tensor) -> None:
        """Estimate the effect of the transport: classify held-out images of added classes with transported Gaussians.

        Older classes have no images to measure it with. An update without added classes shows too little, because it
        trains on images of some old classes and on none of the others. Without transport nothing moved.
        """
        if not self.old:
            return
        if not carries_gaussians(self.method):
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
        memory = copy.deepcopy(self.method.memory)
        memory.set(transported.to(self.method.device))
        predicted = memory.scores(features.to(self.method.device)).argmax(1).cpu()
        correct = int((outputs.scores[added].argmax(1) == classes).sum())
        self.kept_by_transport = min(1.0, int((predicted == classes).sum()) / max(correct, 1))

    def finish(self, updated: Model, seconds: float) -> Model:
        """The updated model with the record of this update."""
        split = self.split
        accuracy = by_class = evenly = taken = expected = low = high = None
        predicted = self.predicted
        if predicted is not None:
            truth = split.final_numbers[split.held_out]
            accuracy = 100 * float((predicted == truth).double().mean())
            by_class, evenly = accuracy_by_class(predicted, truth)
            if self.old:
                taken = 100 * float(((predicted < self.old) & (truth >= self.old)).double().mean())
        foretold = None
        if keeps_gaussians_only(self.method):
            drawn = partial(Draws, self.method.stored(), self.method.feature_scores, seed=self.config.seed)
            if split.added and not split.revisited:
                added = drawn(range(self.old, self.old + len(split.added)))
                foretold = tuple(added.accuracy(spread).percent for spread in SPREADS)
            if self.old:
                seen: list[Seen] = [(*each.measured, each.foretold_new) for each in self.model.history]
                seen.append((evenly or 0.0, by_class, foretold))
                if forecast := forecast_old(drawn(range(self.old)).accuracy, seen, self.kept_by_transport):
                    expected, low, high = forecast
                    self.lost = self._lost_classes(seen)
        self._warn(accuracy, expected, taken)
        record = UpdateRecord(
            number=self.model.updates,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            added=split.added,
            revisited=tuple(self.model.labels[number] for number in split.revisited),
            images=len(split.trained),
            held_out=len(split.held_out),
            duplicates=split.duplicates,
            epochs=self.config.optimisation.stage(self.data.info.index).epochs,
            seconds=round(seconds, 2),
            accuracy_new=accuracy,
            accuracy_by_class=by_class,
            held_out_evenly=evenly,
            expected_old=expected,
            expected_old_low=low,
            expected_old_high=high,
            foretold_new=foretold,
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

    def _lost_classes(self, seen: list[Seen]) -> list[tuple[int, float, float, int]]:
        """Old classes whose accuracy this update lowers, by points drawn from their Gaussians before and after it."""
        method, spreads = self.model.method, fitted_spreads(seen)
        if spreads is None or not keeps_gaussians_only(method) or not keeps_gaussians_only(self.method):
            return []
        before = method.stored()
        after = before if self.transported is None else self.transported
        old, seed = range(self.old), self.config.seed
        return lost_classes(
            Draws(before, method.feature_scores, old, seed=seed),
            Draws(after, self.method.feature_scores, old, seed=seed),
            spreads[0],
        )

    def _warn(self, accuracy: float | None, expected: float | None, taken: float | None) -> None:
        split, warn = self.split, self.warnings.append
        labels = (*self.model.labels, *split.added)
        if split.duplicates:
            copies = f"{split.duplicates} of {len(split.numbers)} images are exact copies of others"
            warn(f"{copies}; no copy of a held-out image is trained on")
        if split.contradictions:
            warn(
                f"{split.contradictions} images have more than one label ({some(split.mislabelled)}): check the labels"
            )
        names = [*(self.model.labels[number] for number in split.revisited), *split.added]
        few = [name for name, count in zip(names, self.counts.tolist(), strict=True) if count < 20]
        if few:
            warn(f"fewer than 20 training images for {some(few)}: add more")
        if self.lost:
            lost = [
                f"{labels[old]} from {before:.0f} to {after:.0f} %, often predicted as {labels[other]}"
                for old, before, after, other in self.lost
            ]
            advice = "check the new images, or undo this update with gatf rollback"
            warn(f"older classes lost accuracy by forecast ({some(lost)}): {advice}")
        elif expected is not None and expected < 60:
            warn("the forecast for older classes is below 60 %: consider undoing this update with gatf rollback")
        if taken is not None and taken > 20:
            warn(
                f"{taken:.0f} % of the held-out images of new classes are predicted as an older class: check the labels"
            )
        if accuracy is not None and accuracy < 50:
            advice = (
                "train for more epochs" if self.trains else "add images, or choose a method that trains the network"
            )
            if self.lost or split.revisited:
                advice = "check the labels, or undo this update with gatf rollback"
            warn(f"fewer than half of the held-out images are classified correctly: {advice}")
