"""Move a model to another encoder without its old items: pairs of vectors of any items show how the spaces correspond.

The mathematics is in `geometry.encoder_maps` and docs/paper-map.md.
"""

import copy
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gatf.data.inputs import ImageInput, read_class_folders, read_images
from gatf.data.loader import views
from gatf.data.vectors import ENCODER, IDS, LABELS, VECTORS, VectorInput, as_vectors, checked
from gatf.errors import UserError, extra
from gatf.geometry.anchor import Affine
from gatf.geometry.encoder_maps import (
    EncoderMap,
    PairedVectors,
    candidates,
    class_corrections,
    folds,
    pairs_needed,
    recall_at,
    simulated,
    transport,
)
from gatf.geometry.moments import PooledMoments
from gatf.geometry.spd import pack, unpack
from gatf.incremental import defaults
from gatf.incremental.gather import on_cluster
from gatf.incremental.store import Store
from gatf.incremental.update import new_model
from gatf.io.files import new_file, write_bytes
from gatf.methods.parts.closed_form import ClosedForm
from gatf.methods.parts.features import FeatureMethod
from gatf.methods.parts.gaussian import keeps_gaussians_only
from gatf.model import file as model_file
from gatf.model.calibration import expected_calibration_sums, fitted_temperature, softmax_with_temperature
from gatf.model.novelty import NO_NOVELTY, combined_novelty, rejection_threshold
from gatf.model.record import EncoderUpgrade, UpdateRecord, remembered
from gatf.model.state import FROZEN_METHOD, ForwardOutput, Model
from gatf.seeding import generator

FOLDS = 3
FEWEST = 20
"""Pairs without which no map is fitted."""
MAX_LOSS = 10.0
"""Points of accuracy that an upgrade may lose by forecast."""
ENOUGH = 0.05
"""Pairs are enough where the forecast loses at most this share of the accuracy."""
NEIGHBOURS = 10
KNOWN_RATE = 0.05
"""Pairs that the old model rejects at this rate do not set the new threshold for unknown classes."""


@dataclass(frozen=True)
class Upgraded:
    """A model of the new encoder, and the map of vectors."""

    model: Model
    vectors: Affine

    @property
    def record(self) -> EncoderUpgrade:
        found = self.model.history[-1].upgrade
        assert found is not None
        return found


def upgrade_vectors(model: Model, old: Any, new: Any, labels: Any = None, *, encoder: str | None = None) -> Upgraded:
    """A model of vectors, moved to the encoder of the vectors `new`; row i of `old` and `new` is of the same item."""
    if not model.preprocessing.takes_vectors:
        raise UserError("this model classifies images: name the new backbone (--backbone) and give recent images")
    pair = [checked(as_vectors(each), where=f" of the {name} vectors") for name, each in (("old", old), ("new", new))]
    if pair[0].shape[1] != model.preprocessing.shape[0]:
        raise UserError(
            f"the old vectors have {pair[0].shape[1]} columns, but the model learnt {model.preprocessing.shape[0]}; "
            "'old' are the vectors of the model's present encoder"
        )
    base = model.config.model_dump(mode="json")
    base["backbone"]["encoder"] = encoder
    start = new_model(_config(model, base), None, (pair[1].shape[1],))
    with torch.no_grad():
        features = [each.method.backbone(vectors) for each, vectors in zip((model, start), pair, strict=True)]
    return upgrade(model, start, features[0], features[1], labels)


def upgrade_images(
    model: Model, images: ImageInput, backbone: str, labels: Any = None, *, image_size: int | None = None
) -> Upgraded:
    """A model of images, moved to another pretrained backbone; both networks extract features of the images."""
    if model.preprocessing.takes_vectors:
        raise UserError("this model classifies vectors: give pairs of vectors, and leave out --backbone")
    overrides = {"backbone.name": backbone}
    if not defaults.is_pretrained(overrides):
        raise UserError(f"backbone '{backbone}' has no pretrained weights, and an upgrade trains no network")
    shape = defaults.pretrained_shape(backbone, images) if image_size is None else (3, image_size, image_size)
    known = model.config.method.name
    method = known if isinstance(model.method, ClosedForm) else FROZEN_METHOD
    config = defaults.first_config(
        method=method, shape=shape, images=len(images), device=model.config.device, seed=model.config.seed,
        overrides=overrides,
    )  # fmt: skip
    if method == known:
        config = config.model_copy(update={"method": model.config.method})
    start = new_model(_without_correction(config), images, shape)
    return upgrade(model, start, _features(model, images), _features(start, images), labels)


