"""Collects diagnostics of a run. The observer changes neither the method's state nor a random generator: a run with
diagnostics gives the same bits as one without."""

import csv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gatf.data.augment import Pipeline
from gatf.data.base import ImageSet
from gatf.data.loader import views
from gatf.data.scenario import Scenario
from gatf.evaluation import diagnostics
from gatf.evaluation.diagnostics import Table
from gatf.geometry import spd
from gatf.geometry.gaussians import Gaussians
from gatf.geometry.moments import class_moments
from gatf.io import events
from gatf.io.container import write_plain
from gatf.io.files import remove, write_errors, write_text
from gatf.io.run_folder import RunFolder
from gatf.io.text import csv_text

DRIFT_IMAGES = 50
"""Training images per class that the drift curve is measured on."""
MOMENT_IMAGES = 500
"""Training images per class that true means and covariances are measured on."""
DRIFT_POINTS = 20
"""Points of the drift curve in each phase of a task, at most."""


class Observed(Protocol):
    """The part of a method that diagnostics use."""

    mirrored: ClassVar[bool]

    @property
    def backbone(self) -> nn.Module: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def frozen(self) -> AbstractContextManager[None]: ...

    def eval(self) -> Any: ...

    def stored(self) -> Gaussians | None: ...

    def centres(self) -> Tensor | None: ...

    def transported(self, old: Tensor, phase: str) -> Tensor | None: ...

    def scores(self, images: Tensor) -> Tensor: ...

    def reestimated(self, plain: Tensor, mirrored: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor] | None: ...


class DiagnosticsData:
    """The images of all tasks, for diagnostics. It is never passed to a method."""

    def __init__(self, scenario: Scenario, pipeline: Pipeline, device: torch.device) -> None:
        self.scenario, self._pipeline, self._device = scenario, pipeline, device

    def task_of_class(self, last: int) -> Tensor:
        """The task of every class of tasks 0..last."""
        tasks = self.scenario.task_of_class()
        return tasks[tasks <= last]

    @torch.no_grad()
    def test(self, see: Callable[[Tensor], Tensor], last: int) -> tuple[Tensor, Tensor]:
        """The output of `see` for the test images of tasks 0..last, and their labels; on the CPU."""
        members, labels = self.scenario.members(self.scenario.source.test, 0, last)
        return self._through(see, self.scenario.source.test, members, mirror=False), labels

    def images(self, last: int) -> Tensor:
        """Training images of every class of tasks 0..last."""
        _, labels = self.scenario.members(self.scenario.source.train, 0, last)
        return torch.bincount(labels)

    @torch.no_grad()
    def train(
        self, see: Callable[[Tensor], Tensor], last: int, per_class: int, *, mirror: bool
    ) -> tuple[Tensor, Tensor]:
        """The same for the first training images of each class, with the test transform; with `mirror` also for their
        mirror images, for methods whose moments include these."""
        members, labels = self.scenario.members(self.scenario.source.train, 0, last)
        chosen = torch.cat([torch.nonzero(labels == number)[:per_class, 0] for number in labels.unique().tolist()])
        members, labels = members[chosen], labels[chosen]
        views = [False, True] if mirror else [False]
        seen = [self._through(see, self.scenario.source.train, members, mirror=flip) for flip in views]
        return torch.cat(seen), labels.repeat(len(views))

    def _through(self, see: Callable[[Tensor], Tensor], images: ImageSet, members: Tensor, *, mirror: bool) -> Tensor:
        batches = views(images, members, self._pipeline, self._device)
        return torch.cat([see(batch.flip(-1) if mirror else batch).cpu() for batch in batches])


