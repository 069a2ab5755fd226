"""Updates a model file: read the images, choose a strategy, train, write the model. The file changes at the end, all at
once, or not at all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gatf import __version__
from gatf.data.inputs import ImageInput, read_class_folders
from gatf.data.vectors import VectorInput
from gatf.errors import Diverged, UserError
from gatf.incremental.algebra import merged, without
from gatf.incremental.candidates import train_candidates
from gatf.incremental.store import Store
from gatf.incremental.strategy import Parameters, choose_strategy
from gatf.io.container import inspect
from gatf.io.events import Listener
from gatf.io.files import remove
from gatf.io.signals import stop_signals
from gatf.model import file as model_file
from gatf.model.state import Model
from gatf.training.context import RunContext, silent

if TYPE_CHECKING:
    from gatf.incremental.embedding import EmbeddingClassifier


@dataclass(frozen=True)
class Outcome:
    """The result of an update of a model file."""

    model: Model
    resumed: bool
    left_out: tuple[str, ...]
    """Images that cannot be decoded."""


def update_model_file(
    path: Path, folder: Path, *, parameters: Mapping[str, Any], images: tuple[ImageInput, np.ndarray] | None = None,
    vectors: VectorInput | None = None, keep: int = 3, restart: bool = False, skip_bad: bool = False,
    announce: Callable[[str], None] = lambda text: None,
    listener: Listener = silent, request: Path | None = None, job: str | None = None,
) -> Outcome:  # fmt: skip
    """Create or extend the model at `path` from the class folders in `folder`, from given `images` and labels, or from
    labelled `vectors`.

    `parameters` are IncrementalClassifier's, or for vectors EmbeddingClassifier's. `announce` receives the description
    of the strategy before training.
    Raises `Interrupted` if a signal requested a stop. The same call then resumes from the last checkpoint, also after a
    kill, and gives the same model. `request` is a file that asks for this update. It is removed when the new model is
    written; if it is already deleted when the lock is acquired, another process has done the update. `job` is an id for
    the record.
    """
    given: ImageInput | VectorInput
    if vectors is not None:
        given, labels = vectors, np.empty(0)
    else:
        given, labels = images or read_class_folders(folder)
    path = model_file.model_path(path)
    store = Store(path)
    path = store.path
    with store.writing():
        if request is not None and not request.exists():
            return Outcome(model_file.load(path), True, ())
        plan = {
            "images": str(folder.resolve()) if vectors is None else str(folder),
            "stamp": given.stamp(),
            "skip_bad": skip_bad,
            "model": inspect(path).digest if path.exists() else None,
            "parameters": {name: str(value) for name, value in sorted(parameters.items())},
            "gatf": __version__,
        }
        if not restart and store.committed(plan):
            store.prune(keep)
            _finish(store, request)
            return Outcome(model_file.load(path), True, ())
        context = partial(RunContext, listener)
        if isinstance(given, VectorInput):
            learner = _open_embedding(path, parameters)
            resumed = store.plan(plan, restart=restart)
            with stop_signals() as stopping, _cleaning_up(store):
                model = learner.updated(getattr(learner, "model_", None), given, context(stopping))
            return _committed(store, model, keep, request, job, resumed=resumed)
        asked, before = _open(path, parameters)
        left_out: tuple[str, ...] = ()
        if skip_bad:
            names = given.names()
            given, good = given.without_bad(asked.shape(given, before))
            left_out = tuple(name for name, fine in zip(names, good, strict=True) if not fine)
            labels = labels[good]
            if len(given) == 0:
                raise UserError(f"{folder} holds no image that can be decoded")
        strategy = choose_strategy(asked, before, given)
        if before is not None:
            model_file.check_room(before, path, np.unique(labels).tolist())
        resumed = store.plan(plan, restart=restart)
        announce(strategy.description)
        with stop_signals() as stopping, _cleaning_up(store):
            model = train_candidates(strategy, given, labels, context(stopping, store.workspace))
        return _committed(store, model, keep, request, job, resumed=resumed, left_out=left_out)


def _committed(
    store: Store, model: Model, keep: int, request: Path | None, job: str | None, *, resumed: bool,
    left_out: tuple[str, ...] = (),
) -> Outcome:  # fmt: skip
    """Make this the model on disk."""
    record = model.history[-1].model_copy(update={"job": job})
    model = model_file.with_lineage(replace(model, history=(*model.history[:-1], record)))
    store.commit(model, keep)
    _finish(store, request)
    return Outcome(model, resumed, left_out)


def merge_files(paths: Sequence[Path], out: Path, *, keep: int) -> Model:
    """Write one model that knows what the models at these paths know. If `out` is the first of them, the old one stays
    as a version; any other existing file is refused."""
    store = Store(out)
    if store.path.exists() and store.path != Store(paths[0]).path:
        raise UserError(f"{out} exists; choose another name, or name it as the first model to merge the others into it")
    if len(paths) < 2:
        raise UserError("merging takes at least two models")
    with store.writing():
        model = merged([model_file.load(path) for path in paths])
        store.commit(model, keep)
        store.renew_export()
    return model


def forget_class(path: Path, name: str, *, keep: int, vectors: str | None = None) -> str:
    """Remove a class from the model at `path` as `without` does; returns what remains of it, on disk too."""
    store = Store(path)
    with store.writing():
        model = model_file.load(store.path)
        label = next((known for known in model.labels if str(known) == name), name)
        smaller, remains = without(model, label, vectors)
        store.commit(smaller, keep)
        store.renew_export()
        if keep == 0 and store.undone.exists():
            remove(store.undone)
        left = [f"{store.path.name}.v{number}" for number in store.versions()]
        left += [store.undone.name] * store.undone.exists()
    kept = f"; {', '.join(left)} still contain{'s' * (len(left) == 1)} it" if left else "; no older version is kept"
    return remains + kept


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


def _finish(store: Store, request: Path | None) -> None:
    """Remove the request, the ONNX export of the model before and the plan."""
    if request is not None:
        remove(request)
    store.drop_export()
    store.forget_plan()


def _open(path: Path, parameters: Mapping[str, Any]) -> tuple[Parameters, Model | None]:
    """The parameters of the update, and the model if the file exists, whose method and seed they take."""
    if not path.exists():
        return Parameters.of(**parameters), None
    _check_not_fixed(path, parameters, "method", "random_state", "image_size", "backbone", "width")
    model = model_file.load(path)
    method = model.adapts or model.config.method.name
    return Parameters.of(**{"method": method, "random_state": model.config.seed, **parameters}), model


def _open_embedding(path: Path, parameters: Mapping[str, Any]) -> "EmbeddingClassifier":
    """The same for vectors."""
    from gatf.incremental.embedding import EmbeddingClassifier  # scikit-learn takes a second

    if not path.exists():
        return EmbeddingClassifier(**parameters)
    _check_not_fixed(path, parameters, "method", "random_state", "normalize")
    return EmbeddingClassifier.from_model(model_file.load(path)).set_params(**parameters)


def _check_not_fixed(path: Path, parameters: Mapping[str, Any], *names: str) -> None:
    fixed = [name for name in parameters if name in names]
    if fixed:
        raise UserError(
            f"{path} exists, and {', '.join(fixed)} {'was' if len(fixed) == 1 else 'were'} fixed when it was created; "
            f"omit {'it' if len(fixed) == 1 else 'them'}, or choose another file for a new model"
        )
