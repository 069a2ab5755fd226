"""Updates a model file: read the images, choose a strategy, train, write the model. The file changes at the end, all at
once, or not at all."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gatf import __version__
from gatf.data.inputs import ImageInput, read_class_folders
from gatf.errors import Diverged, UserError
from gatf.incremental.candidates import train_candidates
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.store import Store
from gatf.io.container import inspect
from gatf.io.events import Listener
from gatf.io.files import remove
from gatf.io.signals import stop_signals
from gatf.model import file as model_file
from gatf.model.state import Model
from gatf.training.context import RunContext, silent


@dataclass(frozen=True)
class Outcome:
    """The result of an update of a model file."""

    model: Model
    resumed: bool
    left_out: tuple[str, ...]
    """Images that cannot be decoded."""
    export: Path | None = None
    """The same model as ONNX, if the update wrote it."""


def update_model_file(
    path: Path, folder: Path, *, parameters: Mapping[str, Any], images: tuple[ImageInput, np.ndarray] | None = None,
    keep: int = 1, restart: bool = False, skip_bad: bool = False, announce: Callable[[str], None] = lambda text: None,
    listener: Listener = silent, request: Path | None = None, job: str | None = None,
) -> Outcome:  # fmt: skip
    """Create or extend the model at `path` from the class folders in `folder`, or from given `images` and labels.

    `parameters` are IncrementalClassifier's. `announce` receives the description of the strategy before training.
    Raises `Interrupted` if a signal requested a stop. The same call then resumes from the last checkpoint, also after a
    kill, and gives the same model. `request` is a file that asks for this update. It is removed when the new model is
    written; if it is already deleted when the lock is acquired, another process has done the update. `job` is an id for
    the record.
    """
    given, labels = images or read_class_folders(folder)
    path = model_file.model_path(path)
    store = Store(path)
    path = store.path
    with store.writing():
        if request is not None and not request.exists():
            return Outcome(model_file.load(path), True, ())
        plan = {
            "images": str(folder.resolve()),
            "stamp": given.stamp(),
            "skip_bad": skip_bad,
            "model": inspect(path).digest if path.exists() else None,
            "parameters": {name: str(value) for name, value in sorted(parameters.items())},
            "gatf": __version__,
        }
        if not restart and store.committed(plan):
            store.prune(keep)
            return Outcome(model_file.load(path), True, (), _finish(store, request))
        classifier = _open(path, parameters)
        left_out: tuple[str, ...] = ()
        if skip_bad:
            names = given.names()
            given, good = given.without_bad(classifier.image_shape_for(given))
            left_out = tuple(name for name, fine in zip(names, good, strict=True) if not fine)
            labels = labels[good]
            if len(given) == 0:
                raise UserError(f"{folder} holds no image that can be decoded")
        strategy = classifier.choose_strategy(given)
        if path.exists():
            model_file.check_room(classifier.model_, path, np.unique(labels).tolist())
        resumed = store.plan(plan, restart=restart)
        announce(strategy.description)
        with stop_signals() as stopping, _cleaning_up(store):
            model = train_candidates(strategy, given, labels, RunContext(listener, stopping, store.workspace))
        record = model.history[-1].model_copy(update={"job": job})
        model = model_file.with_lineage(replace(model, history=(*model.history[:-1], record)))
        store.commit(model, keep)
        return Outcome(model, resumed, left_out, _finish(store, request))


@contextmanager
def _cleaning_up(store: Store) -> Iterator[None]:
    """Inside, training that fails without a checkpoint worth resuming leaves no plan behind."""
    try:
        yield
    except Diverged as error:  # the same training would diverge again
        store.forget_plan()
        left = f"{store.path} has not changed" if store.path.exists() else "no model was written"
        raise Diverged(f"{error}; {left}", error.setting, error.rate) from error
    except BaseException:
        if not store.has_state():
            store.forget_plan()
        raise


def _finish(store: Store, request: Path | None) -> Path | None:
    """Remove the request, renew the ONNX export and remove the plan; returns the export."""
    if request is not None:
        remove(request)
    export = store.renew_export()
    store.forget_plan()
    return export


def _open(path: Path, parameters: Mapping[str, Any]) -> IncrementalClassifier:
    """A classifier with the parameters, and with the model if the file exists."""
    if not path.exists():
        return IncrementalClassifier(**parameters)
    fixed = [name for name in parameters if name in ("method", "random_state", "image_size", "backbone", "width")]
    if fixed:
        raise UserError(
            f"{path} exists, and {', '.join(fixed)} {'was' if len(fixed) == 1 else 'were'} fixed when it was created; "
            f"omit {'it' if len(fixed) == 1 else 'them'}, or choose another file for a new model"
        )
    return IncrementalClassifier.from_model(model_file.load(path)).set_params(**parameters)
