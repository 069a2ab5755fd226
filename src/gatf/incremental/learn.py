"""Updating a model file: `gatf learn` without its printing. The file changes at the end, all at once, or not at all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gatf import __version__
from gatf.data.inputs import ImageInput, read_class_folders
from gatf.errors import Diverged, UserError
from gatf.incremental.classifier import IncrementalClassifier
from gatf.incremental.store import Store
from gatf.incremental.update import Conditions, silent
from gatf.io.container import inspect
from gatf.io.events import Listener
from gatf.io.files import remove
from gatf.io.signals import stop_signals
from gatf.model import file as model_file


@dataclass(frozen=True)
class Outcome:
    """What came of an update of a model file."""

    classifier: IncrementalClassifier
    resumed: bool
    left_out: tuple[str, ...]
    """Images that cannot be decoded."""
    export: Path | None = None
    """The same model as ONNX, where the update wrote it."""


def learn_folder(
    path: Path, folder: Path, *, parameters: Mapping[str, Any], keep: int = 1, restart: bool = False,
    skip_bad: bool = False, announce: Callable[[str], None] = lambda text: None, listener: Listener = silent,
) -> Outcome:  # fmt: skip
    """Create or extend the model at `path` from class folders; see `learn_given`."""
    given, answers = read_class_folders(folder)
    return learn_given(
        path, given, answers, folder, parameters=parameters, keep=keep, restart=restart, skip_bad=skip_bad,
        announce=announce, listener=listener,
    )  # fmt: skip


def learn_given(
    path: Path, given: ImageInput, answers: np.ndarray, folder: Path, *, parameters: Mapping[str, Any], keep: int = 1,
    restart: bool = False, skip_bad: bool = False, announce: Callable[[str], None] = lambda text: None,
    listener: Listener = silent, request: Path | None = None, job: str | None = None,
) -> Outcome:  # fmt: skip
    """Create or extend the model at `path` from picture files in `folder`; `Interrupted` if a signal asked for a stop.

    `parameters` are IncrementalClassifier's; `announce` is told what was chosen, before training. Until the last
    moment the old file is untouched; state saved on the way lets the same call go on after an interruption or a kill,
    to the same result. `request` is a file that asks for this update: it is removed when the new model is in place, and
    where it is gone before we have our turn, another process has done the work. `job` goes into the update's record.
    """
    path = model_file.model_path(path)
    left_out: tuple[str, ...] = ()
    store = Store(path)
    path = store.path
    with store.writing():
        if request is not None and not request.exists():
            return Outcome(_reopen(path, parameters), True, left_out)
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
            _fulfil(request)
            export = store.renew_export()
            store.forget_plan()
            return Outcome(_reopen(path, parameters), True, left_out, export)
        classifier = _open(path, parameters)
        if skip_bad:
            names = given.names()
            given, good = given.without_bad(classifier.shape_for(given))
            left_out = tuple(name for name, fine in zip(names, good, strict=True) if not fine)
            answers = answers[good]
            if len(given) == 0:
                raise UserError(f"{folder} holds no image that can be decoded")
        chosen = classifier.describe(given)  # or refused, before anything is written down
        if path.exists():
            model_file.check_room(classifier.model_, path, np.unique(answers).tolist())
        resumed = store.plan(plan, restart=restart)
        announce(chosen)
        with stop_signals() as stopping:
            run = Conditions(listener, stopping, store.workspace)
            try:
                classifier.learn(given, answers, run)
            except Diverged as error:  # what was saved on the way would only diverge again
                store.forget_plan()
                left = f"{path} is as it was" if path.exists() else "no model was written"
                raise Diverged(f"{error}; {left}", error.setting, error.rate) from error
            except BaseException:
                if not store.has_state():
                    store.forget_plan()
                raise
        record = classifier.model_.history[-1].model_copy(update={"job": job})
        classifier.model_ = replace(classifier.model_, history=(*classifier.model_.history[:-1], record))
        store.commit(classifier.model_, keep)
        _fulfil(request)
        export = store.renew_export()
        store.forget_plan()
    return Outcome(classifier, resumed, left_out, export)


def _open(path: Path, parameters: Mapping[str, Any]) -> IncrementalClassifier:
    if not path.exists():
        return IncrementalClassifier(**parameters)
    fixed = [name for name in parameters if name in ("method", "random_state", "image_size", "backbone", "width")]
    if fixed:
        raise UserError(
            f"{path} exists, and {', '.join(fixed)} {'was' if len(fixed) == 1 else 'were'} fixed when it was made; "
            "leave that out, or choose another file for a new model"
        )
    return _reopen(path, parameters).set_params(**parameters)


def _reopen(path: Path, parameters: Mapping[str, Any]) -> IncrementalClassifier:
    return IncrementalClassifier.from_model(model_file.load(path), device=parameters.get("device", "auto"))


def _fulfil(request: Path | None) -> None:
    if request is not None:
        remove(request)