class DiagnosticsObserver:
    """A listener: measures drift after epochs, everything else before and after each task's transport."""

    def __init__(self, method: Observed, data: DiagnosticsData, run: RunFolder) -> None:
        self.method, self.data, self.folder, self._run = method, data, run.diagnostics, run
        self.tables: dict[str, Table] = {}
        self._epochs = self._phase_epochs = 0
        self._phase = ""

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStart():
                self._begin(event.resumed_at)
            case events.Epoch():
                self._epochs += 1
                self._phase = event.phase
                stride = max(1, self._phase_epochs // DRIFT_POINTS)
                if event.task > 0 and (event.epoch + 1) % stride == 0:
                    with self._unnoticed():
                        self._drift(event.task)
            case events.Step():
                self._phase_epochs = event.epochs
            case events.Trained() if event.task > 0:
                with self._unnoticed():
                    self._transport(event.task)
            case events.Task():
                with self._unnoticed():
                    self._revisit_old_tasks(event.task)

    def _begin(self, resumed_at: int | None) -> None:
        """Load the tables of a resumed run up to its checkpoint."""
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        epochs = [event for event in self._run.read_events() if isinstance(event, events.Epoch)]
        self._epochs = len(epochs)
        self._phase = epochs[-1].phase if epochs else ""
        if resumed_at is None:
            return
        for path in self.folder.glob("*.csv"):
            rows = read_table(path)
            if path.stem == "drift":
                self.tables[path.stem] = [row for row in rows if float(row["epoch"]) <= self._epochs]
            else:
                self.tables[path.stem] = [row for row in rows if float(row["after_task"]) < resumed_at]

    @contextmanager
    def _unnoticed(self) -> Iterator[None]:
        """Put the method into eval mode without gradients; restore its modes, the random generators and the count of
        repaired matrices afterwards."""
        modes = [(module, module.training) for module in self.method.modules()]
        with torch.random.fork_rng(), torch.no_grad(), self.method.frozen(), spd.counting():
            self.method.eval()
            try:
                yield
            finally:
                for module, training in modes:
                    module.training = training

    def _drift(self, task: int) -> None:
        """Prototype drift of the old classes in the middle of a task."""
        centres = self.method.centres()
        if centres is None:
            return
        mirrored = self.method.mirrored
        features, labels = self.data.train(self.method.backbone, task - 1, DRIFT_IMAGES, mirror=mirrored)
        true = diagnostics.true_means(features, labels, self.data.images(task - 1), mirrored=mirrored)
        transported = self._transported(centres.float(), centres.device)
        estimated = centres.cpu() if transported is None else transported
        rows = diagnostics.prototype_drift(estimated, true, self.data.task_of_class(task - 1))
        self._add("drift", [{"task": task, "epoch": self._epochs, **row} for row in rows])
        self._write("drift")

    def _transported(self, old: Tensor, device: torch.device) -> Tensor | None:
        moved = self.method.transported(old.to(device), self._phase)
        return None if moved is None else moved.double().cpu()

    def _transport(self, task: int) -> None:
        """Between training and transport: evaluate the map on old images in both spaces."""
        before = self.folder / f"features{task - 1}.safetensors"
        if not before.is_file():
            return
        old = load_file(before)["features"]
        new, labels = self.data.test(self.method.backbone, task - 1)
        device = next(self.method.backbone.parameters()).device
        transported = self._transported(old, device)
        tails = {"none": old, "transported": transported}
        for name, moved in tails.items():
            if moved is not None:
                rows = diagnostics.mahalanobis_tail(moved, new)
                self._add("tail", [{"after_task": task, "map": name, **row} for row in rows])
        plane = diagnostics.transport_plane(old, new, transported, labels)
        self._add("plane", [{"after_task": task, **row} for row in plane])

    def _revisit_old_tasks(self, task: int) -> None:
        """After a task: compare stored statistics and predictions with the truth."""
        features, labels = self.data.test(self.method.backbone, task)
        scores, _ = self.data.test(self.method.scores, task)
        tasks = self.data.task_of_class(task)
        old = tasks[labels] < task
        for name, measure in (
            ("accuracy", diagnostics.accuracy_by_task),
            ("class_accuracy", diagnostics.accuracy_by_class),
            ("confusion", diagnostics.old_to_new),
        ):
            self._add(name, [{"after_task": task, **row} for row in measure(scores.argmax(1), labels, tasks)])
        forms = {"score": diagnostics.score_margins(scores, labels)}
        forms |= self._against_truth(task, features, labels)
        for form, margins in forms.items():
            rows = diagnostics.margin_density(margins[old])
            self._add("margins", [{"after_task": task, "form": form, **row} for row in rows])
        kept = self.folder / f"features{task}.safetensors"
        with write_errors(kept):
            write_plain(kept, {"features": features.float()})
        remove(self.folder / f"features{task - 2}.safetensors")
        for name in self.tables:
            self._write(name)

    def _against_truth(self, task: int, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Errors, spectra and certificates of the stored Gaussians; returns their margins."""
        centres, stored, tasks = self.method.centres(), self.method.stored(), self.data.task_of_class(task)
        if centres is None or len(centres) != len(tasks):
            return {}
        mirrored = self.method.mirrored
        seen, of_class = self.data.train(self.method.backbone, task, MOMENT_IMAGES, mirror=mirrored)
        means = diagnostics.true_means(seen, of_class, self.data.images(task), mirrored=mirrored)
        errors = diagnostics.mean_errors(centres.cpu(), means, tasks)
        if stored is None:
            self._add("errors", [{"after_task": task, **row} for row in errors])
            return {}
        stored, moments = stored.to("cpu"), class_moments(seen, of_class, classes=len(centres))
        true = Gaussians(moments.mean, moments.covariance())
        more = diagnostics.transport_errors(stored, true)
        self._add("errors", [{"after_task": task, **row, **extra} for row, extra in zip(errors, more, strict=True)])
        for name, covs in (("stored", stored.covs), ("true", true.covs)):
            rows = diagnostics.spectra(covs, tasks)
            self._add("spectra", [{"after_task": task, "of": name, **row} for row in rows])
        certified = diagnostics.certified_share(features, stored, true)
        self._add("certified", [{"after_task": task, **row} for row in certified])
        return diagnostics.margin_forms(features, stored, labels)

    def _add(self, name: str, rows: Table) -> None:
        self.tables.setdefault(name, []).extend(rows)

    def _write(self, name: str) -> None:
        if self.tables[name]:
            write_text(self.folder / f"{name}.csv", table_text(self.tables[name]))


def table_text(rows: Table) -> str:
    """CSV with the columns of the first row; numbers to nine digits."""
    names = list(rows[0])
    every = ([row.get(name) for name in names] for row in rows)
    return csv_text([names, *([f"{each:.9g}" if isinstance(each, float) else each for each in row] for row in every)])


def read_table(path: Path) -> Table:
    """A table with its cells as text."""
    with path.open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]