def _config(model: Model, base: dict[str, Any]) -> Any:
    return _without_correction(type(model.config).model_validate(base))


def _without_correction(config: Any) -> Any:
    """Without the correction for classes of few images: a map shrinks noise, so it would correct too much."""
    if not getattr(config.method, "few_images", False):
        return config
    return config.model_copy(update={"method": config.method.model_copy(update={"few_images": False})})


@torch.no_grad()
def _features(model: Model, images: ImageInput) -> Tensor:
    """[N, S] of the model's backbone."""
    views_of = model.preprocessing.images(images)
    method = model.method.eval()
    backbone = method.frozen_copy(method.backbone)
    batches = views(views_of, torch.arange(len(images)), model.preprocessing.pipeline(model.config.data), method.device)
    return torch.cat([backbone(batch).cpu() for batch in batches])


@torch.no_grad()
def upgrade(model: Model, start: Model, old: Tensor, new: Tensor, labels: Any = None) -> Upgraded:
    """The classes of `model` in `start`, an empty model of another backbone, by features of the same items: old
    [N, S_old], new [N, S_new]. Labels, where there are any, are the model's class names; others count as unlabelled."""
    started = time.monotonic()
    numbers = _checked_pairs(model, old, new, labels)
    method = start.method
    assert isinstance(method, ClosedForm)
    stored = _statistics(model)
    assert isinstance(model.method, FeatureMethod)
    embed = model.method.embedded if isinstance(model.method, ClosedForm) else (lambda features: features)
    pairs = PairedVectors(embed(old), method.embedded(new))
    cov = stored.covariance() if stored.scatter.numel() else torch.zeros(2 * (stored.means.shape[1],)).double()
    before = model.method.feature_scores(old).double().cpu()
    probabilities = softmax_with_temperature(before, model.temperature)
    trial = copy.deepcopy(method)

    def scorer(means: Tensor, within: Tensor, rows: Tensor) -> Tensor:
        _take(trial, stored, means, within)
        return trial.feature_scores(new[rows]).double()

    parts = folds(len(pairs), FOLDS, generator(model.config.seed, "upgrade"))
    kinds = candidates(pairs)
    scores = simulated(pairs, stored.means, cov, kinds=kinds, scorer=scorer, parts=parts)  # [kinds, N, C]
    value = [_accuracy(each.argmax(1), probabilities, numbers)[0] for each in scores]
    chosen = max(range(len(kinds)), key=value.__getitem__)
    found = pairs.map(*kinds[chosen])
    means, within = transport(stored.means, cov, found)
    means = means + class_corrections(found.errors, numbers, len(means))[0]
    _take(method, stored, means, within, _moved_parts(stored, found))
    sizes, losses = [], []
    now, _ = _accuracy(probabilities.argmax(1), probabilities, numbers)
    for share in (4, 2):
        sizes.append(len(pairs) * (FOLDS - 1) // FOLDS // share)
        fewer = simulated(pairs, stored.means, cov, kinds=[kinds[chosen]], scorer=scorer, parts=parts, train=sizes[-1])[
            0
        ]
        losses.append(now - _accuracy(fewer.argmax(1), probabilities, numbers)[0])
    sizes, losses = [*sizes, len(pairs) * (FOLDS - 1) // FOLDS], [*losses, now - value[chosen]]
    after, error = _accuracy(scores[chosen].argmax(1), probabilities, numbers)
    labelled = bool((numbers >= 0).any())
    record = EncoderUpgrade(
        source=str(model.config.backbone), target=str(start.config.backbone), pairs=len(pairs), map=found.kind,
        ridge=found.ridge, measured=labelled, before=now, after=after if labelled else (now + after) / 2,
        low=max(0.0, after - 2 * error), high=min(100.0, (after if labelled else now) + 2 * error),
        enough=pairs_needed(sizes, losses, ENOUGH * now),
        recall=recall_at(torch.arange(len(pairs)), pairs.new, pairs.new - found.errors, NEIGHBOURS),
    )  # fmt: skip
    sums = expected_calibration_sums(scores[chosen], probabilities)
    moved = replace(
        start, labels=model.labels, counts=model.counts, calibration=sums, temperature=fitted_temperature(sums),
        adapts=model.adapts, lineage=model.lineage, method=method.eval(),
    )  # fmt: skip
    novelty, rejection = _novelty(model, moved, ForwardOutput(before, old), ForwardOutput(scores[chosen], new))
    update = UpdateRecord(
        number=model.updates, date=datetime.now(UTC).isoformat(timespec="seconds"), added=(), images=len(pairs),
        kind="vectors" if start.preprocessing.takes_vectors else "images", held_out=0, epochs=0,
        seconds=round(time.monotonic() - started, 2), accuracy_new=None, rejection=rejection,
        temperature=moved.temperature, bytes_per_class=method.bytes_per_class(), upgrade=record,
    )  # fmt: skip
    moved = replace(moved, novelty=novelty, history=remembered((*model.history, update)))
    own = pairs if pairs.old.shape[1] == old.shape[1] and pairs.new.shape[1] == new.shape[1] else None
    vectors = found if own is not None else (other := PairedVectors(old, new)).map("ridge", other.least_error())
    return Upgraded(moved, vectors.affine)


def _checked_pairs(model: Model, old: Tensor, new: Tensor, labels: Any) -> Tensor:
    """Class numbers of the pairs, −1 without a known label; a `UserError` where pairs cannot be used."""
    if len(old) != len(new):
        raise UserError(f"there are {len(old)} old but {len(new)} new vectors; row i of both must be the same item")
    if len(old) < FEWEST:
        raise UserError(f"an upgrade needs at least {FEWEST} pairs, and a few hundred to be accurate; got {len(old)}")
    for name, vectors in (("old", old), ("new", new)):
        if not bool((vectors != vectors[:1]).any()):
            raise UserError(f"all {name} vectors of the pairs are equal, so they show nothing")
    numbers = torch.full((len(old),), -1)
    if labels is None:
        return numbers
    names = np.asarray(labels)
    if names.shape != (len(old),):
        count = len(names) if names.ndim == 1 else f"an array {names.shape} of"
        raise UserError(f"there are {len(old)} pairs but {count} labels; give one for each pair or none")
    places = {label: number for number, label in enumerate(model.labels)}
    return torch.tensor([places.get(name, -1) for name in names.tolist()])


def _statistics(model: Model) -> PooledMoments:
    """Counts, means and pooled scatter of the model's classes."""
    if isinstance(model.method, ClosedForm):
        return model.method.memory.get()
    if not keeps_gaussians_only(model.method):
        raise UserError(
            f"method '{model.config.method.name}' keeps more than class statistics, which an upgrade cannot transport; "
            "use slda, ncm, ranpac, klda, gatf or adagauss"
        )
    stored = model.stored
    plain = PooledMoments(model.counts.double(), stored.means, stored.mean_cov())
    return replace(plain, scatter=plain.scatter * plain.freedom())


def _take(
    method: "ClosedForm[Any]", stored: PooledMoments, means: Tensor, cov: Tensor, parts: Tensor | None = None
) -> None:
    """Make these the classes of a method."""
    method.solve(method.memory.set(PooledMoments(stored.counts, means, cov * stored.freedom(), parts)))


def _moved_parts(stored: PooledMoments, found: EncoderMap) -> Tensor | None:
    """The scatter of each class in the new space, whose sum is that of `transport`; None where it is not kept."""
    if stored.parts is None:
        return None
    moved = []
    for part, count in zip(stored.parts, stored.counts.tolist(), strict=True):
        weight, scatter = found.affine.weight, unpack(part, stored.means.shape[1])
        moved.append(pack(weight @ scatter @ weight.mT + max(0.0, count - 1) * found.residual))
    return torch.stack(moved)


def _accuracy(predicted: Tensor, probabilities: Tensor, numbers: Tensor) -> tuple[float, float]:
    """Accuracy of predictions for the pairs in percent, and its standard error: on labelled pairs if there are any,
    else expected by the old model's probabilities, [N, C]."""
    labelled = numbers >= 0
    if bool(labelled.any()):
        right = (predicted[labelled] == numbers[labelled]).double()
    else:
        right = probabilities.gather(1, predicted[:, None])[:, 0]
    return 100 * float(right.mean()), 100 * float(right.std(correction=0)) / len(right) ** 0.5


def _novelty(model: Model, moved: Model, before: ForwardOutput, after: ForwardOutput) -> tuple[Tensor, Any]:
    """Novelty scores of the pairs that the old model takes for known classes, for thresholds in the new space."""
    if model.rejection == "withdrawn" or len(model.novelty) == 0:
        return NO_NOVELTY, "withdrawn"
    limit = rejection_threshold(combined_novelty(model.novelty, model.novelty), KNOWN_RATE)
    known = combined_novelty(model.novelty_of(before), model.novelty) <= limit
    if int(known.sum()) < FEWEST:
        return NO_NOVELTY, "withdrawn"
    return moved.novelty_of(after)[known].float(), "estimated"


# --- files ------------------------------------------------------------------------------------------------------------


def upgrade_model_file(
    path: Path, pairs: Path, *, backbone: str | None = None, encoder: str | None = None, labelled: bool = False,
    image_size: int | None = None, max_loss: float = MAX_LOSS, force: bool = False, keep: int = 1,
    vectors: str | None = None,
) -> tuple[Model, EncoderUpgrade, Path]:  # fmt: skip
    """Upgrade the model at `path` with a file of pairs, or with images and a backbone; its record and the map's path.

    The old model stays as a version. Where the forecast loses more than `max_loss` points, nothing is written, unless
    `force`; nor where the map does not fit the stored `vectors`."""
    store = Store(model_file.model_path(path))
    with store.writing():
        model = model_file.load(store.path)
        if backbone is None:
            old, new, labels = read_pairs(pairs)
            found = upgrade_vectors(model, old, new, labels, encoder=encoder)
        else:
            images, names = read_class_folders(pairs) if labelled else (read_images(pairs), None)
            found = upgrade_images(model, images, backbone, names, image_size=image_size)
        record = found.record
        if record.loss > max_loss and not force:
            more = "" if record.enough is None else f"; about {record.enough} pairs would be enough"
            raise UserError(
                f"the upgrade would lose about {record.loss:.0f} points of accuracy, from {record.before:.0f} to "
                f"{record.after:.0f} % (between {record.low:.0f} and {record.high:.0f}){more}; give more pairs, or add "
                "--force to accept it"
            )
        source = model.config.backbone.encoder
        if vectors is not None:
            stored_vectors(vectors, found.vectors.weight.shape[1], source)
        store.commit(found.model, max(keep, 1))
        _save_map(map_path(store.path), found, source)
        store.renew_export()
    return found.model, record, map_path(store.path)


def read_pairs(path: Path) -> tuple[Tensor, Tensor, np.ndarray | None]:
    """Arrays `old`, `new` and perhaps `label` of an .npz file, or columns of a parquet file."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    found: dict[str, Any]
    try:
        if path.suffix == ".parquet":
            table = extra("pyarrow.parquet").read_table(path)
            found = {name: table.column(name) for name in table.schema.names}
            if LABELS in found:
                found[LABELS] = np.array(found[LABELS].to_pylist())
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
    except UserError:
        raise
    except Exception:  # the parsers of zips, array headers and parquet raise nearly anything
        raise UserError(
            f"{path} is damaged, or neither parquet nor an .npz file of plain arrays; write it with np.savez"
        ) from None
    if missing := [name for name in ("old", "new") if name not in found]:
        raise UserError(f"{path} has no '{missing[0]}'; pairs are np.savez(path, old=X_old, new=X_new)")
    return as_vectors(found["old"]), as_vectors(found["new"]), found.get(LABELS)


@dataclass(frozen=True)
class VectorMap:
    """The map of an upgrade, and the names of both encoders."""

    affine: Affine
    source: str | None
    target: str | None


def map_path(model: Path) -> Path:
    """Where the map of vectors is kept, beside the model."""
    return model.with_name(model.name + ".map")


def _save_map(path: Path, found: Upgraded, source: str | None) -> None:
    names = {"old": source, "new": found.model.config.backbone.encoder, "date": found.model.history[-1].date}
    tensors = {"weight": found.vectors.weight.float().contiguous(), "bias": found.vectors.bias.float()}
    write_bytes(path, [save(tensors, {key: name for key, name in names.items() if name is not None})])


def load_map(model: Path) -> VectorMap:
    """The map of the last upgrade of a model."""
    model = Store(model_file.model_path(model)).path
    path = map_path(model)
    try:
        with safe_open(path, "pt") as file:
            affine, names = Affine(file.get_tensor("weight"), file.get_tensor("bias")), file.metadata() or {}
    except (OSError, SafetensorError):
        raise UserError(f"{path} is no map of vectors; gatf upgrade MODEL PAIRS writes it beside the model") from None
    if affine.weight.ndim != 2 or affine.bias.shape != affine.weight.shape[:1] or not affine.weight.isfinite().all():
        raise UserError(f"{path} is damaged; repeat gatf upgrade, or roll back first")
    upgrades = [record.date for record in model_file.describe(model)[2] if record.upgrade is not None]
    if upgrades[-1:] != [names.get("date")]:
        raise UserError(f"{path} is not of the model's last upgrade; give PAIRS to upgrade it again")
    return VectorMap(affine, names.get("old"), names.get("new"))


def stored_vectors(source: str, dim: int, encoder: str | None) -> VectorInput:
    """The vectors of a file or of files, of this dimension and encoder, to be moved."""
    extra("pyarrow.parquet")  # what they are written with
    given = VectorInput(source)
    if given.dim != dim:
        raise UserError(f"{source} has vectors of {given.dim} columns, but the map is for {dim}")
    if None not in (encoder, given.encoder) and given.encoder != encoder:
        raise UserError(f"{source} has vectors of encoder '{given.encoder}', but the map is for '{encoder}'")
    return given


def move_vectors(given: VectorInput, target: Path, found: VectorMap) -> int:
    """Write mapped vectors as parquet, with labels, ids and the encoder's name, a batch at a time; returns their
    number."""
    pa, parquet = extra("pyarrow"), extra("pyarrow.parquet")
    rows, writer = 0, None
    with new_file(target) as partial:
        try:
            for batch in given.batches():
                moved = found.affine(batch.vectors.float()).numpy()
                columns = {VECTORS: pa.FixedSizeListArray.from_arrays(pa.array(moved.ravel()), moved.shape[1])}
                columns |= {} if batch.labels is None else {LABELS: pa.array(batch.labels.tolist())}
                columns |= {} if batch.ids is None else {IDS: pa.array(batch.ids.tolist())}
                table = pa.table(columns, metadata=None if found.target is None else {ENCODER: found.target})
                writer = writer or parquet.ParquetWriter(partial, table.schema)
                writer.write_table(table)
                rows += len(moved)
        finally:
            if writer is not None:
                writer.close()
    return rows


def move_on_cluster(given: VectorInput, folder: Path, found: VectorMap) -> int:
    """The same with each file moved by a worker of a Ray cluster, into files of this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; with engine 'ray' the moved vectors go to a new folder")
    return sum(on_cluster(_move_file, list(enumerate(given.by_file())), (folder.resolve(), found)))


def _move_file(part: tuple[int, VectorInput], shared: tuple[Path, VectorMap]) -> int:
    torch.set_num_threads(1)  # of a worker's processor
    (number, given), (folder, found) = part, shared
    return move_vectors(given, folder / f"part-{number:05}.parquet", found)
