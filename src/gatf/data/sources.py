"""All data sources by name: users' files, published benchmarks, embedded data. Sources do not know about tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gatf import plugins
from gatf.data.base import Card, OnProgress, Source, SourceEntry, rank_in_class
from gatf.data.benchmarks import BENCHMARKS, IMAGENET_MEAN, IMAGENET_STD
from gatf.data.build import FileSource, Traits
from gatf.data.cache import cache_folder
from gatf.data.digits import load_digits
from gatf.data.glyphs import load_glyphs
from gatf.data.layouts.folder import has_class_folders, read_folder
from gatf.data.layouts.npz import find_npz, read_npz
from gatf.data.layouts.parquet import find_parquet, read_parquet
from gatf.data.listing import Layout, Listing, find_layout
from gatf.errors import UserError
from gatf.settings import PYTHON, DataConfig


@dataclass(frozen=True)
class Own(FileSource):
    """Users' own data, in one layout."""

    def listing(self, config: DataConfig) -> Listing:
        (layout,) = self.layouts
        if config.root is None:
            raise UserError(f"'{config.name}' is for your own data: name {layout.name} with --data-root")
        found = find_layout(config, self.layouts)
        if found is None:
            where = "is not there" if not Path(config.root).expanduser().exists() else f"is not {layout.name}"
            raise UserError(f"{config.root} {where}; give '{config.name}' such a place with --data-root")
        return layout.read(found[0], config)


@dataclass(frozen=True)
class Embedded(SourceEntry):
    """A source that needs no files."""

    load: Callable[[DataConfig], Source]

    def open(self, config: DataConfig) -> Source:
        return self.load(config)


def _own(summary: str, layout: Layout, *settings: str) -> Own:
    """Normalised as ImageNet is; grey images by the mean of its three channels."""
    uses = frozenset({"image_size", "test_fraction", *settings})
    return Own(summary, "that of your data", "your files", uses, (layout,), Traits(IMAGENET_MEAN, IMAGENET_STD))


SOURCES: dict[str, SourceEntry] = {
    "digits": Embedded(
        "10 classes, 8×8 grey, 1 797 images inside scikit-learn",
        "CC BY 4.0 (UCI); cite Alpaydin and Kaynak, 1998",
        "inside scikit-learn, no download",
        frozenset(),
        load_digits,
    ),
    "glyphs": Embedded(
        "100 classes, 32×32 colour, characters rendered from matplotlib's fonts",
        "free to use; the fonts (DejaVu, STIX) have licences of their own",
        "rendered here, no download",
        frozenset({"glyphs"}),
        load_glyphs,
    ),
    **BENCHMARKS,
    "folder": _own(
        "your images, one folder per class: train/ and test/, or class folders of which a share is for testing",
        Layout("a folder with train/<class> and test/<class>, or <class> folders", has_class_folders, read_folder),
        "class_list",
    ),
    "parquet": _own(
        "your parquet files with the hub's columns (image, label)",
        Layout("a folder with train*.parquet and test*.parquet, or one parquet file", find_parquet, read_parquet),
        "label_column",
    ),
    "npz": _own(
        "your NumPy archive of uint8 images and labels",
        Layout("an .npz file with x_train, y_train and perhaps x_test, y_test", find_npz, read_npz),
    ),
}
SPECIAL = frozenset[str]().union(*(entry.settings for entry in SOURCES.values()))
"""Settings that only some sources use."""


def source_entry(name: str) -> SourceEntry:
    """A source by name. A plugin is a function `DataConfig -> Source`, which may use all settings, or a whole entry."""
    if name.startswith(PYTHON):
        raise UserError(
            f"the scenario '{name.removeprefix(PYTHON)}' comes from Python and must be given again, as scenario=…"
        )
    found = plugins.find("data source", name, SOURCES)
    if isinstance(found, SourceEntry):
        return found

    def load(config: DataConfig) -> Source:
        source = plugins.call("data source", name, found, config)
        if not isinstance(source, Source):
            raise UserError(f"data source '{name}' returns {type(source).__name__}, not a gatf.data.base.Source")
        return source

    summary = (found.__doc__ or "no description").strip().splitlines()[0]
    return Embedded(summary, "not stated", "a plugin", SPECIAL, load)


def open_source(config: DataConfig) -> Source:
    """Open the source of a config and apply its limits and validation split. Never uses the network. A setting that
    this source would ignore is an error."""
    entry = source_entry(config.name)
    for name in sorted(SPECIAL - entry.settings):
        if getattr(config, name) != DataConfig.model_fields[name].default:
            users = ", ".join(source for source, known in SOURCES.items() if name in known.settings)
            raise UserError(f"data.{name} has no meaning for '{config.name}', only for {users}; leave it out")
    return limit_training(entry.open(config), config)


def source_card(name: str, config: DataConfig) -> Card:
    """Headings and lines for `gatf data show`; for missing data, how to get it."""
    entry = source_entry(name)
    config = config.model_copy(update={"name": name})
    problem = entry.missing(config)
    return [
        ("name", name),
        ("what", entry.summary),
        *entry.card(config),
        ("cache", str(cache_folder())),
        ("licence", entry.licence),
        ("origin", entry.origin),
        *([("missing", problem)] if problem else []),
    ]


def fetch_source(name: str, config: DataConfig, on_progress: OnProgress) -> str:
    """Download a source for `gatf data get`; returns its folder."""
    return source_entry(name).fetch(config.model_copy(update={"name": name}), on_progress)


def limit_training(source: Source, config: DataConfig) -> Source:
    """Limit the training images of each class, in file order, to the first `max_per_class` and to the long tail, and
    hold out the last `val_fraction`. With `evaluate_on=validation` the held-out images replace the test images."""
    labels = source.train.labels
    counts = torch.bincount(labels, minlength=source.classes)
    kept = counts if config.max_per_class is None else counts.clamp(max=config.max_per_class)
    if config.imbalance is not None:
        kept = torch.minimum(kept, long_tail(int(kept.max()), source.classes, config.imbalance))
    trained = kept - (kept * config.val_fraction).long()
    if torch.equal(trained, counts):
        return source
    rank = rank_in_class(labels, counts)
    train = source.train.take(torch.nonzero(rank < trained[labels]).squeeze(1))
    if config.evaluate_on == "test":
        return source.with_parts(train, source.test)
    held_out = (rank >= trained[labels]) & (rank < kept[labels])
    return source.with_parts(train, source.train.take(torch.nonzero(held_out).squeeze(1)))


def long_tail(largest: int, classes: int, ratio: float) -> Tensor:
    """[classes]: n·ratio^(−c/(C−1)) images for class c, rounded down, at least one; the first class has n, the last
    n/ratio (Cui et al., CVPR 2019, as in long-tailed class-incremental learning, Liu et al., ECCV 2022)."""
    position = torch.arange(classes, dtype=torch.float64) / max(classes - 1, 1)
    return (largest * ratio**-position + 1e-9).floor().clamp(min=1).long()
